"""The policy that a certificate is about: from the folder of a run or from a policy file, and what its costs can be."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corral import envs
from corral.certificates import bounds
from corral.config import Config
from corral.envs.contract import ConstraintSpec, Env, EnvSpec, HostEnv
from corral.errors import CorralError, brief, require
from corral.learning import update
from corral.learning.networks import Policy
from corral.rollout import make
from corral.rollout.sampler import Sampler
from corral.running import checkpoint, files, standalone
from corral.running.directory import RunDirectory


@dataclass(frozen=True)
class Subject:
    """A frozen policy with what its file or folder says of it."""

    policy: Policy
    source: Path
    spec: EnvSpec
    task: dict[str, float]
    limits: tuple[float, ...]
    discounts: tuple[float, ...]
    seed: int
    sha256: str
    """Of the bytes that the policy was made of."""

    def require_unchanged(self) -> None:
        """Refuse if the file is another now, or gone: nobody could hold the certificate to what was played."""
        advice = "copy a checkpoint of a run that goes on, and certify the copy"
        try:
            now = hashlib.sha256(files.read(self.source)).hexdigest()
        except OSError as error:
            raise CorralError(f"{self.source} is gone since its episodes began: {advice}") from error
        require(now == self.sha256, f"{self.source} was replaced while its episodes were played: {advice}")


def trained_in(path: Path) -> Config:
    """The configuration that makes the environment of a policy: that of its run, or what its file alone says."""
    meta = {} if path.is_dir() else checkpoint.read_meta(path)
    about = meta.get("policy")
    if about is None:
        return RunDirectory.find_one(path if path.is_dir() else RunDirectory.folder_of(path)).config()
    limits = {c["name"]: c["limit"] for c in about["constraints"]}
    own = {c["name"]: c["largest_step"] for c in about["constraints"] if c.get("largest_step") is not None}
    # What a Gymnasium environment does not say of itself is as it was in training.
    more = {name: meta["config"][name] for name in ("discount", "horizon") if meta.get("config", {}).get(name)}
    return Config(about["env"]["name"], task=about["env"]["task"], limit=limits, largest_step=own, **more)


def open_sampler(path: Path, env: Env | HostEnv | Sampler | None) -> Sampler:
    """What plays episodes in the environment that the policy was trained in."""
    if env is not None:
        return make.sampler(env)
    config = trained_in(path)
    try:
        return make.from_config(config)
    except CorralError as error:
        raise CorralError(f"{path} was trained in {config.env}, which cannot be made by its name: {error}") from error


def load_subject(path: Path, spec: EnvSpec) -> Subject:
    """The policy in the folder of a run or in one file, to act in the environment of this spec.

    The file is read once: the policy, its limits and its hash are those of the same bytes.
    """
    source = RunDirectory.find_one(path).policy_file() if path.is_dir() else path
    content = files.read(source)
    sha256 = hashlib.sha256(content).hexdigest()
    meta = checkpoint.read_meta(source, content)
    if meta.get("policy") is None:
        return _of_run(source, content, sha256, meta, spec)
    found = standalone.read(source, None, content)
    assert found is not None
    _require_same(source, found.spec, spec)
    about = meta["policy"]
    limits, gammas = (tuple(float(c[k]) for c in about["constraints"]) for k in ("limit", "discount"))
    return Subject(found.policy, source, spec, about["env"]["task"], limits, gammas, int(about["seed"]), sha256)


def _of_run(source: Path, content: bytes, sha256: str, meta: dict[str, Any], spec: EnvSpec) -> Subject:
    """The policy in a checkpoint, or in a file of an earlier version; the folder says the rest."""
    run = RunDirectory.find_one(RunDirectory.folder_of(source))
    config = run.config()
    trained = meta.get("env", spec.name)
    require(trained == spec.name, f"{source} was trained in {trained}, and cannot be certified in {spec.name}")
    if config.env in envs.names():
        _require_same(source, envs.spec(config.env, **config.task), spec)
    policy = run.policy_in(source, content, spec)
    limits, gammas = update.limits(config, spec), update.cost_discounts(config, spec)
    return Subject(policy, source, spec, dict(config.task), tuple(limits), tuple(gammas), config.seed, sha256)


def _require_same(source: Path, trained: EnvSpec, spec: EnvSpec) -> None:
    """Refuse an environment that differs from the policy's own in anything that a certificate rests on."""
    own, given = _facts(trained), _facts(spec)
    for name in own:
        require(
            own[name] == given.get(name),
            f"{source} was trained in {trained.name}, and cannot be certified in {spec.name}: {name} is "
            f"{brief(own[name])} there and {brief(given.get(name))} here",
        )


def _facts(spec: EnvSpec) -> dict[str, Any]:
    """What a certificate rests on, by name; limits are those of the policy, and descriptions are words."""
    fields = ("name", "observation_size", "observation", "action", "horizon")
    facts = {field: getattr(spec, field) for field in fields}
    facts["the list of constraints"] = [c.name for c in spec.constraints]
    for c in spec.constraints:
        facts |= {f"{field} of {c.name}": getattr(c, field) for field in ("discount", "largest", "largest_step")}
    return facts


@dataclass(frozen=True)
class Range:
    """What one constraint's costs can be."""

    step: float
    """The most that a step can cost, in single precision, in which costs come."""
    episode: float
    """The most that an episode can."""


def ranges_of(subject: Subject, stated: float | tuple[float, ...] | None) -> list[Range]:
    """For each constraint the largest cost of a step and of an episode: as stated by the user, else by the
    environment."""
    constraints = subject.spec.constraints
    own = stated if isinstance(stated, tuple) else (stated,) * len(constraints)
    require(
        len(own) == len(constraints),
        f"max_step_cost must be one number or one for each of the {len(constraints)} constraints, got {len(own)}",
    )
    return [_range(subject.spec, c, g, o) for c, g, o in zip(constraints, subject.discounts, own, strict=True)]


def _range(spec: EnvSpec, constraint: ConstraintSpec, gamma: float, stated: float | None) -> Range:
    if stated is not None:
        _require_no_less(spec, constraint, gamma, float(stated))
    step = constraint.largest_step if stated is None else float(stated)
    whole = constraint.largest if stated is None else None
    require(
        step is not None or whole is not None,
        f"{spec.name} does not state how much a step of {constraint.name} can cost, and a bound needs it: say so with "
        "--max-step-cost NUMBER (max_step_cost in Python)",
    )
    most = bounds.largest_sum(step, whole, gamma, spec.horizon)
    assert most is not None
    require(most > 0 and math.isfinite(most), f"the largest cost of {constraint.name} must be positive, got {most}")
    # In single precision 0.1 is 0.10000000149.
    return Range(math.inf if step is None else max(step, float(np.float32(step))), most)


def _require_no_less(spec: EnvSpec, constraint: ConstraintSpec, gamma: float, stated: float) -> None:
    """Refuse a largest cost of a step under what the environment itself states of a step or of an episode."""
    name, step = constraint.name, constraint.largest_step
    said = f"max_step_cost {stated:g} is too small for {name}: {spec.name} itself states that"
    require(step is None or stated >= step, f"{said} a step can cost {step}")
    own = bounds.largest_sum(step, constraint.largest, gamma, spec.horizon)
    most = bounds.largest_sum(stated, None, gamma, spec.horizon)
    assert most is not None
    require(own is None or most >= own, f"{said} an episode can cost {own}, and its {spec.horizon} steps could not")

"""The policy that a certificate is about: from the folder of a run or from a policy file, and what its costs can be."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from corral.certificates import bounds
from corral.config import Config
from corral.envs.contract import ConstraintSpec, Env, EnvSpec, HostEnv
from corral.errors import CorralError, require
from corral.learning import update
from corral.learning.networks import Policy
from corral.rollout import make
from corral.rollout.sampler import Sampler
from corral.running import checkpoint, standalone
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


def trained_in(path: Path) -> Config:
    """The configuration that makes the environment of a policy: that of its run, or what its file alone says."""
    about = None if path.is_dir() else checkpoint.read_meta(path).get("policy")
    if about is None:
        return RunDirectory.find_one(path if path.is_dir() else path.parent).config()
    limits = {c["name"]: c["limit"] for c in about["constraints"]}
    # Discounts belong to the environment; a Gymnasium environment has those of the file.
    own = {c["name"]: c["largest_step"] for c in about["constraints"] if c.get("largest_step") is not None}
    return Config(about["env"]["name"], task=about["env"]["task"], limit=limits, largest_step=own)


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
    """The policy in the folder of a run or in a policy file, to act in the environment of this spec."""
    if path.is_dir() or checkpoint.read_meta(path).get("policy") is None:
        run = RunDirectory.find_one(path if path.is_dir() else path.parent)
        config = run.config()
        policy, source = run.policy(config, spec)
        limits, gammas = update.limits(config, spec), update.cost_discounts(config, spec)
        return Subject(policy, source, spec, dict(config.task), tuple(limits), tuple(gammas), config.seed)
    found = standalone.read(path)
    assert found is not None
    own, about = found.spec, found.meta["policy"]
    fits = (own.name, own.observation_size, len(own.constraints)) == (
        spec.name,
        spec.observation_size,
        len(spec.constraints),
    )
    require(fits, f"{path} was trained in {own.name}, and cannot act in {spec.name}")
    limits, gammas = (tuple(float(c[k]) for c in about["constraints"]) for k in ("limit", "discount"))
    return Subject(found.policy, path, spec, about["env"]["task"], limits, gammas, int(about["seed"]))


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

"""Hold a certificate to its policy: the same bytes, the same environment, the same limits, and bounds that follow."""

import hashlib
from pathlib import Path
from typing import Any

from corral.certificates import certificate
from corral.certificates.bounds import largest_sum
from corral.certificates.certificate import Certificate
from corral.errors import require
from corral.policy.huggingface import WEIGHTS
from corral.running import checkpoint
from corral.running.directory import RunDirectory


def check(path: Path | str, policy: Path | str | None = None) -> Certificate:
    """The certificate in a file, if it holds for the policy: the one that it names, or another file or folder of a run.

    CorralError if the certificate was altered, its bounds do not follow from its episodes, or it is about another
    policy, another environment or other limits.
    """
    found = certificate.read(path)
    with certificate.of_its_form(path):
        certificate.verify(found)
    source = _find(Path(path), found, None if policy is None else Path(policy))
    digest = _hash(source)
    require(
        digest == found.policy["sha256"],
        f"{path} is about another policy than {source}: it names {found.policy['sha256'][:12]}…, the file is {digest[:12]}…",
    )
    _require_same_environment(path, found, source)
    return found


def _find(path: Path, found: Certificate, policy: Path | None) -> Path:
    """The policy file to hold a certificate to."""
    if policy is not None and policy.is_dir():
        return RunDirectory.find_one(policy).policy_file()
    named = Path(found.policy["file"])
    beside = [named, path.parent / named.name, path.parent / WEIGHTS]
    places = [place for place in ([policy] if policy is not None else beside) if place.is_file()]
    require(len(places) > 0, f"the policy of {path} is not at {named}: name its file or the folder of its run")
    return next((place for place in places if _hash(place) == found.policy["sha256"]), places[0])


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _require_same_environment(path: Path | str, found: Certificate, source: Path) -> None:
    """Hold the certificate's environment and limits to what the policy file, and its folder if it has one, say."""
    said = {name: found.environment[name] for name in ("name", "task")}
    limits = {s.name: s.limit for s in found.constraints}
    about = checkpoint.read_meta(source).get("policy")
    if about is not None:
        own = {"name": about["env"]["name"], "task": about["env"]["task"]}
        require(own == said, f"{path} is about {_named(said)}, and {source} was trained in {_named(own)}")
        horizon, own_horizon = found.environment["horizon"], about["env"]["horizon"]
        require(
            horizon == own_horizon,
            f"{path} is about {horizon} steps of {said['name']}, and {source} was trained in {own_horizon}",
        )
        trained = {c["name"]: c["limit"] for c in about["constraints"]}
        require(trained == limits, f"{path} is about the limits {limits}, and {source} was trained under {trained}")
        _require_same_ranges(path, found, about, source)
    folder = RunDirectory.folder_of(source)
    run = RunDirectory(folder)
    if run.exists:
        config = run.config()
        own = {"name": config.env, "task": dict(config.task)}
        require(own == said, f"{path} is about {_named(said)}, and the run in {folder} is about {_named(own)}")
        own_limits = config.limit
        if not isinstance(own_limits, dict):
            own_limits = dict(zip(limits, own_limits, strict=False))
        require(
            all(limits.get(name) == limit for name, limit in own_limits.items()),
            f"{path} is about the limits {limits}, and the run in {folder} has {own_limits}",
        )
    require(about is not None or run.exists, f"nothing says in which environment {source} was trained")


def _require_same_ranges(path: Path | str, found: Certificate, about: dict[str, Any], source: Path) -> None:
    """Refuse bounds that rest on episodes that cost less at most than the policy file states."""
    stated = {c["name"]: c for c in about["constraints"]}
    for said in found.constraints:
        c = stated[said.name]
        most = largest_sum(c.get("largest_step"), c.get("largest"), c["discount"], about["env"]["horizon"])
        require(
            most is None or said.largest >= most,
            f"{path} rests on episodes that cost {said.largest} of {said.name} at most, and {source} states {most}",
        )


def _named(env: dict[str, Any]) -> str:
    task = ", ".join(f"{name} {value:g}" for name, value in env["task"].items())
    return f"{env['name']}{f' with {task}' if task else ''}"

"""Hold a certificate to its policy: the same bytes, the same environment, the same limits, and bounds that follow."""

import hashlib
from pathlib import Path
from typing import Any

from corral.certificates import certificate
from corral.certificates.certificate import Certificate
from corral.errors import require
from corral.running import checkpoint
from corral.running.directory import RunDirectory


def check(path: Path | str, policy: Path | str | None = None) -> Certificate:
    """The certificate in a file, if it holds for the policy: the one that it names, or another file or folder of a run.

    CorralError if the certificate was altered, its bounds do not follow from its episodes, or it is about another
    policy, another environment or other limits.
    """
    found = certificate.read(path)
    certificate.verify(found)
    source = _find(Path(path), found, None if policy is None else Path(policy))
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
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
    places = [policy] if policy is not None else [named, path.parent / named.name]
    source = next((place for place in places if place.is_file()), None)
    require(source is not None, f"the policy of {path} is not at {named}: name its file or the folder of its run")
    assert source is not None
    return source


def _require_same_environment(path: Path | str, found: Certificate, source: Path) -> None:
    """Hold the certificate's environment and limits to what the policy file, and its folder if it has one, say."""
    said = {"name": found.environment["name"], "task": found.environment["task"]}
    limits = {s.name: s.limit for s in found.constraints}
    about = checkpoint.read_meta(source).get("policy")
    if about is not None:
        own = {"name": about["env"]["name"], "task": about["env"]["task"]}
        require(own == said, f"{path} is about {_named(said)}, and {source} was trained in {_named(own)}")
        trained = {c["name"]: c["limit"] for c in about["constraints"]}
        require(trained == limits, f"{path} is about the limits {limits}, and {source} was trained under {trained}")
    folder = source.parent.parent if about is None and not RunDirectory(source.parent).exists else source.parent
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


def _named(env: dict[str, Any]) -> str:
    task = ", ".join(f"{name} {value:g}" for name, value in env["task"].items())
    return f"{env['name']}{f' with {task}' if task else ''}"

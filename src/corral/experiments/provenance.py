"""Where results come from: each run keeps an entry for every session that worked on it, with its code and machine."""

import json
import os
import platform
import subprocess
import time
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from corral import devices
from corral.experiments import plan
from corral.experiments.plan import Job, config_hash
from corral.running.directory import RunDirectory

_PACKAGES = ("corral", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "mujoco", "mujoco-mjx", "warp-lang")


class Session:
    """The work of this process on some runs, written down when it begins, now and then, and when it ends."""

    def __init__(self, jobs: list[Job], begins: int) -> None:
        """Begin with runs of one program, which go on from this iteration."""
        self._began, self._date = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._jobs, self._begins = jobs, begins
        self._before = [_sessions(job) for job in jobs]
        self._written = 0.0
        self.write(0)

    def tick(self, iterations: int) -> None:
        """Note that so many iterations have been made; writes at most once a minute."""
        if time.monotonic() - self._written > 60:
            self.write(iterations)

    def write(self, iterations: int) -> None:
        """Write the session into every run, with so many iterations made."""
        self._written = time.monotonic()
        for job, before in zip(self._jobs, self._before, strict=True):
            session = {
                "date": self._date,
                "seconds": round(self._written - self._began, 1),
                "first_iteration": self._begins,
                "iterations": iterations,
                "runs_side_by_side": len(self._jobs),
                **here(),
            }
            known = {"env": job.config.env, "seed": job.config.seed, "config_sha256": config_hash(job.config)}
            beside = {plan.PROGRAM: [job.key for job in self._jobs]}
            job.directory.save_provenance(known | beside | {"sessions": [*before, session]})


def _sessions(job: Job) -> list[Any]:
    """The sessions that a run remembers; none where its record is damaged."""
    found = job.directory.provenance().get("sessions")
    return found if isinstance(found, list) else []


@cache
def here() -> dict[str, Any]:
    """The code and the machine of this process."""
    device = jax.devices()[0]
    return {
        **_commit(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": devices.cores(),
        "gpu": device.device_kind if device.platform != "cpu" else None,
    }


def _commit() -> dict[str, Any]:
    """The commit of the source and whether it was changed since; outside a checkout what CORRAL_COMMIT says."""
    source = Path(__file__).parent

    def git(*words: str) -> str:
        command = ["git", "-c", "safe.directory=*", "-C", str(source), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()

    try:
        return {
            "commit": git("rev-parse", "HEAD"),
            "dirty": bool(git("status", "--porcelain", "--", str(source.parent))),
        }
    except (OSError, subprocess.SubprocessError):
        return {"commit": os.environ.get("CORRAL_COMMIT"), "dirty": None}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def hours(runs: list[RunDirectory]) -> float:
    """The hours that runs took."""
    return _charged([session for run in runs for session in run.provenance().get("sessions", [])])


def _charged(sessions: list[dict[str, Any]]) -> float:
    """The hours of sessions. Runs side by side share the time: each is charged its part."""
    return round(sum(s["seconds"] / 3600 / max(1, s["runs_side_by_side"]) for s in sessions), 3)


def summary(runs: list[RunDirectory], known: dict[str, Any] | None = None, others: int = 0) -> dict[str, Any]:
    """The provenance of many runs in short: one entry for each machine and commit, with the work done there.

    `known` is the summary that so many `others` come from; its entries come first.
    """
    places: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
    for session in (session for run in runs for session in run.provenance().get("sessions", [])):
        names = ("commit", "dirty", "packages", "python", "platform", "cpu", "cores", "gpu")
        place = {name: session.get(name) for name in names}
        places.setdefault(json.dumps(place, sort_keys=True), (place, []))[1].append(session)
    work = []
    for place, sessions in places.values():
        dates = [s["date"] for s in sessions]
        done = {"hours": _charged(sessions), "iterations": sum(s["iterations"] for s in sessions)}
        work.append(place | done | {"first": min(dates), "last": max(dates)})
    before = (known or {}).get("work", [])
    return {"runs": len(runs) + others, "work": [*before, *sorted(work, key=lambda part: str(part["first"]))]}

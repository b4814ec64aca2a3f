"""Real kills of real training: `corral` in processes of their own, ended by SIGKILL, and taken up again until it is done.

A process is killed at a system call of a chosen number that changes a file, or sends a command to a worker, or a moment
after it. The result must be that of the same command which nobody killed, and no worker may outlive its parent.
"""

import atexit
import collections
import contextlib
import functools
import multiprocessing
import os
import random
import secrets
import shutil
import signal
import sys
import time
import unittest.mock
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import NamedTuple

import jax

from attack import cartpole, system_calls
from attack.judge import Attack, Wrong, new_folder
from attack.kills import require_as_if_never_killed
from corral.cli import main
from corral.running.directory import RunDirectory

# What every process needs is imported once, by the process that all of them are forked from (`_processes`).
from corral.cli import grid, resume, train  # noqa: F401 isort: skip
from corral.display import training  # noqa: F401 isort: skip
from corral.experiments import pipeline  # noqa: F401 isort: skip
from corral.report import run_figure  # noqa: F401 isort: skip
from corral.running import loop  # noqa: F401 isort: skip

SECONDS = 900.0
"""After which an attack counts as hanging: it starts up to six processes, each of which compiles its programs."""
ORPHANS_END = 20.0
"""Seconds that workers have to notice that their parent is no more."""
MARK = "CORRAL_ATTACK"
"""The environment variable by which the processes of an attack know each other."""

SMALL = ["--networks.hidden", "8", "--critic.epochs", "2", "--iterations", "6", "--checkpoint-every", "2"]
POINT = ["train", "point-gather", "--task", "max_steps=10", "--batch-size", "100", *SMALL]
CART = ["train", f"{cartpole.__name__}:{cartpole.ID}", "--limit", "5", "--batch-size", "100", "--workers", "2", *SMALL]
EXPERIMENT = """
title = "Two limits"
environments = ["point-gather"]
[[runs]]
label = "CPO"
settings = { limit = [[0.05], [0.2]], networks.hidden = [[8]], critic.epochs = 2 }
[scale.small]
seeds = 2
iterations = 6
batch_size = 100
point-gather = { task = { max_steps = 10 } }
"""


class Scenario(NamedTuple):
    """A command that is killed."""

    command: list[str]
    kills: tuple[int, int]
    """The fewest and the most."""

    @property
    def is_grid(self) -> bool:
        """Whether the same command goes on with it; otherwise `corral resume` does."""
        return self.command[0] == "grid"


SCENARIOS = {
    "several seeds": Scenario([*POINT, "--seeds", "3"], (1, 4)),
    "a grid": Scenario(["grid", "--together", "2", "--checkpoint-every", "2"], (1, 4)),
    "workers": Scenario(CART, (1, 4)),
    "resumes of resumes": Scenario(POINT, (3, 5)),
}

landed: collections.Counter[str] = collections.Counter()
"""How many processes of each scenario have been killed; a kill that is planned for after the end does not land."""


class Kill(NamedTuple):
    """When a process is killed."""

    of_commands: bool
    """At a command to a worker, instead of a change of a file."""
    number: int
    """Of that call, from 0 on."""
    delay: float
    """Seconds after it; 0: in the middle of it."""
    file: str = ""
    """Only the moments count at which a file of this name is about to appear; none named: all calls."""

    def counts(self, name: str, given: tuple) -> bool:
        """Whether a system call is one of those that are counted."""
        if self.file:
            return name == "replace" and Path(given[1]).name == self.file
        return system_calls.to_a_process(name, given) == self.of_commands


def generate(rng: random.Random) -> Attack:
    """Kill one of the scenarios, several times in a row, and let it come to its end."""
    return of_scenario(rng.choice(list(SCENARIOS)), rng)


def of_scenario(name: str, rng: random.Random, most: int | None = None) -> Attack:
    """Kill this scenario; `most` bounds the number of kills."""
    scenario = SCENARIOS[name]
    count = min(rng.randint(*scenario.kills), most or scenario.kills[1])
    # Moments as shares of the work that is left, which a kill at a late moment makes little.
    shares = [rng.random() ** 2 if k < count - 1 else rng.random() for k in range(count)]
    commands = [rng.random() < 0.4 for _ in shares]
    delays = [rng.choice([0.0, rng.uniform(0.001, 0.1)]) for _ in shares]

    def act(folder: Path) -> None:
        (_, calls), now, left = uninterrupted(name), folder / "run", 1.0
        with marked() as mark:
            for share, of_commands, delay in zip(shares, commands, delays, strict=True):
                to_worker = of_commands and calls[True] > 0
                kill = Kill(to_worker, int(share * left * calls[to_worker]), delay)
                status = _process(scenario, now, mark, kill)
                require_no_orphans(mark)
                if status == 0:
                    break
                if status != -signal.SIGKILL:
                    raise Wrong(f"{kill}: exit status {status}: {_said(now)}")
                landed[name] += 1
                left *= 1 - share
            require_goes_on(name, now, mark)

    where = ", ".join(f"{100 * share:.0f}%" for share in shares)
    return Attack(f"{name}, killed {len(shares)} times, after {where} of what was left", act, SECONDS)


def killed_at(name: str, kill: Kill, folder: Path) -> None:
    """Kill a scenario once, at this moment, which must come; then it must go on as if nobody had."""
    with marked() as mark:
        status = _process(SCENARIOS[name], folder, mark, kill)
        if status != -signal.SIGKILL:
            raise Wrong(f"{kill}: exit status {status}: {_said(folder)}")
        require_goes_on(name, folder, mark)


def require_goes_on(name: str, folder: Path, mark: str) -> None:
    """Let a scenario come to its end in this folder; raise `Wrong` unless that is the end of one that nobody killed."""
    scenario, (whole, _) = SCENARIOS[name], uninterrupted(name)
    status = _process(scenario, folder, mark)
    if status != 0:
        raise Wrong(f"the last process ended with exit status {status}: {_said(folder)}")
    require_no_orphans(mark)
    runs = [str(run.path.relative_to(whole)) for run in RunDirectory.find_all(whole)] if scenario.is_grid else None
    require_as_if_never_killed(whole, folder, runs)


@functools.cache
def uninterrupted(name: str) -> tuple[Path, dict[bool, int]]:
    """The folder of a scenario that nobody killed, and the number of its system calls: to workers (True), others (False)."""
    folder = new_folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with marked() as mark:
        status = _process(SCENARIOS[name], folder / "whole", mark)
        if status != 0:
            raise Wrong(f"{name}, which nobody killed, ended with exit status {status}: {_said(folder / 'whole')}")
    to_workers, others = map(int, _beside(folder / "whole", "calls").read_text().split())
    return folder / "whole", {True: to_workers, False: others}


# -- processes ---------------------------------------------------------------------------------------------------------


def _process(scenario: Scenario, folder: Path, mark: str, kill: Kill | None = None) -> int:
    """Begin a scenario in this folder, or go on with it, in a process that may be killed; its exit status."""
    process = _processes().Process(target=_work, args=(scenario, folder, mark, kill))
    process.start()
    try:
        process.join()
    finally:
        process.kill()
        process.join()
    assert process.exitcode is not None
    return process.exitcode


@functools.cache
def _processes() -> "multiprocessing.context.ForkServerContext":
    """New processes begin as forks of one that has imported this module and done nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with unittest.mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        forkserver.ensure_running()
    return context


def _work(scenario: Scenario, folder: Path, mark: str, kill: Kill | None) -> None:
    """What such a process does: what the user of a shell would."""
    os.environ[MARK] = mark
    said = os.open(_beside(folder, "said"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
    made: collections.Counter[bool] = collections.Counter()

    def count(name: str, given: tuple) -> None:
        made[system_calls.to_a_process(name, given)] += 1

    with system_calls.watched(count if kill is None else system_calls.kill_at(kill.number, kill.counts, kill.delay)):
        status = _go_on(scenario, folder)
    _beside(folder, "calls").write_text(f"{made[True]} {made[False]}")
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(status)


def _go_on(scenario: Scenario, folder: Path) -> int:
    """Begin, or go on where a run was killed; where that had written nothing yet, `corral resume` says so."""
    if scenario.is_grid:
        file = _beside(folder, "limits.toml")
        file.write_text(EXPERIMENT)
        return main([*scenario.command, str(file), "--out", str(folder)])
    refused = 2
    status = main(["resume", str(folder)]) if folder.exists() else refused
    return main([*scenario.command, "--out", str(folder)]) if status == refused else status


def _beside(folder: Path, name: str) -> Path:
    return folder.with_name(f"{folder.name}-{name}")


def _said(folder: Path) -> str:
    """The last words of the newest process."""
    return " / ".join(_beside(folder, "said").read_text(errors="replace").splitlines()[-3:])


# -- orphans -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def marked() -> Iterator[str]:
    """A mark for processes; those that still bear it at the end are killed."""
    mark = secrets.token_hex(16)
    try:
        yield mark
    finally:
        for pid in _bearing(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _bearing(mark: str) -> list[int]:
    """The processes that were started with this mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def require_no_orphans(mark: str) -> None:
    """Raise `Wrong` where a process that bears this mark stays; a zombie, which only waits to be counted, has none."""
    until = time.monotonic() + ORPHANS_END
    while left := _bearing(mark):
        if time.monotonic() > until:
            raise Wrong(f"processes {left} live {ORPHANS_END:g} s after their parent")
        time.sleep(0.02)

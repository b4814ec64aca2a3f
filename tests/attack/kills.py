"""Kills at chosen system calls: what one leaves is resumed, and must end bit for bit like the run that nobody killed.

SIGKILL leaves a folder as the last completed system call left it. So a kill is a copy of the folder, taken in the middle of
the run, before a call or with half of it done; many of them cost no more than the run. `driver.py` kills processes for real.
"""

import atexit
import contextlib
import functools
import json
import random
import shutil
import unittest.mock
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from toys import BASE, Stub, stubbed

from attack import system_calls
from attack.files import require_same
from attack.judge import Attack, Wrong, new_folder
from corral.errors import CorralError
from corral.experiments import provenance, runner
from corral.experiments.plan import Job
from corral.running import lock, loop

ITERATIONS = 6
CONFIG = replace(BASE, iterations=ITERATIONS)
GRID = ("a/seed-0", "a/seed-1", "b/seed-0")


def train(folder: Path, seeds: int) -> None:
    """A run from its beginning."""
    loop.run(CONFIG, folder, seeds=seeds, checkpoint_every=2)


def resume(folder: Path, seeds: int) -> None:
    """A run goes on; one that had not written its configuration yet begins."""
    try:
        loop.resume(folder)
    except CorralError as error:
        if "is not the folder of a run" not in str(error):
            raise
        train(folder, seeds)


def grid(folder: Path, seeds: int, iterations: int = ITERATIONS) -> None:
    """A grid begins, or goes on."""
    configs = [replace(CONFIG, seed=k, iterations=iterations) for k in range(len(GRID))]
    jobs = [Job(config, folder / name, name) for config, name in zip(configs, GRID, strict=True)]
    quiet = SimpleNamespace(**dict.fromkeys(("start", "program", "update", "note", "stop"), lambda *_: None))
    with lock.owned(folder):
        outcome = runner.run(jobs, quiet, runner.How(checkpoint_every=2, together=2))
    if outcome.failures or outcome.unfinished:
        raise Wrong(f"the grid ended with {outcome}")


def grid_twice(folder: Path, seeds: int) -> None:
    """A grid comes to its end, and then gets more iterations."""
    grid(folder, seeds, ITERATIONS - 2)
    grid(folder, seeds)


Work = Callable[[Path, int], None]
SCENARIOS: dict[str, tuple[Work, Work, int]] = {
    "a run": (train, resume, 1),
    "a run of three seeds": (train, resume, 3),
    "a grid": (grid, grid, 0),
    "a grid that gets more iterations": (grid_twice, grid, 0),
}
"""How it begins, how it goes on, and its seeds."""


def generate(rng: random.Random) -> Attack:
    """Kill a run, or a grid, once or several times, each time at another system call."""
    name = rng.choice(list(SCENARIOS))
    begin, go_on, seeds = SCENARIOS[name]
    moments = [rng.random() for _ in range(rng.choice([1, 1, 2, 3]))]
    shares = [rng.choice([None, None, rng.random()]) for _ in moments]

    def act(folder: Path) -> None:
        with ready():
            (whole, calls), work = uninterrupted(name), begin
            now = folder / "0"
            for k, (moment, share) in enumerate(zip(moments, shares, strict=True), 1):
                now = killed(work, now, folder / str(k), seeds, int(moment * calls), share)
                work = go_on
            work(now, seeds)
        require_as_if_never_killed(whole, now, None if seeds else GRID)

    often = f", killed {len(moments)} times" if len(moments) > 1 else ", killed"
    return Attack(f"{name}{often} at {', '.join(f'{100 * m:.0f}%' for m in moments)} of its system calls", act)


def require_as_if_never_killed(whole: Path, other: Path, runs: Sequence[str] | None) -> None:
    """Raise `Wrong` unless both folders hold the same results and nothing of a kill stayed behind; `runs` are a grid's."""
    for run in [""] if runs is None else runs:
        require_same(whole / run, other / run)
    # A grid leaves finished runs alone, and with them the lock of a process that was killed after finishing one.
    hidden = [path for path in other.rglob(".*") if runs is None or path.name != lock.FILE]
    if hidden:
        raise Wrong(f"{', '.join(map(str, hidden))} stayed behind")


@functools.cache
def uninterrupted(name: str) -> tuple[Path, int]:
    """The run, or the grid, of a scenario that nobody killed, and the number of its system calls."""
    begin, _, seeds = SCENARIOS[name]
    folder = new_folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    calls: list[str] = []
    with system_calls.watched(lambda call, given: calls.append(call)):
        begin(folder / "whole", seeds)
    return folder / "whole", len(calls)


@contextlib.contextmanager
def ready():
    """Train a stub, in a process that asks for no proof that a dead process is dead."""
    with (
        stubbed(),
        unittest.mock.patch.object(runner, "Trainer", Stub),
        unittest.mock.patch.object(provenance, "here", dict),  # it would ask git for the commit
        # Both take most of the time of a run that computes nothing.
        unittest.mock.patch.object(runner.gc, "collect"),
        unittest.mock.patch.object(runner.jax, "clear_caches"),
        unittest.mock.patch.object(lock, "_SETTLE", 0.0),
    ):
        yield


class Killed(BaseException):
    """Ends the work on the original once the copy has been taken: what happens to it now is of no interest."""


def killed(work: Work, folder: Path, to: Path, seeds: int, moment: int, share: float | None) -> Path:
    """Work in a folder, and copy what a kill would leave at the system call of this number to another.

    `share` is the part of that call that is done; None: nothing of it. Where the work ends before, nobody is killed.
    """
    left = moment

    def happens(name: str, given: tuple) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            tear = system_calls.torn(name, given, share) if share is not None else None
            if folder.exists():
                shutil.copytree(folder, to)
            if tear is not None:
                tear(folder, to)
            raise Killed

    try:
        with system_calls.watched(happens):
            work(folder, seeds)
        shutil.copytree(folder, to)
    except Killed:
        dead(to)
    return to


def dead(folder: Path) -> None:
    """Make the locks in a copied folder those of a process that is no more: its number went to one that began later."""
    for path in folder.rglob(lock.FILE):
        with contextlib.suppress(ValueError):
            path.write_text(json.dumps(json.loads(path.read_text()) | {"began": "1"}))

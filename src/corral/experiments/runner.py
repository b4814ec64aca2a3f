"""Carry out a grid of runs: skip finished runs, resume interrupted ones, go on when one fails, stop when asked to."""

import contextlib
import gc
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax

from corral.config import RunOptions
from corral.errors import CorralError
from corral.experiments import plan
from corral.experiments.plan import Job
from corral.experiments.provenance import Session
from corral.rollout import make
from corral.running import lock, loop
from corral.running.trainer import Trainer


@dataclass(frozen=True)
class How:
    """The way a grid is carried out; nothing here changes what is computed."""

    minutes: float | None = None
    """Stop, with everything saved, before this time is over."""
    together: int | None = None
    """The most runs side by side in one program; None: as many as fit the rules of `plan.programs`."""
    checkpoint_every: int = 10
    """Iterations between checkpoints."""
    threads: int | None = None
    """Threads that simulate on the CPU; None: one per core."""


@dataclass
class Outcome:
    """How the training of a grid ended."""

    failures: dict[str, str] = field(default_factory=dict)
    """The first line of each failed run's error, by the name of the run."""
    stopped: Literal["", "asked", "time"] = ""
    """Why it ended early: it was asked to, or the time was over."""
    unfinished: int = 0


class Part(NamedTuple):
    """The work that is left in one program."""

    env: str
    iterations: int
    steps: int
    """Environment steps per iteration, of all its runs together."""


@runtime_checkable
class Progress(Protocol):
    """Hears how far a grid has got."""

    def start(self, done: int, total: int, runs: int, finished: int) -> None:
        """`done` of `total` steps of the grid are made, `finished` of its `runs` complete."""

    def program(self, jobs: Sequence[Job], begins: int, part: Part, waiting: Sequence[Part]) -> None:
        """These runs are about to be trained side by side, from iteration `begins` on; others wait."""

    def update(self, row: Mapping[str, Any]) -> None:
        """An iteration has ended."""

    def note(self, text: str) -> None:
        """Something is worth a line."""

    def stop(self) -> None:
        """Training has ended."""


class TimeIsUp(CorralError):
    """Raised by a watcher between two iterations: the loop saves its state before it lets such an error out."""


def run(jobs: Sequence[Job], progress: Progress, how: How) -> Outcome:
    """Train every job that is not finished, program after program.

    A program that fails is split in two: a run that cannot be trained ends up alone, and a program that was too large for
    the memory becomes smaller.
    """
    deadline = time.monotonic() + 60 * how.minutes if how.minutes is not None else None
    begins = [job.done for job in jobs]
    todo = plan.unfinished(jobs, begins)
    sweep(jobs, progress)
    queue = deque(plan.programs(todo, jax.default_backend() == "cpu", how.together))
    progress.start(
        sum(begin * job.config.batch_size for job, begin in zip(jobs, begins, strict=True)),
        sum(job.config.iterations * job.config.batch_size for job in jobs),
        len(jobs),
        sum(begin == job.config.iterations for job, begin in zip(jobs, begins, strict=True)),
    )
    outcome = Outcome()
    try:
        while queue and not outcome.stopped:
            program = queue.popleft()
            if deadline is not None and time.monotonic() >= deadline:
                outcome.stopped = "time"
                break
            try:
                if _train(program, queue, progress, how, deadline):
                    outcome.stopped = "asked"
            except TimeIsUp:
                outcome.stopped = "time"
            except Exception as error:
                _split_or_record(program, error, queue, outcome, progress)
    except KeyboardInterrupt:
        outcome.stopped = "asked"
    finally:
        progress.stop()
    outcome.unfinished = sum(job.done < job.config.iterations for job in jobs)
    return outcome


def sweep(jobs: Sequence[Job], progress: Progress) -> None:
    """Remove what killed writes have left in the folders of runs: nobody writes to that of a finished one any more."""
    for job in jobs:
        if job.directory.leftovers():
            # Where another process lives that owns the folder, it is writing there.
            with contextlib.suppress(CorralError), lock.owned(job.folder, note=progress.note):
                job.directory.sweep()


def _train(
    program: list[Job], queue: Sequence[list[Job]], progress: Progress, how: How, deadline: float | None
) -> bool:
    """Train one program to its end; returns whether Ctrl-C ended it before."""
    with lock.owned(*(job.folder for job in program), note=progress.note) as owned:
        return _train_owned(program, queue, progress, how, deadline, owned)


def _train_owned(
    program: list[Job],
    queue: Sequence[list[Job]],
    progress: Progress,
    how: How,
    deadline: float | None,
    owned: lock.Owned,
) -> bool:
    """Train a program whose folders this process owns."""
    # All of them go on from the newest checkpoint that they have in common.
    begins, config = min(job.done for job in program), program[0].config
    progress.program(program, begins, _part(program), [_part(waiting) for waiting in queue])
    for job in program:
        job.directory.begin(job.config)
    session = Session(program, begins)
    watcher = _Watcher(progress, session, config.iterations, deadline)
    try:
        with make.from_config(config, RunOptions(threads=how.threads)) as sampler:
            trainer = Trainer([job.config for job in program], sampler)
            runs = [job.directory for job in program]
            made = loop.train_into(runs, trainer, watcher, how.checkpoint_every, resume=True, owned=owned)
    finally:
        session.write(watcher.made)
        # Compiled programs hold memory that the next one may need.
        gc.collect()
        jax.clear_caches()
    for job in program:
        job.directory.save_error(None)
    return made.interrupted


class _Watcher(loop.Watcher):
    """Tells progress and provenance, and ends the loop when there is no time for another iteration."""

    def __init__(self, progress: Progress, session: Session, iterations: int, deadline: float | None) -> None:
        self._progress, self._session = progress, session
        self._iterations, self._deadline = iterations, deadline
        self._last: float | None = None
        self.made = 0

    def update(self, row: Mapping[str, Any]) -> None:
        """An iteration has ended."""
        self.made += 1
        self._progress.update(row)
        self._session.tick(self.made)
        now = time.monotonic()
        took = now - self._last if self._last is not None else 0.0
        self._last = now
        more = int(row["iteration"]) + 1 < self._iterations
        if more and self._deadline is not None and now + took > self._deadline:
            raise TimeIsUp("the time given with --minutes is over")

    def note(self, text: str) -> None:
        """Something is worth a line."""
        self._progress.note(text)


def _split_or_record(
    program: list[Job], error: Exception, queue: deque[list[Job]], outcome: Outcome, progress: Progress
) -> None:
    """Put the two halves of a failed program back into the queue; record the failure of a single run."""
    reason = _reason(error)
    if len(program) > 1:
        half = len(program) // 2
        progress.note(f"failed: {reason}; trying these {len(program)} runs again in two halves")
        queue.extendleft([program[half:], program[:half]])
        return
    job = program[0]
    outcome.failures[job.name] = reason
    progress.note(f"failed: {job.name}: {reason}")
    job.directory.save_error("".join(traceback.format_exception(error)))


def _reason(error: Exception) -> str:
    """The first line of an error, with its type unless it is a CorralError."""
    text = (str(error).strip().splitlines() or [""])[0][:300]
    return text if isinstance(error, CorralError) else f"{type(error).__name__}: {text}"


def _part(program: list[Job]) -> Part:
    config = program[0].config
    left = config.iterations - min(job.done for job in program)
    return Part(config.env, left, len(program) * config.batch_size)

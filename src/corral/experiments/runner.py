"""Carry out a grid of runs: skip what is done, resume what was interrupted, go on when one fails, stop when asked to."""

import fcntl
import gc
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax

from corral.cli.progress import GridProgress, Part
from corral.errors import CorralError
from corral.experiments import plan
from corral.experiments.plan import Job
from corral.experiments.provenance import Session
from corral.running import config_file
from corral.running import loop as training
from corral.running.files import write_atomically
from corral.running.trainer import Trainer

ERROR = "error.txt"
"""In the folder of a run that failed: why."""


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
    """What became of a grid."""

    failures: dict[str, str] = field(default_factory=dict)
    """By the name of the run, the last line of its error."""
    stopped: Literal["", "asked", "time"] = ""
    """Why it ended before its time."""
    unfinished: int = 0


class TimeIsUp(CorralError):
    """Raised by a watcher between two iterations: the loop saves its state before it lets such an error out."""


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Work on a folder of results that nobody else works on: two processes would write each other's runs."""
    out.mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "w") as file:
        try:
            fcntl.flock(
                file, fcntl.LOCK_EX | fcntl.LOCK_NB
            )  # given back when the process ends, however it ends
        except OSError:
            raise CorralError(
                f"another process is working on {out}: wait for it, or choose another --out"
            ) from None
        yield


def run(jobs: Sequence[Job], progress: GridProgress, how: How) -> Outcome:
    """Train every job that is not finished, program after program.

    One at a time, on the CPU as well: simulation keeps all cores busy through its threads, and XLA spreads the update over
    them, so a second process would have to take them from the first. A program that fails is split
    in two, so that a run that cannot be trained ends up alone, and one that was too large for the memory becomes smaller.
    """
    deadline = time.monotonic() + 60 * how.minutes if how.minutes is not None else None
    begins = {job.folder: plan.done(job) for job in jobs}
    todo = [job for job in jobs if begins[job.folder] < job.config.iterations]
    queue = deque(plan.programs(todo, jax.default_backend() == "cpu", how.together))
    steps = {job.folder: job.config.batch_size for job in jobs}
    progress.start(
        sum(begins[job.folder] * steps[job.folder] for job in jobs),
        sum(job.config.iterations * steps[job.folder] for job in jobs),
        len(jobs),
        len(jobs) - len(todo),
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
    outcome.unfinished = sum(plan.done(job) < job.config.iterations for job in jobs)
    return outcome


def _train(
    program: list[Job], queue: Sequence[list[Job]], progress: GridProgress, how: How, deadline: float | None
) -> bool:
    """Train one program to its end; whether Ctrl-C ended it before."""
    begins = [plan.done(job) for job in program]
    progress.program(program, min(begins), [_part(waiting) for waiting in queue])
    for job in program:
        (job.folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        config_file.save(job.config, job.folder / "config.toml")
    session = Session(program, begins)
    watcher = _Watcher(progress, session, program[0].config.iterations, deadline)
    env = training.make_env(program[0].config, how.threads)
    try:
        trainer = Trainer([job.config for job in program], env)
        folders = [job.folder for job in program]
        made = training.loop(trainer, folders, watcher, checkpoint_every=how.checkpoint_every, resume=True)
    finally:
        session.write(watcher.made)
        close = getattr(env, "close", None)
        if close is not None:
            close()
        # Compiled programs hold memory that the next one may need.
        del env
        gc.collect()
        jax.clear_caches()
    for job in program:
        (job.folder / ERROR).unlink(missing_ok=True)
    return made.interrupted


class _Watcher:
    """Tells progress and provenance, and ends the loop when there is no time for another iteration."""

    def __init__(
        self, progress: GridProgress, session: Session, iterations: int, deadline: float | None
    ) -> None:
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
        """Something worth a line."""
        self._progress.note(text)


def _split_or_record(
    program: list[Job], error: Exception, queue: deque[list[Job]], outcome: Outcome, progress: GridProgress
) -> None:
    """Two halves to try again, or a run that has failed for good."""
    reason = _reason(error)
    if len(program) > 1:
        half = len(program) // 2
        progress.note(f"failed: {reason}; trying these {len(program)} runs again in two halves")
        queue.extendleft([program[half:], program[:half]])
        return
    job = program[0]
    outcome.failures[job.name] = reason
    progress.note(f"failed: {job.name}: {reason}")
    write_atomically(job.folder / ERROR, "".join(traceback.format_exception(error)).encode())


def _reason(error: Exception) -> str:
    """The first line of an error, with its kind unless it is one of ours."""
    text = (str(error).strip().splitlines() or [""])[0][:300]
    return text if isinstance(error, CorralError) else f"{type(error).__name__}: {text}"


def _part(program: list[Job]) -> Part:
    config = program[0].config
    left = config.iterations - min(plan.done(job) for job in program)
    return Part(config.env, left, len(program) * config.batch_size)

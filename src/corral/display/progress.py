"""Progress on a terminal and elsewhere: a bar for one long task, and the two bars of a grid with the time left."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import rich.console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from corral.envs import registry

if TYPE_CHECKING:
    from corral.experiments.plan import Job
    from corral.experiments.runner import Part

QUIET = 20.0
"""Seconds between two lines of a grid where there is no terminal."""


class Console(rich.console.Console):
    """A console that says when its reader has gone; Rich's own ends the process, and with it the training."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, once: there is nobody to write to any more."""
        self.quiet = True
        raise BrokenPipeError


def say(line: str) -> None:
    """Print a line about what is going on to stderr."""
    print(line, file=sys.stderr, flush=True)


def say_what_is_imported(env: str, source: str) -> None:
    """Tell, before it is done, that an environment's name has Python import a module; `source` says who named it."""
    if (module := registry.module_of(env)) is not None:
        say(f"importing the Python module {module}, which {source} names: its code will run on this machine")


@contextmanager
def bar(what: str, unit: str = "", lines: int = 10) -> Iterator[Callable[[int, int], None]]:
    """Show on stderr how far a task has got: yields `advance(done, total)`.

    A terminal shows a bar titled `what`, which disappears at the end. Elsewhere about so many `lines` "3 of 30 UNIT" are
    printed; `unit` is `what` unless given.
    """
    if sys.stderr.isatty():
        with Progress(console=Console(stderr=True), transient=True) as shown:
            task = shown.add_task(what, total=None)
            yield lambda done, total: shown.update(task, completed=done, total=total)
        return
    printed = 0

    def advance(done: int, total: int) -> None:
        nonlocal printed
        reached = lines * done // max(total, 1)
        if reached > printed:
            printed = reached
            say(f"{done:,} of {total:,} {unit or what}")

    yield advance


def clock(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Estimate:
    """Time left: seconds per step as measured in each environment, and a first iteration, which compiles, per program."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[tuple[float, int]]] = {}
        self._firsts: list[float] = []

    def first(self, seconds: float) -> None:
        """The first iteration of a program took so long."""
        self._firsts.append(seconds)

    def later(self, part: "Part", seconds: float) -> None:
        """A later iteration of this program took so long."""
        self._recent.setdefault(part.env, deque(maxlen=20)).append((seconds, part.steps))

    def left(self, current: "Part", waiting: "Sequence[Part]") -> float | None:
        """Seconds, None while nothing is known; an environment not seen yet is taken for an average one."""
        if not self._recent:
            return None
        everything = [pair for pairs in self._recent.values() for pair in pairs]
        compiling = sum(self._firsts) / max(1, len(self._firsts))

        def work(part: "Part") -> float:
            seconds, steps = zip(*self._recent.get(part.env, everything), strict=True)
            return part.iterations * part.steps * sum(seconds) / sum(steps)

        return work(current) + sum(compiling + work(part) for part in waiting)


class GridProgress:
    """Shows how far a grid of runs has got; `corral.experiments.runner` tells it."""

    def __init__(self, console: rich.console.Console) -> None:
        self.console = console
        self._estimate = Estimate()
        self._bars: Progress | None = None
        self._printed = 0.0

    def start(self, done: int, total: int, runs: int, finished: int) -> None:
        """`done` of `total` steps of the grid are behind us, `finished` of its `runs` complete."""
        self._done, self._total, self._began = done, max(total, 1), time.monotonic()
        self.note(f"{runs} runs, {finished} of them finished, {done / self._total:.0%} of all steps done")
        if self.console.is_terminal and done < total:
            columns = (TextColumn("{task.description}"), BarColumn(None), TextColumn("{task.fields[words]}"))
            self._bars = Progress(*columns, console=self.console, expand=True)
            self._whole = self._bars.add_task("grid", total=total, completed=done, words="")
            self._now = self._bars.add_task("", total=1, words="")
            self._bars.start()

    def program(self, jobs: "Sequence[Job]", begins: int, part: "Part", waiting: "Sequence[Part]") -> None:
        """These runs are about to be trained side by side, from iteration `begins` on; others wait."""
        labels = dict.fromkeys(job.label for job in jobs)
        self._title = f"{part.env}, {len(jobs)} run{'s' if len(jobs) > 1 else ''}"
        self._part, self._iterations = part, begins + part.iterations
        self._waiting, self._last, self._fresh = list(waiting), time.monotonic(), True
        went = f", from iteration {begins}" if begins else ""
        self.note(f"{self._title} side by side{went}: {'; '.join(labels)}")
        self._bar(begins, "compiling, and sampling the first batch …")

    def update(self, row: Mapping[str, Any]) -> None:
        """An iteration has ended."""
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        if self._fresh:
            self._estimate.first(seconds)
        else:
            self._estimate.later(self._part, seconds)
        self._fresh = False
        # A program that was split makes iterations again, which count once.
        self._done = min(self._done + self._part.steps, self._total)
        made = int(row["iteration"]) + 1
        now_left = self._part._replace(iterations=self._iterations - made)
        left = self._estimate.left(now_left, self._waiting)
        ahead = "time left unknown" if left is None else f"about {clock(left)} left"
        share = f"{self._done / self._total:.0%}"
        rate = f"{row['steps_per_second']:,.0f} steps/s"
        if self._bars is not None:
            words = f"{share}  {clock(now - self._began)} gone, {ahead}"
            self._bars.update(self._whole, completed=self._done, words=words)
            self._bar(made, f"{made}/{self._iterations}  {rate}")
        elif now - self._printed > QUIET:
            self._printed = now
            where = f"{self._title}, iteration {made}/{self._iterations}, {rate}"
            self.note(f"{share} of the grid, {ahead}: {where}")

    def note(self, text: str) -> None:
        """Print a line, above the bars where there are any."""
        console = self._bars.console if self._bars is not None else self.console
        console.print(Text(text), soft_wrap=True)

    def stop(self) -> None:
        """Leave the last state of the bars on the screen."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _bar(self, made: int, words: str) -> None:
        """Update the bar of the program that is being trained."""
        if self._bars is not None:
            now: dict[str, Any] = {"description": self._title, "completed": made, "total": self._iterations}
            self._bars.update(self._now, **now, words=words)

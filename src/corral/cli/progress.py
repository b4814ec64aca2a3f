"""A whole grid as it happens: two bars on a terminal, now and then a line elsewhere, and how long it will take."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from corral.cli.display import clock
from corral.experiments.plan import Job

QUIET = 20.0
"""Seconds between two lines where there is no terminal."""


class Part(NamedTuple):
    """Work that is left in one program."""

    env: str
    iterations: int
    steps: int
    """Environment steps per iteration, of all its runs together."""


class Estimate:
    """Time left: seconds per step as measured in each environment, and a first iteration, which compiles, per program."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[tuple[float, int]]] = {}
        self._firsts: list[float] = []

    def first(self, seconds: float) -> None:
        """The first iteration of a program took so long."""
        self._firsts.append(seconds)

    def later(self, env: str, steps: int, seconds: float) -> None:
        """A later one took so long for so many steps."""
        self._recent.setdefault(env, deque(maxlen=20)).append((seconds, steps))

    def left(self, current: Part, waiting: Sequence[Part]) -> float | None:
        """Seconds, None while nothing is known; an environment not seen yet is taken for an average one."""
        if not self._recent:
            return None
        everything = [pair for pairs in self._recent.values() for pair in pairs]
        compiling = sum(self._firsts) / max(1, len(self._firsts))

        def work(part: Part) -> float:
            seconds, steps = zip(*self._recent.get(part.env, everything), strict=True)
            return part.iterations * part.steps * sum(seconds) / sum(steps)

        return work(current) + sum(compiling + work(part) for part in waiting)


class GridProgress:
    """Shows a grid; also the watcher of the training loop."""

    def __init__(self, console: Console) -> None:
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

    def program(self, jobs: Sequence[Job], begins: int, waiting: Sequence[Part]) -> None:
        """These runs are about to be trained side by side, from this iteration; others wait."""
        config = jobs[0].config
        labels = dict.fromkeys(job.label for job in jobs)
        runs = f"{len(jobs)} run{'s' if len(jobs) > 1 else ''}"
        self._title = f"{config.env}, {runs}"
        self._env, self._iterations, self._steps = (
            config.env,
            config.iterations,
            len(jobs) * config.batch_size,
        )
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
            self._estimate.later(self._env, self._steps, seconds)
        self._fresh = False
        self._done = min(
            self._done + self._steps, self._total
        )  # what a split program makes again counts once
        made = int(row["iteration"]) + 1
        left = self._estimate.left(Part(self._env, self._iterations - made, self._steps), self._waiting)
        ahead = "time left unknown" if left is None else f"about {clock(left)} left"
        share = f"{self._done / self._total:.0%}"
        rate = f"{row['steps_per_second']:,.0f} steps/s"
        if self._bars is not None:
            self._bars.update(
                self._whole, completed=self._done, words=f"{share}  {clock(now - self._began)} gone, {ahead}"
            )
            self._bar(made, f"{made}/{self._iterations}  {rate}")
        elif now - self._printed > QUIET:
            self._printed = now
            self._print(
                f"{share} of the grid, {ahead}: {self._title}, iteration {made}/{self._iterations}, {rate}"
            )

    def note(self, text: str) -> None:
        """Something worth a line."""
        self._print(text)

    def stop(self) -> None:
        """The last picture stays."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _bar(self, made: int, words: str) -> None:
        if self._bars is not None:
            self._bars.update(
                TaskID(self._now),
                description=self._title,
                total=self._iterations,
                completed=made,
                words=words,
            )

    def _print(self, line: str) -> None:
        console = self._bars.console if self._bars is not None else self.console
        console.print(Text(line), soft_wrap=True)

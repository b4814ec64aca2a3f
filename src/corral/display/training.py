"""Training as it happens: curves of return and costs on a terminal, one line per iteration elsewhere."""

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from corral.config import Config
from corral.display.braille import Canvas, round_range
from corral.display.progress import Console, clock
from corral.report.style import GREEN, ORANGE, PURPLE, RED, SKY
from corral.running.log import constraint_names
from corral.running.loop import Watcher, shown

# The colours of the palette that read on dark and on light terminals.
RETURN, COST, SHAPED, LIMIT, GOOD, SPREAD = SKY, ORANGE, PURPLE, RED, GREEN, "grey42"

# The dual's cases from harmless to severe, with a mark and a colour for the strip under the curves.
CASES: dict[str, tuple[str, str]] = {
    "none": ("·", SPREAD),
    "inside": ("·", RETURN),
    "boundary": ("▪", GOOD),
    "feasible_recovery": ("▴", COST),
    "recovery": ("▲", LIMIT),
    "zero_gradient": ("0", LIMIT),
    "contradictory": ("✕", LIMIT),
    "not_finite": ("!", LIMIT),
}

Row = Mapping[str, Any]


def rejection(row: Row) -> str:
    """What most candidates of a line search failed by that accepted none."""
    counts = {n.removeprefix("rejected_"): v for n, v in row.items() if n.startswith("rejected_")}
    most = max(counts, key=lambda name: counts[name], default="")
    return most.replace("_", " ") if most and counts[most] > 0 else "no candidate"


class Display(Watcher):
    """Shows the rows of a run; a row may carry those of several seeds in "seeds" beside their means."""

    def __init__(self, console: RichConsole | None = None) -> None:
        self.console = console or Console()
        self._rows: list[Row] = []
        self._live: Live | None = None
        self._began = time.monotonic()
        self._ends: list[float] = []

    def start(self, config: Config, total_iterations: int, seeds: int = 1) -> None:
        """Begin: what is trained, and for how long; the first row tells the constraints and their limits."""
        self.config, self.total, self.seeds = config, total_iterations, seeds
        self.names: list[str] = []
        self.limits: list[float] = []
        self._began = time.monotonic()
        if self.console.is_terminal:
            self._live = Live(self, console=self.console, redirect_stdout=False, redirect_stderr=False)
            self._live.start()
        else:
            self._print(_headline(config, seeds).plain)

    def past(self, seeds: Sequence[Sequence[Row]]) -> None:
        """The rows of an earlier part of a resumed run, of each of its seeds, for the curves."""
        self._rows = [shown(list(rows)) for rows in zip(*seeds, strict=False)]

    def compiling(self) -> None:
        """The first iteration takes long: say why, where no picture does."""
        if self._live is None:
            self._print("compiling, and sampling the batch …")

    def update(self, row: Row) -> None:
        """An iteration has ended. Rows shown for it and for later ones were of a course the run has left."""
        if not self.names:
            self.names = constraint_names(row)
            self.limits = [float(row[f"limit_{name}"]) for name in self.names]
        self._rows = [r for r in self._rows if r["iteration"] < row["iteration"]] + [row]
        self._ends.append(time.monotonic())
        if self._live is None:
            self._print(self._line(row))

    def note(self, text: str) -> None:
        """Something worth a line of its own, such as a damaged checkpoint."""
        if self._live is None:
            self._print(f"note: {text}")
        else:
            self._live.console.print(Text(f"note: {text}", COST))

    def stop(self, summary: str = "") -> None:
        """End: the last picture stays, and `summary` is printed below it."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if summary:
            self._print(summary)

    # Plain lines

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _line(self, row: Row) -> str:
        parts = [f"{self._done():>{len(str(self.total))}}/{self.total}", f"return {_measured(row, 'return')}"]
        for name, limit in zip(self.names, self.limits, strict=True):
            shaped = f" (shaped {short(row[f'shaped_cost_{name}'])})" if self.config.shape_costs else ""
            sure = _certain(row, name, self.config.certainty)
            parts.append(f"{name} {_measured(row, 'cost_' + name)}{shaped} limit {short(limit)}{sure and f', {sure}'}")
        if self.config.algo.constrained:
            parts.append(str(row["case"]).replace("_", " "))
        parts.append(f"KL {row['kl']:.4f}")
        if not row.get("accepted", True):
            parts.append(f"step rejected: {rejection(row)}")
        parts += [f"{short(row['steps_per_second'])} steps/s", self._left()]
        return "  ".join(parts)

    # The picture

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> Iterator[Any]:
        rows = self._rows  # training goes on while this is drawn, and then puts another list in its place
        width = min(options.max_width, 120)
        charts = 1 + len(self.names)
        height = max(1, min(8, (options.size.height - 8 - charts) // charts))
        yield _headline(self.config, self.seeds)
        if not rows:
            waiting = f" compiling, and sampling the first batch …  {clock(time.monotonic() - self._began)}"
            yield Spinner("dots", Text(waiting, "dim"))
            return
        grid = Table.grid(padding=0)
        room = max(width - _AXIS - _NUMBERS, 10)
        grid.add_column(width=_AXIS, justify="right")
        grid.add_column(width=room, no_wrap=True)
        grid.add_column(width=_NUMBERS, no_wrap=True)
        self._return_chart(grid, rows, room - 3, height)
        for name, limit in zip(self.names, self.limits, strict=True):
            self._cost_chart(grid, rows, room - 3, height, name, limit)
        if self.config.algo.constrained:
            self._cases(grid, rows, room - 3)
        yield grid
        yield from self._status(rows[-1], width)

    def _return_chart(self, grid: Table, rows: list[Row], room: int, height: int) -> None:
        finite = [v for row in rows if math.isfinite(v := float(row["return"]))] or [0.0]
        seen = finite + [v for row in rows for v in _spread(row, "return") if math.isfinite(v)]
        canvas = Canvas(room, height, *round_range(min(seen), max(seen)))
        self._draw(canvas, rows, "return", RETURN)
        numbers = [Text(_measured(rows[-1], "return"), f"bold {RETURN}"), Text(f"best {short(max(finite))}", "dim")]
        _add_chart(grid, canvas, Text("return", f"bold {RETURN}"), None, numbers + _seed_range(rows[-1], "return"))

    def _cost_chart(self, grid: Table, rows: list[Row], room: int, height: int, name: str, limit: float) -> None:
        shapes = self.config.shape_costs
        curves = {f"cost_{name}": COST} | ({f"shaped_cost_{name}": SHAPED} if shapes else {})
        title = Text(f"cost {name}", f"bold {COST}")
        title.append("  shaped" if shapes else "", f"bold {SHAPED}")
        title.append(f"  limit {short(limit)}", f"bold {LIMIT}")
        canvas = Canvas(room, height, *_cost_range([[float(row[c]) for row in rows] for c in curves], limit))
        for column, style in curves.items():
            self._draw(canvas, rows, column, style)
        canvas.level(limit, LIMIT)
        held, style = list(curves.items())[-1]  # what the limit is about
        row = rows[-1]
        numbers = [Text.assemble((_measured(row, held), f"bold {style}"), _verdict(row, held, limit))]
        if shapes:
            numbers.append(Text(f"unshaped {_measured(row, f'cost_{name}')}", COST))
        if sure := _certain(row, name, self.config.certainty):
            numbers.append(Text(sure, f"bold {GOOD if row[f'cost_at_most_{name}'] <= limit else SPREAD}"))
        _add_chart(grid, canvas, title, limit, numbers + _seed_range(row, held))

    def _draw(self, canvas: Canvas, rows: list[Row], column: str, style: str) -> None:
        xs = [self._x(row) for row in rows]
        if self.seeds > 1:
            spreads = [_spread(row, column) for row in rows]
            canvas.band(xs, [low for low, _ in spreads], [high for _, high in spreads], SPREAD)
        canvas.curve(xs, [float(row[column]) for row in rows], style)

    def _cases(self, grid: Table, rows: list[Row], room: int) -> None:
        """The dual's case over the iterations, the most severe of each column; then what the marks mean."""
        order = list(CASES)
        strip = [-1] * room
        for row in rows:
            column = min(int(self._x(row) * room), room - 1)
            strip[column] = max(strip[column], *(order.index(case) for case in _case_names(row)))
        marks, legend = Text.assemble(("│", "dim")), Text(" ")
        for severity in strip:
            marks.append(*(CASES[order[severity]] if severity >= 0 else (" ", "")))
        for severity in sorted(set(strip) - {-1}):
            legend.append(CASES[order[severity]][0], CASES[order[severity]][1])
            legend.append(f" {order[severity].replace('_', ' ')}  ", "dim")
        newest = Counter(_case_names(rows[-1])).most_common()
        words = " ".join(f"{case.replace('_', ' ')}{f' {n}' if self.seeds > 1 else ''}" for case, n in newest)
        grid.add_row(Text("case ", "dim"), marks, Text(words, f"bold {CASES[newest[0][0]][1]}"))
        grid.add_row("", legend, "")

    def _status(self, row: Row, width: int) -> Iterator[Any]:
        """Progress, time, and what the last update did."""
        done = self._done()
        before = f"{done}/{self.total} "
        after = f" {clock(time.monotonic() - self._began)} gone, {self._left()}"
        length = max(width - len(before) - len(after), 10)
        bar = ProgressBar(self.total, done, width=length, complete_style=RETURN, finished_style=GOOD)
        line = Table.grid(padding=0)
        line.add_row(Text(before, "bold"), bar, Text(after))
        yield line
        accepted = row.get("accepted", True)
        step = f"step × {short(row['step_scale'])}" if accepted else f"step rejected: {rejection(row)}"
        rate = f"{short(row['steps_per_second'])} steps/s"
        parts = [f"KL {row['kl']:.4f} of {self.config.trust.delta:g}", step, rate]
        spent = float(row.get("seconds_sampling", 0)), float(row.get("seconds_updating", 0))
        if sum(spent) > 0:
            parts.append(f"sampling {spent[0] / sum(spent):.0%} of the time")
        if "explained_variance" in row:
            parts.append(f"explained variance {row['explained_variance']:.2f}")
        if "signal" in row:
            parts.append(f"signal {row['signal']:.2f} of the gradient")
        yield Text("  ·  ".join(parts), "dim", no_wrap=True, overflow="ellipsis")

    def _done(self) -> int:
        return int(self._rows[-1]["iteration"]) + 1

    def _x(self, row: Row) -> float:
        """Where an iteration lies between left and right."""
        return (float(row["iteration"]) + 0.5) / max(self.total, self._done())

    def _left(self) -> str:
        """Time left, from the newest iterations; the first one compiles and is no guide."""
        recent = self._ends[1:][-11:]
        todo = self.total - self._done()
        if todo <= 0:
            return "done"
        if len(recent) < 2:
            return "time left unknown"
        return f"{clock(todo * (recent[-1] - recent[0]) / (len(recent) - 1))} left"


_AXIS, _NUMBERS = 9, 25


def short(value: float, zeros: str = "") -> str:
    """A number in about three digits; with "#" zeros at its end stay."""
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:{zeros}.3g}".removesuffix(".")


def _headline(config: Config, seeds: int) -> Text:
    which = f"seed {config.seed}" if seeds == 1 else f"{seeds} seeds from {config.seed}"
    return Text.assemble(("corral  ", "bold"), (config.env, f"bold {RETURN}"), f"  {config.algo.name.upper()}  {which}")


def _case_names(row: Row) -> list[str]:
    """The case of every seed."""
    cases = [str(r["case"]).lower() for r in row.get("seeds", [row])]
    return [case if case in CASES else "none" for case in cases]


def _spread(row: Row, column: str) -> tuple[float, float]:
    """Least and largest over the seeds."""
    finite = [v for r in row.get("seeds", [row]) if math.isfinite(v := float(r[column]))]
    return (min(finite), max(finite)) if finite else (math.nan, math.nan)


def _seed_range(row: Row, column: str) -> list[Text]:
    if "seeds" not in row:
        return []
    low, high = _spread(row, column)
    return [Text(f"seeds {short(low)} … {short(high)}", "dim")]


def _error(row: Row, column: str) -> float:
    """The standard error beside a column, NaN if there is none."""
    head, cost, name = column.rpartition("cost_")
    return float(row.get(f"{head}cost_se_{name}" if cost else f"{column}_se", math.nan))


def _measured(row: Row, column: str) -> str:
    """A value with its standard error, where the row has it."""
    error = _error(row, column)
    return short(row[column], "#") + (f" ±{error:.2g}" if math.isfinite(error) else "")


def _verdict(row: Row, column: str, limit: float) -> Text:
    """Under the limit, over it by no more than noise, or over it."""
    over, error = float(row[column]) - limit, _error(row, column)
    fine = over <= (2 * error if math.isfinite(error) else 0)
    share = f" {over / abs(limit):+.0%}" if limit else ""
    return Text(f" {'✓' if over <= 0 else '≈' if fine else '▲'}{share}", f"bold {GOOD if fine else LIMIT}")


def _certain(row: Row, name: str, confidence: float) -> str:
    """How sure one may be of the cost of the policy that made the batch, where the run bounds it; of several seeds the
    worst."""
    if f"cost_at_most_{name}" not in row:
        return ""
    worst = max(float(r[f"cost_at_most_{name}"]) for r in row.get("seeds", [row]))
    return f"≤ {short(worst)} at {confidence:.4g}"


def _cost_range(curves: Sequence[Sequence[float]], limit: float) -> tuple[float, float]:
    """What the vertical axis shows: from 0, except that early costs far above the limit may leave it."""
    finite = [[v for v in values if math.isfinite(v)] or [0.0] for values in curves]
    recent = max(max(values[len(values) // 2 :]) for values in finite)
    high = max(1.3 * limit, recent, min(max(map(max, finite)), 3 * limit))
    return round_range(min(0.0, limit, *map(min, finite)), high)


def _add_chart(grid: Table, canvas: Canvas, title: Text, limit: float | None, numbers: list[Text]) -> None:
    """Rows of the grid: the title, then the axis on the left, the picture, the newest numbers on the right."""
    labels = {0: Text(short(canvas.high), "dim"), canvas.height - 1: Text(short(canvas.low), "dim")}
    if limit is not None and canvas.low <= limit <= canvas.high:
        labels[canvas.row(limit)] = Text(short(limit), LIMIT)
    grid.add_row("", title, "")
    for r, line in enumerate(canvas.rows()):
        rule = Text("┤" if r in labels else "│", "dim")
        label = Text.assemble(labels.get(r, ""), " ")
        grid.add_row(label, Text.assemble(rule, line), numbers[r] if r < len(numbers) else "")

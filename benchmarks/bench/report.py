"""Make tables of the results, for terminals (rich) and for pages (Markdown), from one list of columns per part."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.bench.clock import Row

if TYPE_CHECKING:
    from rich.table import Table

Document = dict[str, Any]
"""What a run of `make bench` leaves in its JSON file: corral, command, when, quick, machine, parts."""


class Column(NamedTuple):
    """The heading of a column and the function that makes its cells; columns of text are left-aligned."""

    heading: str
    cell: Callable[[Row], str]
    text: bool = False


def _plain(name: str) -> Callable[[Row], str]:
    return lambda row: str(row[name])


def _number(name: str, digits: int = 0) -> Callable[[Row], str]:
    """The median of a measured quantity, or a plain number."""

    def cell(row: Row) -> str:
        value = row.get(name)
        value = value[0] if isinstance(value, list) else value
        return "" if value is None else f"{value:,.{digits}f}"

    return cell


def seconds(value: float) -> str:
    """Write a time with three digits, in seconds or milliseconds."""
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def _time(name: str, extremes: bool = False) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        value = row.get(name)
        if value is None:
            return ""
        if not isinstance(value, list):
            return seconds(value)
        middle, low, high = value
        return f"{seconds(middle)} ({seconds(low)} to {seconds(high)})" if extremes else seconds(middle)

    return cell


def percent(value: Sequence[float]) -> str:
    """Write a share as its median and its extremes."""
    middle, low, high = value
    return f"{middle:.0%} ({100 * low:.0f} to {100 * high:.0f})"


def _share(name: str) -> Callable[[Row], str]:
    return lambda row: percent(row[name]) if row.get(name) and row[name][0] > 0 else ""


_SAMPLING = [
    Column("environment", _plain("env"), text=True),
    Column("robots", _number("robots")),
    Column("raw engine", _plain("engine"), text=True),
    Column("raw, steps/s", _number("raw")),
    Column("environment, steps/s", _number("environment")),
    Column("of raw", _share("environment_of_raw")),
    Column("with the policy, steps/s", _number("policy")),
    Column("of raw", _share("policy_of_raw")),
]
_ENGINES = _SAMPLING[:-2]
_WORKERS = [
    Column("environment", _plain("env"), text=True),
    Column("copies", _number("copies")),
    Column("way", _plain("way"), text=True),
    Column("steps/s", _number("steps_per_second")),
    Column("of the bare loop", _share("of_bare")),
    Column("of this process with the policy", _share("of_one_process")),
]
_UPDATE = [
    Column("samples", _number("samples")),
    Column("part", _plain("part"), text=True),
    Column("time", _time("seconds", extremes=True)),
    Column("GFLOP", _number("gflop", 2)),
    Column("plain matmul, GFLOP/s", _number("gflop_per_second")),
    Column("flop floor", _time("flop_floor")),
    Column("byte floor", _time("byte_floor")),
    Column("of the floor's speed", _share("of_floor")),
]
_ITERATION = [
    Column("environment", _plain("env"), text=True),
    Column("preset", _plain("preset"), text=True),
    Column("steps", _number("steps")),
    Column("iteration", _time("seconds", extremes=True)),
    Column("steps/s", _number("steps_per_second")),
    Column("sampling", _time("sampling")),
    Column("updating", _time("updating")),
    Column("floor: engine", _time("engine_floor")),
    Column("floor: products", _time("flop_floor")),
    Column("of the engine's speed", _share("of_engine")),
    Column("of the floor's speed", _share("of_floor")),
]
_SEEDS = [
    Column("environment", _plain("env"), text=True),
    Column("seeds", _number("seeds")),
    Column("robots", _number("robots")),
    Column("iteration", lambda row: row["failed"] if "failed" in row else _time("seconds", True)(row)),
    Column("updating", _time("updating")),
    Column("sampled, steps/s", _number("sampled_per_second")),
    Column("whole iterations, steps/s", _number("steps_per_second")),
    Column(
        "of the floor's speed", lambda row: percent(row["against_floor"]["of_floor"]) if "against_floor" in row else ""
    ),
    Column("first iteration", _time("first_seconds")),
]
_MEMORY = [
    Column("case", _plain("case"), text=True),
    Column("command", lambda row: f"`{row['command']}`", text=True),
    Column("peak resident, GiB", lambda row: row.get("failed") or _number("resident_gib", 2)(row)),
    Column("peak on the device, GiB", _number("device_gib", 2)),
]
_STARTUP = [
    Column("command", lambda row: f"`{row['what']}`", text=True),
    Column("time", _time("seconds", extremes=True)),
    Column("of an empty interpreter's speed", _share("of_floor")),
    Column("imports JAX", lambda row: {True: "yes", False: "no"}.get(row.get("jax"), "")),  # type: ignore[arg-type]
]


def _line(row: Row) -> str:
    if not row.get("line"):
        return ""
    a, b = row["line"]["a"], row["line"]["b"]
    return f"{1e3 * a:.3g} ms + {1e3 * b:.3g} ms · x"


def _series(row: Row) -> str:
    pairs = zip(row["values"], row["seconds"], strict=True)
    return ", ".join(f"{value:,.0f}: {seconds(found[0])}" for value, found in pairs)


def _linear_to(row: Row) -> str:
    if not row.get("line"):
        return ""
    return "the end" if row["linear_to"] == row["values"][-1] else f"{row['linear_to']:,.0f}"


_SCALING = [
    Column("over", _plain("axis"), text=True),
    Column("x", _plain("unit"), text=True),
    Column("times", _series, text=True),
    Column("fit", _line, text=True),
    Column("largest error", lambda row: f"{row['line']['residual']:.0%}" if row.get("line") else ""),
    Column("linear to", _linear_to),
]

TABLES: dict[str, tuple[str, list[Column]]] = {
    "sampling": ("Sampling", _SAMPLING),
    "engines": ("Raw engines", _ENGINES),
    "workers": ("Workers", _WORKERS),
    "update": ("Parts of an update", _UPDATE),
    "algorithms": (
        "The policy update of every algorithm",
        [_UPDATE[0], Column("algorithm", *_UPDATE[1][1:]), *_UPDATE[2:]],
    ),
    "iteration": ("Whole iterations", _ITERATION),
    "seeds": ("Seeds side by side", _SEEDS),
    "scaling": ("How cost grows", _SCALING),
    "memory": ("Memory", _MEMORY),
    "startup": ("Start-up", _STARTUP),
}
"""Title and columns of each part, in the order of a report."""


def machine_line(document: Document) -> str:
    """Say where and when the document was measured, and beside which load."""
    machine = document["machine"]
    line = f"{machine['device']}, {machine['cores']} CPU cores, JAX {machine['jax']}, {document['when']}"
    if machine.get("xla_flags"):
        line += f", XLA_FLAGS {machine['xla_flags']}"
    if document["quick"]:
        line += ", --quick: sizes too small to mean anything"
    if machine["load"] > 0.5 * machine["cores"]:
        line += f", beside other work (load {machine['load']:.1f})"
    return line


def markdown_table(part: str, rows: list[Row]) -> str:
    """Write the rows of one part as a Markdown table."""
    _, columns = TABLES[part]
    rule = ["---" if column.text else "--:" for column in columns]
    cells = [[column.cell(row) for column in columns] for row in _in_order(rows)]
    lines = [[column.heading for column in columns], rule, *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _in_order(rows: list[Row]) -> list[Row]:
    """Sort updates by their number of samples, however they were measured."""
    return sorted(rows, key=lambda row: row.get("samples", 0))


def markdown(document: Document) -> str:
    """Write all tables of a document as Markdown."""
    blocks = [f"{machine_line(document)}: `{document['command']}`"]
    for part, (title, _) in TABLES.items():
        if part in document["parts"]:
            blocks += [f"## {title}", markdown_table(part, document["parts"][part])]
    return "\n\n".join(blocks) + "\n"


def table(part: str, rows: list[Row]) -> "Table":
    """Make a table of the rows of one part for a terminal."""
    from rich.table import Table

    title, columns = TABLES[part]
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column.heading, justify="left" if column.text else "right")
    for row in _in_order(rows):
        made.add_row(*(column.cell(row).strip("`") for column in columns))
    return made

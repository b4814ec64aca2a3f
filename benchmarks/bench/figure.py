"""Draw the results of a bench: one picture for each part that has one."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bench.clock import Row
from benchmarks.bench.report import Document, machine_line, seconds
from corral.report.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, STYLE
from corral.running.files import write_atomically


def draw(document: Document, out: Path, prefix: str = "") -> list[Path]:
    """Write `<prefix><part>.png` for every part of the document that has a picture; return the paths."""
    import matplotlib

    matplotlib.use("Agg")
    made = []
    with matplotlib.rc_context(STYLE):
        for part, paint in _PAINTERS.items():
            if not (rows := document["parts"].get(part)):
                continue
            figure = paint(rows)
            figure.supxlabel(machine_line(document), x=0.01, ha="left", fontsize=8, color="#666666")
            content = io.BytesIO()
            figure.savefig(content, format="png", dpi=150, bbox_inches="tight", pad_inches=0.12)
            write_atomically(out / f"{prefix}{part}.png", content.getvalue())
            made.append(out / f"{prefix}{part}.png")
    return made


def _figure(width: float, height: float, title: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)
    return figure


def _bar(axes: Any, y: float, spread: list[float], colour: str, height: float, label: str | None = None) -> None:
    """Draw a horizontal bar to the median, with a whisker from the lowest to the highest value."""
    middle, low, high = spread
    axes.barh(y, middle, height, color=colour, label=label)
    axes.plot([low, high], [y, y], color="#333333", linewidth=1)


def _sampling(rows: list[Row]) -> Any:
    figure = _figure(7.2, 1.2 + 0.75 * len(rows), "Sampling against the raw engine")
    axes = figure.subplots()
    for i, row in enumerate(rows):
        _bar(axes, i - 0.19, row["environment_of_raw"], SKY, 0.36, "our environment" if i == 0 else None)
        _bar(axes, i + 0.19, row["policy_of_raw"], BLUE, 0.36, "with the policy" if i == 0 else None)
        for shift, name in ((-0.19, "environment"), (0.19, "policy")):
            at = row[f"{name}_of_raw"][2]
            axes.annotate(
                f"{row[name][0]:,.0f} steps/s",
                (at, i + shift),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )
    names = [f"{row['env']}\nraw: {row['raw'][0]:,.0f}/s" for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.axvline(1, color=GREY, linestyle="--", linewidth=1.2)
    axes.set_xlabel("of the raw engine's speed")
    _percent_axis(axes, max(row["environment_of_raw"][2] for row in rows))
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper right", ncols=2)
    return figure


def _percent_axis(axes: Any, highest: float) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlim(0, 1.35 * max(1.0, highest))


def _update(rows: list[Row]) -> Any:
    sizes = sorted({row["samples"] for row in rows})
    parts = [row["part"] for row in rows if row["samples"] == sizes[0]]
    figure = _figure(9.6, 1.3 + 0.42 * len(parts), "Parts of an update: time, floor, and share of the floor's speed")
    panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    by_bytes = False
    for axes, size in zip(panels, sizes, strict=True):
        here = {row["part"]: row for row in rows if row["samples"] == size}
        # The dual's floor is next to nothing and may leave the picture.
        left = 0.1 * min(row["seconds"][0] for row in here.values())
        for i, part in enumerate(parts):
            row = here[part]
            _bar(axes, i - 0.2, row["seconds"], BLUE, 0.38, "time" if i == 0 else None)
            floor = max(row["flop_floor"][0], row["byte_floor"][0])
            colour = ORANGE if row["flop_floor"][0] >= row["byte_floor"][0] else GREEN
            axes.barh(i + 0.2, floor, 0.38, color=colour)
            by_bytes |= colour == GREEN and floor > left
            if floor > left:
                at = max(row["seconds"][2], floor), i
                share = f"{row['of_floor'][0]:.0%}"
                axes.annotate(share, at, (4, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set_xscale("log")
        # Room for the shares.
        axes.set_xlim(left, 6 * max(row["seconds"][2] for row in here.values()))
        axes.set_title(f"{size:,} samples")
        axes.set_xlabel("seconds")
        axes.grid(axis="y", visible=False)
    panels[0].set_yticks(range(len(parts)), parts)
    panels[0].invert_yaxis()
    from matplotlib.patches import Patch

    handles = [Patch(color=BLUE, label="time"), Patch(color=ORANGE, label="floor: matrix products")]
    if by_bytes:
        handles.append(Patch(color=GREEN, label="floor: bytes once"))
    figure.legend(handles=handles, loc="outside upper right", ncols=3)
    return figure


def _iteration(rows: list[Row]) -> Any:
    figure = _figure(7.6, 1.2 + 0.85 * len(rows), "Whole iterations and their floor")
    axes = figure.subplots()
    for i, row in enumerate(rows):
        first = i == 0
        sampling, whole = row["sampling"][0], row["seconds"][0]
        axes.barh(i - 0.2, sampling, 0.38, color=SKY, label="sampling" if first else None)
        axes.barh(
            i - 0.2, whole - sampling, 0.38, left=sampling, color=BLUE, label="updating and the rest" if first else None
        )
        engine = row["engine_floor"][0]
        axes.barh(i + 0.2, engine, 0.38, color=GREEN, label="floor: raw engine" if first else None)
        axes.barh(
            i + 0.2,
            row["flop_floor"][0],
            0.38,
            left=engine,
            color=ORANGE,
            label="floor: matrix products" if first else None,
        )
        text = f"{row['steps_per_second'][0]:,.0f} steps/s, {row['of_floor'][0]:.0%} of the floor's speed"
        at = max(whole, row["floor"][0])
        axes.annotate(text, (at, i), (5, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [f"{row['env']}\n{row['preset']}" for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.6 * max(max(row["seconds"][0], row["floor"][0]) for row in rows))
    axes.set_xlabel("seconds per iteration")
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper right", ncols=2)
    return figure


def _scaling(rows: list[Row]) -> Any:
    columns = min(3, len(rows))
    lines = -(-len(rows) // columns)
    figure = _figure(3.5 * columns, 0.5 + 2.9 * lines, "How cost grows")
    panels = figure.subplots(lines, columns, squeeze=False).flat
    for row, axes in zip(rows, panels, strict=False):
        x = row["x"]
        unit, factor = ("seconds", 1.0) if row["seconds"][-1][0] >= 1 else ("milliseconds", 1e3)
        middle, low, high = ([factor * found[k] for found in row["seconds"]] for k in range(3))
        below = [m - v for m, v in zip(middle, low, strict=True)]
        above = [v - m for m, v in zip(middle, high, strict=True)]
        axes.errorbar(x, middle, [below, above], fmt="o", color=BLUE, markersize=5, capsize=2, label="measured")
        if row["line"]:
            a, b = row["line"]["a"], row["line"]["b"]
            axes.plot(x, [factor * (a + b * v) for v in x], color=ORANGE, label=f"{seconds(a)} + {seconds(b)}·x")
        axes.set_title(row["axis"])
        axes.set_xlabel(row["unit"] if row["x"] == row["values"] else "GFLOP of an update")
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        if not row["line"]:
            axes.set_xticks(x)
        # Below what grows from a constant; the extremes of the rounds reach up.
        axes.legend(loc="lower right" if row["line"] else "lower left", fontsize=8)
    for axes in list(panels):
        axes.set_visible(False)
    return figure


def _seeds(rows: list[Row]) -> Any:
    figure = _figure(7.2, 4.2, "Throughput against seeds side by side")
    axes = figure.subplots()
    done = [row for row in rows if "failed" not in row]
    colours = [(BLUE, SKY), (ORANGE, PURPLE), (GREEN, GREY)]
    for (dark, light), name in zip(colours, dict.fromkeys(row["env"] for row in done), strict=False):
        here = sorted((row for row in done if row["env"] == name), key=lambda row: row["seeds"])
        seeds = [row["seeds"] for row in here]
        for key, colour, what in (
            ("sampled_per_second", light, "sampling alone"),
            ("steps_per_second", dark, "whole iterations"),
        ):
            middle = [row[key][0] for row in here]
            axes.plot(seeds, middle, "o-", color=colour, label=f"{name}, {what}")
            axes.fill_between(
                seeds,
                [row[key][1] for row in here],
                [row[key][2] for row in here],
                color=colour,
                alpha=0.2,
                linewidth=0,
            )
        axes.annotate(
            f"{middle[-1] / 1e6:.3g} M steps/s",
            (seeds[-1], middle[-1]),
            (-6, 7),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = sorted({row["seeds"] for row in done})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("seeds in one program")
    axes.set_ylabel("environment steps per second")
    axes.legend(loc="best")
    return figure


_PAINTERS: dict[str, Callable[[list[Row]], Any]] = {
    "sampling": _sampling,
    "update": _update,
    "iteration": _iteration,
    "scaling": _scaling,
    "seeds": _seeds,
}

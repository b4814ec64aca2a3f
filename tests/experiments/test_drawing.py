"""Tables and figures from data alone."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from corral.experiments import figure, tables
from corral.experiments.data import Results
from corral.report.panels import COLOURS
from corral.report.style import BLACK
from corral.running.log import Metrics


def curve(seed, returns, cost, limit=10.0, name="bombs"):
    n = len(cost)
    return Metrics(
        {
            "seed": np.full(n, float(seed)),
            "iteration": np.arange(n, dtype=float),
            "episodes": np.full(n, 4.0),
            "return": np.asarray(returns, float),
            f"cost_{name}": np.asarray(cost, float),
            f"shaped_cost_{name}": np.asarray(cost, float) + 1,
            f"limit_{name}": np.full(n, limit),
        }
    )


# Two seeds of two iterations, and one of PDO's that is longer.
GATHER = Results(
    "point-gather",
    ("bombs",),
    {
        "CPO": [curve(0, [1, 3], [14, 8]), curve(1, [5, 7], [10, 12])],
        "PDO, ν₀ = 7": [curve(0, [0, 0], [90, 70]), curve(1, [0, 0, 0], [80, 80, 80])],
    },
)
CIRCLE = Results("point-circle", ("x",), {"CPO": [curve(0, [1, 2], [3, 4], name="x")]})


def test_a_line_of_the_table_by_hand(small):
    line = tables.lines(small, GATHER)[0]
    assert (line.seeds, line.iterations, line.limit, line.column) == (2, (2, 2), 10, "cost")
    # Seeds' means over both iterations: returns 2 and 6, costs 11 and 11.
    assert line.final_return.mean == 4
    assert (line.final_return.low, line.final_return.high) == (2, 6)  # both seeds drawn twice: 25% each
    assert line.return_iqm == 4
    assert line.final_constraint == (11, 11, 11)
    # Overshoots 4, 0 and 0, 2
    assert line.mean_overshoot.mean == pytest.approx((2 + 1) / 2)
    assert line.worst_overshoot == 4
    assert line.violating.mean == pytest.approx(0.5)
    assert line.total_above.mean == pytest.approx((4 * 4 + 2 * 4) / 2)
    # Windows of both iterations: means 11, at most 12.
    assert (line.reach, line.hold, line.holding) == (0, 0, 2)


def test_the_shaped_cost_is_judged_where_the_experiment_says_so(small):
    line = tables.lines(small, CIRCLE)[0]
    assert line.column == "shaped_cost"
    assert line.final_constraint.mean == pytest.approx(4.5)
    assert line.final_cost.mean == pytest.approx(3.5)
    assert np.isnan(line.final_cost.low)  # one seed


def test_the_markdown_says_seeds_and_iterations(small):
    found = [line for part in (CIRCLE, GATHER) for line in tables.lines(small, part)]
    text = tables.markdown(small, found)
    assert "## Point-Gather\n\nLimit: bombs 10." in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[0].startswith("| run | seeds | iterations | return | return, IQM | C⁺ | C⁺, IQM | true C |")
    assert rows[2].startswith("| CPO | 1 | 2 | 1.5 | 1.5 | 4.5 | 4.5 | 3.5 | 0 | 0 | 0% | 0 | 0 | 0 (1 of 1) |")
    assert rows[-2].startswith("| CPO | 2 | 2 | 4 [2, 6] | 4 | 11 [11, 11] | 11 | 1.5 [1, 2] | 4 | 50% |")
    assert rows[-1].startswith("| PDO, ν₀ = 7 | 2 | 2 to 3 |")
    assert rows[-1].endswith("| never | never (0 of 2) |")


def test_the_markdown_tells_each_runs_limit_where_they_differ_and_how_many_iterations_it_means(small):
    curves = {"CPO": [curve(0, [1, 2], [3, 4])], "PDO, ν₀ = 7": [curve(0, np.ones(30), np.ones(30), limit=2.0)]}
    found = tables.lines(small, Results("point-gather", ("bombs",), curves))
    rows = tables.markdown(small, found[:1]), tables.markdown(small, found)
    assert "Limit: bombs 10.\n\n| run | seeds | iterations | return |" in rows[0]
    assert "mean over the last 2 iterations, then over seeds" in rows[0]
    assert "| CPO | 1 | 2 | 10 |" in rows[1]
    assert "| PDO, ν₀ = 7 | 1 | 30 | 2 |" in rows[1]
    assert "mean over the last 20 iterations (all those of shorter runs), then over seeds" in rows[1]


def test_the_csv_has_every_number(small):
    found = tables.lines(small, GATHER)
    rows = list(csv.DictReader(io.StringIO(tables.as_csv(found))))
    assert rows[1]["run"] == "PDO, ν₀ = 7"
    assert (rows[1]["iterations_least"], rows[1]["iterations_most"]) == ("2", "3")
    assert float(rows[0]["final_return_high"]) == 6
    assert float(rows[1]["hold"]) == np.inf


@pytest.mark.parametrize(
    ("value", "said"), [(0.12345, "0.123"), (12345.0, "12.3k"), (2.5e6, "2.5M"), (999.9, "1k"), (np.nan, "–")]
)
def test_numbers_have_three_digits(value, said):
    assert tables.number(value) == said


def drawn(monkeypatch, experiment, results, folder):
    """The matplotlib figure behind the files."""
    from matplotlib.figure import Figure

    seen = []
    save = Figure.savefig

    def spy(self, *args, **kwargs):
        seen.append(self)
        return save(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", spy)
    paths = figure.draw(experiment, results, folder)
    return seen[-1], paths


def test_the_figure_has_a_column_per_environment_and_the_limit_in_the_lower_panels(small, monkeypatch, tmp_path):
    shown, paths = drawn(monkeypatch, small, [CIRCLE, GATHER], tmp_path)
    assert [path.suffix for path in paths] == [".png", ".svg", ".pdf"]
    assert all(path.stat().st_size > 5000 for path in paths)
    top_left, top_right, low_left, low_right = shown.axes
    assert (top_left.get_title(), top_right.get_title()) == ("Point-Circle", "Point-Gather")
    assert (low_left.get_ylabel(), low_right.get_ylabel()) == ("cost C⁺", "C")
    limits = [line for line in low_right.lines if line.get_linestyle() == "--" and list(line.get_ydata()) == [10, 10]]
    assert len(limits) == 1
    mean = next(line for line in low_left.lines if len(line.get_xdata()) == 2 and list(line.get_ydata()) == [4, 5])
    assert mean.get_color() == COLOURS[0]


def dashed(axes):
    """Level and colour of the dashed lines across a panel."""
    lines = [line for line in axes.lines if list(line.get_xdata()) == [0, 1]]
    assert all(line.get_linestyle() == "--" for line in lines)
    return [(line.get_ydata()[0], line.get_color()) for line in lines]


@pytest.mark.slow
def test_runs_with_limits_of_their_own_have_them_in_their_colours(small, monkeypatch, tmp_path):
    labels = ("CPO", "PDO, ν₀ = 7", "third")
    runs = tuple(replace(small.runs[0], label=label) for label in labels)
    limits = (2.0, 5.0, 10.0)
    curves = {label: [curve(0, [1, 2], [3, 4], limit=limit)] for label, limit in zip(labels, limits, strict=True)}
    three = replace(small, runs=runs)
    shown, _ = drawn(monkeypatch, three, [Results("point-gather", ("bombs",), curves)], tmp_path)
    assert dashed(shown.axes[1]) == list(zip(limits, COLOURS, strict=False))
    # Two of three share a limit: theirs is black.
    shared = curves | {"third": [curve(0, [1, 2], [3, 4], limit=5.0)]}
    shown, _ = drawn(monkeypatch, three, [Results("point-gather", ("bombs",), shared)], tmp_path)
    assert dashed(shown.axes[1]) == [(2.0, COLOURS[0]), (5.0, BLACK)]
    alike = {label: [curve(0, [1, 2], [3, 4])] for label in labels}
    shown, _ = drawn(monkeypatch, three, [Results("point-gather", ("bombs",), alike)], tmp_path)
    assert dashed(shown.axes[1]) == [(10.0, BLACK)]


def test_what_is_not_known_leaves_a_gap_in_the_figure(small, monkeypatch, tmp_path):
    gaps = {"CPO": [curve(0, [1, np.nan, 3], [np.nan, 2, 3], name="x")]}
    shown, _ = drawn(monkeypatch, small, [Results("point-circle", ("x",), gaps)], tmp_path)
    assert np.isfinite([shown.axes[0].get_ylim(), shown.axes[1].get_ylim()]).all()


def test_a_seed_that_went_on_alone_is_drawn_thin_and_runs_far_above_the_limit_are_named(small, monkeypatch, tmp_path):
    shown, _ = drawn(monkeypatch, small, [GATHER], tmp_path)
    low = shown.axes[1]
    alone = [line for line in low.lines if list(line.get_xdata()) == [3]]
    assert [list(line.get_ydata()) for line in alone] == [[80]]
    assert alone[0].get_linewidth() < 1
    assert [text.get_text() for text in low.texts] == ["PDO, ν₀ = 7 ↑ ends at 80"]
    assert low.get_ylim()[1] < 60
    assert "thin" in shown.legends[0].get_title().get_text()


@pytest.mark.slow
def test_an_environment_can_be_smoothed_alone_and_its_panel_says_so(small, monkeypatch, tmp_path):
    smoothed = replace(small, plot=replace(small.plot, smoothing_in={"point-circle": 2}))
    shown, _ = drawn(monkeypatch, smoothed, [CIRCLE, GATHER], tmp_path)
    returns, _, circle, gather = shown.axes
    assert (circle.get_xlabel(), gather.get_xlabel()) == ("iteration, smoothed over 2", "iteration")
    # Of 1 and 2 the centred mean of two: (1)/1 at the end of the curve, (1 + 2)/2 next.
    assert [list(line.get_ydata()) for line in returns.lines] == [[1, 1.5]]


def test_the_lower_panels_end_at_so_many_limits_where_that_is_asked(small, monkeypatch, tmp_path):
    closer = replace(small, plot=replace(small.plot, times_limit=1.5))
    shown, _ = drawn(monkeypatch, closer, [CIRCLE], tmp_path)
    assert shown.axes[1].get_ylim()[1] == 1.5 * 10


@pytest.mark.slow
def test_drawing_twice_makes_the_same_files(small, tmp_path):
    first = {path.suffix: path.read_bytes() for path in figure.draw(small, [CIRCLE], tmp_path)}
    again = {path.suffix: path.read_bytes() for path in figure.draw(small, [CIRCLE], tmp_path)}
    assert first == again

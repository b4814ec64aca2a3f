"""`corral plot`: one figure of existing runs."""

import json
import re

import pytest

from corral import envs
from corral.algos import CPO, TRPO
from corral.cli import main
from corral.config import Config
from corral.errors import CorralError
from corral.report.plot import plot
from corral.running import log
from corral.running.directory import RunDirectory


def write_run(folder, config, done, cost):
    """A run after `done` iterations, with returns 0, 1, … and the same cost in all of them."""
    run = RunDirectory(folder)
    run.begin(config)
    (constraint,) = envs.spec(config.env).constraints
    name, (limit,) = constraint.name, config.limit or (constraint.limit,)
    writer = run.open_log(log.columns([name]), None)
    for k in range(done):
        costs = {f"cost_{name}": cost, f"shaped_cost_{name}": 2 * cost, f"limit_{name}": limit}
        writer.append({"iteration": k, "return": float(k), **costs})
    writer.close()


@pytest.fixture
def runs(tmp_path):
    """Two environments: CPO with two limits, one of them with two seeds, and TRPO far above; and a run that waits."""
    for seed in (0, 1):
        write_run(tmp_path / "low" / f"seed-{seed}", Config("point-gather", limit=(0.1,), seed=seed), 5, 0.1)
    write_run(tmp_path / "high", Config("point-gather", limit=(0.2,)), 5, 0.2)
    write_run(tmp_path / "trpo", Config("point-gather", TRPO(), limit=(0.1,)), 5, 9.0)
    write_run(tmp_path / "circle", Config("point-circle", CPO(), shape_costs=True), 7, 2.0)
    write_run(tmp_path / "waiting", Config("point-gather", seed=3), 0, 0.0)
    return tmp_path


def figure_of(monkeypatch, *arguments):
    """The matplotlib figure behind a call of `plot`, and what it returned."""
    from matplotlib.figure import Figure

    seen, save = [], Figure.savefig

    def spy(self, *args, **kwargs):
        seen.append(self)
        return save(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", spy)
    made = plot(*arguments)
    return seen[0], made


def test_each_environment_has_a_column_and_each_group_a_curve(runs, monkeypatch):
    shown, made = figure_of(monkeypatch, [runs], runs / "plot.svg")
    assert (made.groups, made.runs, made.skipped) == (4, 5, (runs / "waiting",))
    assert made.path.read_text().startswith("<?xml")
    circle, gather, circle_cost, gather_cost = shown.axes
    assert (circle.get_title(), gather.get_title()) == ("Point-Circle", "Point-Gather")
    assert [len(axes.lines) for axes in (circle, gather)] == [1, 3]
    assert (circle_cost.get_ylabel(), gather_cost.get_ylabel()) == ("cost C⁺ (x)", "C (bombs)")
    assert list(circle_cost.lines[0].get_ydata()) == [4.0] * 7  # the shaped cost, which was constrained
    legend = [text.get_text() for text in shown.legends[0].get_texts()]
    assert legend[:4] == ["CPO", "CPO limit=[0.1]", "CPO limit=[0.2]", "TRPO"]
    # TRPO's limit is also that of one CPO; the other CPO has its own, in its colour.
    dashed = {line.get_ydata()[0]: line.get_color() for line in gather_cost.lines if line.get_linestyle() == "--"}
    assert dashed == {0.1: "#000000", 0.2: gather.lines[1].get_color()}
    assert [text.get_text() for text in gather_cost.texts] == ["TRPO ↑ ends at 9"]


def test_the_command_writes_the_figure_and_says_what_is_in_it(runs, capsys):
    out = runs / "deep" / "plot.png"
    assert main(["plot", str(runs), "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.splitlines() == [
        f"{out}: 5 runs in 4 groups",
        f"left out, no iteration done yet: {runs / 'waiting'}",
    ]
    assert main(["plot", str(runs / "high"), "--out", str(out.with_suffix(".pdf")), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["path"], told["groups"], told["runs"]) == (str(out.with_suffix(".pdf")), 1, 1)


def test_bad_arguments_get_one_line(runs, capsys):
    assert main(["plot", str(runs / "nowhere")]) == 2
    assert capsys.readouterr().err == f"corral plot: there is no folder {runs / 'nowhere'}\n"
    with pytest.raises(CorralError, match=re.escape("path must end in .pdf, .png, .svg")):
        plot([runs], runs / "plot.gif")
    with pytest.raises(CorralError, match="no iterations to show yet"):
        plot([runs / "waiting"], runs / "plot.png")

from pathlib import Path

import jaxtyping
import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from corral.errors import CorralError
from corral.report.bounds_figure import bounds_figure
from corral.report.gridworld_figures import grid_figure, progress_figure
from corral.report.style import STYLE, drawing, save
from corral.tabular.cmdp import evaluate
from corral.tabular.examples import fork, fork_policies
from corral.tabular.gridworld import gridworld
from corral.tabular.optimum import optimum
from corral.tabular.survey import Survey, Tally
from corral.tabular.update import Run


def test_a_drawing_is_a_png_of_the_size_asked_for(tmp_path):
    path = tmp_path / "new" / "figure.png"
    with drawing(path, 2, (4.0, 3.0)) as axes:
        assert len(axes) == 2
        axes[0].plot([0, 1], [0, 1])
    assert imread(path).shape[:2] == (330, 440)  # 110 dots per inch


def draw_half(path):
    with drawing(path, 1, (4.0, 3.0)):
        raise RuntimeError("half way")


def test_a_file_is_replaced_only_by_a_complete_drawing(tmp_path):
    path = tmp_path / "figure.png"
    path.write_text("first")
    with pytest.raises(RuntimeError, match="half way"):
        draw_half(path)
    assert path.read_text() == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["figure.png"]


@pytest.mark.parametrize("suffix", [".svg", ".pdf", ".png"])
def test_the_suffix_names_the_format_and_no_file_holds_a_date(suffix, tmp_path):
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(2, 2))
        figure.subplots().plot([0, 1], [0, 1])
        save(figure, tmp_path / f"figure{suffix}", dpi=50)
    content = (tmp_path / f"figure{suffix}").read_bytes()
    assert {".svg": b"<svg", ".pdf": b"%PDF", ".png": b"\x89PNG"}[suffix] in content[:600]
    assert b"Date" not in content
    assert b"dc:date" not in content


world = gridworld("S F W G")
best, run = optimum(world.cmdp), Run(evaluate(world.cmdp, np.full((4, 5), 0.2)), (), False)
old = evaluate(fork(), fork_policies(0.1, 0.1)[0])
elsewhere, png = Run(old, (), False), Path("nowhere.png")
found = Survey({"a result": Tally("a result")}, [])
FORMAT = "path must end in .pdf, .png, .svg, got 'a.doc'"


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (drawing, (Path("a.doc"), 1, (1, 1)), FORMAT),
        (drawing, (png, 0, (1, 1)), "columns must be at least 1, got 0"),
        (drawing, (png, 1, (1, -1)), "size must be two positive numbers of inches, got (1, -1)"),
        (save, (Figure(), Path("a.doc"), 100), FORMAT),
        (bounds_figure, (None, 3, 2, 0, png), "found must be an instance of Survey, got NoneType"),
        (bounds_figure, (Survey({}, []), 3, 2, 0, png), "found must hold instances, got an empty survey"),
        (bounds_figure, (found, 0, 2, 0, png), "states must be at least 2, got 0"),
        (bounds_figure, (found, 3, 1, 0, png), "actions must be at least 2, got 1"),
        (bounds_figure, (found, 3, 2, -1, png), "seed must be at least 0, got -1"),
        (bounds_figure, (found, 3, 2, 0, Path("a.doc")), FORMAT),
        (progress_figure, (world.cmdp, run, run, best, png), "world must be an instance of Gridworld, got CMDP"),
        (progress_figure, (world, run, run, None, png), "best must be an instance of Optimum, got NoneType"),
        (progress_figure, (world, elsewhere, run, best, png), "cpo must be a run on the CMDP of world"),
        (progress_figure, (world, run, elsewhere, best, png), "guaranteed must be a run on the CMDP of world"),
        (progress_figure, (world, run, run, best, Path("a.doc")), FORMAT),
        (grid_figure, (world.cmdp, {"a": run.start}, png), "world must be an instance of Gridworld, got CMDP"),
        (grid_figure, (world, {}, png), "policies must not be empty"),
        (grid_figure, (world, {"a": old}, png), "policies['a'].d must have shape (4,) = the states of world, got (3,)"),
        (grid_figure, (world, {"a": run.start}, Path("a.doc")), FORMAT),
    ],
)
def test_figures_answer_bad_input_with_one_line_that_names_the_argument(function, arguments, message, no_type_checks):
    with pytest.raises(CorralError) as caught:
        enter(function(*arguments))
    assert str(caught.value) == message
    assert not png.exists()


def enter(answer):
    if hasattr(answer, "__enter__"):  # a context manager looks at its arguments only now
        answer.__enter__()


@pytest.fixture
def no_type_checks():
    """Turn off the run-time type checks of the tests, which a user does not have."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)

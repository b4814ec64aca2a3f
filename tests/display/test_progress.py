"""Progress of long tasks and the time left in a grid."""

import pytest

from corral.display.progress import Estimate, bar
from corral.experiments.runner import Part


def test_elsewhere_than_on_a_terminal_about_ten_lines_tell_how_far_it_is(capsys):
    with bar("playing", "episodes") as advance:
        for done in range(0, 5001, 50):
            advance(done, 5000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"{500 * k:,} of 5,000 episodes" for k in range(1, 11)]
    with bar("runs") as advance:
        advance(1, 2)
        advance(2, 2)
    assert capsys.readouterr().err.splitlines() == ["1 of 2 runs", "2 of 2 runs"]


def test_the_time_left_follows_from_seconds_per_step():
    estimate = Estimate()
    here, there = Part("a", 10, 100), Part("b", 5, 200)
    estimate.first(30.0)
    assert estimate.left(here, []) is None
    estimate.later(here, 2.0)
    estimate.later(here, 4.0)
    # 3 s per 100 steps: 10 iterations are 30 s; b, unknown, costs the same per step: 5·200 steps, 30 s, and compiles 30 s
    assert estimate.left(here, [there]) == pytest.approx(30 + 30 + 30)
    estimate.later(there, 1.0)
    assert estimate.left(here, [there]) == pytest.approx(30 + 30 + 5)

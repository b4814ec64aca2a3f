import io
import math
import re

import pytest
from rich.console import Console

from corral.config import Config, TrustRegion
from corral.display import training as display
from corral.display.braille import Canvas, round_range
from corral.display.training import Display, clock, short


def dots(canvas: Canvas) -> set[tuple[int, int]]:
    """(column, row) of every dot, rows from the top: decoded from the text by Unicode's own order of braille dots."""
    order = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]
    found = set()
    for r, line in enumerate(canvas.rows()):
        for c, character in enumerate(line.plain):
            if 0x2800 <= ord(character) < 0x2900:
                bits = ord(character) - 0x2800
                found |= {(2 * c + x, 4 * r + y) for i, (x, y) in enumerate(order) if bits >> i & 1}
    return found


def test_a_rising_line_runs_from_corner_to_corner_without_gaps():
    canvas = Canvas(10, 5, 0.0, 1.0)  # 20 × 20 dots
    canvas.curve([0.0, 1.0], [0.0, 1.0], "red")
    assert dots(canvas) == {(k, 19 - k) for k in range(20)}


def test_values_outside_the_range_stick_to_its_edge_and_missing_ones_leave_a_gap():
    canvas = Canvas(10, 2, 0.0, 1.0)
    canvas.curve([0.0, 0.25], [5.0, 5.0], "red")
    assert {row for _, row in dots(canvas)} == {0}
    canvas = Canvas(10, 2, 0.0, 1.0)
    canvas.curve([0.0, 0.5, 1.0], [0.0, math.nan, 0.0], "red")
    assert dots(canvas) == {(0, 7), (19, 7)}


def test_a_band_fills_the_area_between_its_curves_and_nothing_else():
    canvas = Canvas(4, 4, 0.0, 15.0)  # 16 rows of dots: value v is row 15 - v
    canvas.band([0.0, 1.0], [3.0, 3.0], [9.0, 9.0], "grey")
    rows = {row for _, row in dots(canvas)}
    assert rows == set(range(15 - 9, 15 - 3 + 1))
    assert {column for column, _ in dots(canvas)} == set(range(8))


def test_a_dashed_level_lies_behind_the_curves():
    canvas = Canvas(6, 3, 0.0, 1.0)
    canvas.level(0.5, "red")
    canvas.curve([0.0], [0.5], "blue")
    lines = [line.plain for line in canvas.rows()]
    assert canvas.row(0.5) == 1
    assert lines[1][1:] == "╌" * 5
    assert lines[1][0] != "╌"
    assert lines[0] == lines[2] == " " * 6


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.063, 38.8, (0, 40)),
        (-0.4, 38.8, (0, 40)),
        (0.0, 1.0, (0, 1)),
        (0.0, 0.137, (0, 0.14)),
        (-7.0, -3.0, (-7, -3)),
    ],
)
def test_axes_end_at_round_numbers(low, high, expected):
    assert round_range(low, high) == pytest.approx(expected)


def test_a_constant_still_gets_an_axis():
    for value in (0.0, 3.0, -250.0):
        low, high = round_range(value, value)
        assert low <= value <= high
        assert low < high


def row(k: int, **changed) -> dict:
    return {
        "iteration": k,
        "return": 10.0 + k,
        "return_se": 0.25,
        "cost_bombs": 0.5 / (k + 1),
        "cost_se_bombs": 0.01,
        "shaped_cost_bombs": 0.12,
        "shaped_cost_se_bombs": 0.03,
        "limit_bombs": 0.1,
        "case": "recovery" if k == 0 else "boundary",
        "kl": 0.0097,
        "accepted": True,
        "step_scale": 0.64,
        "explained_variance": 0.5,
        "seconds_sampling": 3.0,
        "seconds_updating": 1.0,
        "steps_per_second": 12345.6,
    } | changed


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def watch(monkeypatch):
    made = Clock()
    monkeypatch.setattr(display, "time", made)
    return made


def shown(rows, watch, *, terminal=True, seeds=1, total=8, size=(100, 40), **changed) -> str:
    """What stands on the screen, or on the pipe, after these rows, ten seconds apart."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=size[0], height=size[1], color_system=None)
    screen = Display(console)
    screen.start(Config("point-gather", trust=TrustRegion(0.01), **changed), total, seeds=seeds)
    for r in rows:
        watch.now += 10
        screen.update(r)
    if terminal:
        screen._live.stop()
        out.truncate(0)
        out.seek(0)
        console.print(screen)
    else:
        screen.stop("the end")
    return out.getvalue()


def test_without_a_terminal_every_iteration_is_a_line_with_all_that_matters(watch):
    lines = shown([row(k) for k in range(4)], watch, terminal=False).splitlines()
    assert len(lines) == 6
    assert lines[0] == "corral  point-gather  CPO  seed 0"
    assert lines[1] == (
        "1/8  return 10.0 ±0.25  bombs 0.500 ±0.01 limit 0.1  recovery  KL 0.0097  12,346 steps/s  time left unknown"
    )
    # Ten seconds an iteration, four to go.
    assert lines[4].endswith("boundary  KL 0.0097  12,346 steps/s  0:40 left")
    assert lines[5] == "the end"


def test_lines_tell_shaped_costs_and_rejected_steps(watch):
    lines = shown([row(0, accepted=False)], watch, terminal=False, shape_costs=True).splitlines()
    assert "bombs 0.500 ±0.01 (shaped 0.12) limit 0.1" in lines[1]
    assert "step rejected" in lines[1]


def test_the_picture_shows_return_cost_limit_case_and_progress(watch):
    picture = shown([row(k) for k in range(4)], watch)
    for part in (
        "point-gather  CPO  seed 0",
        "13.0 ±0.25",
        "best 13",
        "cost bombs  limit 0.1",
        "0.125 ±0.01 ▲ +25%",
        "▲ recovery",
        "▪ boundary",
        "4/8",
        "0:40 gone, 0:40 left",
        "KL 0.0097 of 0.01",
        "step × 0.64",
        "sampling 75% of the time",
    ):
        assert part in picture
    limit = next(line for line in picture.splitlines() if line.lstrip().startswith("0.1┤"))
    assert "╌╌╌╌" in limit
    # Four of eight iterations: the strip of cases is half full, one recovery and three boundaries.
    strip = next(line for line in picture.splitlines() if "case│" in line).split("│")[1].rstrip()
    marks = re.sub(" +", "", strip.split("boundary")[0])
    assert marks == "▲▪▪▪"


@pytest.mark.parametrize(("cost", "mark"), [(0.09, "✓ -10%"), (0.115, "≈ +15%"), (0.2, "▲ +100%")])
def test_a_limit_is_kept_missed_by_noise_or_broken(watch, cost, mark):
    # Standard error 0.01: two of them reach to 0.12.
    assert f"±0.01 {mark}" in shown([row(0, cost_bombs=cost)], watch)


def test_with_shaping_the_limit_is_about_the_shaped_cost(watch):
    picture = shown([row(0)], watch, shape_costs=True)
    assert "cost bombs  shaped  limit 0.1" in picture
    assert "0.120 ±0.03 ≈ +20%" in picture
    assert "unshaped 0.500 ±0.01" in picture


def test_several_seeds_show_their_mean_their_range_and_how_many_are_in_each_case(watch):
    seeds = [row(0, **{"return": r, "case": c}) for r, c in ((8.0, "inside"), (10.0, "inside"), (15.0, "recovery"))]
    mean = row(0, **{"return": 11.0, "seeds": seeds})
    picture = shown([mean], watch, seeds=3)
    assert "3 seeds from 0" in picture
    assert "11.0 ±0.25" in picture
    assert "seeds 8 … 15" in picture
    assert "inside 2 recovery 1" in picture


def test_an_unknown_case_or_a_value_that_is_not_finite_breaks_nothing(watch):
    bad = row(1, **{"return": math.nan, "cost_bombs": math.inf, "case": "something new", "kl": math.nan})
    assert "nan" in shown([row(0), bad], watch)
    assert "nan" in shown([bad], watch, terminal=False)


@pytest.mark.parametrize("size", [(80, 24), (60, 15), (200, 60), (40, 10)])
def test_the_picture_fits_the_screen(watch, size):
    picture = shown([row(k) for k in range(3)], watch, size=size).splitlines()
    assert max(map(len, picture)) <= max(size[0], 44)
    assert len(picture) <= max(size[1] - 1, 12)


def test_before_the_first_row_it_says_what_it_waits_for(watch):
    assert "compiling, and sampling the first batch" in shown([], watch)


def test_a_resumed_run_shows_its_past_but_not_what_it_makes_again(watch):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, height=40, color_system=None)
    screen = Display(console)
    past = [row(k, **{"return": 999.0 if k >= 2 else 10.0}) for k in range(4)]
    screen.past([past, [r | {"return": r["return"] + 5} for r in past]])
    screen.start(Config("point-gather"), 8, seeds=2)
    assert [r["return"] for r in screen._rows] == [12.5, 12.5, 1001.5, 1001.5]
    screen.update(row(2))
    screen.stop()
    out.truncate(0)
    out.seek(0)
    console.print(screen)
    assert "best 12.5" in out.getvalue()
    assert "3/8" in out.getvalue()


def test_notes_appear_on_a_line_of_their_own(watch):
    out = io.StringIO()
    screen = Display(Console(file=out, force_terminal=False, width=100))
    screen.start(Config("point-gather"), 8)
    screen.note("checkpoint-000003.npz is damaged [sic]")
    screen.stop()
    assert out.getvalue().splitlines()[-1] == "note: checkpoint-000003.npz is damaged [sic]"


def test_numbers_and_times_are_short():
    assert [short(x) for x in (0.0, 0.00012345, 1.5, 123.4, 999.6, 1234567.8, math.inf)] == [
        *("0", "0.000123", "1.5", "123", "1,000", "1,234,568", "inf")
    ]
    assert short(38.0, "#") == "38.0"
    assert [clock(x) for x in (0.0, 59.6, 61.0, 3661.0)] == ["0:00", "1:00", "1:01", "1:01:01"]

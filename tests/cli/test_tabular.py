import json

import pytest

from corral.cli import main


@pytest.mark.slow
def test_exact_cpo_reaches_the_optimum_of_the_gridworld_and_draws_it(tmp_path, capsys):
    assert main(["tabular", "--seed", "3", "--out", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "tabular.json").read_text())
    assert report["converged"]
    assert report["gap_closed"] > 0.99
    assert report["violation"] <= 1e-6
    assert report["broken"] == []
    assert report["learned"]["J"] == pytest.approx(report["optimum"]["J"], rel=1e-6)
    for name in ("tabular.png", "tabular-grid.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_text_compares_policies_and_says_whether_the_run_converged(tmp_path, capsys):
    assert main(["tabular", "--iterations", "2", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for part in ("return", "fire", "LP optimum", "limit", "2 updates, not converged", "0 broken", "tabular-grid.png"):
        assert part in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--delta", "0"], "corral tabular: delta must lie in (0, inf), got 0.0"),
        (["--iterations", "-1"], "corral tabular: iterations must be at least 0, got -1"),
        (["--seed", "-1"], "corral tabular: seed must be at least 0, got -1"),
    ],
)
def test_bad_numbers_get_one_line_and_status_two(tmp_path, capsys, arguments, message):
    assert main(["tabular", *arguments, "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1] == message

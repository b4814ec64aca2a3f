import dataclasses
import json

import pytest

from corral.cli import main
from corral.tabular import bounds as paper

SMALL = ["bounds", "--cmdps", "3", "--states", "4", "--actions", "3"]


def test_json_has_every_result_and_no_violation_and_the_files_are_there(tmp_path, capsys):
    assert main([*SMALL, "--seed", "5", "--out", str(tmp_path), "--json"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report == json.loads((tmp_path / "bounds.json").read_text())
    assert (report["cmdps"], report["states"], report["actions"], report["seed"]) == (3, 4, 3, 5)
    assert report["violations"] == sum(row["violations"] for row in report["results"]) == 0
    assert {"Theorem 1: f = V^π", "Proposition 2"} <= {row["result"] for row in report["results"]}
    assert (tmp_path / "bounds.png").read_bytes().startswith(b"\x89PNG")
    assert "3 of 3 random CMDPs" in printed.err


def test_the_table_has_a_line_per_result_and_names_the_figure(tmp_path, capsys):
    assert main([*SMALL, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for part in ("instances", "violated", "Corollary 1", "Guaranteed: feasible", "no violation in"):
        assert part in printed
    assert str(tmp_path / "bounds.png") in printed


@pytest.mark.slow
def test_any_violation_makes_the_exit_status_ten_and_is_told(tmp_path, capsys, monkeypatch):
    true = paper.divergence_lemma
    monkeypatch.setattr(paper, "divergence_lemma", lambda *pair: dataclasses.replace(true(*pair), allowance=0.0))
    assert main([*SMALL, "--out", str(tmp_path)]) == 10
    printed = capsys.readouterr().out
    assert "Lemma 3: divergence: CMDP 0, close policies, short by" in printed
    assert "violations in" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cmdps", "0"], "corral bounds: cmdps must be at least 1, got 0"),
        (["--states", "1"], "corral bounds: states must be at least 2, got 1"),
        (
            ["--states", "99999999"],
            "corral bounds: states² · actions must be at most 100,000,000, the size of the transition table, "
            "got 99999999 states and 4 actions",
        ),
        (["--seed", "-1"], "corral bounds: seed must be at least 0, got -1"),
    ],
)
def test_bad_numbers_get_one_line_and_status_two(tmp_path, capsys, arguments, message):
    assert main(["bounds", *arguments, "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.strip() == message


def test_help_explains_every_option(capsys):
    with pytest.raises(SystemExit):
        main(["bounds", "--help"])
    printed = capsys.readouterr().out
    for option in ("--cmdps", "--states", "--actions", "--seed", "--out", "--json", "exit status is 10"):
        assert option in " ".join(printed.split())

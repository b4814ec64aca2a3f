"""Tables and pictures from a document, without measuring anything."""

import json

import pytest

from benchmarks.bench import __main__ as command
from benchmarks.bench import clock, figure, report

DOCUMENT = {
    "corral": "0.1.0",
    "command": 'make bench ARGS="--part iteration"',
    "when": "2025-01-01",
    "quick": False,
    "machine": {"backend": "cpu", "device": "CPU", "devices": 2, "cores": 2, "jax": "0.10", "load": 0.1},
    "parts": {
        "iteration": [
            {
                "env": "ant-circle",
                "preset": "paper",
                "seconds": [2.0, 1.9, 2.2],
                "steps": [100_000.0] * 3,
                "steps_per_second": [50_000.0] * 3,
                "sampling": [1.5] * 3,
                "updating": [0.5] * 3,
                "engine_floor": [1.2] * 3,
                "flop_floor": [0.3] * 3,
                "floor": [1.5] * 3,
                "of_engine": [0.6, 0.55, 0.63],
                "of_floor": [0.75, 0.7, 0.8],
            }
        ],
        "seeds": [
            {"env": "point-circle", "seeds": n, "robots": 800 * n, "seconds": [1.0] * 3}
            | {"sampled_per_second": [2e6 * n] * 3, "steps_per_second": [1e6 * n] * 3}
            for n in (1, 10)
        ]
        + [{"env": "point-circle", "seeds": 100, "failed": "out of memory"}],
    },
}


def test_a_markdown_table_has_a_line_for_each_row_and_ratios_with_extremes():
    lines = report.markdown_table("iteration", DOCUMENT["parts"]["iteration"]).splitlines()
    assert len(lines) == 3
    assert {line.count("|") for line in lines} == {12}
    assert "60% (55 to 63)" in lines[2]
    assert "75% (70 to 80)" in lines[2]
    assert "2 s (1.9 s to 2.2 s)" in lines[2]


def test_what_did_not_fit_is_said_in_the_table():
    assert "out of memory" in report.markdown_table("seeds", DOCUMENT["parts"]["seeds"])


def test_work_of_others_and_quick_sizes_are_told_beside_the_figures():
    busy = DOCUMENT | {"machine": DOCUMENT["machine"] | {"load": 6.0}, "quick": True}
    assert "load 6.0" in report.machine_line(busy)
    assert "--quick" in report.machine_line(busy)
    assert "load" not in report.machine_line(DOCUMENT)


def test_tables_and_figures_are_made_from_a_file_alone(tmp_path, capsys):
    file = tmp_path / "measured.json"
    file.write_text(json.dumps(DOCUMENT))
    assert command.main(["--draw", str(file), "--out", str(tmp_path / "out"), "--markdown"]) == 0
    assert "## Whole iterations" in capsys.readouterr().out
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert made == {"bench.json", "bench.md", "iteration.png", "seeds.png"}


def test_pictures_can_carry_a_prefix(tmp_path):
    assert figure.draw(DOCUMENT, tmp_path, "h200-") == [tmp_path / "h200-iteration.png", tmp_path / "h200-seeds.png"]


def test_calls_are_made_in_turns_after_a_round_that_does_not_count():
    order = []
    times = clock.in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b"] * 3
    assert [len(found) for found in times.values()] == [2, 2]


def test_ratios_are_taken_round_by_round():
    # 1/2, 4/2, 9/3: the median of the ratios is not the ratio of the medians, 4/2.
    assert clock.ratios([1.0, 4.0, 9.0], [2.0, 2.0, 3.0]) == [2, 0.5, 3]


def test_a_missing_file_is_refused_in_one_line(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        command.main(["--draw", str(tmp_path / "nothing.json")])


def test_updates_of_few_samples_come_first_whichever_were_measured_first():
    row = {"part": "dual", "seconds": [1.0] * 3, "gflop": 0.0, "gflop_per_second": None, "flop_floor": [0.0] * 3}
    row |= {"megabytes": 1.0, "byte_floor": [0.1] * 3, "of_floor": [0.1] * 3}
    table = report.markdown_table("update", [{"samples": n} | row for n in (50_000, 100_000, 20_000)])
    assert [line.split()[1] for line in table.splitlines()[2:]] == ["20,000", "50,000", "100,000"]


def test_help_names_the_command_and_every_part(capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert 'make bench ARGS="[options]"' in text
    assert all(part in text for part in report.TABLES)

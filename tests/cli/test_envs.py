import json

from corral import envs
from corral.cli import envs as command


def test_the_table_lists_every_environment_with_its_limit(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert command.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(line.split() for line in lines if line.strip().startswith("humanoid-circle"))
    assert row[1:4] == ["102", "10", "1000"]
    assert row[-1] == "10"
    assert all(any(name in line for line in lines) for name in envs.names())


def test_json_carries_sizes_constraints_and_parameters(capsys):
    assert command.main(["--json"]) == 0
    found = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert tuple(found) == envs.names()
    gather = found["point-gather"]
    assert gather["constraints"] == [
        {"name": "bombs", "limit": 0.1, "description": "bombs caught", "discount": None, "largest": 8.0}
        | {"largest_step": 8.0}
    ]
    assert gather["parameters"]["apples"] == 2
    assert gather["action"] == {"kind": "continuous", "size": 2}

"""`corral safety-gymnasium`: which Python it takes, and the real package."""

import json
import os
import subprocess
import sys

import pytest

from corral.cli import main, safety_gymnasium
from corral.errors import CorralError


def python(path, version):
    """A file that answers like a Python of this version, or like a name of pyenv's that no version stands behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{'exit 127' if version is None else f'echo {version}'}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A machine without Pythons; the folder of its PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin") + os.pathsep + "/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(safety_gymnasium, "VERSIONS", ((3, 4), (3, 3)))  # which no system of today has
    return tmp_path


def test_the_best_python_is_taken_and_names_without_one_are_passed_over(nowhere):
    with pytest.raises(CorralError, match="there is none on PATH, or of pyenv's or uv's"):
        safety_gymnasium.suitable(None)
    older = python(nowhere / "bin" / "python3.3", "3 3")
    python(nowhere / "bin" / "python3.4", None)
    assert safety_gymnasium.suitable(None) == older
    best = python(nowhere / "data" / "uv" / "python" / "cpython-3.4.9-linux" / "bin" / "python3.4", "3 4")
    assert safety_gymnasium.suitable(None) == best
    own = python(nowhere / "pyenv" / "versions" / "3.4.1" / "bin" / "python3.4", "3 4")
    assert safety_gymnasium.suitable(None) == own


def test_a_python_that_does_not_serve_is_refused(tmp_path):
    with pytest.raises(CorralError, match=r"needs Python 3\.8, 3\.9 or 3\.10, and .* is \(3, 12\)"):
        safety_gymnasium.suitable(python(tmp_path / "python", "3 12"))
    with pytest.raises(CorralError, match="does not answer as one"):
        safety_gymnasium.suitable(tmp_path / "none")


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("x")
    assert main(["safety-gymnasium", str(tmp_path)]) == 2
    assert "is neither empty nor a virtual environment" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_what_an_installer_said_last_is_in_the_error():
    code = "print('Collecting x'); print('no such version'); raise SystemExit(1)"
    heard = []
    with pytest.raises(CorralError, match=r"(?s)failed:\nCollecting x\nno such version$"):
        safety_gymnasium.run([sys.executable, "-c", code], heard.append)
    assert heard == ["Collecting x", "no such version"]


@pytest.mark.slow
def test_the_real_safety_gymnasium_is_installed_and_trains(tmp_path):
    """With the documented commands; needs a Python 3.8 to 3.10 and a package index."""
    try:
        safety_gymnasium.suitable(None)
    except CorralError as error:
        pytest.skip(str(error))
    corral = [sys.executable, "-m", "corral"]
    made = subprocess.run(
        [*corral, "safety-gymnasium", str(tmp_path / "sg"), "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(made.stdout)
    small = ["--iterations", "3", "--batch-size", "2000", "--networks.hidden", "8", "--critic.epochs", "2"]
    for env in ("SafetyPointGoal1-v0", "SafetyHalfCheetahVelocity-v1"):
        train = [*corral, "train", env, "--env-python", found["python"], "--limit", "25", *small]
        subprocess.run([*train, "--out", str(tmp_path / env)], check=True)
        assert (tmp_path / env / "policy.npz").exists()
    evaluate = [*corral, "evaluate", str(tmp_path / env), "--episodes", "2", "--json"]
    assert json.loads(subprocess.run(evaluate, stdout=subprocess.PIPE, text=True).stdout)[0]["episodes"] == 2

"""Every script of examples/ runs to its end and says what it should."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAFETY = os.environ.get("CORRAL_SAFETY_PYTHON", str(Path.home() / "sg" / "bin" / "python"))


def run(name: str, folder: Path, *words: str) -> str:
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3"}
    command = [sys.executable, str(EXAMPLES / name), *words, "--quick"]
    done = subprocess.run(command, cwd=folder, env=os.environ | quick, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_list_names_every_example():
    table = (EXAMPLES / "README.md").read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f"({path.name})" not in table] == []


@pytest.mark.slow
def test_two_constraints(tmp_path):
    printed = run("two_constraints.py", tmp_path)
    assert "limits {'torque': 150.0, 'fast': 30.0}" in printed
    assert (tmp_path / "runs/two-constraints/figure.png").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cost"), [("jax_environment.py", "middle"), ("own_robot.py", "swing")])
def test_environments_of_one_s_own(name, cost, tmp_path):
    assert f"{cost} [" in run(name, tmp_path)


@pytest.mark.slow
def test_a_grid_on_ray(tmp_path):
    pytest.importorskip("ray", reason="needs corral[ray]")
    run("ray_grid.py", tmp_path)
    assert len(list((tmp_path / "runs/ray-grid/quick").rglob("policy.npz"))) == 3


@pytest.mark.slow
@pytest.mark.skipif(not Path(SAFETY).is_file(), reason=f"no {SAFETY}: `corral safety-gymnasium ~/sg` sets it up")
def test_safety_gymnasium(tmp_path):
    assert "hazards [" in run("safety_gymnasium.py", tmp_path, SAFETY)

"""The wheel: it holds what the package needs at run time, and trains where there is no checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this checkout, built from a copy so that nothing is left behind in it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    tracked = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "src", "pyproject.toml", "README.md", "LICENSE"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in tracked:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(source)], check=True, capture_output=True)
    return next(folder.glob("corral-*.whl"))


def test_the_wheel_holds_data_files_and_no_benchmarks_or_tests(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for needed in (
        "corral/py.typed",
        "corral/envs/engines/step.c",
        *(f"corral/experiments/{name}.toml" for name in ("fig1", "fig3", "fig4", "ablations", "velocity")),
        *(f"corral/report/page/{name}" for name in ("page.html", "page.css", "main.js", "cases.js")),
    ):
        assert needed in names, needed
    assert all(name.startswith(("corral/", "corral-")) for name in names)
    # Every file of the package that git knows is in it.
    code = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "corral").rglob("*.py")}
    assert code <= names


def test_the_installed_wheel_trains_without_the_checkout(wheel, tmp_path):
    where = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(where), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(where), "JAX_DISABLE_MOST_OPTIMIZATIONS": "true"}
    place = [sys.executable, "-c", "import corral; print(corral.__file__)"]
    found = subprocess.run(place, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(str(where))
    small = ["--iterations", "1", "--batch-size", "300", "--networks.hidden", "4", "--out", "run"]
    train = [sys.executable, "-m", "corral", "train", "point-gather", "--preset", "paper", *small]
    subprocess.run(train, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (tmp_path / "run" / "policy.npz").is_file()

"""`corral safety-gymnasium DIR`: a Python of its own for Safety-Gymnasium, whose packages cannot live beside Corral's."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from corral.cli.flags import parse
from corral.display.progress import say
from corral.errors import CorralError, require

PACKAGE = "safety-gymnasium==1.0.0"
VERSIONS = ((3, 10), (3, 9), (3, 8))
"""Pythons for which its packages exist, the best first."""
ENVIRONMENT = "SafetyPointGoal1-v0"


@dataclass(frozen=True)
class Config:
    """Set up Safety-Gymnasium 1.0 in a virtual environment, and print the command that trains with it.

    It needs Python 3.8 to 3.10 and packages that are older than Corral's, so `corral train` runs it in processes of their
    own: `--env-python DIR/bin/python`. Doing this again goes on where it was interrupted.
    """

    dir: Path = field(metadata={"positional": True})
    """Folder for the virtual environment."""
    python: Path | None = None
    """A Python 3.8, 3.9 or 3.10; None: the best on PATH, or else of those that pyenv and uv have installed."""
    json: bool = False
    """Print the results as JSON at the end, and nothing else on stdout."""


def main(argv: list[str]) -> int:
    """Run the command."""
    config = parse(Config, argv, "safety-gymnasium")
    folder = Path(os.path.abspath(config.dir.expanduser()))
    own = folder / "bin" / "python"
    with showing() as show:
        if not own.exists():
            require(
                not folder.exists() or not any(folder.iterdir()),
                f"{folder} is neither empty nor a virtual environment: choose another folder",
            )
            base = suitable(config.python)
            show(f"making {folder} with {base}")
            run([str(base), "-m", "venv", str(folder)], lambda line: None)
        show(f"installing {PACKAGE}")
        pip = [str(own), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", PACKAGE]
        run(pip, lambda line: show(line.split(" (")[0]) if line.startswith(("Collecting", "Installing")) else None)
        show(f"stepping {ENVIRONMENT}")
        check(own)
    command = f"corral train {ENVIRONMENT} --env-python {own} --limit 25"
    if config.json:
        print(json.dumps({"python": str(own), "package": PACKAGE, "command": command}))
    else:
        print(f"{PACKAGE} is ready; train with:\n  {command}")
    return 0


def suitable(given: Path | None) -> Path:
    """The Python that was given, or the best that is found; CorralError where it does not serve."""
    if given is not None:
        found = version(given)
        require(found is not None, f"python must be a Python, and {given} does not answer as one")
        require(found in VERSIONS, f"Safety-Gymnasium 1.0 needs Python 3.8, 3.9 or 3.10, and {given} is {found}")
        return given
    for wanted in VERSIONS:
        for candidate in candidates(wanted):
            if version(candidate) == wanted:
                return candidate
    raise CorralError(
        "Safety-Gymnasium 1.0 needs Python 3.8, 3.9 or 3.10, and there is none on PATH, or of pyenv's or uv's. Install one "
        "(pyenv install 3.10, uv python install 3.10, or your system's package) or name one: --python PATH"
    )


def candidates(wanted: tuple[int, int]) -> Iterator[Path]:
    """Where a Python of this version may be."""
    name = "python{}.{}".format(*wanted)
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if (Path(folder) / name).is_file():
            yield Path(folder) / name
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    uv = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "uv" / "python"
    for folders, pattern in ((pyenv, "{}.{}.*"), (uv, "cpython-{}.{}.*")):
        yield from sorted(folders.glob(pattern.format(*wanted) + f"/bin/{name}"))


def version(python: Path) -> tuple[int, int] | None:
    """The version of a Python; None where it is none, such as a name of pyenv's without a version behind it."""
    ask = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.fullmatch(r"(\d+) (\d+)\n", done.stdout)
    return (int(found[1]), int(found[2])) if found and done.returncode == 0 else None


def run(command: list[str], hear: Callable[[str], None]) -> None:
    """Run a command and hear each line it prints; its last lines are in the error if it fails."""
    last: deque[str] = deque(maxlen=12)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line.rstrip())
            hear(line.rstrip())
    require(process.returncode == 0, f"`{' '.join(command)}` failed:\n" + "\n".join(last))


def check(python: Path) -> None:
    """Make an environment there and step it, as training does."""
    import numpy as np

    from corral.envs import ConstraintSpec, from_gymnasium

    env = from_gymnasium(ENVIRONMENT, 1, (ConstraintSpec("cost_hazards", 25.0),), workers=1, python=python)
    try:
        env.reset(0)
        env.step(np.zeros((1, env.spec.action.size)))
    finally:
        env.close()


@contextmanager
def showing() -> Iterator[Callable[[str], None]]:
    """Show what is being done: on a terminal in one line that changes, elsewhere in a line each."""
    if not sys.stderr.isatty():
        yield say
        return
    from corral.display.progress import Console

    console = Console(stderr=True)
    width = shutil.get_terminal_size().columns - 4
    with console.status("…") as status:
        yield lambda text: status.update(text[:width])

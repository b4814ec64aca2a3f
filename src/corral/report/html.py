"""The page itself: a template, a style sheet, scripts and the data, joined into one file."""

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from corral import __version__
from corral.errors import require
from corral.report import contents, runs
from corral.report.stats import last_iterations
from corral.running.files import write_atomically

# In this order: later scripts use what earlier ones define.
_SCRIPTS = ("base.js", "series.js", "chart.js", "cases.js", "maps.js", "tables.js", "main.js")


class Written(NamedTuple):
    """The page that was written."""

    path: Path
    groups: int
    runs: int
    skipped: tuple[Path, ...]
    """Runs without an iteration."""
    without_policy: tuple[Path, ...]
    """Runs shown without trajectories, since they are not finished."""
    bytes: int


def write(
    directories: Sequence[Path | str],
    out: Path | str,
    command: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Written:
    """Write the page about every run in or below the folders to `out`; the page quotes `command`."""
    out = Path(out)
    require(not out.is_dir(), f"out must be a file, and {out} is a folder")
    groups, skipped = runs.find_begun([Path(folder) for folder in directories])
    begun = [run for group in groups for run in group.runs]
    data = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "command": command,
        "last": last_iterations(len(run.metrics) for run in begun),
        "skipped": [str(folder) for folder in skipped],
        "docs": contents.documentation(),
        "groups": contents.groups(groups, progress),
    }
    page = render(data).encode(errors="replace")
    write_atomically(out, page)
    waiting = tuple(run.folder for run in begun if not run.finished)
    return Written(out, len(groups), len(begun), skipped, waiting, len(page))


def render(data: dict[str, Any]) -> str:
    """The text of the page."""
    folder = files("corral.report") / "page"
    environments = ", ".join(sorted({group["env"] for group in data["groups"]}))
    parts = {
        "title": escape(f"{environments} · Corral report"),
        "style": (folder / "page.css").read_text(encoding="utf-8"),
        "script": "\n".join((folder / name).read_text(encoding="utf-8") for name in _SCRIPTS),
        "data": embedded(data),
    }
    template = (folder / "page.html").read_text(encoding="utf-8")
    # One pass: braces inside the parts are never taken for a place to fill.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def embedded(data: Any) -> str:
    """JSON without "<", which can neither end the script element around it nor begin a comment there."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")

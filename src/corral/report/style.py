"""The colours and the style of all figures, and the one function that writes a figure to a file."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corral.errors import require
from corral.running.files import write_atomically

# The palette of Okabe and Ito, which colour-blind readers can tell apart.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PURPLE, YELLOW = "#0072B2", "#D55E00", "#CC79A7", "#F0E442"
GREY = "#999999"

STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "corral",
}
"""Matplotlib parameters of every figure; the fixed salt makes equal figures equal SVG files."""

_NO_DATE: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": None}


@contextmanager
def drawing(path: Path, columns: int, size: tuple[float, float]) -> Iterator[list[Any]]:
    """Yield panels side by side in a figure of `size` inches, and write the figure to `path` when the block ends."""
    _require_format(path)
    require(columns >= 1, f"columns must be at least 1, got {columns}")
    require(min(size) > 0, f"size must be two positive numbers of inches, got {size}")
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=size, layout="constrained")
        yield list(figure.subplots(1, columns, squeeze=False)[0])
        save(figure, path, dpi=110)


def save(figure: Any, path: Path, dpi: int) -> None:
    """Write a matplotlib figure to `path`, whole or not at all, as the PDF, PNG or SVG that the path's suffix names.

    The file holds no date: equal figures give equal files.
    """
    _require_format(path)
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:], dpi=dpi, metadata=_NO_DATE[path.suffix])
    write_atomically(path, content.getvalue())


def _require_format(path: Path) -> None:
    known = sorted(_NO_DATE)
    require(path.suffix in known, f"path must end in {', '.join(known)}, got {str(path)!r}")

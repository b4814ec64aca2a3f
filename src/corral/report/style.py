"""What the pictures of this package share: colours, canvas, and files written all at once or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corral.errors import require

__all__ = [
    "BLACK",
    "BLUE",
    "GREEN",
    "GREY",
    "ORANGE",
    "PURPLE",
    "RED",
    "SKY",
    "YELLOW",
    "drawing",
    "replacing",
]

# Okabe and Ito's colours, told apart by every kind of eye.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PURPLE, YELLOW = "#0072B2", "#D55E00", "#CC79A7", "#F0E442"
GREY = "#999999"

_STYLE: Any = {
    "figure.dpi": 110,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


@contextmanager
def drawing(path: Path, columns: int, size: tuple[float, float]) -> Iterator[list[Any]]:
    """Panels side by side in a figure of `size` inches, which is written to `path` when the block ends."""
    known = (".pdf", ".png", ".svg")
    require(path.suffix in known, f"path must end in {', '.join(known)}, got {str(path)!r}")
    require(columns >= 1, f"columns must be at least 1, got {columns}")
    require(min(size) > 0, f"size must be two positive numbers of inches, got {size}")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(_STYLE):
        figure, axes = pyplot.subplots(1, columns, figsize=size, layout="constrained", squeeze=False)
        try:
            yield list(axes[0])
            with replacing(path) as temporary:
                figure.savefig(temporary)
        finally:
            pyplot.close(figure)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that becomes it if the block succeeds; makes the folder."""
    require(bool(path.name) and not path.is_dir(), f"path must name a file, got {str(path)!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)

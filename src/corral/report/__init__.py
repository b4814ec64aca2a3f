"""Pictures of runs: the figure of one run, figures of many, films (render/), and the HTML page of `corral report`.

    folders ──runs.find──▶ runs ──runs.group──▶ groups of seeds ──contents──▶ JSON ──page.html──▶ one file

The page consists of that JSON and the files in page/. It loads nothing, so it opens from a disk without a network.
"""

from corral.report.html import write

__all__ = ["write"]

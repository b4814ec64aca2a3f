"""One self-contained HTML page about any number of runs: `corral report`.

    folders ──runs.find──▶ runs ──runs.group──▶ groups of seeds ──contents──▶ JSON ──page.html──▶ one file

The JSON and the files in page/ are all there is to it: the page loads nothing, so it opens from a disk without a network.
"""

from corral.report.html import write

__all__ = ["write"]

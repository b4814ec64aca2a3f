"""`corral bench`: how fast this machine trains, against the floor it sets."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from corral.cli import parse

if TYPE_CHECKING:
    from benchmarks.bench.report import Document


@dataclass(frozen=True)
class Config:
    """Measure sampling, updates, whole iterations, scaling, seeds side by side, memory and start-up.

    Everything stands beside its floor, measured in turns with it: the raw engine's speed, and the flops of the matrix
    products at the rate of a plain matmul of their shapes.
    """

    part: tuple[
        Literal["all", "sampling", "update", "iteration", "scaling", "seeds", "memory", "startup"], ...
    ] = ("all",)
    """What to measure; seeds: throughput against the number of seeds side by side (on a GPU, with ten Ants)."""
    env: tuple[str, ...] = ()
    """Environments of sampling, iteration and seeds; none named: each part's own."""
    quick: bool = False
    """A smoke test: sizes so small that the figures mean nothing."""
    json: bool = False
    """Print the results as JSON, and nothing else on stdout."""
    markdown: bool = False
    """Print the tables as Markdown."""
    out: Path | None = None
    """Folder for bench.json, bench.md and the figures."""
    draw: Path | None = None
    """Measure nothing: tables and figures from an earlier bench.json."""


def main(argv: list[str]) -> int:
    """Measure, or read what was measured; print tables, write files."""
    config = parse(Config, argv, "bench")
    from rich.console import Console

    from corral.errors import require

    progress = Console(stderr=True)
    require(config.draw is None or config.draw.is_file(), f"--draw {config.draw}: no such file")
    document = json.loads(config.draw.read_text()) if config.draw else _measured(config, progress)
    if config.out is not None:
        _write(document, config.out, progress)
    _show(document, config)
    return 0


def _measured(config: Config, progress: Any) -> "Document":
    import time

    from corral import devices

    devices.keep_memory()
    if config.quick:  # elsewhere the time of the first iteration is a result
        devices.use_cache()
    from benchmarks.bench import run
    from corral import envs

    for name in config.env:
        envs.spec(name)  # refuses a name it does not know
    parts = [part for part in run.PARTS if part in config.part or "all" in config.part]
    began = time.perf_counter()

    def note(text: str) -> None:
        progress.print(
            f"[{time.perf_counter() - began:5.0f} s] {text}", style="dim", markup=False, highlight=False
        )

    def save(document: "Document") -> None:
        if config.out is not None:
            _write_json(document, config.out)

    return run.run(parts, config.env, config.quick, note, save)


def _write_json(document: "Document", out: Path) -> None:
    from corral.running.files import write_atomically

    write_atomically(out / "bench.json", (json.dumps(document, indent=1) + "\n").encode())


def _write(document: "Document", out: Path, progress: Any) -> None:
    from benchmarks.bench import report
    from corral.running.files import write_atomically

    _write_json(document, out)
    write_atomically(out / "bench.md", report.markdown(document).encode())
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        progress.print(
            f"no matplotlib here: draw elsewhere with corral bench --draw {out / 'bench.json'} --out DIR"
        )
        return
    from benchmarks.bench import figure

    for path in figure.draw(document, out):
        progress.print(f"figure   {path}")


def _show(document: "Document", config: Config) -> None:
    from benchmarks.bench import report

    if config.json:
        print(json.dumps(document))
        return
    if config.markdown:
        print(report.markdown(document), end="")
        return
    import sys

    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(report.machine_line(document), highlight=False)
    for part in report.TABLES:
        if part in document["parts"]:
            console.print()
            console.print(report.table(part, document["parts"][part]))

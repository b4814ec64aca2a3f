"""`make bench`: how fast this machine trains, beside the floor that it sets."""

import argparse
import json
import sys
import time
from pathlib import Path

from rich.console import Console

from benchmarks.bench import report, run
from benchmarks.bench.report import Document
from corral.errors import CorralError, require
from corral.running.files import write_atomically


def parser() -> argparse.ArgumentParser:
    """Return the parser of the bench's options."""
    made = argparse.ArgumentParser(
        prog="make bench",
        usage='make bench ARGS="[options]"',
        description="Measure each part of training in turns with its floor: the raw engine's speed, and the matrix "
        "products at the rate of a plain matmul of their shapes.",
    )
    add = made.add_argument
    parts = f"parts to measure: {', '.join(run.PARTS)}; default: all"
    add("--part", nargs="+", default=["all"], choices=("all", *run.PARTS), metavar="PART", help=parts)
    named = "environments of sampling, engines, iteration and seeds; default: each part's own"
    add("--env", nargs="+", default=[], help=named)
    add("--robots", type=int, help="robots of the part engines; default: 200 on threads, 4,096 on a device")
    add("--quick", action="store_true", help="smoke test: sizes so small that the figures mean nothing")
    add("--json", action="store_true", help="print the results as JSON, and nothing else on stdout")
    add("--markdown", action="store_true", help="print the tables as Markdown")
    add("--out", type=Path, metavar="DIR", help="folder for bench.json, bench.md and the figures")
    drawn = "measure nothing; make tables and figures from an earlier bench.json"
    add("--draw", type=Path, metavar="FILE", help=drawn)
    return made


def main(argv: list[str]) -> int:
    """Measure, or read earlier results; print the tables and write the files."""
    options = parser().parse_args(argv)
    progress = Console(stderr=True)
    require(options.draw is None or options.draw.is_file(), f"--draw {options.draw}: no such file")
    if options.draw:
        document = json.loads(options.draw.read_text())
    else:
        document = _measured(options, f'make bench ARGS="{" ".join(argv)}"', progress)
    if options.out is not None:
        _write(document, options.out, progress)
    _show(document, options)
    return 0


def _measured(options: argparse.Namespace, command: str, progress: Console) -> Document:
    """Measure the chosen parts; bench.json grows with every row."""
    from corral import devices, envs

    devices.keep_memory()
    if options.quick:  # A full run compiles anew: the time of its first iteration is a result.
        devices.use_cache()
    for name in options.env:
        envs.spec(name)  # refuses a name it does not know
    parts = [part for part in run.PARTS if part in options.part or "all" in options.part]
    wanted = run.Wanted(parts, tuple(options.env), options.quick, options.robots)
    began = time.perf_counter()

    def note(text: str) -> None:
        line = f"[{time.perf_counter() - began:5.0f} s] {text}"
        progress.print(line, style="dim", markup=False, highlight=False)

    def save(document: Document) -> None:
        if options.out is not None:
            _write_json(document, options.out)

    return run.run(wanted, command, note, save)


def _write_json(document: Document, out: Path) -> None:
    write_atomically(out / "bench.json", (json.dumps(document, indent=1) + "\n").encode())


def _write(document: Document, out: Path, progress: Console) -> None:
    """Write the results, their tables, and their figures where matplotlib is installed."""
    _write_json(document, out)
    write_atomically(out / "bench.md", report.markdown(document).encode())
    try:
        from benchmarks.bench import figure

        made = figure.draw(document, out)
    except ImportError:
        again = f'make bench ARGS="--draw {out / "bench.json"} --out DIR"'
        progress.print(f"matplotlib is missing here: draw the figures elsewhere with {again}")
        return
    for path in made:
        progress.print(f"figure   {path}")


def _show(document: Document, options: argparse.Namespace) -> None:
    """Print the results in the form that the options name."""
    if options.json:
        print(json.dumps(document))
        return
    if options.markdown:
        print(report.markdown(document), end="")
        return
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(report.machine_line(document), highlight=False)
    for part in report.TABLES:
        if part in document["parts"]:
            console.print()
            console.print(report.table(part, document["parts"][part]))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except CorralError as error:
        sys.exit(f"make bench: {error}")

"""Put measured numbers into the pages of docs/ and draw the figures they show.

    make pages

A slot `<!-- bench FILE PART -->` … `<!-- end -->` gets the table of that part of benchmarks/results/FILE.json, or of a
FILE-….json where several runs measured the parts. A slot `<!-- results EXPERIMENT ENV -->` … `<!-- end -->` gets the table
of the learning curves in results/EXPERIMENT/ENV.csv. A slot without results says how to get them. The rest of a page stays.
"""

import json
import re
from pathlib import Path

from benchmarks.bench import figure, report
from corral.experiments import data, spec, tables
from corral.experiments.pipeline import draw_from
from corral.experiments.tables import Line
from corral.running.files import write_atomically

ROOT = Path(__file__).parents[1]
BENCHMARKS, RESULTS, DOCS = ROOT / "benchmarks/results", ROOT / "results", ROOT / "docs"
SLOT = re.compile(r"<!-- (?P<kind>bench|results) (?P<file>\S+) (?P<part>\S+) -->\n.*?<!-- end -->", re.DOTALL)


def filled(slot: re.Match[str]) -> str:
    """Return the slot with the table of the present results."""
    kind, file, part = slot["kind"], slot["file"], slot["part"]
    text = _bench(file, part) if kind == "bench" else _curves(file, part)
    return f"<!-- {kind} {file} {part} -->\n{text}\n<!-- end -->"


def _bench(file: str, part: str) -> str:
    command = f'make bench ARGS="--part {part} --out DIR"'
    text = f"*Not measured yet: `{command}`, then copy DIR/bench.json to benchmarks/results/{file}.json.*"
    for path in sorted([*BENCHMARKS.glob(f"{file}.json"), *BENCHMARKS.glob(f"{file}-*.json")]):
        document = json.loads(path.read_text())
        if part in document["parts"]:
            table = report.markdown_table(part, document["parts"][part])
            text = f"{table}\n\n{report.machine_line(document)}: `{document['command']}`"
    return text


def _curves(experiment: str, env: str) -> str:
    folder = RESULTS / experiment
    found = data.read(spec.paper(experiment), folder) if folder.is_dir() else []
    found = [part for part in found if part.env == env]
    if not found:
        command = f"corral reproduce {experiment} --only {env} --scale paper --out DIR"
        return f"*Not run yet: `{command}`, then copy DIR/data to results/.*"
    lines = tables.lines(spec.paper(experiment), found[0])
    shown = tables.constraint_title(lines[0].column)
    head = ["run", "seeds × iterations", "return", f"{shown}, limit {tables.number(lines[0].limit)}", "true C"]
    rows = [head, ["---", *["--:"] * (len(head) - 1)], *(_cells(line) for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + f"\n\n{_origin(experiment, env)}"


def _cells(line: Line) -> list[str]:
    low, high = line.iterations
    made = f"{line.seeds} × {high if low == high else f'{low} to {high}'}"
    parts = (line.final_return, line.final_constraint, line.final_cost)
    return [line.run, made, *map(tables.interval, parts)]


def _origin(experiment: str, env: str) -> str:
    """Name the commit and the machine of the runs."""
    known = json.loads((RESULTS / experiment / "provenance.json").read_text())[env]["work"]
    where = dict.fromkeys(
        f"commit {work['commit'][:7]}, {work['gpu'] or work['cpu']}, jax {work['packages']['jax']}" for work in known
    )
    return f"Runs: {'; '.join(where)}."


def main() -> None:
    """Draw the figures, then fill the pages that show them."""
    for path in sorted(BENCHMARKS.glob("*.json")):
        document, machine = json.loads(path.read_text()), path.stem.split("-")[0]
        if "parts" not in document:  # made by a script of docs/figures, which draws it too
            continue
        for made in figure.draw(document, DOCS / "img", f"bench-{machine}-"):
            print(f"figure   {made.relative_to(ROOT)}")
    for experiment in map(spec.paper, spec.PAPER):
        if (folder := RESULTS / experiment.name).is_dir():
            for made in draw_from(experiment, folder, RESULTS / "figures"):
                print(f"figure   {made.relative_to(ROOT)}")
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text()
        if SLOT.search(text):
            write_atomically(page, SLOT.sub(filled, text).encode())
            print(f"page     {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

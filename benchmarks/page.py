"""Put the measured tables into docs/performance.md and draw its figures.

    python benchmarks/page.py

Between `<!-- table FILE PART -->` and `<!-- end -->` the page gets the table of that part of benchmarks/results/FILE.json
(or of a FILE-….json, where parts were measured in several runs), or a line that says how to measure it. Figures go to
docs/img/bench-FILE-PART.png. Results are made by

    corral bench --out DIR && cp DIR/bench.json benchmarks/results/FILE.json
"""

import json
import re
from pathlib import Path

from corral.bench import figure, report
from corral.files import write_atomically

ROOT = Path(__file__).parents[1]
RESULTS, PAGE, IMAGES = ROOT / "benchmarks/results", ROOT / "docs/performance.md", ROOT / "docs/img"
SLOT = re.compile(r"<!-- table (?P<file>\S+) (?P<part>\S+) -->\n.*?<!-- end -->", re.DOTALL)


def filled(slot: re.Match[str]) -> str:
    """The slot with the table of today's results."""
    file, part = slot["file"], slot["part"]
    text = f"*Not measured yet: `corral bench --part {part} --out DIR`, DIR/bench.json to benchmarks/results/{file}.json.*"
    for path in sorted([*RESULTS.glob(f"{file}.json"), *RESULTS.glob(f"{file}-*.json")]):
        document = json.loads(path.read_text())
        if part in document["parts"]:
            table = report.markdown_table(part, document["parts"][part])
            text = f"{table}\n\n{report.machine_line(document)}: `{document['command']}`"
    return f"<!-- table {file} {part} -->\n{text}\n<!-- end -->"


def main() -> None:
    for path in sorted(RESULTS.glob("*.json")):
        machine = path.stem.split("-")[0]
        for made in figure.draw(json.loads(path.read_text()), IMAGES, f"bench-{machine}-"):
            print(f"figure   {made.relative_to(ROOT)}")
    write_atomically(PAGE, SLOT.sub(filled, PAGE.read_text()).encode())
    print(f"page     {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

"""Put measured numbers into the pages of docs/ and draw the figures they show.

    make pages

A slot `<!-- bench FILE PART -->` … `<!-- end -->` gets the table of that part of benchmarks/results/FILE.json, or of a
FILE-….json where several runs measured the parts. A slot `<!-- results EXPERIMENT ENV -->` … `<!-- end -->` gets the table
of the learning curves in results/EXPERIMENT/ENV.csv; `<!-- suite EXPERIMENT RUN -->` that of one run in all environments,
beside published numbers; `<!-- runs EXPERIMENT ENV -->` that of all runs in one environment. A slot without results says how
to get them. The rest of a page stays.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from benchmarks.bench import figure, report
from corral.experiments import data, spec, tables
from corral.experiments.pipeline import draw_from
from corral.experiments.tables import Line
from corral.report import stats
from corral.running.files import write_atomically

ROOT = Path(__file__).parents[1]
BENCHMARKS, RESULTS, DOCS = ROOT / "benchmarks/results", ROOT / "results", ROOT / "docs"
# Returns after 10⁷ steps with the limit 25: of CPO, and the best of any algorithm.
PUBLISHED = {
    "ant-velocity": ("3,099", "3,262 (PPO-Lag)"),
    "halfcheetah-velocity": ("2,786", "2,965 (FOCOPS)"),
    "hopper-velocity": ("1,714", "1,716 (CUP)"),
    "humanoid-velocity": ("6,465", "6,624 (PPO-Lag)"),
    "swimmer-velocity": ("65", "91 (CPPO-PID)"),
    "walker2d-velocity": ("2,075", "3,207 (TRPO-Lag)"),
}
SLOT = re.compile(
    r"<!-- (?P<kind>bench|results|suite|runs) (?P<file>\S+) (?P<part>[^\n]+?) -->\n.*?<!-- end -->", re.DOTALL
)


def filled(slot: re.Match[str]) -> str:
    """Return the slot with the table of the present results."""
    kind, file, part = slot["kind"], slot["file"], slot["part"]
    text = {"bench": _bench, "results": _curves, "suite": _suite, "runs": _runs}[kind](file, part)
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
    part = _part(experiment, env)
    if part is None:
        return _not_run(f"{experiment} --only {env}")
    lines = tables.lines(spec.paper(experiment), part)
    shown = tables.constraint_title(lines[0].column)
    head = ["run", "seeds × iterations", "return", f"{shown}, limit {tables.number(lines[0].limit)}", "true C"]
    return f"{_table(head, map(_cells, lines))}\n\n{_origin(experiment, env)}"


def _part(experiment: str, env: str) -> data.Results | None:
    """The results of an experiment in one environment, if there are any."""
    folder = RESULTS / experiment
    found = data.read(spec.paper(experiment), folder) if folder.is_dir() else []
    return next((part for part in found if part.env == env), None)


def _not_run(experiment: str) -> str:
    return f"*Not run yet: `corral reproduce {experiment} --scale paper --out DIR`, then copy DIR/data to results/.*"


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    """Markdown: words in the first column, numbers in the others."""
    cells = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _cells(line: Line) -> list[str]:
    low, high = line.iterations
    made = f"{line.seeds} × {high if low == high else f'{low} to {high}'}"
    parts = (line.final_return, line.final_constraint, line.final_cost)
    return [line.run, made, *map(tables.interval, parts)]


# What `_numbers` says of a run in an environment.
NUMBERS = ["seeds × iterations", "return", "likely", "cost", "likely", "over 1.3 d", "(C − d)₊", "largest fall"]


def _suite(experiment: str, label: str) -> str:
    """One run in all environments: returns, costs and how the limit was kept, and what others have published."""
    folder = RESULTS / experiment
    if not folder.is_dir():
        return _not_run(experiment)
    parts = [part for part in data.read(spec.paper(experiment), folder) if label in part.curves]
    rows = ([part.env, *_numbers(part, label), *PUBLISHED.get(part.env, ("–", "–"))] for part in parts)
    origin = _origin(experiment, *(part.env for part in parts))
    return f"{_table(['task', *NUMBERS, 'published: CPO', 'best'], rows)}\n\n{origin}"


def _runs(experiment: str, env: str) -> str:
    """All runs in one environment, and the minutes that a seed of each took."""
    part = _part(experiment, env)
    if part is None:
        return _not_run(f"{experiment} --only {env}")
    hours = json.loads((RESULTS / experiment / "provenance.json").read_text())[env].get("hours", {})
    minutes = {label: f"{60 * hours[label] / len(seeds):.1f}" for label, seeds in part.curves.items() if label in hours}
    rows = ([label, *_numbers(part, label), minutes.get(label, "–")] for label in part.curves)
    return f"{_table(['run', *NUMBERS, 'minutes a seed'], rows)}\n\n{_origin(experiment, env)}"


def _numbers(part: data.Results, label: str) -> list[str]:
    (name,) = part.constraints
    seeds, likely = part.curves[label], part.most_likely.get(label, [])
    costs = [(own[f"cost_{name}"], own[f"limit_{name}"]) for own in seeds]
    # More digits where limits, or returns, are small.
    of_cost, of_excess = ("{:.1f}", "{:.2f}") if costs[0][1][-1] >= 1 else ("{:.3f}", "{:.4f}")
    of_return = "{:,.0f}" if max(stats.last_tenth(own["return"]) for own in seeds) >= 100 else "{:.1f}"

    def each(values: Iterable[float], shown: str) -> str:
        """The mean over seeds, with the least and the largest of several."""
        found = list(values)
        spread = f" ({shown.format(min(found))} to {shown.format(max(found))})" if len(found) > 1 else ""
        return shown.format(fmean(found)) + spread if found else "–"

    counts = {len(own) for own in seeds}
    return [
        f"{len(seeds)} × {' or '.join(map(str, sorted(counts)))}",
        each((stats.last_tenth(own["return"]) for own in seeds), of_return),
        each((own["return"] for own in likely), of_return),
        each((stats.last_tenth(cost) for cost, _ in costs), of_cost),
        each((own[f"cost_{name}"] for own in likely), of_cost),
        each((stats.far_above(*pair) for pair in costs), "{:.0%}"),
        each((float(stats.overshoot(*pair).mean()) for pair in costs), of_excess),
        each((stats.largest_fall(own["return"]) for own in seeds), "{:.0%}"),
    ]


def _origin(experiment: str, *envs: str) -> str:
    """Name the commits and the machines of the runs."""
    known = json.loads((RESULTS / experiment / "provenance.json").read_text())
    where = dict.fromkeys(
        f"commit {work['commit'][:7]}, {work['gpu'] or work['cpu']}, jax {work['packages']['jax']}"
        for env in envs
        for work in known[env]["work"]
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
    for experiment in map(spec.paper, (*spec.PAPER, *spec.BENCHMARKS)):
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

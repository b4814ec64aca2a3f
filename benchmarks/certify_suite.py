"""Certify every policy below a folder, and print the table of docs/certificates.md.

    .venv/bin/python benchmarks/certify_suite.py FOLDER [--episodes 10000] [--confidence 0.95]

FOLDER holds runs, such as those of `corral train ant-velocity --out FOLDER/ant`. Each policy gets `certificate.json`
beside it; one that has a certificate which still holds, with as many episodes and the same confidence, is not certified
again. A run that is not finished is left out, and named on stderr: its last checkpoint is not the policy that it will
end with.
"""

import argparse
import sys
from pathlib import Path

from corral.certificates.certificate import Certificate
from corral.certification.certify import certify, save
from corral.certification.check import check
from corral.errors import CorralError
from corral.running.directory import RunDirectory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--confidence", type=float, default=0.95)
    given = parser.parse_args()
    print(
        "| run | environment | episodes | return | mean cost | at most | empirical Bernstein | limit | verdict |",
        flush=True,
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for run in RunDirectory.find_all(given.folder):
        if not run.finished:
            print(f"{run} is not finished, and left out", file=sys.stderr, flush=True)
            continue
        for row in rows(run.path.relative_to(given.folder), certified(run, given.episodes, given.confidence)):
            print(row, flush=True)


def certified(run: RunDirectory, episodes: int, confidence: float) -> Certificate:
    """The run's certificate: the one beside it if it still holds, else a fresh one."""
    path = run.path / "certificate.json"
    try:
        found = check(path, run.path)
        if (found.episodes["count"], found.confidence) == (episodes, confidence):
            return found
    except (CorralError, OSError):
        pass
    found = certify(run.path, episodes=episodes, confidence=confidence)
    save(found, path)
    return found


def rows(name: Path, found: Certificate) -> list[str]:
    """A row of the table for each constraint."""
    rows = []
    for c in found.constraints:
        numbers = f"{found.earned['mean']:,.0f} | {c.mean:.2f} | {c.high:.2f} | {c.bernstein:.2f} | {c.limit:g}"
        env, count = found.environment["name"], found.episodes["count"]
        rows.append(f"| {name} | {env} ({c.name}) | {count:,} | {numbers} | {c.verdict} |")
    return rows


if __name__ == "__main__":
    main()

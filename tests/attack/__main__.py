"""`make attack`: so many attacks of all kinds together, and a table of what came of them."""

import argparse
import collections
import sys
import time

from attack import KINDS, REAL_KILLS, real_kills
from attack.judge import OUTCOMES, carry_out

BAD = ("traceback", "hang", "wrong")


def main() -> int:
    """Make the attacks; 1 if any had a bad end."""
    parser = argparse.ArgumentParser(prog="make attack")
    parser.add_argument("--count", type=int, default=10_000, help="attacks of all kinds together")
    parser.add_argument("--only", choices=[*KINDS, *REAL_KILLS], help="one kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first attack of each kind")
    parser.add_argument("--show", action="store_true", help="print every attack and what came of it")
    given = parser.parse_args()
    chosen = {given.only: (KINDS | REAL_KILLS)[given.only]} if given.only else KINDS
    shares = sum(kind.share for kind in chosen.values())
    table, failures = {}, []
    for name, kind in chosen.items():
        began, counts = time.monotonic(), collections.Counter()
        total = max(1, round(given.count * kind.share / shares))
        for number in range(given.first, given.first + total):
            result = carry_out(kind.generate, name, number)
            counts[result.outcome] += 1
            if given.show or result.outcome in BAD:
                print(f"{name} {number}: {result.outcome}: {result.what}\n    {result.said}", flush=True)
            failures += [number] if result.outcome in BAD else []
        table[name] = counts
        print(f"{name}: {total:,} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(f"{'':14}" + "".join(f"{title:>11}" for title in OUTCOMES))
    for name, counts in [*table.items(), ("all", sum(table.values(), collections.Counter()))]:
        print(f"{name:14}" + "".join(f"{counts[outcome]:>11,}" for outcome in OUTCOMES))
    for scenario, kills in real_kills.landed.items():
        print(f"processes killed, {scenario}: {kills}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

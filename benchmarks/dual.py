"""Measure how fast the dual is: 100,000 vmapped problems for several m, in float32, beside two yardsticks.

`python benchmarks/dual.py [--problems N] [--runs K] [--json]`. The first yardstick copies the bytes of the problems and the
answers: nothing that reads and writes them can be faster. The second solves one m × m linear system per problem with
LAPACK: the cost of an answer if the active constraints were known. A vmapped loop runs until the slowest problem of the
batch is done, so the script also solves the same problems in blocks of 64 (`lax.map` with a batch size).
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SIZES = (1, 2, 4, 8)
BLOCK = 64


def draw(count: int, m: int) -> list[np.ndarray]:
    """Draw q, r, S, c, δ of random problems of all cases: the distances c are of the order of the trust region's radius."""
    rng = np.random.default_rng(m)
    g, B = rng.normal(size=(count, m + 3)), rng.normal(size=(count, m, m + 3))
    c = rng.normal(size=(count, m)) * np.linalg.norm(B, axis=-1)
    q, r, S = np.sum(g * g, -1), np.einsum("pmn,pn->pm", B, g), np.einsum("pin,pjn->pij", B, B)
    return [x.astype(np.float32) for x in (q, r, S, c, np.full(count, 0.5))]


def seconds(call: Callable[[], Any], runs: int) -> list[float]:
    """Return the wall-clock times of `runs` calls, sorted."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return sorted(times)


def middle(times: list[float]) -> float:
    return times[len(times) // 2]


def copy_bandwidth(runs: int) -> float:
    """Return the bytes read and written per second while a large array is copied."""
    source = np.ones(2**26, np.float32)
    target = np.empty_like(source)
    np.copyto(target, source)
    times = seconds(lambda: np.copyto(target, source), runs)
    return 2 * source.nbytes / middle(times)


def measure(count: int, runs: int, m: int, bandwidth: float) -> dict[str, Any]:
    import jax

    from corral.trust_region import dual

    problems = draw(count, m)
    arrays = [jax.device_put(x) for x in problems]
    whole = jax.jit(jax.vmap(dual.solve))
    blocks = jax.jit(lambda *all_: jax.lax.map(lambda one: dual.solve(*one), all_, batch_size=BLOCK))
    compiled, times = {}, {}
    for name, solve in (("whole", whole), ("blocks", blocks)):
        (compiled[name],) = seconds(lambda solve=solve: jax.block_until_ready(solve(*arrays)), 1)
        times[name] = seconds(lambda solve=solve: jax.block_until_ready(solve(*arrays)), runs)
    S, c = problems[2], problems[3][..., None]
    linear = middle(seconds(lambda: np.linalg.solve(S, c), runs))
    moved = sum(x.nbytes for x in [*problems, *jax.tree.leaves(whole(*arrays))])
    median = middle(times["whole"])
    return {
        "m": m,
        "median_s": median,
        "fastest_s": times["whole"][0],
        "slowest_s": times["whole"][-1],
        "first_call_s": compiled["whole"],
        "blocks_median_s": middle(times["blocks"]),
        "blocks_fastest_s": times["blocks"][0],
        "blocks_slowest_s": times["blocks"][-1],
        "blocks_gain": median / middle(times["blocks"]),
        "copy_floor_s": moved / bandwidth,
        "times_copy_floor": median * bandwidth / moved,
        "linear_solve_s": linear,
        "times_linear_solve": median / linear,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time vmapped dual.solve for m = 1, 2, 4, 8 in float32.")
    parser.add_argument("--problems", type=int, default=100_000, help="problems of one call")
    parser.add_argument("--runs", type=int, default=7, help="timed calls for each m, after one that compiles")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    options = parser.parse_args()
    count, runs = options.problems, options.runs
    bandwidth = copy_bandwidth(runs)
    rows = []
    for m in SIZES:
        print(f"m = {m}: {count:,} problems, 1 + {runs} calls", file=sys.stderr, flush=True)
        rows.append(measure(count, runs, m, bandwidth))
    report = {"problems": count, "runs": runs, "copy_bytes_per_s": bandwidth, "sizes": rows}
    print(json.dumps(report)) if options.json else show(report)


def show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    bandwidth = report["copy_bytes_per_s"] / 1e9
    title = f"{report['problems']:,} problems, float32, median of {report['runs']} calls; copy at {bandwidth:.1f} GB/s"
    table = Table(title=title, box=None)
    headings = ("m", "whole batch, s", "blocks of 64, s", "gain", "first call, s", "× copy", "× linear solve")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in report["sizes"]:
        table.add_row(
            str(row["m"]),
            f"{row['median_s']:.3f} ({row['fastest_s']:.3f}–{row['slowest_s']:.3f})",
            f"{row['blocks_median_s']:.3f} ({row['blocks_fastest_s']:.3f}–{row['blocks_slowest_s']:.3f})",
            f"{row['blocks_gain']:.1f}",
            f"{row['first_call_s']:.1f}",
            f"{row['times_copy_floor']:,.0f}",
            f"{row['times_linear_solve']:,.1f}",
        )
    Console(width=None if sys.stdout.isatty() else 110).print(table)


if __name__ == "__main__":
    main()

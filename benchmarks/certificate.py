"""Measure how exact the dual's answers are: residuals of the optimality certificate, by case, on the tests' problems.

`python benchmarks/certificate.py [--float64] [--draws N] [--json]` draws the 108,000 problems that
tests/trust_region/test_dual.py certifies in that precision (same seeds), and N − 1 times as many others. For each case it
prints the number of problems, the worst residual and how many residuals exceed the tolerance of the tests; for feasible
cases also the largest violation of a constraint, in radii of the trust region.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "trust_region"))

SIZES = range(9)
PER_FAMILY = 1200
TOLERANCE = {np.float32: 1e-4, np.float64: 1e-8}


def largest_violation(batch: Any, solution: Any) -> np.ndarray:
    """Return maxᵢ (cᵢ + bᵢᵀx)/‖bᵢ‖ over the live constraints, at least 0, in radii √(2δ) and in float64."""
    r, S, c, delta, alpha, beta = (
        np.asarray(x, np.float64) for x in (batch.r, batch.S, batch.c, batch.delta, solution.alpha, solution.beta)
    )
    value = c + alpha[:, None] * r - np.einsum("pij,pj->pi", S, beta)
    size = np.sqrt(np.einsum("pii->pi", S) * 2 * delta[:, None])
    return np.max(value / np.where(size > 0, size, np.inf), axis=1, initial=0)


def measure(dtype: Any, draws: int) -> list[dict[str, Any]]:
    """Return a row per case, vertices (λ = 0) apart: problems, median and worst residual, and the condition it violates."""
    import jax
    from problems import FAMILIES, draw, residuals
    from rich.progress import track

    from corral.trust_region import dual

    solve = jax.jit(jax.vmap(dual.solve))
    cases, residual, name, violation = [], [], [], []
    drawn = [(draw_number, m) for draw_number in range(draws) for m in SIZES]
    for draw_number, m in track(drawn, "draws and sizes m", disable=not sys.stderr.isatty()):
        # The tests' own seeds first.
        rng = np.random.default_rng([m, np.dtype(dtype).itemsize, *([draw_number] if draw_number else [])])
        for family in FAMILIES:
            batch = draw(family, rng, PER_FAMILY, m, dtype)
            solution = jax.tree.map(np.asarray, solve(*batch[:5]))
            worst, condition = residuals(batch, solution)
            feasible = solution.case <= dual.Case.FEASIBLE_RECOVERY
            vertex = feasible & (solution.lam == 0) & (batch.q > 0) & (m > 0)
            labels = np.array([case.name for case in dual.Case])[solution.case]
            cases.append(np.where(vertex, np.char.add(labels, ", λ = 0"), labels))
            residual.append(worst)
            name.append(condition)
            violation.append(np.where(feasible, largest_violation(batch, solution), np.nan))
        if not sys.stderr.isatty():
            print(f"draw {draw_number + 1} of {draws}, m = {m} done", file=sys.stderr, flush=True)
    cases, residual, name, violation = (np.concatenate(parts) for parts in (cases, residual, name, violation))
    rows = []
    for case in np.unique(cases):
        at = np.flatnonzero(cases == case)
        top = at[residual[at].argmax()]
        rows.append(
            {
                "case": str(case),
                "problems": len(at),
                "median": float(np.median(residual[at])),
                "worst": float(residual[top]),
                "above": int(np.sum(residual[at] > TOLERANCE[dtype])),
                "condition": str(name[top]),
                "violation": None if np.isnan(violation[top]) else float(violation[at].max()),
            }
        )
    return rows


def main() -> None:
    import jax

    parser = argparse.ArgumentParser(description="Residuals of the dual's optimality certificate, by case.")
    parser.add_argument("--float64", action="store_true", help="double precision instead of single")
    parser.add_argument("--draws", type=int, default=1, help="how many times 108,000 problems; the tests' first")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    options = parser.parse_args()
    dtype = np.float64 if options.float64 else np.float32
    with jax.enable_x64(options.float64):
        rows = measure(dtype, options.draws)
    if options.json:
        print(json.dumps({"dtype": dtype.__name__, "cases": rows}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{sum(row['problems'] for row in rows):,} problems, {dtype.__name__}", box=None)
    above = f"above {TOLERANCE[dtype]:g}"
    for heading in ("case", "problems", "median", "worst", above, "condition", "violation (radii)"):
        table.add_column(heading, justify="left" if heading in ("case", "condition") else "right")
    for row in rows:
        violation = "" if row["violation"] is None else f"{row['violation']:.1e}"
        numbers = (f"{row['problems']:,}", f"{row['median']:.1e}", f"{row['worst']:.1e}", f"{row['above']:,}")
        table.add_row(row["case"], *numbers, row["condition"], violation)
    Console(width=None if sys.stdout.isatty() else 110).print(table)


if __name__ == "__main__":
    main()

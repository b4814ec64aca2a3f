"""`corral evaluate DIR`: what a trained policy earns and costs, and whether it keeps its limits."""

import json
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from corral.cli import BROKEN, UNDECIDED
from corral.cli.flags import parse
from corral.display.progress import Console, bar, say_what_is_imported
from corral.evaluation import Estimate, Evaluation, Verdict, evaluate, unseen
from corral.running.directory import RunDirectory


@dataclass(frozen=True)
class Config:
    """Run fresh episodes with the policies of a run: return and costs with 95% confidence intervals, and a verdict.

    A limit is met, or broken, if its cost is under, or over, it with a probability of 97.5%, else it is open. The exit
    status is 0 if all limits are met, 10 if one is broken, 11 if one is open and none broken; no crash has these. The
    intervals are Student's: they take the mean of the episodes to be nearly normal. `corral certify` gives bounds that hold
    for every distribution.
    """

    dir: Path = field(metadata={"positional": True})
    """Folder of the run."""
    episodes: int = 1000
    """Whole episodes for each policy."""
    deterministic: bool = False
    """Take the most likely action instead of a random one."""
    seed: int = 0
    """Seed of the episodes."""
    json: bool = False
    """Print the results as JSON instead of a table."""


def main(argv: list[str]) -> int:
    """Run the command; the exit status tells the verdict."""
    config = parse(Config, argv, "evaluate")
    for run in RunDirectory.find(config.dir)[:1]:
        say_what_is_imported(run.config().env, f"the configuration in {config.dir}")
    with bar("episodes") as advance:
        found = evaluate(config.dir, config.episodes, config.deterministic, config.seed, advance)
    if config.json:
        print(json.dumps([_report(evaluation) for evaluation in found]))
    else:
        _print(found)
    verdicts = {evaluation.verdict for evaluation in found}
    return BROKEN if "broken" in verdicts else UNDECIDED if "open" in verdicts else 0


def _report(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "seed": evaluation.seed,
        "source": str(evaluation.source),
        "episodes": evaluation.episodes,
        "deterministic": evaluation.deterministic,
        "return": evaluation.earned._asdict(),
        "constraints": [c._asdict() | {"cost": _plain(c.cost)} for c in evaluation.constraints],
        "verdict": evaluation.verdict,
    }


def _plain(cost: Estimate) -> dict[str, float | None]:
    """An estimate for JSON, which knows no infinity."""
    return cost._asdict() | {"high": cost.high if math.isfinite(cost.high) else None}


def _print(found: list[Evaluation]) -> None:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("seed", "", "mean", "95% confidence", "limit", "P(cost ≤ limit)", "verdict"):
        table.add_column(name, justify="left" if name in ("", "verdict") else "right", no_wrap=True)
    colours = {"met": "#009E73", "broken": "#D55E00", "open": "#E69F00"}
    for evaluation in found:
        earned = evaluation.earned
        table.add_row(str(evaluation.seed), "return", f"{earned.mean:.4g}", _interval(earned), "", "", "")
        for c in evaluation.constraints:
            verdict = f"[{colours[c.verdict]}]{c.verdict}[/]"
            sure = "unknown" if c.probability is None else f"{c.probability:.1%}"
            numbers = (f"{c.cost.mean:.4g}", _interval(c.cost), f"{c.limit:g}", sure)
            table.add_row("", f"cost {c.name}", *numbers, verdict)
    Console(width=None if sys.stdout.isatty() else 110).print(table)
    first = found[0]
    kind = "most likely actions" if first.deterministic else "actions as the policy draws them"
    names = ", ".join(sorted({evaluation.source.name for evaluation in found}))
    print(f"{first.episodes:,} episodes of each policy ({names}), {kind}")
    print("the intervals take the mean of these episodes to be nearly normal; `corral certify` assumes no such thing")
    print(verdict_line(found))


def _interval(estimate: Estimate) -> str:
    return f"{estimate.low:.4g} to {estimate.high:.4g}"


def verdict_line(found: list[Evaluation]) -> str:
    """The verdict on all the policies in one line."""
    who = "the policy" if len(found) == 1 else f"{len(found)} policies"
    if not found[0].constraints:
        return f"{who}: no constraints, nothing to keep"
    constraints = [c for evaluation in found for c in evaluation.constraints]
    if broken := sorted({c.name for c in constraints if c.verdict == "broken"}):
        count = sum(evaluation.verdict == "broken" for evaluation in found)
        return f"BROKEN: {who if len(found) == 1 else f'{count} of {who}'} over the limit of {', '.join(broken)}"
    left = [c for c in constraints if c.verdict == "open"]
    if not left:
        return f"MET: {who} under every limit"
    return "OPEN: " + ". ".join(filter(None, (_close(left), _equal(left, found[0].episodes))))


def _close(left: list[Verdict]) -> str:
    """What to say of open limits that the intervals of their costs reach over."""
    left = [c for c in left if c.cost.se > 0]
    if not left:
        return ""
    # The limits that would be met: lower by as much as the intervals reach over the present ones.
    lower = {c.name: c.limit - max(o.cost.high - o.limit for o in left if o.name == c.name) for c in left}
    return (
        f"{', '.join(sorted(lower))} too close to the limit to call. Constrained training steers a cost onto its "
        "limit, so more episodes seldom decide it: to be sure, train with a margin, such as a limit of "
        + ", ".join(f"{limit:.3g} for {name}" for name, limit in lower.items())
    )


def _equal(left: list[Verdict], episodes: int) -> str:
    """What to say of open limits on costs that were the same in every episode."""
    # The cost of an unseen kind of episode, as frequent as it can be, with which the limit is just kept.
    bearable = {c.name: c.cost.mean + (c.limit - c.cost.mean) / unseen(episodes) for c in left if c.cost.se == 0}
    return ", ".join(
        f"every episode cost the same in {name}, and {episodes:,} episodes do not exclude a rare one that costs more: the "
        f"limit is met if none can cost more than {most:,.4g}; more episodes say more"
        for name, most in bearable.items()
    )

"""What finished runs earn and cost with their most likely actions, beside the random ones of training.

Limits hold for the policy that was trained, which draws its actions. A robot usually takes the most likely one, and that is
how most other libraries evaluate: a different policy, with a cost of its own, so it is measured in fresh episodes.
"""

from collections.abc import Callable, Sequence
from typing import Any

from corral import evaluation
from corral.errors import CorralError
from corral.evaluation import Estimate
from corral.experiments.plan import Job

EPISODES = "episodes"
RETURN = "return"


def measure(jobs: Sequence[Job], episodes: int, note: Callable[[str], None]) -> dict[str, str]:
    """Evaluate the final policies that are not evaluated yet, and write the numbers into the folders of their runs.

    `note` hears the numbers of each. Returns the first line of each error, by the name of the run.
    """
    failures: dict[str, str] = {}
    for job in jobs:
        run = job.directory
        if not run.finished or run.evaluation().get(EPISODES) == episodes:
            continue
        try:
            (found,) = evaluation.evaluate(run.path, episodes, deterministic=True)
        except CorralError as error:
            failures[job.name] = f"with its most likely actions: {error}"
            continue
        costs = {f"cost_{c.name}": c.cost for c in found.constraints}
        run.save_evaluation({EPISODES: episodes} | {k: _brief(v) for k, v in ({RETURN: found.earned} | costs).items()})
        said = ", ".join(f"{name} {value.mean:.4g}" for name, value in costs.items())
        note(f"{job.name}: the most likely actions return {found.earned.mean:.4g}, {said}")
    return failures


def _brief(value: Estimate) -> dict[str, Any]:
    """A mean and its standard error, with six digits."""
    return {name: float(f"{getattr(value, name):.6g}") for name in ("mean", "se")}

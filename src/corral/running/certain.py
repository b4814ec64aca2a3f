"""Certified training: in every iteration an upper bound on each J_C of the policy that made the batch.

The claim, for each iteration by itself: with probability at least `certainty`, J_C(π_k) is at most `cost_at_most` for
every constraint. It is by betting, for a number of episodes fixed beforehand: how many a batch has follows from earlier
batches, and the policy π_k does too, so that given them its episodes are independent. Nothing is claimed of all
iterations together, nor of π_{k+1}, which this batch makes; and episodes that served to train are no certificate of the
final policy (`corral certify`).
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from corral.certificates import bounds
from corral.config import Config
from corral.envs.contract import EnvSpec
from corral.errors import CorralError, require
from corral.learning import update


def require_ranges(config: Config, spec: EnvSpec) -> None:
    """Refuse `certainty` where the environment does not say how much a step or an episode can cost."""
    unknown = [c.name for c, most in zip(spec.constraints, _largest(config, spec), strict=True) if most is None]
    require(
        not config.certainty or not unknown,
        f"certainty needs the largest cost of a step, which {spec.name} does not state for {', '.join(unknown)}: "
        "corral.Constraint(name, limit, largest_step=...)",
    )


def at_most(config: Config, spec: EnvSpec, costs: Float[Any, "e m"], broken: int, iteration: int) -> dict[str, float]:
    """The bound on each J_C from the costs of a batch's episodes, NaN for those that are absent, by the names of the
    columns.

    They come in random order, since that in a batch depends on how long they were (`bounds`).
    """
    alpha = bounds.split(config.certainty, len(spec.constraints))
    order = np.random.default_rng([config.seed, iteration])
    found = {}
    for k, (constraint, most) in enumerate(zip(spec.constraints, _largest(config, spec), strict=True)):
        assert most is not None
        own = np.asarray(costs, float)[:, k]
        own = order.permutation(bounds.with_broken(own[~np.isnan(own)], broken, most))
        try:
            # Sums in float32 may be over the largest by their rounding.
            bound = bounds.upper_mean(np.where(own <= most * (1 + 1e-5), np.minimum(own, most), own), most, alpha)
        except CorralError as error:
            raise CorralError(
                f"the costs of {constraint.name} in {spec.name} are not what it states: {error}"
            ) from error
        found[f"cost_at_most_{constraint.name}"] = bound
    return found


def _largest(config: Config, spec: EnvSpec) -> list[float | None]:
    """The most that an episode can cost, for each constraint."""
    gammas = update.cost_discounts(config, spec)
    return [
        bounds.largest_sum(c.largest_step, c.largest, float(gamma), spec.horizon)
        for c, gamma in zip(spec.constraints, gammas, strict=True)
    ]

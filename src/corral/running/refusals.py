"""Updates that are refused one after the other: a run that learns nothing says so and stops."""

from collections.abc import Sequence

from corral.config import Config
from corral.errors import CorralError
from corral.running.trainer import Row

IN_A_ROW = 50
"""So many updates of one run, refused one after the other, end the training. Good runs refuse single ones."""

_ADVICE = {
    "rejected_kl": "the steps left the trust region: try more trust.candidates or more trust.cg_iterations",
    "rejected_objective": "no step improved the objective: does the reward depend on the actions? Try a larger batch_size",
    "rejected_not_finite": "numbers were NaN or infinite: look for huge observations, rewards or costs, or try "
    "networks.normalize_observations",
    "rejected_cost": "the steps broke the constraint by the batch's own estimate: is the limit within reach? Try a larger "
    "one, or a larger batch_size",
}


class Refusals:
    """Counts the last updates of each run that were refused one after the other, from the start or from a resume on."""

    def __init__(self, configs: Sequence[Config]) -> None:
        self._configs = configs
        self._rows: list[list[Row]] = [[] for _ in configs]

    def see(self, rows: Sequence[Row]) -> None:
        """Hear of an iteration, with a row for each run; raise a CorralError where a run's last `IN_A_ROW` were refused."""
        for config, row, refused in zip(self._configs, rows, self._rows, strict=True):
            refused.append(row)
            if row["accepted"]:
                refused.clear()
            if len(refused) == IN_A_ROW:
                raise CorralError(
                    f"{config.algo.name.upper()} with seed {config.seed}: the last {IN_A_ROW} updates were all refused, so "
                    f"the policy is still that of iteration {refused[0]['iteration']}; it is saved. {_reason(refused)}"
                )


def _reason(refused: Sequence[Row]) -> str:
    """What most candidates failed by, with its column in metrics.csv, and what to do about it."""
    counts = {n: sum(int(row[n]) for row in refused) for n in refused[0] if n.startswith("rejected_")}
    most = max(counts, key=lambda name: counts[name])
    advice = _ADVICE.get(most, _ADVICE["rejected_cost"])
    return f"Most often ({most}: {counts[most]:,} of {sum(int(row['tried']) for row in refused):,} candidates) {advice}"

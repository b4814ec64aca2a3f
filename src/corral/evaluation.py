"""The return and the costs of a trained policy with confidence intervals, and a verdict on each of its limits.

From n episodes with costs c₁..cₙ, mean c̄ and standard error s = sd/√n, the expected cost lies in c̄ ± t₀.₉₇₅(n−1)·s with 95%
confidence, and it is at most the limit d with probability T_{n−1}((d − c̄)/s), T the distribution function of Student's t.
This takes the mean of n episodes to be nearly normal, which rare large costs can belie; `certification` does not.

Where all n episodes cost the same c ≤ d, s = 0 says nothing about a kind of episode that is too rare to be among them. If
it has probability q, none of the n was of it with probability (1 − q)ⁿ; so q ≤ 1 − α^{1/n} with confidence 1 − α (about
3.7/n for α = 2.5%). If such an episode costs at most M, the expected cost is at most c + q(M − c): that is under d with
confidence 1 − (1 − (d − c)/(M − c))ⁿ, which then stands for the probability. If nobody knows M, the limit stays open.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from corral.config import Config
from corral.envs.contract import EnvSpec
from corral.errors import CorralError, brief, require
from corral.learning import update
from corral.learning.estimate import Batch
from corral.learning.networks import Policy
from corral.rollout.sampler import Sampler
from corral.running.directory import RunDirectory
from corral.running.given import Constraint, given

SURE = 0.975
"""Probability from which a limit counts as met, and one minus that from which it counts as broken."""

_LAST = "the last observation"
_STEPS = 200_000  # sampled at once at most, which bounds memory


class Estimate(NamedTuple):
    """An expectation, as far as the episodes tell."""

    mean: float
    low: float
    """Lower end of the 95% confidence interval."""
    high: float
    """Its upper end; infinite where all episodes cost the same and nobody knows how much one could cost."""
    se: float
    """Standard error of the mean."""


class Verdict(NamedTuple):
    """One constraint and whether the policy keeps it."""

    name: str
    limit: float
    cost: Estimate
    probability: float | None
    """That the expected cost is at most the limit; None where the upper end of the cost's interval is infinite."""
    verdict: str
    """"met", "broken" or "open"."""


class Evaluation(NamedTuple):
    """One policy, evaluated."""

    seed: int
    """Of the training run."""
    source: Path
    """The file the policy came from."""
    episodes: int
    deterministic: bool
    earned: Estimate
    constraints: tuple[Verdict, ...]

    @property
    def verdict(self) -> str:
        """ "met" if every limit is, "broken" if any is, else "open"."""
        found = {c.verdict for c in self.constraints}
        return next((v for v in ("broken", "open") if v in found), "met")


def evaluate(
    directory: Path | str,
    episodes: int = 1000,
    deterministic: bool = False,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    env: Any = None,
    constraints: Sequence[Constraint] | Constraint = (),
    net: Any = None,
) -> list[Evaluation]:
    """Evaluate the policies of a run, one for each of its seeds, in `episodes` fresh whole episodes each.

    The policy is the final one, or that of the newest checkpoint of a run that is not finished. `deterministic` takes the
    most likely action instead of a random one: that is another policy than the one that was trained under the limits.
    `progress(done, total)` hears of episodes. `env`, `constraints` and `net` are those of a run of `corral.train` that had
    an environment, cost functions or a network that no file can hold.
    """
    require(episodes >= 2, f"episodes must be at least 2, got {brief(episodes)}")
    require(episodes <= 10**9, f"episodes must be at most {10**9:,}, got {brief(episodes)}")
    require(0 <= seed < 2**32, f"seed must lie in [0, 2^32), got {brief(seed)}")
    runs = RunDirectory.find(directory)
    found = []
    with given(env, constraints, net).opened(runs[0].config(), runs[0].options()) as sampler:
        for k, run in enumerate(runs):
            config = run.config()
            policy, source = run.policy(config, sampler.spec, net)

            def advance(done: int, before: int = k * episodes) -> None:
                progress(before + done, len(runs) * episodes)

            key = jax.random.fold_in(jax.random.key(seed), 2**31 - 2)  # no key of training's
            gamma = np.asarray(update.cost_discounts(config, sampler.spec), float)
            sums = _sample(sampler, policy, key, episodes, deterministic, gamma, advance)
            found.append(_judge(config, sampler.spec, source, sums, deterministic))
    return found


def _sample(
    sampler: Sampler,
    policy: Policy,
    key: Any,
    episodes: int,
    deterministic: bool,
    gamma: Float[np.ndarray, " m"],
    progress: Callable[[int], None],
) -> Float[np.ndarray, "episodes columns"]:
    """Return and (discounted) costs of each episode, in portions."""
    most = max(2, _STEPS // sampler.spec.horizon)
    found: list[np.ndarray] = []
    for portion, start in enumerate(range(0, episodes, most)):
        count = min(most, episodes - start)
        batch = jax.device_get(sampler.episodes(policy, jax.random.fold_in(key, portion), count, deterministic))
        refuse_non_finite(sampler.spec, batch)
        found.append(totals(batch, gamma))
        progress(start + count)
    return np.concatenate(found)


def refuse_non_finite(spec: EnvSpec, batch: Batch) -> None:
    """Raise an error that names the value if the environment handed out NaN or infinity.

    From a state that is no number follow costs that mean nothing: x > limit is false where x is NaN, so they look small.
    """
    steps, ends = np.asarray(batch.valid), np.asarray(batch.truncated)
    fields = {"observation": batch.obs, "reward": batch.reward, "costs": batch.costs, _LAST: batch.final_obs}
    for name, field in fields.items():
        values, seen = np.asarray(field), ends if name == _LAST else steps
        bad = seen & ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if bad.any():
            row = values[np.argmax(bad)].ravel()
            step = "" if seen is ends else f" at step {int(np.asarray(batch.t)[np.argmax(bad)])} of an episode"
            raise CorralError(f"{spec.name} handed out {row[~np.isfinite(row)][0]} as {name}{step}")


def totals(batch: Batch, gamma: Float[np.ndarray, " m"]) -> Float[np.ndarray, "e columns"]:
    """Sums over each episode, the reward's first; costs with their discount."""
    valid = np.asarray(batch.valid)
    discount = gamma ** np.asarray(batch.t, float)[:, None]
    columns = np.concatenate([np.asarray(batch.reward, float)[:, None], discount * np.asarray(batch.costs)], axis=1)
    sums = np.zeros((len(batch.present), columns.shape[1]))
    np.add.at(sums, np.asarray(batch.episode)[valid], columns[valid])
    return sums


def _judge(config: Config, spec: EnvSpec, source: Path, totals: np.ndarray, deterministic: bool) -> Evaluation:
    limits = update.limits(config, spec)
    verdicts = [
        judge(c.name, limit, totals[:, 1 + k], c.largest)
        for k, (c, limit) in enumerate(zip(spec.constraints, limits, strict=True))
    ]
    return Evaluation(config.seed, source, len(totals), deterministic, estimate(totals[:, 0]), tuple(verdicts))


def estimate(values: Float[np.ndarray, " n"]) -> Estimate:
    """The mean of independent values with its 95% confidence interval."""
    from scipy.stats import t

    mean, se = float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))
    half = float(t.ppf(0.975, len(values) - 1)) * se
    return Estimate(mean, mean - half, mean + half, se)


def judge(name: str, limit: float, costs: Float[np.ndarray, " n"], largest: float | None = None) -> Verdict:
    """Judge the costs of n episodes by a limit on their expectation; no episode can cost more than `largest`, if known."""
    from scipy.stats import t

    if np.ptp(costs) == 0 and costs[0] <= limit:
        return _judge_equal(name, limit, len(costs), float(costs[0]), largest)
    cost = estimate(costs)
    # Where every episode cost the same, and more than the limit, (d − c̄)/s is infinite.
    far = (limit - cost.mean) / cost.se if np.ptp(costs) > 0 else -np.inf
    probability = float(t.cdf(far, len(costs) - 1))
    verdict = "met" if probability >= SURE else "broken" if probability <= 1 - SURE else "open"
    return Verdict(name, float(limit), cost, probability, verdict)


def _judge_equal(name: str, limit: float, n: int, cost: float, largest: float | None) -> Verdict:
    """Judge n episodes that all cost the same, not more than the limit, as the docstring of the module says."""
    if largest is None:
        return Verdict(name, float(limit), Estimate(cost, cost, math.inf, 0.0), None, "open")
    found = Estimate(cost, cost, cost + unseen(n) * (largest - cost), 0.0)
    probability = 1 - (1 - (limit - cost) / (largest - cost)) ** n if largest > limit else 1.0
    return Verdict(name, float(limit), found, probability, "met" if probability >= SURE else "open")


def unseen(n: int) -> float:
    """With confidence `SURE`, a kind of episode that none of n episodes was of has at most this probability."""
    return float(1 - (1 - SURE) ** (1 / n))

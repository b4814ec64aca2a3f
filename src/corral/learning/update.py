"""One iteration of learning, (state, batch) → (state, metrics): a pure function, to be jitted and vmapped over seeds."""

from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from corral.config import Algorithm, Config
from corral.envs.contract import EnvSpec
from corral.learning import distributions, estimate, honest, networks, surrogates
from corral.learning.critics import Critics, fit_critics, make_critics
from corral.learning.estimate import Batch, masked_mean
from corral.learning.networks import Policy
from corral.learning.predictors import Predictors, fit_predictors, make_predictors
from corral.learning.surrogates import ConstraintValues, Samples

Fitted = TypeVar("Fitted", Critics, Predictors)


class LearnerState(NamedTuple):
    """Everything that learning carries from one iteration to the next: arrays only."""

    iteration: Int[Array, ""]
    policy: Policy
    critics: Critics
    predictors: Predictors
    algo: Any
    value: Float[Array, " m"]
    """J_C of the previous batch."""
    length: Float[Array, ""]
    """Mean episode length of the previous batch, from which the next number of episodes follows."""
    env_steps: UInt32[Array, ""]
    """All steps so far; at 2³² − 1 the count stays where it is."""
    signal: honest.Signal | None = None
    """What earlier batches said about the signal of their gradients; None where steps are judged in-sample."""


def limits(config: Config, spec: EnvSpec) -> tuple[Any, ...]:
    """The limits in force, numbers that may be traced."""
    if isinstance(config.limit, dict):
        return tuple(config.limit.get(c.name, c.limit) for c in spec.constraints)
    return config.limit or tuple(c.limit for c in spec.constraints)


def cost_discounts(config: Config, spec: EnvSpec) -> tuple[Any, ...]:
    """γ of each constraint's return, numbers that may be traced."""
    usual = [config.cost_gamma if c.discount is None else c.discount for c in spec.constraints]
    return tuple(config.discount.get(c.name, gamma) for c, gamma in zip(spec.constraints, usual, strict=True))


def init(config: Config, spec: EnvSpec, key: Key[Array, ""], net: Any | None = None) -> LearnerState:
    """The state before the first iteration."""
    m = len(spec.constraints)
    for_policy, for_critics, for_predictors = jax.random.split(key, 3)
    policy = networks.make_policy(spec, config.networks, for_policy, net)
    return LearnerState(
        iteration=jnp.zeros((), jnp.int32),
        policy=policy,
        critics=make_critics(spec.observation_size, m, config.networks, config.critic, for_critics),
        predictors=make_predictors(spec.observation_size, m, config.shaping, for_predictors),
        algo=config.algo.start(m, networks.flatten(policy).theta),
        value=jnp.zeros(m),
        length=jnp.asarray(spec.horizon, jnp.float32),
        env_steps=jnp.zeros((), jnp.uint32),
        signal=honest.begin(m, config.gae, config.cost_gae, config.choose_gae) if config.trust.honest else None,
    )


def update(
    config: Config, spec: EnvSpec, state: LearnerState, batch: Batch, key: Key[Array, ""]
) -> tuple[LearnerState, dict[str, Array]]:
    """Estimate, improve the policy, then fit what serves the next iteration.

    The numbers of the configuration (`config.numbers`) may be traced.
    """
    m = len(spec.constraints)
    limit = jnp.asarray(limits(config, spec), jnp.float32)
    valid = batch.valid

    # Costs, shaped by the probability of failure once the predictor has seen some data.
    bonus = failure = ahead = jnp.zeros_like(batch.costs)
    if config.shape_costs:
        failure, ahead = state.predictors(batch.obs), estimate.unsafe_ahead(batch.costs, batch, config.shaping.horizon)
        bonus = jnp.where(state.iteration >= config.shaping.start, config.shaping.coefficient * failure, 0)
    shaped = jnp.where(valid[:, None], batch.costs + bonus, 0)
    reward = config.algo.reward(batch.reward, shaped)
    earned = jnp.concatenate([reward[:, None], shaped], axis=1)

    # Advantages and returns of the reward and of each cost, in one pass.
    cost_gamma = jnp.asarray(cost_discounts(config, spec), jnp.float32)
    elapsed = batch.t / spec.horizon
    values = state.critics(batch.obs, elapsed)
    after = jnp.zeros((batch.present.shape[0], 1 + m))
    if not config.time_limit_ends:
        # Costs do not go on: their limit is on the sum over an episode, and c and b must measure the same sum. The critic is
        # asked at time 0, since what follows the last step does not depend on the clock.
        beyond = state.critics(batch.final_obs, jnp.zeros(len(after)))[:, 0]
        after = after.at[:, 0].set(jnp.where(batch.truncated, beyond, 0))
    gamma = jnp.concatenate([jnp.asarray(config.gamma)[None], cost_gamma])
    lam = jnp.asarray([config.gae] + [config.cost_gae] * m)
    if state.signal is not None and state.signal.look is not None:
        lam = 1 - 1 / state.signal.look
    advantage, returns = estimate.advantages(earned, values, after, batch, gamma, lam)
    targets = jnp.where(valid[:, None], advantage + values, 0) if config.critic.bootstrap else returns

    # J and J_C over whole episodes.
    discount = cost_gamma ** batch.t.astype(jnp.float32)[:, None]
    totals = jnp.concatenate([batch.reward[:, None], discount * batch.costs, discount * shaped, valid[:, None]], axis=1)
    sums = estimate.episode_sums(totals, batch)
    mean, se = estimate.over_episodes(sums, batch.present)
    cost, constrained, length = mean[1 : 1 + m], mean[1 + m : 1 + 2 * m], mean[-1]

    # Of an algorithm that takes costs off the reward nothing is cut: they would count for less than their price.
    priced = type(config.algo).reward is not Algorithm.reward
    samples = _samples(batch, advantage, discount, 0.0 if priced else config.largest_advantage)
    halves = None
    if state.signal is not None:
        # A batch without any cost says nothing about how to pay less; what its advantages hold is the critic's error.
        silent = jnp.all(shaped == 0, axis=0)
        far = _centred((returns - values)[:, 1:], valid)
        samples = samples._replace(
            cost_advantage=jnp.where(silent, 0, samples.cost_advantage), far=jnp.where(silent, 0, far)
        )
        chance = jax.random.fold_in(key, 2**31 - 1)
        halves = honest.split(batch.episode, batch.present, chance, state.signal, state.iteration)
    flat = networks.flatten(state.policy)
    here = surrogates.make(flat, samples, config.trust, halves, jax.random.fold_in(key, 2**31 - 2))
    here = here._replace(near=surrogates.nearness(constrained, limit))
    begins = (state.iteration == config.shaping.start) & config.shape_costs
    constraints = ConstraintValues(
        value=constrained,
        limit=limit,
        realised=constrained - state.value,
        comparable=(state.iteration > 0) & ~begins,
        se=se[1 + m : 1 + 2 * m],
    )
    algo, step = config.algo.update(state.algo, here, constraints)
    policy = flat.policy(step.theta)

    predictors = state.predictors
    if config.shape_costs:
        predictors = _if_finite(fit_predictors(predictors, batch, ahead, config.shaping), predictors)
    critic = replace(config.critic, minibatch=config.minibatch)
    critics = _if_finite(
        fit_critics(state.critics, batch, elapsed, targets, critic, key, config.trust.fisher_fraction), state.critics
    )
    if policy.normalizer is not None:
        policy = policy.seeing(policy.normalizer.updated(batch.obs, valid.astype(jnp.float32)))

    epsilon = jnp.max(jnp.abs(samples.cost_advantage), axis=0, initial=0)
    steps = jnp.sum(valid)
    counted = state.env_steps + steps.astype(jnp.uint32)
    counted = jnp.where(counted < state.env_steps, jnp.uint32(2**32 - 1), counted)
    metrics = {
        "episodes": jnp.sum(batch.present),
        "steps": steps,
        "return": mean[0],
        "return_se": se[0],
        "cost": cost,
        "cost_se": se[1 : 1 + m],
        "shaped_cost": constrained,
        "shaped_cost_se": se[1 + m : 1 + 2 * m],
        "limit": limit,
        "realised": jnp.where(constraints.comparable, constraints.realised, jnp.nan),
        "length": length,
        "broken": batch.broken,
        "finite": jnp.stack(
            [_finite(x, valid) for x in (batch.obs, batch.reward, batch.costs)]
            + [_finite(batch.final_obs, batch.present & batch.truncated)]
        ),
        "entropy": masked_mean(distributions.entropy(here.old), valid),
        "explained_variance": estimate.explained_variance(values, returns, valid),
        "predictor_loss": masked_mean((failure - ahead) ** 2, valid),
        "kl": step.kl,
        "case": step.case,
        "lam": step.lam,
        "nu": step.nu,
        "promised": step.promised,
        "effective_limit": step.effective_limit,
        "accepted": step.search.accepted,
        "step_scale": step.search.scale,
        "tried": step.search.tried,
        "rejected_kl": step.search.failed[0],
        "rejected_objective": step.search.failed[1],
        "rejected_cost": step.search.failed[2:],
        "rejected_not_finite": step.search.not_finite,
        "cg_residual": step.cg_residual,
        "epsilon": epsilon,
        "prop2_bound": limit + _proposition_2(config.trust.delta, cost_gamma, epsilon, length),
    }
    if config.certainty:
        metrics["episode_costs"] = jnp.where(batch.present[:, None], sums[:, 1 : 1 + m], jnp.nan)
    new = LearnerState(state.iteration + 1, policy, critics, predictors, algo, constrained, length, counted)
    if state.signal is not None:
        signal, promise = state.signal, jnp.full(m, jnp.nan)
        if step.signal is not None:  # None: an algorithm that makes a step of its own
            relative, reach = step.signal
            promise = step.in_sample
            signal = signal.watched(relative, reach, jnp.concatenate([jnp.ones(1, bool), ~silent]))
        new = new._replace(signal=signal)
        metrics |= {"signal": signal.share, "in_sample": promise, "gae": lam}
    return new, metrics


def _if_finite(new: Fitted, old: Fitted) -> Fitted:
    """The new networks, or the old ones where a new one holds NaN or infinity, which would stay for good."""
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(new)]))
    return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)


def _finite(x: Float[Array, "n *c"], valid: Bool[Array, " n"]) -> Bool[Array, ""]:
    """Whether every entry of the valid rows is finite."""
    return jnp.all(jnp.isfinite(x) | ~valid.reshape(-1, *([1] * (x.ndim - 1))))


def _centred(x: Float[Array, "n c"], valid: Bool[Array, " n"]) -> Float[Array, "n c"]:
    """Less the mean of the valid rows, zero in the others."""
    return jnp.where(valid[:, None], x - masked_mean(x, valid), 0)


def _samples(
    batch: Batch, advantage: Float[Array, "n c"], discount: Float[Array, "n m"], largest: float = 0.0
) -> Samples:
    """Standardise the reward's advantages, which count up to `largest` times their mean size (0: as they are); centre the
    costs', of which nothing is cut: a cost must never look smaller."""
    valid = batch.valid
    centred = _centred(advantage, valid)
    if largest > 0:
        most = largest * masked_mean(jnp.abs(centred[:, 0]), valid)
        cut = _centred(jnp.clip(centred[:, :1], -most, most), valid)
        centred = jnp.concatenate([cut, centred[:, 1:]], axis=1)
    std = jnp.sqrt(masked_mean(centred[:, 0] ** 2, valid))
    # Where nothing varies there is nothing to learn. A deviation that is NaN must stay so: the step is then refused.
    unit = jnp.where(std == 0, 0, centred[:, 0] / jnp.where(std == 0, 1, std))
    weight = valid / jnp.sum(valid)
    cost_weight = jnp.where(valid[:, None], discount, 0) / jnp.sum(batch.present)
    return Samples(batch.obs, batch.action, weight, unit, cost_weight, centred[:, 1:])


def _proposition_2(
    delta: Any, cost_gamma: Float[Array, " m"], epsilon: Float[Array, " m"], length: Float[Array, ""]
) -> Float[Array, " m"]:
    """√(2δ) γ ε/(1−γ)², with ε = max_s |E_{a~π'}[A_C]| estimated by the largest advantage seen.

    Undiscounted costs over episodes of length T are read as γ = 1 − 1/T, the discount with the same mean horizon.
    """
    gamma = jnp.where(cost_gamma < 1, cost_gamma, 1 - 1 / jnp.maximum(length, 2))
    return jnp.sqrt(2 * delta) * gamma * epsilon / (1 - gamma) ** 2

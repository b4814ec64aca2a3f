"""CPO's steps from sampled episodes of a finite CMDP, whose true effect on the costs is then computed exactly.

An episode is the CMDP as a killed process: it ends after each step with probability 1−γ. The plain sum of a signal over an
episode has the discounted return J as its expectation, and step t happens with probability γ^t. One episode estimates

    ∂J/∂θ   by   Σ_t ∇log π(a_t|s_t) Â_t,      Â_t = Σ_{l ≥ t} λ^{l−t} (R(s_l, a_l, s_{l+1}) + γV(s_{l+1}) − V(s_l))

with the exact V, and each ∂J_Cᵢ/∂θ in the same way. With λ = 1, Â_t is the sum of the signal from t to the end less V(s_t),
but without the chance of when the episode ends, whose noise would drown the rest. With the exact V, E[Â_t | s_t, a_t] is the
advantage for every λ, so the estimate is unbiased for `update.gradients`, with their factor 1/(1−γ): an episode visits s on
average d(s)/(1−γ) times. H = blockdiag_s d(s)(diag π_s − π_s π_sᵀ) has the exact d, which sums to one. An estimate sums to
zero over the actions of each state, so H⁻¹g = g(s, a)/(d(s) π(a|s)) exactly.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64, Int

from corral.errors import require, require_in
from corral.tabular.cmdp import Evaluation, evaluate, require_count, require_kind
from corral.tabular.update import gradients, natural_gradients, softmax
from corral.trust_region import crossfit, dual, subspace

Changes = Float64[np.ndarray, "n m"]
Index = Int[np.ndarray, " n"]

_AT_ONCE = 20_000  # episodes, drawn side by side


class Means(NamedTuple):
    """Estimates of J, J_Cᵢ (k = 1 + m in all) and of their gradients, each the mean over one of n groups of episodes."""

    returns: Float64[np.ndarray, "n k"]
    gradients: Float64[np.ndarray, "n k S A"]


class Steps(NamedTuple):
    """What the subproblem of each batch predicts for the costs, Mᵀy, their exact change, and the average share of signal."""

    predicted: Changes
    true: Changes
    share: Float64[np.ndarray, "n k"]


def sample(policy: Evaluation, rng: np.random.Generator, groups: int, size: int = 1, lam: float = 1.0) -> Means:
    """Draw `groups` times `size` episodes, all side by side, and average over each group."""
    require_kind("policy", policy, Evaluation)
    require_count("groups", groups, 1)
    require_count("size", size, 1)
    require_in("lam", lam, 0.0, 1.0)
    cmdp, V, cells = policy.cmdp, policy.V, policy.policy.size
    signals = np.concatenate([cmdp.R[None], cmdp.C]).reshape(len(V), -1)  # (s, a, s') in one index
    starts, choices, transitions = _cumulative(cmdp.mu), _cumulative(policy.policy), _cumulative(cmdp.P)
    running = np.arange(groups * size)
    state, steps = _draw(rng, starts, 0 * running), []
    while len(running):
        pair = state * cmdp.actions + _draw(rng, choices, state)
        after = _draw(rng, transitions, pair)
        steps.append((running, state, pair, after))
        goes_on = rng.random(len(running)) < cmdp.gamma
        running, state = running[goes_on], after[goes_on]
    sums, advantage = np.zeros((2, len(V), groups * size))
    weights, places = [], []
    for episode, s, pair, t in reversed(steps):
        earned = signals[:, pair * cmdp.states + t]
        sums[:, episode] += earned
        advantage[:, episode] = lam * advantage[:, episode] + earned + cmdp.gamma * V[:, t] - V[:, s]
        weights.append(advantage[:, episode])
        places.append(episode // size * cells + pair)
    place = np.concatenate(places)
    added = np.array([np.bincount(place, w, groups * cells) / size for w in np.concatenate(weights, axis=1)])
    weight = np.swapaxes(added.reshape(len(V), groups, *policy.policy.shape), 0, 1)
    # Σ_t Â_t ∂log π(a_t|s_t)/∂θ(s, a) = Σ_t Â_t [s_t = s] ([a_t = a] − π(a|s))
    gradient = weight - policy.policy * weight.sum(axis=3, keepdims=True)
    return Means(sums.reshape(len(V), groups, size).mean(axis=2).T, gradient)


def _cumulative(p: Float64[np.ndarray, "... c"]) -> Float64[np.ndarray, "r c"]:
    """The cumulative sums of each row of probabilities plus the number of the row."""
    rows = np.cumsum(p.reshape(-1, p.shape[-1]), axis=1)
    rows[:, -1] = 1
    return rows + np.arange(len(rows))[:, None]


def _draw(rng: np.random.Generator, cumulative: Float64[np.ndarray, "r c"], row: Index) -> Index:
    """For each of n rows one of c columns, by the row's probabilities."""
    columns = cumulative.shape[1]
    found = np.searchsorted(cumulative.ravel(), row + rng.random(len(row)), side="right") - row * columns
    return np.minimum(found, columns - 1)  # row + a number just below 1 may round to row + 1


def take_steps(
    policy: Evaluation, halves: Float64[np.ndarray, "n 2 k S A"], c: Changes, delta: float, honest: bool
) -> Steps:
    """The steps of n batches by honest terms or VᵀG, from the gradients of their halves and the excess c over the limits."""
    logits, G = np.log(policy.policy), np.moveaxis(halves.reshape(*halves.shape[:3], -1), 2, 3)
    with jax.enable_x64(True):
        made = _scan(G, (policy.d[:, None] * policy.policy).reshape(-1, 1), c, delta, honest)
        predicted, x, share = (np.asarray(part) for part in made)
    new = [evaluate(policy.cmdp, softmax(logits + step.reshape(logits.shape))).J_C for step in x]
    return Steps(predicted, np.array(new) - policy.J_C, share)


@jax.jit
def _scan(halves: Array, metric: Array, c: Array, delta: Array, honest: Array) -> tuple[Array, Array, Array]:
    """Predicted changes (n, m), steps (n, p) and shares (n, k) for halves (n, 2, p, k), metric (p, 1) and c (n, m)."""

    def step(signal: Array, batch: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array, Array]]:
        number, (Ga, Gb), excess = batch
        G, rate = (Ga + Gb) / 2, jnp.maximum(0.1, 1 / (1 + number))  # the rate of training
        terms = crossfit.terms((Ga / metric, Gb / metric), (Ga, Gb), signal, rate)
        M = jnp.where(honest, terms.honest, terms.in_sample)
        problem, W = subspace.with_terms(G / metric, G, M)  # V = H⁻¹G, so HV = G
        z = problem.coordinates(dual.solve(problem.q, problem.r, problem.S, excess, delta))
        return terms.signal, (M[:, 1:].T @ (W @ z), problem.basis @ z, jnp.diagonal(terms.signal))

    return jax.lax.scan(step, jnp.zeros((halves.shape[-1],) * 2), (jnp.arange(len(c)), halves, c))[1]


def slope(predicted: Changes, true: Changes) -> tuple[float, float]:
    """The slope of true on predicted changes, with an intercept for each cost, and its standard error over batches."""
    x, y = predicted - predicted.mean(axis=0), true - true.mean(axis=0)
    size = float(np.sum(x**2))
    require(size > 0, "predicted must vary from batch to batch")
    value = float(np.sum(x * y)) / size
    return value, float(np.linalg.norm(np.sum(x * (y - value * x), axis=1))) / size


def compare(
    policy: Evaluation, rng: np.random.Generator, size: int, batches: int, delta: float = 1e-4, lam: float = 1.0
) -> dict[str, tuple[float, ...]]:
    """Over batches of `size` episodes the slopes "in_sample" and "honest", and the mean "share" of signal of g and each b.

    cᵢ is uniform within ±√(2δSᵢᵢ), the most that a step could change J_Cᵢ if gradients were known, and changes count in
    units of that. With the default δ all but the linear part of a step's effect is negligible.
    """
    require(size >= 2 and size % 2 == 0, f"size must be even, for two halves, got {size}")
    require_count("batches", batches, 2)
    require_in("delta", delta, 0.0, 1.0, closed="(]")
    reach = np.sqrt(2 * delta * np.einsum("isa,isa->i", gradients(policy), natural_gradients(policy))[1:])
    require(bool(np.all(reach > 0)), "every cost must depend on the policy")
    parts = np.array_split(np.arange(batches), min(batches, -(-batches * size // _AT_ONCE)))
    drawn = np.concatenate([sample(policy, rng, 2 * len(part), size // 2, lam).gradients for part in parts])
    halves, c = drawn.reshape(batches, 2, *drawn.shape[1:]), reach * rng.uniform(-1, 1, size=(batches, len(reach)))
    made = {name: take_steps(policy, halves, c, delta, name == "honest") for name in ("in_sample", "honest")}
    slopes = {name: slope(steps.predicted / reach, steps.true / reach) for name, steps in made.items()}
    return slopes | {"share": tuple(made["honest"].share.mean(axis=0).tolist())}

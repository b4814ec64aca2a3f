"""Halves of a batch and the steps that they judge, against sums over episodes and the in-sample step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learning.test_surrogates import LENGTHS, ROWS, Problem

from corral.config import TrustRegion
from corral.learning import honest, surrogates
from corral.learning.honest import Halves
from corral.trust_region import crossfit

EPISODE = np.repeat(np.arange(5), [*LENGTHS, ROWS - sum(LENGTHS)])
PRESENT = np.arange(5) < 4


def split(episode, present, seed, iteration=0):
    signal = honest.begin(2, 0.9, 0.9, False)
    return honest.split(episode, present, jax.random.key(seed), signal, jnp.asarray(iteration, jnp.int32))


def test_signal_is_averaged_over_all_batches_and_then_over_the_last_ten():
    rates = [float(split(jnp.arange(4), jnp.ones(4, bool), 0, k).rate) for k in (0, 1, 4, 9, 300)]
    np.testing.assert_allclose(rates, [1, 1 / 2, 1 / 5, 1 / 10, 1 / 10])


def test_half_of_the_episodes_are_one_half_and_absent_ones_do_not_count():
    present = jnp.asarray([True, False, True, True, True, True])
    seen = set()
    for seed in range(200):
        sign, balance, _, _ = split(jnp.arange(6), present, seed)
        assert np.sum(np.asarray(sign)[np.asarray(present)] > 0) == 2
        np.testing.assert_allclose(balance, 25 / (4 * 2 * 3))
        seen.add(tuple(np.flatnonzero((np.asarray(sign) > 0) & np.asarray(present)).tolist()))
    assert len(seen) == 10  # every pair out of five


def test_the_gradients_of_the_halves_are_those_of_their_episodes(float64):
    problem = Problem()
    halves = split(jnp.asarray(EPISODE), jnp.asarray(PRESENT), 3)
    local, sign = problem.local._replace(halves=halves), halves.sign
    a, b = local.gradients_of_halves()
    g, B = local.gradients()
    np.testing.assert_allclose((a + b) / 2, np.column_stack([g, B]), rtol=1e-10)
    # Half A alone: twice the sum of the rows of its episodes.
    alone = problem.local._replace(samples=problem.samples._replace(weight=problem.samples.weight * (sign > 0)))
    np.testing.assert_allclose(a[:, 0], 2 * np.asarray(alone.gradients()[0]), rtol=1e-10)


def test_the_look_ahead_grows_where_there_is_signal_and_shrinks_where_there_is_noise():
    before = honest.begin(2, 0.9, 0.95, True)
    np.testing.assert_allclose(before.look, [10, 20, 20], rtol=1e-5)
    relative = jnp.diag(jnp.asarray([0.9, 0.15, 0.3]))
    after = before.watched(relative, jnp.zeros(2), jnp.ones(3, bool))
    # ×exp(0.05·clip(share/0.3 − 1, −1, 1)): 3 − 1 = 2 counts as 1, 0.5 − 1, and 0.3 is enough.
    np.testing.assert_allclose(after.look, [10 * np.exp(0.05), 20 * np.exp(-0.025), 20], rtol=1e-5)
    # A batch without a cost, or an algorithm without hard constraints, says nothing about the look-ahead of costs.
    for known, seen in ((relative, jnp.asarray([True, False, False])), (relative[:1, :1], jnp.ones(3, bool))):
        np.testing.assert_allclose(before.watched(known, jnp.zeros(2), seen).look[1:], before.look[1:])
    for share, end in ((1.0, 50.0), (0.0, 10.0)):
        signal = before
        for _ in range(60):
            signal = signal.watched(share * jnp.eye(3), jnp.zeros(2), jnp.ones(3, bool))
        np.testing.assert_allclose(signal.look, end, rtol=1e-6)


def test_costs_that_come_late_count_in_the_honest_terms(float64):
    """Far-sighted gradients judge steps by reach/share times what near-sighted ones see; the objective's terms stay."""
    problem = Problem(cg_iterations=100)
    halves = split(jnp.asarray(EPISODE), jnp.asarray(PRESENT), 3)
    agree = jnp.diag(jnp.full(3, 0.5))  # and a reach of 1, which stays: about twice what the near-sighted see
    known = halves._replace(rate=jnp.zeros(()), signal=halves.signal._replace(relative=agree, reach=jnp.full(2, 1.0)))
    near = problem.local._replace(halves=known)
    far = near._replace(samples=problem.samples._replace(far=2 * problem.samples.cost_advantage))
    one, other = (surrogates.judged(local, surrogates.unit(2), True) for local in (near, far))
    np.testing.assert_allclose(other.problem.a, one.problem.a, rtol=1e-6)
    factor = np.clip(1 / np.diagonal(other.signal[0])[1:], 1, crossfit.FARTHEST)
    assert np.all(factor > 1.5)
    np.testing.assert_allclose(other.problem.D, factor * one.problem.D, rtol=1e-6)


def test_the_search_takes_off_the_optimism_in_proportion_to_the_step(float64):
    problem = Problem(delta=10.0)
    g, _ = problem.local.gradients()
    step = 1e-3 * g / jnp.linalg.norm(g)
    promised = problem.surrogates(problem.theta + np.asarray(step))
    objective, no_limit, no = surrogates.unit(2), jnp.full(2, jnp.inf), jnp.zeros((), bool)
    correction = jnp.asarray([-0.5 * promised[0], 0.3, -0.2])
    found = surrogates.search(problem.local, step, objective, no_limit, no, correction)
    np.testing.assert_allclose(
        found.checks.value[1:], [-0.5 * promised[0], promised[1] + 0.3, promised[2] - 0.2], rtol=1e-6
    )
    # Half a step has half of the correction; what earns nothing honestly is refused.
    limit = jnp.asarray([promised[1] + 0.2, jnp.inf])
    shorter = surrogates.search(problem.local, step, objective, limit, no, correction)
    assert shorter.scale == pytest.approx(0.8**2)  # 0.3·0.64 < 0.2 < 0.3·0.8
    refused = surrogates.search(problem.local, step, objective, no_limit, no, correction.at[0].set(-2 * promised[0]))
    assert not refused.accepted


def test_an_honest_update_is_the_in_sample_one_where_all_episodes_say_the_same(float64):
    # The same episode twice, one copy in each half.
    rng = np.random.default_rng(0)
    problem = Problem(cg_iterations=100)
    rows = slice(0, LENGTHS[0])
    two = jax.tree.map(lambda x: jnp.concatenate([x[rows], x[rows]]), problem.samples)
    two = two._replace(weight=jnp.full(8, 1 / 8), cost_weight=jnp.full((8, 2), 1 / 2))
    sign = jnp.repeat(jnp.asarray([1.0, -1.0]), 4)
    known = Halves(sign, jnp.ones(()), honest.begin(2, 0.9, 0.9, False), jnp.asarray(1.0))
    plain = surrogates.make(problem.local.flat, two, TrustRegion(cg_iterations=100, damping=1e-3))

    @jax.jit
    def judged(halves):
        return surrogates.judged(plain._replace(halves=halves), surrogates.unit(2), True)

    one, other = judged(None), judged(known)
    np.testing.assert_allclose(other.problem.q, one.problem.q, rtol=1e-6)
    np.testing.assert_allclose(other.problem.S, one.problem.S, rtol=1e-6)
    np.testing.assert_allclose(other.optimism, 0, atol=1e-9)
    z = jnp.asarray(rng.normal(size=3))
    np.testing.assert_allclose(other.correction(z), 0, atol=1e-8)

"""Sauté: budgets in the observation, on the device and on the host."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import TINY, Slide, Walk

import corral
from corral import CorralError, envs
from corral.envs.contract import ConstraintSpec

ACTIONS = [1.0, 1.0, 1.0, -1.0]


def test_a_budget_falls_by_what_a_step_costs_and_the_penalty_follows_when_it_is_used_up():
    """Walk from about 0 by 1, 1, 1, −1: |x| > 1 costs from the second step on, x > 2 at the third. Budgets 2 and 4, γ ½."""
    env = envs.saute(Walk(), (2.0, 4.0), penalty=-7.0, discount=0.5)
    assert env.spec.observation_size == 1 + 2
    plain_state, _ = Walk().reset(jax.random.key(3))
    state, obs = env.reset(jax.random.key(3))
    np.testing.assert_array_equal(obs[1:], 1)
    left = np.ones(2)
    for action in ACTIONS:
        plain_state, plain = Walk().step(plain_state, jnp.array([action]))
        state, out = env.step(state, jnp.array([action]))
        left = (left - np.asarray(plain.costs) / [2, 4]) / 0.5
        np.testing.assert_allclose(state.left, left)
        np.testing.assert_allclose(out.obs, [*plain.obs, *np.maximum(left, -1)])
        np.testing.assert_allclose(out.reward, plain.reward if np.all(left >= 0) else -7.0)
        np.testing.assert_array_equal(out.costs, plain.costs)


def test_what_is_left_of_a_discounted_budget_does_not_grow_without_bound():
    """Each free step doubles it at γ ½: 2⁷ = 128 after seven, shown as 100."""
    env = envs.saute(Walk(), (2.0, 4.0), discount=0.5)
    host = envs.saute(envs.VectorEnv(Walk(), 1), (2.0, 4.0), discount=0.5)
    state, _ = env.reset(jax.random.key(3))
    host.reset(0)
    for _ in range(7):
        state, out = env.step(state, jnp.array([0.0]))
        seen = host.step(np.zeros((1, 1), np.float32))
    np.testing.assert_array_equal(out.obs[1:], 100)
    np.testing.assert_array_equal(seen.obs[0, 1:], 100)


def test_on_the_host_it_is_the_same_environment():
    """Twenty steps of three slots, over the ends of episodes of eight; one slot rests now and then."""
    make = dict(penalty=-7.0, discount=0.9)
    both = [envs.saute(envs.VectorEnv(Walk(), 3), **make), envs.VectorEnv(envs.saute(Walk(), **make), 3)]
    np.testing.assert_allclose(*(env.reset(4) for env in both), atol=1e-6)
    rng = np.random.default_rng(0)
    for k in range(20):
        actions, active = rng.normal(size=(3, 1)).astype(np.float32), np.array([True, k % 3 > 0, True])
        ours, theirs = (env.step(actions, active) for env in both)
        for name in ("obs", "reward", "costs", "terminated", "truncated", "final_obs"):
            np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=1e-5, err_msg=name)


def test_a_gymnasium_environment_has_budgets_too():
    """Every step of Slide costs one; a budget of 2 is used up by the third."""
    env = envs.saute(envs.from_gymnasium(Slide, 2, [ConstraintSpec("cost", 2.0)], horizon=5), penalty=-1.0)
    obs = env.reset(0)
    assert obs.shape == (2, 2)
    steps = [env.step(np.zeros((2, 1), np.float32)) for _ in range(6)]
    np.testing.assert_allclose([out.obs[0, 1] for out in steps], [0.5, 0, -0.5, -1, 1, 0.5])
    np.testing.assert_allclose([out.reward[0] for out in steps], [15, 15, -1, -1, -1, 15])
    assert steps[4].truncated.all()
    np.testing.assert_allclose(steps[4].final_obs[:, 1], -1)
    env.close()


@pytest.mark.slow
def test_any_algorithm_trains_with_budgets():
    result = corral.train(
        envs.saute(Walk()), corral.TRPO(), iterations=2, batch_size=160, networks=TINY, preset="paper"
    )
    assert result.metrics["accepted"].all()


def test_what_has_no_budget_is_refused():
    with pytest.raises(CorralError, match="limits must be positive, got 0"):
        envs.saute(Walk(), (1.0, 0.0))
    with pytest.raises(CorralError, match="limits must be one for each of near, far, got 1"):
        envs.saute(Walk(), (1.0,))
    with pytest.raises(CorralError, match="env must be an environment of Corral's contract, got Slide"):
        envs.saute(Slide())
    with pytest.raises(CorralError, match="has no constraint, and so no budget"):
        envs.saute(envs.from_gymnasium(Slide, 1, horizon=5))

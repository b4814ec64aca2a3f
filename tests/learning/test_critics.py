"""Fits against explicit matrices, plain loops and finite differences, all in NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain_networks import batch_of, differences, forward, parameters, ravel, unravel

from corral.config import Critic, Networks
from corral.learning import critics as fit
from corral.learning.networks import apply_stacked, stack_mlps

# -- the networks once more, in NumPy ---------------------------------------------------------------------------------


# -- the natural step -------------------------------------------------------------------------------------------------


def natural_step_by_matrices(arrays, x, y, rows, step, every=1):
    """θ + min(√(2·step/gᵀH⁻¹g), 1)·H⁻¹g with every matrix written out, if that lowers the error; and why."""
    theta = ravel(arrays)

    def predict(theta):
        return forward(unravel(theta, arrays), x)

    J, w = differences(predict, theta), rows / rows.sum()
    residual = y - predict(theta)
    variance = w @ residual**2
    some = [i * every + i % every for i in range(len(x) // every)]
    share = w[some] / w[some].sum()
    H = J[some].T @ (share[:, None] * J[some]) / variance + 1e-5 * np.eye(len(theta))
    g = J.T @ (w * residual) / variance
    direction = np.linalg.solve(H, g)
    length = np.sqrt(2 * step / (g @ direction))
    moved = theta + min(length, 1) * direction
    better = w @ (y - predict(moved)) ** 2 < variance
    return unravel(moved if better else theta, arrays), length > 1, better


@pytest.mark.parametrize(("step", "fraction"), [(0.01, 1.0), (1e6, 1.0), (0.01, 0.25)])
def test_a_natural_step_is_the_one_of_the_written_out_fisher_matrix(step, fraction, float64):
    """Twelve networks of five parameters at once, so that ten conjugate-gradient iterations are exact."""
    rng = np.random.default_rng(0)
    nets = stack_mlps(12, (2, 1, 1), "tanh", jax.random.key(3))
    x, rows = rng.normal(size=(40, 2)), rng.random(40) < 0.8
    y = np.sin(2 * x @ rng.normal(size=(2, 12))) + rng.normal(size=12)
    stepped = jax.jit(lambda nets: fit._natural_step(nets, *map(jnp.asarray, (x, y, rows)), step, fraction))(nets)
    kinds = set()
    for k in range(12):
        expected, overshot, better = natural_step_by_matrices(
            parameters(nets, k), x, y[:, k], rows, step, every=round(1 / fraction)
        )
        kinds.add((bool(overshot), bool(better)))
        np.testing.assert_allclose(ravel(parameters(stepped, k)), ravel(expected), rtol=1e-5, atol=1e-6)
    if step > 1:
        # The full Newton step, never more: where it overshoots all the same the network stays as it was.
        assert kinds == {(True, True), (True, False)}
    else:
        assert (False, True) in kinds


def test_rows_that_are_left_out_do_not_change_a_natural_step():
    rng = np.random.default_rng(2)
    nets = stack_mlps(2, (2, 3, 1), "tanh", jax.random.key(0))
    x = rng.normal(size=(200, 2)).astype(np.float32)
    y = np.tanh(x @ rng.normal(size=(2, 2))).astype(np.float32)
    rows = rng.random(200) < 0.6
    stepped = jax.jit(lambda x, y: fit._natural_step(nets, x, y, jnp.asarray(rows), 0.01, 0.5))
    other_x, other_y = (np.where(rows[:, None], a, 1e3 * a + 7) for a in (x, y))
    same, other = stepped(x, y), stepped(other_x, other_y)
    for a, b in zip(jax.tree.leaves(same), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not eqx.tree_equal(same, nets)


# -- passes, held-out episodes, early stopping ------------------------------------------------------------------------


def test_a_pass_of_adam_is_adam_written_out(float64):
    """Three full-batch passes with gradients by finite differences: m̂/(√v̂ + ε) of Kingma and Ba."""
    rng = np.random.default_rng(3)
    critic = Critic("adam", minibatch=100, learning_rate=0.02)
    critics = fit.make_critics(2, 1, Networks(hidden=(2,)), critic, jax.random.key(0))
    x, y, rows = rng.normal(size=(20, 2)), rng.normal(size=(20, 2)), rng.random(20) < 0.7
    zero = jnp.zeros((), jnp.int32)
    now = fit._Fit(critics.nets, critics.optimizer, critics.nets, jnp.zeros(2), zero, zero)
    one_pass = jax.jit(
        lambda a, s, key: fit._adam_epoch(
            now._replace(nets=a, optimizer=s), *map(jnp.asarray, (x, y, rows)), critic, key
        )
    )
    for i in range(3):
        nets, optimizer = one_pass(now.nets, now.optimizer, jax.random.key(i))
        now = now._replace(nets=nets, optimizer=optimizer)
    for k in range(2):
        start = parameters(critics.nets, k)

        def error(theta, start=start, k=k):
            return np.mean((forward(unravel(theta, start), x) - y[:, k])[rows] ** 2)

        theta, m, v = ravel(start), 0.0, 0.0
        for i in range(1, 4):
            g = differences(error, theta)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            theta = theta - 0.02 * (m / (1 - 0.9**i)) / (np.sqrt(v / (1 - 0.999**i)) + 1e-8)
        np.testing.assert_allclose(ravel(parameters(now.nets, k)), theta, rtol=1e-5, atol=1e-7)


def noisy_problem(seed=4, lengths=(3,) * 16, gap=1, c=3):
    """Targets of which only a little can be learned: passes soon stop helping the held-out episodes."""
    rng = np.random.default_rng(seed)
    rows = sum(lengths) + gap * len(lengths)
    obs = rng.normal(size=(rows, 2)).astype(np.float32)
    returns = (obs @ rng.normal(size=(2, c)) + 2 * rng.normal(size=(rows, c))).astype(np.float32)
    elapsed = rng.random(rows).astype(np.float32)
    return batch_of(lengths, obs, gap=gap), jnp.asarray(elapsed), jnp.asarray(returns)


@pytest.fixture(scope="module")
def early_stopped():
    """A fit with held-out episodes, and the same by a plain loop over passes."""
    batch, elapsed, returns = noisy_problem()
    critic = Critic("adam", epochs=60, held_out=0.3, minibatch=20, learning_rate=0.1)
    critics = fit.make_critics(2, 2, Networks(hidden=(8,)), critic, jax.random.key(0))
    key, passes, plain = jax.random.key(1), [], fit._adam_epoch

    def counted(*given):
        jax.debug.callback(lambda: passes.append(None))
        return plain(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "_adam_epoch", counted)
        found = jax.jit(lambda c: fit.fit_critics(c, batch, elapsed, returns, critic, key))(critics)
        jax.effects_barrier()

    held = np.asarray(fit._held_out(batch, 0.3, jax.random.fold_in(key, 0)))[np.asarray(batch.episode)]
    valid = np.asarray(batch.valid)
    train, test = valid & ~held, valid & held
    unit = [(a - a[valid].mean(0)) / a[valid].std(0) for a in map(np.asarray, (batch.obs, returns))]
    x, y = map(jnp.asarray, unit)
    zero = jnp.zeros((), jnp.int32)
    now = fit._Fit(critics.nets, critics.optimizer, critics.nets, jnp.zeros(3), zero, zero)
    one_pass = jax.jit(
        lambda nets, optimizer, key: fit._adam_epoch(
            now._replace(nets=nets, optimizer=optimizer), x, y, jnp.asarray(train), critic, key
        )
    )

    def errors(nets):
        return [np.mean((forward(parameters(nets, k), unit[0]) - unit[1][:, k])[test] ** 2) for k in range(3)]

    nets, optimizer, curve, stale = critics.nets, critics.optimizer, [], 0
    seen = [(nets, optimizer)]
    curve.append(errors(nets))
    while len(curve) <= 60 and stale < 2:
        nets, optimizer = one_pass(nets, optimizer, jax.random.fold_in(key, len(curve)))
        seen.append((nets, optimizer))
        stale = 0 if np.any(errors(nets) < np.min(curve, axis=0)) else stale + 1
        curve.append(errors(nets))
    return found, seen, np.asarray(curve), len(passes)


def test_each_network_keeps_its_best_pass_on_the_held_out_episodes(early_stopped):
    found, seen, curve, _ = early_stopped
    best = np.argmin(curve, axis=0)
    assert len(set(best)) > 1, "the networks should differ in their best pass, or the test shows little"
    assert np.all(best < len(curve) - 1)
    for k, pass_ in enumerate(best):
        nets, (adam, _) = seen[pass_]
        kept, _ = found.optimizer
        np.testing.assert_allclose(ravel(parameters(found.nets, k)), ravel(parameters(nets, k)), rtol=1e-3, atol=1e-4)
        # Adam goes on from where it was then.
        assert kept.count[k] == adam.count[k] == 2 * pass_
        for moments, expected in ((kept.mu, adam.mu), (kept.nu, adam.nu)):
            np.testing.assert_allclose(
                ravel(parameters(moments, k)), ravel(parameters(expected, k)), rtol=1e-3, atol=1e-4
            )


def test_a_fit_ends_after_two_passes_that_help_no_network(early_stopped):
    _, _, curve, passes = early_stopped
    assert 2 < passes < 60
    assert passes == len(curve) - 1 == np.max(np.argmin(curve, axis=0)) + 2


def test_without_held_out_episodes_every_pass_is_made_and_the_last_one_kept():
    batch, elapsed, returns = noisy_problem()
    critic = Critic("adam", epochs=7, minibatch=20, learning_rate=0.1)
    critics = fit.make_critics(2, 2, Networks(hidden=(8,)), critic, jax.random.key(0))
    found = jax.jit(lambda c: fit.fit_critics(c, batch, elapsed, returns, critic, jax.random.key(1)))(critics)
    assert found.optimizer[0].count.tolist() == [7 * 3] * 3  # 48 rows in minibatches of 20
    valid = np.asarray(batch.valid)
    y = (np.asarray(returns) - np.asarray(returns)[valid].mean(0)) / np.asarray(returns)[valid].std(0)
    after, before = (
        np.mean((np.asarray(apply_stacked(n, found.inputs.unit(batch.obs))) - y)[valid] ** 2, axis=0)
        for n in (found.nets, critics.nets)
    )
    assert np.all(after < 0.95 * before)


@pytest.mark.slow
def test_critics_learn_from_a_single_episode_though_none_can_be_held_out():
    batch, elapsed, returns = noisy_problem(lengths=(48,), gap=0)
    critic = Critic("adam", epochs=5, held_out=0.3, minibatch=20, learning_rate=0.1)
    critics = fit.make_critics(2, 2, Networks(hidden=(8,)), critic, jax.random.key(0))
    found = fit.fit_critics(critics, batch, elapsed, returns, critic, jax.random.key(1))
    y = found.targets.unit(returns)
    after, before = (
        np.mean((np.asarray(apply_stacked(nets, found.inputs.unit(batch.obs))) - y) ** 2)
        for nets in (found.nets, critics.nets)
    )
    assert after < 0.95 * before


def test_one_pass_takes_every_row_that_may_be_learned_from_once_and_no_other():
    """With a minibatch of all rows there is one step, along the gradient of their mean error."""
    batch, _, returns = noisy_problem()
    x, y, rows = batch.obs, returns, batch.valid
    critic = Critic("adam", epochs=1, minibatch=64, learning_rate=0.1)
    critics = fit.make_critics(2, 2, Networks(hidden=(8,)), critic, jax.random.key(0))
    zero = jnp.zeros((), jnp.int32)
    start = fit._Fit(critics.nets, critics.optimizer, critics.nets, jnp.zeros(3), zero, zero)
    _, optimizer = fit._adam_epoch(start, x, y, rows, critic, jax.random.key(0))
    assert optimizer[0].count.tolist() == [1, 1, 1]
    gradient = jax.grad(lambda nets: jnp.sum(jnp.mean((apply_stacked(nets, x) - y)[rows] ** 2, axis=0)))(critics.nets)
    # Adam's mean after one step is a tenth of the gradient: 0.9 · 0 + 0.1 · g.
    jax.tree.map(lambda m, g: np.testing.assert_allclose(m, 0.1 * g, rtol=1e-4, atol=1e-6), optimizer[0].mu, gradient)


@pytest.mark.slow
def test_padding_adds_no_steps():
    steps = []
    for gap in (0, 1, 5):
        batch, elapsed, returns = noisy_problem(gap=gap)
        critic = Critic("adam", epochs=2, minibatch=20)
        critics = fit.make_critics(2, 2, Networks(hidden=(8,)), critic, jax.random.key(0))
        found = fit.fit_critics(critics, batch, elapsed, returns, critic, jax.random.key(1))
        steps.append(found.optimizer[0].count.tolist())
    assert steps == [[6, 6, 6]] * 3


@pytest.mark.parametrize(("room", "expected"), [(10, [2, 3, 5, 7, 8]), (5, [2, 3, 5, 7, 8]), (3, [2, 5, 8])])
def test_rows_are_found_in_the_room_there_is_or_evenly_some_of_them(room, expected):
    rows = np.zeros(9, bool)
    rows[[2, 3, 5, 7, 8]] = True
    where, counts = fit._first(jnp.asarray(rows), room)
    assert len(where) == min(room, 9)
    np.testing.assert_array_equal(np.asarray(where)[np.asarray(counts)], expected)


def test_held_out_episodes_and_invalid_rows_never_enter_a_gradient():
    """Adam's averages of gradients show every row that was used: they must not notice others being shuffled or spoiled."""
    batch, elapsed, returns = noisy_problem()
    critic = Critic("adam", epochs=1, held_out=0.3, minibatch=20)
    critics = fit.make_critics(2, 2, Networks(hidden=(4,)), critic, jax.random.key(0))
    key = jax.random.key(1)
    optimizer = jax.jit(lambda b, r: fit.fit_critics(critics, b, elapsed, r, critic, key).optimizer[0].mu)
    held = np.asarray(fit._held_out(batch, 0.3, jax.random.fold_in(key, 0)))[np.asarray(batch.episode)]
    valid = np.asarray(batch.valid)
    y = np.asarray(returns).copy()
    # Turned round, the held-out targets keep their mean and deviation, on which the units of the fit depend.
    y[valid & held] = y[valid & held][::-1]
    y[~valid] = 1e5
    obs = np.where(valid[:, None], batch.obs, -1e5).astype(np.float32)
    same = optimizer(batch._replace(obs=jnp.asarray(obs)), jnp.asarray(y))
    for a, b in zip(jax.tree.leaves(optimizer(batch, returns)), jax.tree.leaves(same), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)
    y[valid & ~held] = y[valid & ~held][::-1]
    other = optimizer(batch, jnp.asarray(y))
    assert not np.allclose(other.weights[0], same.weights[0], rtol=0.1)


@pytest.mark.parametrize(
    ("episodes", "absent", "share", "count"),
    [(20, 0, 0.1, 2), (20, 0, 0.3, 6), (8, 0, 0.1, 1), (3, 0, 0.1, 1), (2, 0, 0.9, 1), (12, 4, 0.25, 2)],
)
def test_the_share_held_out_is_exact_at_least_one_episode_and_never_all(episodes, absent, share, count):
    """A draw that held nobody out would leave the passes without a judge: none would be better than none."""
    batch = batch_of([2] * episodes, np.zeros((2 * episodes, 1)))
    present = np.arange(episodes) < episodes - absent
    batch = batch._replace(present=jnp.asarray(present))
    draws = np.asarray(jax.vmap(lambda k: fit._held_out(batch, share, k))(jax.random.split(jax.random.key(0), 200)))
    np.testing.assert_array_equal(draws.sum(1), count)
    # Every episode that is there is drawn as often as any other, to five deviations; one that is not, never.
    p = count / present.sum()
    expected = np.where(present, p, 0)
    np.testing.assert_allclose(draws.mean(0), expected, atol=5 * np.sqrt(p * (1 - p) / 200))
    np.testing.assert_array_equal(draws[:, ~present], False)


# -- critics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("critic", [Critic(), Critic("adam", epochs=3, held_out=0.3, minibatch=20)])
def test_values_are_in_the_units_of_the_returns(critic, float64):
    """1000 times the returns plus 5 are 1000 times the values plus 5."""
    batch, elapsed, returns = jax.tree.map(lambda x: x.astype(float) if x.dtype == np.float32 else x, noisy_problem())
    # Five parameters, which conjugate gradients solve for; truncated they would magnify rounding.
    critics = fit.make_critics(2, 2, Networks(hidden=(1,)), critic, jax.random.key(0))

    @jax.jit
    def values(returns):
        return fit.fit_critics(critics, batch, elapsed, returns, critic, jax.random.key(1))(batch.obs, elapsed)

    plain, scaled = values(returns), values(1000 * returns + 5)
    np.testing.assert_allclose(scaled, 1000 * plain + 5, rtol=1e-6, atol=1e-3)
    # And they are neither far from the returns nor a constant.
    valid = np.asarray(batch.valid)
    np.testing.assert_allclose(np.mean(plain[valid], 0), np.mean(returns[valid], 0), atol=2)
    assert np.all(np.std(plain[valid], 0) > 0.05)


@pytest.mark.slow
def test_only_critics_that_see_time_tell_apart_states_that_differ_in_nothing_else():
    """What remains to be paid is 10·(1 − elapsed) wherever one is."""
    rng = np.random.default_rng(5)
    elapsed = jnp.asarray(np.tile(np.arange(10) / 10, 4), jnp.float32)
    batch = batch_of([10] * 4, rng.normal(size=(40, 2)).astype(np.float32))
    returns = 10 * (1 - elapsed)[:, None]
    critic = Critic("adam", epochs=300, learning_rate=0.05, sees_time=True)
    critics = fit.make_critics(2, 0, Networks(hidden=(3,)), critic, jax.random.key(0))
    found = jax.jit(lambda c: fit.fit_critics(c, batch, elapsed, returns, critic, jax.random.key(0)))(critics)
    same_place, early_and_late = jnp.zeros((2, 2)), jnp.asarray([0.1, 0.8])
    np.testing.assert_allclose(found(same_place, early_and_late)[:, 0], [9, 2], atol=0.5)
    blind = fit.make_critics(2, 0, Networks(hidden=(3,)), Critic(), jax.random.key(0))
    assert np.ptp(blind(same_place, early_and_late)) == 0


@pytest.mark.slow
def test_a_column_that_never_changes_is_scaled_to_nothing():
    """0.3 has no exact float32, and 50,000 of them no exact sum."""
    x = np.random.default_rng(0).normal(size=(50_000, 2)).astype(np.float32)
    x[:, 1] = 0.3
    x[0] = 7.0  # a row that does not count
    batch = batch_of([10] * 5_000, x)
    batch = batch._replace(valid=batch.valid.at[0].set(False))
    scale = fit._scale(jnp.asarray(x), batch)
    assert float(scale.std[1]) == 1
    np.testing.assert_array_equal(scale.unit(jnp.asarray(x))[1:, 1], 0)
    np.testing.assert_allclose(scale.mean[0], x[1:, 0].mean(), atol=1e-5)
    np.testing.assert_allclose(scale.std[0], x[1:, 0].std(), rtol=1e-5)

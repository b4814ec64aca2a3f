"""One iteration of learning against the same arithmetic in NumPy: loops over episodes, sums, closed forms."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from corral import devices
from corral.algos import CPO, FPO
from corral.config import Config, Critic, Networks, Shaping, TrustRegion
from corral.envs.contract import Box, ConstraintSpec, EnvSpec
from corral.learning import distributions, networks
from corral.learning import update as learning_update
from corral.learning.estimate import Batch, unsafe_ahead
from corral.running.programs import numbers, with_numbers
from corral.trust_region.dual import Case

LENGTHS, ROWS, HORIZON = (6, 4, 6, 3, 6, 5), 34, 6
TINY = Networks(hidden=(3,))

CONSTRAINED = Config(
    "toy",
    CPO(calibration=0.2),
    gamma=0.9,
    cost_gamma=0.95,
    gae=0.8,
    cost_gae=0.7,
    networks=TINY,
    shape_costs=True,
    shaping=Shaping(horizon=2, coefficient=0.5, steps=2, hidden=3, start=2),
    trust=TrustRegion(cg_iterations=3),
)
PENALISED = Config(
    "toy",
    FPO(penalty=0.5),
    gamma=0.9,
    networks=replace(TINY, normalize_observations=True),
    critic=Critic(sees_time=True),
    time_limit_ends=False,
    trust=TrustRegion(cg_iterations=3),
)


def spec(m):
    # The first is discounted as the run says, the second by itself.
    constraints = (ConstraintSpec("often", 1.5), ConstraintSpec("dear", 40.0, discount=0.8))[:m]
    return EnvSpec("toy", 2, Box(2), HORIZON, constraints)


def draw(policy, m, seed):
    """Six episodes under the policy in made-up states: the second cost is rare, and large when it comes."""
    rng = np.random.default_rng(seed)
    obs = rng.normal([1, -2], 1, size=(ROWS, 2))
    z = policy(jnp.asarray(obs, jnp.float32))
    action = np.asarray(distributions.sample(z, jax.random.key(seed)))
    costs = (rng.random((ROWS, m)) < 0.4) * ([1.0, 30.0][:m])
    valid = np.arange(ROWS) < sum(LENGTHS)
    last = np.zeros(ROWS, bool)
    last[np.cumsum(LENGTHS) - 1] = True
    padding = ROWS - sum(LENGTHS)
    return Batch(
        obs=jnp.asarray(obs, jnp.float32),
        action=jnp.asarray(action),
        reward=jnp.asarray(rng.normal(size=ROWS) + action[:, 0], jnp.float32),
        costs=jnp.asarray(costs, jnp.float32),
        t=jnp.asarray(np.concatenate([np.arange(k) for k in LENGTHS] + [np.zeros(padding)]), jnp.int32),
        episode=jnp.asarray(np.repeat(np.arange(6), (*LENGTHS[:5], LENGTHS[5] + padding)), jnp.int32),
        last=jnp.asarray(last),
        valid=jnp.asarray(valid),
        final_obs=jnp.asarray(rng.normal(size=(6, 2)), jnp.float32),
        truncated=jnp.asarray(np.array(LENGTHS) == HORIZON),
        present=jnp.ones(6, bool),
        broken=jnp.zeros((), jnp.int32),
    )


class Iteration:
    """A state, the batch drawn under it, and what the update made of them."""

    def __init__(self, update, config, state, m, seed):
        self.config, self.state, self.m = config, state, m
        self.batch = draw(state.policy, m, seed)
        self.key = jax.random.key(seed)
        self.new, metrics = update(numbers(config), state, self.batch, self.key)
        self.metrics = {name: np.asarray(value) for name, value in metrics.items()}
        self.n = sum(LENGTHS)
        self.valid = np.asarray(self.batch.valid)

    @property
    def cost_gammas(self):
        """γ of each cost's return."""
        return np.array([self.config.cost_gamma, 0.8][: self.m])

    @property
    def bonus(self):
        """α·P(unsafe ahead) once the shaping has begun, by the predictors as they were before the update."""
        if not self.config.shape_costs or int(self.state.iteration) < self.config.shaping.start:
            return np.zeros((ROWS, self.m))
        return self.config.shaping.coefficient * np.asarray(self.state.predictors(self.batch.obs))

    def sums(self, x, gamma=1.0):
        """Discounted sums over each episode, (episodes, columns)."""
        weighted = gamma ** np.asarray(self.batch.t)[:, None] * np.asarray(x, np.float64).reshape(ROWS, -1)
        return np.stack([s.sum(0) for s in np.split(weighted[: self.n], np.cumsum(LENGTHS)[:-1])])

    def advantages(self):
        """GAE and returns by a loop backwards through each episode, as plain formulas have it."""
        config, m = self.config, self.m
        shaped = np.asarray(self.batch.costs) + self.bonus
        reward = np.asarray(self.batch.reward)
        if isinstance(config.algo, FPO):
            reward = reward - config.algo.penalty * shaped.sum(1)
        earned = np.concatenate([reward[:, None], shaped], axis=1)
        values = np.asarray(self.state.critics(self.batch.obs, self.batch.t / HORIZON))
        after = np.asarray(self.state.critics(self.batch.final_obs, jnp.zeros(len(LENGTHS))))
        bootstraps = np.asarray(self.batch.truncated) & (not config.time_limit_ends)
        # Limits are on sums over an episode, which know nothing beyond it.
        after = np.where(bootstraps[:, None] & np.array([True, *[False] * m]), after, 0)
        gamma = np.array([config.gamma, *self.cost_gammas])
        lam = np.array([config.gae, *[config.cost_gae] * m])
        advantage, returns, row = np.zeros((ROWS, 1 + m)), np.zeros((ROWS, 1 + m)), 0
        for e, length in enumerate(LENGTHS):
            running, follow, total = np.zeros(1 + m), after[e], after[e]
            for i in reversed(range(row, row + length)):
                running = earned[i] + gamma * follow - values[i] + gamma * lam * running
                total = earned[i] + gamma * total
                follow = values[i]
                advantage[i], returns[i] = running, total
            row += length
        return advantage, returns, values

    def centred(self):
        advantage = self.advantages()[0]
        return np.where(self.valid[:, None], advantage - advantage[self.valid].mean(0), 0)

    def promised(self):
        """(1/N) Σ_episodes Σ_t γ_C^t (π_new/π_old − 1) Â_C of two Gaussians; new statistics did not change the new one."""
        old, new = self.state.policy, self.new.policy
        action, log_probs = np.asarray(self.batch.action), []
        for policy in (new, old):
            z = policy(self.batch.obs)
            e = (action - np.asarray(z.mean)) / np.exp(np.asarray(z.log_std))
            log_probs.append(-(e**2 / 2 + np.asarray(z.log_std)).sum(1))
        change = np.exp(log_probs[0] - log_probs[1]) - 1
        return self.sums(change[:, None] * self.centred()[:, 1:], self.cost_gammas).mean(0)


def compiled(config, m):
    """The update as the trainer compiles it: numbers are inputs."""
    return devices.jit(lambda own, *rest: learning_update.update(with_numbers(config, own), spec(m), *rest))


@pytest.fixture(scope="module")
def constrained():
    """CPO with two shaped costs: the compiled update and four iterations in a row."""
    update = compiled(CONSTRAINED, 2)
    state, run = learning_update.init(CONSTRAINED, spec(2), jax.random.key(0)), []
    for k in range(4):
        run.append(Iteration(update, CONSTRAINED, state, 2, seed=k))
        state = run[-1].new
    return update, run


@pytest.fixture(scope="module")
def penalised():
    """A fixed penalty on one undiscounted cost, observations normalised, time limits no ends: two iterations."""
    update = compiled(PENALISED, 1)
    state, run = learning_update.init(PENALISED, spec(1), jax.random.key(0)), []
    for k in range(2):
        run.append(Iteration(update, PENALISED, state, 1, seed=k))
        state = run[-1].new
    return update, run


# -- what is measured -------------------------------------------------------------------------------------------------


def test_returns_costs_and_their_errors_are_means_over_episodes(constrained, penalised):
    for it in (*constrained[1], *penalised[1]):
        sums = {
            "return": it.sums(it.batch.reward),
            "cost": it.sums(it.batch.costs, it.cost_gammas),
            "shaped_cost": it.sums(it.batch.costs + it.bonus, it.cost_gammas),
        }
        for name, found in sums.items():
            np.testing.assert_allclose(np.atleast_1d(it.metrics[name]), found.mean(0), rtol=1e-4, atol=1e-5)
            error = found.std(0, ddof=1) / np.sqrt(6)
            np.testing.assert_allclose(np.atleast_1d(it.metrics[f"{name}_se"]), error, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(it.metrics["length"], 5)
        assert it.metrics["episodes"] == 6
        assert it.metrics["steps"] == 30
    assert int(constrained[1][-1].new.env_steps) == 120


@pytest.mark.parametrize(
    ("before", "after"), [(2**24 + 1, 2**24 + 31), (2**32 - 31, 2**32 - 1), (2**32 - 30, 2**32 - 1)]
)
def test_steps_are_counted_one_by_one_up_to_the_last_that_fits(before, after, constrained):
    """30 a batch; in float32 2²⁴ + 1 would be 2²⁴."""
    update, run = constrained
    it = run[-1]
    many = it.state._replace(env_steps=jnp.uint32(before))
    new, _ = update(numbers(CONSTRAINED), many, it.batch, it.key)
    assert int(new.env_steps) == after


def test_shaping_begins_when_it_should_and_the_plain_cost_is_reported_beside_it(constrained):
    for k, it in enumerate(constrained[1]):
        plain = it.sums(it.batch.costs, np.array([0.95, 0.8])).mean(0)
        np.testing.assert_allclose(it.metrics["cost"], plain, rtol=1e-5)
        if k < 2:
            np.testing.assert_array_equal(it.metrics["shaped_cost"], it.metrics["cost"])
        else:
            # At least 0.5 · P(…) a step: a probability of a tenth would add this much.
            assert np.all(it.metrics["shaped_cost"] > it.metrics["cost"] + 0.1)
    # The predictors learn from the start, though nobody listens yet.
    losses = [float(it.metrics["predictor_loss"][0]) for it in constrained[1]]
    assert len(set(losses)) == 4
    for it in constrained[1]:
        horizon = it.config.shaping.horizon
        ahead = np.asarray(unsafe_ahead(it.batch.costs, it.batch, horizon), float)
        missed = (np.asarray(it.state.predictors(it.batch.obs)) - ahead)[it.valid]
        np.testing.assert_allclose(it.metrics["predictor_loss"], (missed**2).mean(0), rtol=1e-4)


def test_the_realised_change_is_the_difference_of_consecutive_batches_where_they_can_be_compared(constrained):
    """Not in the first iteration, and not in the third, in which the shaping begins."""
    run = constrained[1]
    for k in (0, 2):
        assert np.all(np.isnan(run[k].metrics["realised"]))
    for k in (1, 3):
        difference = run[k].metrics["shaped_cost"] - run[k - 1].metrics["shaped_cost"]
        np.testing.assert_allclose(run[k].metrics["realised"], difference, rtol=1e-5, atol=1e-5)


def test_the_calibration_compares_what_was_realised_with_what_the_update_before_expected(constrained):
    excess = np.zeros(2)
    for k, it in enumerate(constrained[1]):
        found = excess
        if k in (1, 3):
            found = excess + 0.2 * (it.metrics["realised"] - np.asarray(constrained[1][k - 1].new.algo.aimed))
        np.testing.assert_allclose(it.metrics["effective_limit"], [1.5, 40] - found, rtol=1e-4)
        # Where the limit in force is out of reach, the average may only shrink.
        lost = (it.metrics["case"] >= Case.RECOVERY) & (it.metrics["shaped_cost"] > [1.5, 40] - found)
        excess = np.where(lost, np.clip(found, np.minimum(excess, 0), np.maximum(excess, 0)), found)
        np.testing.assert_allclose(it.new.algo.excess, excess, rtol=1e-4, atol=1e-5)


def test_critics_are_judged_before_they_are_fitted_to_the_batch(constrained, penalised):
    """1 − Var(returns − values)/Var(returns), the returns by a plain loop: bootstrapped where time limits are no ends."""
    for it in (*constrained[1], *penalised[1]):
        _, returns, values = it.advantages()
        error = (returns - values)[it.valid]
        expected = 1 - error.var(0) / returns[it.valid].var(0)
        np.testing.assert_allclose(it.metrics["explained_variance"], expected, rtol=1e-3, atol=1e-4)


# -- advantages and the step ------------------------------------------------------------------------------------------


def test_reward_advantages_are_standardised_and_cost_advantages_only_centred(constrained):
    it = constrained[1][3]
    advantage, _, _ = it.advantages()
    samples = learning_update._samples(it.batch, jnp.asarray(advantage, jnp.float32), jnp.ones((ROWS, 2)))
    rewards, costs = np.asarray(samples.advantage)[it.valid], np.asarray(samples.cost_advantage)[it.valid]
    np.testing.assert_allclose([rewards.mean(), rewards.std()], [0, 1], atol=1e-5)
    expected = advantage[it.valid] - advantage[it.valid].mean(0)
    np.testing.assert_allclose(rewards, expected[:, 0] / expected[:, 0].std(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(costs, expected[:, 1:], rtol=1e-4, atol=1e-4)
    assert costs[:, 1].std() > 5 * costs[:, 0].std(), "the scale of a cost has to survive"
    # And what is not valid weighs nothing.
    np.testing.assert_array_equal(np.asarray(samples.weight)[~it.valid], 0)
    np.testing.assert_array_equal(np.asarray(samples.cost_weight)[~it.valid], 0)
    np.testing.assert_allclose([np.sum(samples.weight), *np.sum(samples.cost_weight, 0)], [1, 5, 5], rtol=1e-6)


def test_advantages_of_the_reward_may_count_up_to_a_multiple_of_their_mean_size_and_those_of_costs_never():
    """Four rows with advantages 0, 0, 0, −8 of everything: centred 2, 2, 2, −6, of mean size 3. With 1.5 times that −6
    counts as −4.5: centred again (mean 0.375) 1.625 three times and −4.875, whose ratio is what standardising keeps."""
    batch = draw(learning_update.init(PENALISED, spec(1), jax.random.key(0)).policy, 1, seed=0)
    batch = batch._replace(valid=jnp.arange(ROWS) < 4)
    advantage = jnp.zeros((ROWS, 2)).at[3].set(-8.0)
    cut = learning_update._samples(batch, advantage, jnp.ones((ROWS, 1)), 1.5)
    plain = learning_update._samples(batch, advantage, jnp.ones((ROWS, 1)))
    deviation = np.sqrt((3 * 1.625**2 + 4.875**2) / 4)
    np.testing.assert_allclose(cut.advantage[:4], np.array([1.625] * 3 + [-4.875]) / deviation, rtol=1e-6)
    np.testing.assert_allclose(plain.advantage[:4], np.array([2, 2, 2, -6]) / np.sqrt(12), rtol=1e-6)
    for samples in (cut, plain):
        np.testing.assert_allclose(samples.cost_advantage[:4, 0], [2, 2, 2, -6], rtol=1e-6)


def test_the_largest_advantage_reaches_the_update_but_not_where_costs_are_taken_off_the_reward(monkeypatch):
    """A price of a cost must count in full, so nothing is cut off the advantages that FPO sees."""

    class Asked(Exception):
        pass

    def samples(batch, advantage, discount, largest):
        raise Asked(largest)

    monkeypatch.setattr(learning_update, "_samples", samples)
    for config, cut in ((CONSTRAINED, 0.5), (PENALISED, 0.0)):
        config = replace(config, largest_advantage=0.5)
        state = learning_update.init(config, spec(2), jax.random.key(0))
        with pytest.raises(Asked) as asked:
            learning_update.update(config, spec(2), state, draw(state.policy, 2, seed=0), jax.random.key(1))
        assert asked.value.args == (cut,)


def test_rewards_that_do_not_vary_give_no_advantage_instead_of_a_division_by_zero(constrained):
    it = constrained[1][0]
    samples = learning_update._samples(it.batch, jnp.full((ROWS, 3), 4.0), jnp.ones((ROWS, 2)))
    np.testing.assert_array_equal(samples.advantage, 0)


def test_a_promise_is_the_surrogate_at_the_new_policy(constrained, penalised):
    moved = 0
    for it in (*constrained[1], *penalised[1]):
        np.testing.assert_allclose(it.metrics["promised"], it.promised(), rtol=2e-3, atol=2e-4)
        moved += bool(it.metrics["accepted"])
    assert moved >= 4


def test_proposition_2_is_what_its_formula_says(constrained, penalised):
    """d + √(2δ) γ ε/(1 − γ)²; without discount over 5 steps on average γ stands at 1 − 1/5."""
    for it, gamma, limit in (
        *((it, np.array([0.95, 0.8]), [1.5, 40.0]) for it in constrained[1]),
        *((it, 0.8, [1.5]) for it in penalised[1]),
    ):
        epsilon = np.abs(it.centred()[:, 1:]).max(0)
        bound = np.array(limit) + np.sqrt(2 * 0.01) * gamma * epsilon / (1 - gamma) ** 2
        np.testing.assert_allclose(it.metrics["epsilon"], epsilon, rtol=1e-4)
        np.testing.assert_allclose(it.metrics["prop2_bound"], bound, rtol=1e-4)


def test_a_time_limit_that_is_no_end_adds_the_value_of_the_final_observation_to_the_reward_alone(penalised):
    """Other final observations of truncated episodes change the reward's returns; of terminated ones, nothing.

    Costs, discounted or not, are constrained as sums over the episode, which ends there. In the second iteration: untrained
    critics would do too, but these have been fitted.
    """
    update, run = penalised
    it = run[1]
    truncated = np.asarray(it.batch.truncated)
    for config in (PENALISED, replace(PENALISED, cost_gamma=0.95)):
        _, before = update(numbers(config), it.state, it.batch, it.key)
        for where, same in ((truncated, False), (~truncated, True)):
            final_obs = jnp.where(jnp.asarray(where)[:, None], it.batch.final_obs + 3, it.batch.final_obs)
            _, after = update(numbers(config), it.state, it.batch._replace(final_obs=final_obs), it.key)
            explained, known = after["explained_variance"], before["explained_variance"]
            assert np.array_equal(explained[0], known[0]) is same
            np.testing.assert_array_equal(explained[1:], known[1:])
            np.testing.assert_array_equal(after["epsilon"], before["epsilon"])


def test_a_fixed_penalty_is_reward_taken_away(penalised):
    """λ = 0.5 on (r, c) is λ = 0 on (r − 0.5 c, c); only what is reported as the return differs."""
    update, run = penalised
    it = run[0]
    taken = it.batch._replace(reward=it.batch.reward - 0.5 * it.batch.costs[:, 0])
    new, metrics = update(numbers(PENALISED) | {"algo.penalty": 0.0}, it.state, taken, it.key)
    for a, b in zip(jax.tree.leaves(new.policy), jax.tree.leaves(it.new.policy), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    gone = 0.5 * it.sums(it.batch.costs).mean()
    np.testing.assert_allclose(metrics["return"], it.metrics["return"] - gone, rtol=1e-4)


def test_limits_of_the_configuration_may_be_traced():
    config = replace(CONSTRAINED, limit=(3.0, 4.0))

    def doubled(own):
        return [2 * x for x in learning_update.limits(with_numbers(config, own), spec(2))]

    np.testing.assert_allclose(jax.jit(doubled)(numbers(config)), [6, 8])


# -- what is carried on -----------------------------------------------------------------------------------------------


def test_the_normaliser_learns_a_batch_after_the_update_not_before(penalised):
    """The update saw the statistics the batch was drawn with; afterwards they are those of all batches so far."""
    seen = []
    for it in penalised[1]:
        obs = np.asarray(it.batch.obs)[it.valid]
        before, after = it.state.policy.normalizer, it.new.policy.normalizer
        np.testing.assert_allclose(before.count, sum(map(len, seen)))
        seen.append(obs)
        everything = np.concatenate(seen)
        np.testing.assert_allclose(after.mean, everything.mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(after.spread / after.count, everything.var(0), rtol=1e-4)
        # The promise is that of the policy that acts next. Old weights behind new statistics would be another policy.
        np.testing.assert_allclose(it.metrics["promised"], it.promised(), rtol=2e-3, atol=2e-4)
        other = Iteration.__new__(Iteration)
        policy = networks.Policy(it.state.policy.net, it.state.policy.log_std, after)
        other.__dict__ |= it.__dict__ | {"state": it.state._replace(policy=policy)}
        assert not np.allclose(other.promised(), it.metrics["promised"], rtol=2e-2, atol=2e-3)


def test_an_update_that_is_not_finite_is_not_applied_and_is_counted(constrained):
    """Rewards of 3e38 add up to infinity. The policy stays; fifteen candidates were refused as not finite."""
    update, run = constrained
    it = run[3]
    wild = it.batch._replace(reward=jnp.full(ROWS, 3e38, jnp.float32))
    new, metrics = update(numbers(CONSTRAINED), it.state, wild, it.key)
    for a, b in zip(jax.tree.leaves(new.policy), jax.tree.leaves(it.state.policy), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not metrics["accepted"]
    assert metrics["rejected_not_finite"] == 15
    np.testing.assert_array_equal(metrics["promised"], 0)
    # The costs have nothing to do with it.
    np.testing.assert_allclose(metrics["cost"], it.metrics["cost"], rtol=1e-6)
    # Two batches later the critics have forgotten it and the policy moves again.
    again = new
    for seed in (10, 11):
        again, metrics = update(numbers(CONSTRAINED), again, draw(again.policy, 2, seed), it.key)
    assert metrics["accepted"]
    assert np.all(np.isfinite(metrics["explained_variance"]))


def test_costs_too_large_for_the_dual_refuse_the_update_and_say_so(constrained):
    """Costs of 1e30 are finite, but their gradients' products are not: the dual has no step."""
    update, run = constrained
    it = run[3]
    wild = it.batch._replace(costs=jnp.where(it.batch.valid[:, None], 1e30, 0.0) * jnp.arange(ROWS)[:, None] / ROWS)
    new, metrics = update(numbers(CONSTRAINED), it.state, wild, it.key)
    assert Case(int(metrics["case"])) == Case.NOT_FINITE
    assert not metrics["accepted"]
    assert metrics["rejected_not_finite"] == 15
    for a, b in zip(jax.tree.leaves(new.policy), jax.tree.leaves(it.state.policy), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_rejected_update_leaves_the_policy_as_it_was(constrained):
    """A trust region of 1e-30 holds nothing that float32 can tell from the policy itself."""
    update, run = constrained
    it = run[1]
    new, metrics = update(numbers(CONSTRAINED) | {"trust.delta": 1e-30}, it.state, it.batch, it.key)
    if not metrics["accepted"]:
        np.testing.assert_array_equal(metrics["promised"], 0)
    before, after = (networks.flatten(s.policy).theta for s in (it.state, new))
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-12)


def test_limits_are_the_configuration_s_or_else_the_environment_s():
    assert learning_update.limits(CONSTRAINED, spec(2)) == (1.5, 40.0)
    assert learning_update.limits(replace(CONSTRAINED, limit=(3.0, 4.0)), spec(2)) == (3.0, 4.0)


@pytest.mark.slow
def test_critics_fitted_by_adam_recover_from_a_batch_that_is_not_finite():
    config = replace(PENALISED, critic=Critic("adam", epochs=2, minibatch=16), time_limit_ends=True)
    update = compiled(config, 1)
    state = learning_update.init(config, spec(1), jax.random.key(0))
    batch = draw(state.policy, 1, 0)
    state, _ = update(
        numbers(config), state, batch._replace(reward=jnp.full(ROWS, 3e38, jnp.float32)), jax.random.key(0)
    )
    for seed in (1, 2):
        state, metrics = update(numbers(config), state, draw(state.policy, 1, seed), jax.random.key(seed))
    assert np.all(np.isfinite(metrics["explained_variance"]))
    assert metrics["accepted"]

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from corral import evaluation as evaluate
from corral.algos import CPO
from corral.config import Config, Networks
from corral.envs.contract import Box, ConstraintSpec, Env, EnvSpec, Timestep
from corral.errors import CorralError
from corral.evaluation import estimate, judge
from corral.learning import update
from corral.rollout import make
from corral.running import checkpoint, config_file


class Coins(Env):
    """Two tosses: an action above 0 costs 1, and every step earns 3. The first toss above 1 ends the episode."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("coins", 2, Box(1), 2, (ConstraintSpec("heads", 0.9, largest=2.0),))

    def reset(self, key):
        return jnp.zeros((), jnp.int32), jnp.zeros(2)

    def step(self, state, action):
        done = (action[0] > 1) & (state == 0)
        cost = (action > 0).astype(jnp.float32)
        return state + 1, Timestep(jnp.zeros(2), jnp.asarray(3.0), cost, done, ~done & (state == 1))


CONFIG = Config("coins", algo=CPO(), networks=Networks((4,)), seed=7)
LIKE = update.init(CONFIG, Coins().spec, jax.random.key(1))  # biases 0 and observations 0: actions are N(0, 1)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(make, "from_config", lambda config, threads=None: make.sampler(Coins()))
    config_file.save(CONFIG, tmp_path / "config.toml")
    return tmp_path


def test_the_mean_and_its_interval_are_those_of_student():
    values = np.array([1.0, 2.0, 4.0, 9.0])
    found = estimate(values)
    # mean 4, squared deviations 9 + 4 + 0 + 25 = 38, variance 38/3, standard error √(38/12); t(0.975; 3) = 3.182446
    assert found.mean == 4.0
    assert found.se == pytest.approx(math.sqrt(38 / 12))
    assert found.high - found.mean == pytest.approx(3.182446 * found.se, rel=1e-6)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)


def test_the_probability_integrates_the_density_of_student_up_to_the_limit():
    costs = np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 2.0])
    n, mean = 7, 5 / 7
    se = math.sqrt(sum((c - mean) ** 2 for c in costs) / (n - 1) / n)
    factor = math.gamma(n / 2) / (math.sqrt((n - 1) * math.pi) * math.gamma((n - 1) / 2))
    density = lambda x: factor * (1 + x * x / (n - 1)) ** (-n / 2)  # noqa: E731
    expected, _ = integrate.quad(density, -np.inf, (1.0 - mean) / se)
    assert judge("c", 1.0, costs).probability == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(("limit", "verdict"), [(2.0, "met"), (0.6, "open"), (0.1, "broken")])
def test_a_limit_is_met_open_or_broken(limit, verdict):
    costs = np.tile([0.0, 1.0], 50)  # mean 0.5, standard error 0.05
    assert judge("c", limit, costs + 0.03).verdict == verdict


def test_equal_costs_over_the_limit_break_it():
    assert judge("c", 0.4, np.full(9, 0.5)).verdict == "broken"
    assert judge("c", 0.4, np.full(9, 0.5), largest=1.0).probability == 0


@pytest.mark.parametrize("limit", [0.1, 0.25, 1.0])
def test_equal_costs_leave_a_limit_open_where_nobody_knows_what_an_episode_could_cost(limit):
    found = judge("c", limit, np.full(1000, 0.1))
    assert (found.probability, found.verdict, found.cost.high) == (None, "open", math.inf)


@pytest.mark.parametrize(("n", "verdict"), [(20, "open"), (40, "met")])
def test_a_kind_of_episode_that_was_not_seen_may_be_as_frequent_as_chance_lets_it_hide(n, verdict):
    """Costs are 0.5, the limit 0.8, at most 3.5: of the worst kind, one in ten would break it; it hides with 0.9ⁿ."""
    found = judge("c", 0.8, np.full(n, 0.5), largest=3.5)
    assert found.probability == pytest.approx(1 - 0.9**n)
    assert found.verdict == verdict
    frequency = (found.cost.high - 0.5) / 3
    assert (1 - frequency) ** n == pytest.approx(0.025)
    assert (found.cost.high <= 0.8) == (verdict == "met")


@pytest.mark.parametrize(("limit", "probability"), [(3.0, 1), (0.5, 0)])
def test_equal_costs_are_certain_only_where_no_episode_can_break_the_limit(limit, probability):
    assert judge("c", limit, np.full(9, 0.5), largest=3.0).probability == probability
    assert judge("c", limit, np.full(9, 0.5), largest=3.0).verdict == ("met" if probability else "open")


def test_whole_episodes_are_summed_with_the_known_expectation(run):
    checkpoint.write(run / "policy.npz", LIKE.policy, {})
    [found] = evaluate.evaluate(run, episodes=4000, seed=3)
    # P(a > 1) = 0.158655 ends after the first toss: return 3 · (2 − 0.158655); cost 1/2 + (1 − 0.158655)/2
    early = 0.5 * math.erfc(1 / math.sqrt(2))
    heads = found.constraints[0]
    assert (found.seed, found.episodes, found.source) == (7, 4000, run / "policy.npz")
    assert abs(found.earned.mean - 3 * (2 - early)) < 4 * found.earned.se
    assert found.earned.se == pytest.approx(3 * math.sqrt(early * (1 - early) / 4000), rel=0.1)
    assert abs(heads.cost.mean - (1 - early / 2)) < 4 * heads.cost.se
    assert heads.limit == 0.9


def test_portions_give_as_many_episodes_and_report_them(run, monkeypatch):
    checkpoint.write(run / "policy.npz", LIKE.policy, {})
    monkeypatch.setattr(evaluate, "_STEPS", 40)  # 20 episodes of 2 steps at most
    heard = []
    [found] = evaluate.evaluate(run, episodes=50, progress=lambda done, total: heard.append((done, total)))
    assert found.episodes == 50
    assert heard == [(20, 50), (40, 50), (50, 50)]


def test_the_most_likely_action_is_the_mean(run):
    policy = eqx.tree_at(lambda p: p.net.biases[-1], LIKE.policy, jnp.array([0.5]))
    checkpoint.write(run / "policy.npz", policy, {})
    [found] = evaluate.evaluate(run, episodes=5, deterministic=True)
    # Action 0.5 twice: return 6, cost 2, every time.
    assert found.earned == (6.0, 6.0, 6.0, 0.0)
    assert found.constraints[0].cost.mean == 2.0
    assert found.verdict == "broken"


def test_discounted_costs_are_judged_discounted(run):
    from dataclasses import replace

    config_file.save(replace(CONFIG, cost_gamma=0.5, limit=(1.6,)), run / "config.toml")
    policy = eqx.tree_at(lambda p: p.net.biases[-1], LIKE.policy, jnp.array([0.5]))
    checkpoint.write(run / "policy.npz", policy, {})
    [found] = evaluate.evaluate(run, episodes=5, deterministic=True)
    assert found.constraints[0].cost.mean == 1.5
    assert found.constraints[0].limit == 1.6
    assert found.verdict == "open"  # five episodes that all cost the same, of at most 2


class Lost(Coins):
    """The same, whose observation is no number after the first toss; an action that is none costs nothing."""

    def step(self, state, action):
        state, out = super().step(state, action)
        return state, out._replace(obs=jnp.full(2, jnp.nan))


def test_an_observation_that_is_no_number_is_an_error_where_its_costs_look_small(run, monkeypatch):
    monkeypatch.setattr(make, "from_config", lambda config, threads=None: make.sampler(Lost()))
    checkpoint.save(run / "checkpoints", 1, LIKE, {})
    with pytest.raises(CorralError, match="coins handed out nan as observation at step 1 of an episode"):
        evaluate.evaluate(run, episodes=50)


def test_an_unfinished_run_is_judged_by_its_newest_checkpoint(run):
    with pytest.raises(CorralError, match=r"holds no policy yet: neither policy\.npz nor a checkpoint"):
        evaluate.evaluate(run, episodes=5)
    checkpoint.save(run / "checkpoints", 3, LIKE, {})
    [found] = evaluate.evaluate(run, episodes=5)
    assert found.source.name == "checkpoint-000003.npz"


def test_every_seed_has_its_own_evaluation(tmp_path, run):
    from dataclasses import replace

    (run / "config.toml").unlink()
    for seed, bias in ((0, 5.0), (1, -5.0)):
        folder = run / f"seed-{seed}"
        folder.mkdir()
        config_file.save(replace(CONFIG, seed=seed), folder / "config.toml")
        policy = eqx.tree_at(lambda p: p.net.biases[-1], LIKE.policy, jnp.array([bias]))
        checkpoint.write(folder / "policy.npz", policy, {})
    first, second = evaluate.evaluate(run, episodes=9, deterministic=True)
    assert (first.seed, first.earned.mean, first.verdict) == (0, 3.0, "broken")
    assert (second.seed, second.earned.mean, second.verdict) == (1, 6.0, "met")


def test_too_few_episodes_are_refused(run):
    with pytest.raises(CorralError, match="episodes must be at least 2, got 1"):
        evaluate.evaluate(run, episodes=1)

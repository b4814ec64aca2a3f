"""Presets: the paper's table, and what ours change."""

from dataclasses import replace

import pytest

from corral.algos import CPO, PDO, TRPO
from corral.config import Networks
from corral.envs import spec as env_spec
from corral.learning import update
from corral.presets import preset
from corral.running.programs import numbers

# -- the paper's table ------------------------------------------------------------------------------------------------

# From algorithm.md §6: batch, limit d, predictor (T, steps, α) or none, λ_C.
TABLE = {
    "point-circle": (50_000, 5.0, (5, 25, 1.0), 1.0),
    "ant-circle": (100_000, 10.0, (20, 25, 1.0), 0.5),
    "humanoid-circle": (50_000, 10.0, (20, 25, 1.0), 0.5),
    "point-gather": (50_000, 0.1, None, 1.0),
    "ant-gather": (100_000, 0.2, (20, 10, 0.01), 0.5),
}


@pytest.mark.parametrize("env", TABLE)
def test_the_paper_s_preset_is_the_paper_s_table(env):
    batch, limit, predictor, cost_gae = TABLE[env]
    config = preset(env, "paper")
    assert config.env == env
    assert config.batch_size == batch
    assert update.limits(config, env_spec(env)) == (limit,)
    assert config.cost_gae == cost_gae
    assert config.shape_costs is (predictor is not None)
    if predictor is not None:
        assert (config.shaping.horizon, config.shaping.steps, config.shaping.coefficient) == predictor
    # What all five share (§3): the release's critic, no additions of ours.
    assert (config.gamma, config.gae, config.cost_gamma, config.trust.delta) == (0.995, 0.95, 1.0, 0.01)
    assert config.networks == Networks((64, 32), "tanh", 0.0, False)
    assert (config.trust.cg_iterations, config.trust.damping) == (10, 1e-5)
    assert (config.trust.shrink, config.trust.candidates) == (0.8, 15)
    assert config.algo == CPO()
    assert numbers(config)["algo.calibration"] == 0
    assert config.critic.method == "natural"
    assert (config.critic.epochs, config.critic.step, config.critic.held_out) == (1, 0.01, 0.0)
    assert not config.critic.sees_time
    assert config.time_limit_ends
    assert (config.shaping.hidden, config.shaping.start) == (32, 2)


@pytest.mark.parametrize("env", [*TABLE, "halfcheetah-velocity", "never-heard-of", "point-mass-v0"])
def test_our_preset_is_the_same_for_all_environments_of_the_same_length(env):
    # What the paper's table says of an environment is kept; all other fields follow from the horizon.
    paper, ours = preset(env, "paper"), preset(env)
    told = ("env", "iterations", "batch_size", "shaping")
    same = {name: getattr(paper, name) for name in told}
    for other in ("point-gather", "humanoid-velocity", "Pendulum-v1"):
        for horizon in (15, 200, 1000):
            assert replace(preset(other, horizon=horizon), **same) == replace(preset(env, horizon=horizon), **same)
    assert ours.algo == CPO(calibration=0.1, memory=True, margin=0.2, reserve=0.5)
    assert (ours.largest_advantage, ours.networks.least_deviation) == (5.0, 0.01)
    assert ours.trust.honest
    assert not ours.shape_costs
    assert ours.networks.normalize_observations


def test_what_follows_from_the_length_of_episodes():
    found = {steps: preset("mine", horizon=steps) for steps in (15, 100, 101, 599, 600, 1000)}
    assert [config.gae for config in found.values()] == [0.98, 0.98, 0.95, 0.95, 0.95, 0.95]
    assert [config.cost_gae for config in found.values()] == [1.0, 1.0, 0.95, 0.95, 0.95, 0.95]
    # γ = 0.995 reaches 200 steps; three times that is 600.
    assert [config.time_limit_ends for config in found.values()] == [True, True, True, True, False, False]
    assert preset("mine") == found[1000]  # nothing states how long its episodes are
    assert preset("point-circle") == preset("point-circle", horizon=65)
    assert preset("Pendulum-v1") == preset("Pendulum-v1", horizon=200)


@pytest.mark.parametrize("env", [*TABLE, "never-heard-of"])
def test_the_preset_of_0_1_adds_calibration_and_critics_that_see_time_and_little_else(env):
    paper, ours = preset(env, "paper"), preset(env, "corral-0.1")
    assert ours.algo == CPO(calibration=0.1)
    assert ours.critic.sees_time
    assert (ours.critic.method, ours.critic.held_out) == ("adam", 0.1)
    assert ours.gae == (0.98 if env.startswith("point-") else paper.gae)
    assert replace(ours, algo=paper.algo, critic=paper.critic, gae=paper.gae) == paper


def test_a_preset_takes_another_algorithm_and_keeps_a_calibration_that_was_asked_for():
    assert preset("point-circle", "paper", PDO(1000.0)).algo == PDO(1000.0)
    assert preset("point-circle", "corral", TRPO()).algo == TRPO()
    assert preset("point-circle", "corral", CPO(0.25)).algo == CPO(0.25, memory=True, margin=0.2, reserve=0.5)
    assert preset("point-circle", "paper", CPO(0.25)).algo == CPO(0.25)
    assert preset("point-circle", "corral", CPO(0.0)).algo == CPO(0.0, memory=False, margin=0.2, reserve=0.5)

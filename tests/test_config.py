"""Configurations: which fields are inputs of a compiled program, the paper's table, and what is refused."""

import copy
from dataclasses import fields, is_dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from corral import CorralError
from corral.config import (
    ALGOS,
    CPO,
    FPO,
    PDO,
    TRPO,
    Config,
    Critic,
    Networks,
    Shaping,
    TrustRegion,
    numbers,
    program,
    with_numbers,
)
from corral.envs import spec as env_spec
from corral.envs.contract import Box, ConstraintSpec, EnvSpec
from corral.learning import update as learner
from corral.learning.estimate import Batch
from corral.presets import preset

BASE = Config(
    "toy",
    limit=(2.0,),
    gamma=0.9,
    cost_gamma=0.95,
    gae=0.8,
    cost_gae=0.7,
    networks=Networks(hidden=(3,)),
    trust=TrustRegion(cg_iterations=3),
)


# -- numbers and programs ---------------------------------------------------------------------------------------------


def leaves(config, prefix=""):
    """Every plain field by its dotted name."""
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value


def changed(config, name):
    """The configuration with another value in one field, as `replace` would write it."""
    first, *rest = name.split(".", 1)
    value = getattr(config, first)
    if rest:
        return replace(config, **{first: changed(value, rest[0])})
    other = {
        "activation": "relu",
        "method": "adam",
        "env": "other",
        "task": {"y_lim": 3.0},
        "hidden": (5,) if isinstance(value, tuple) else 7,
        "limit": (9.0,),
    }
    if first in other:
        return replace(config, **{first: other[first]})
    if isinstance(value, bool):
        return replace(config, **{first: not value})
    return replace(config, **{first: value + 1 if isinstance(value, int) else 0.5 * value + 0.01})


EACH = [CPO(0.2), *(algo() for name, algo in ALGOS.items() if name != "cpo")]


@pytest.mark.parametrize("algo", EACH, ids=lambda algo: algo.name)
def test_two_configurations_are_one_program_exactly_if_they_differ_in_numbers_and_seed_only(algo):
    config = replace(BASE, algo=algo)
    names = [name for name, _ in leaves(config) if name != "algo.name"]
    assert set(numbers(config)) <= set(names)
    for name in names:
        other = changed(config, name)
        assert other != config, name
        shared = name in numbers(config) or name == "seed"
        assert (program(other) == program(config)) is shared, name


def test_algorithms_and_numbers_of_limits_are_programs_of_their_own():
    programs = [program(replace(BASE, algo=a())) for a in ALGOS.values()]
    assert all(a != b for i, a in enumerate(programs) for b in programs[:i])
    assert program(replace(BASE, limit=())) != program(BASE) != program(replace(BASE, limit=(1.0, 2.0)))


def test_the_numbers_of_a_configuration_are_its_own():
    assert numbers(replace(BASE, algo=PDO(nu=3.0, rate=0.2))) == {
        "limit": (2.0,),
        "gamma": 0.9,
        "cost_gamma": 0.95,
        "gae": 0.8,
        "cost_gae": 0.7,
        "trust.delta": 0.01,
        "shaping.coefficient": 1.0,
        "algo.nu": 3.0,
        "algo.rate": 0.2,
    }
    assert numbers(replace(BASE, algo=CPO(0.3)))["algo.calibration"] == 0.3
    assert numbers(replace(BASE, algo=CPO()))["algo.calibration"] == 0
    assert program(replace(BASE, algo=CPO())) == program(replace(BASE, algo=CPO(0.3)))
    assert numbers(replace(BASE, algo=FPO(5.0)))["algo.penalty"] == 5
    assert not [name for name in numbers(replace(BASE, algo=TRPO())) if "algo." in name]


@pytest.mark.parametrize("algo", EACH, ids=lambda algo: algo.name)
def test_numbers_are_put_where_they_came_from_and_the_original_stays_untouched(algo):
    config = replace(BASE, algo=algo)
    kept = copy.deepcopy(config)
    other = {name: (7.0,) if isinstance(v, tuple) else v + 0.125 for name, v in numbers(config).items()}
    made = with_numbers(config, other)
    assert numbers(made) == other
    assert config == kept
    assert with_numbers(made, numbers(config)) == config
    # Anything may stand there, such as what a compiler traces: nothing is checked.
    assert with_numbers(config, {"gamma": "traced"}).gamma == "traced"


# -- numbers are inputs of the update ---------------------------------------------------------------------------------

SPEC = EnvSpec("toy", 2, Box(2), 6, (ConstraintSpec("c", 99.0),))


def draw(state, seed):
    """Five episodes of six steps under the policy."""
    rng = np.random.default_rng(seed)
    obs = jnp.asarray(rng.normal(size=(30, 2)), jnp.float32)
    action = np.asarray(state.policy(obs).mean) + rng.normal(size=(30, 2)).astype(np.float32)
    return Batch(
        obs=obs,
        action=jnp.asarray(action),
        reward=jnp.asarray(action[:, 0] + rng.normal(size=30), jnp.float32),
        costs=jnp.asarray(action[:, :1] > 0.2, jnp.float32),
        t=jnp.asarray(np.tile(np.arange(6), 5)),
        episode=jnp.asarray(np.repeat(np.arange(5), 6)),
        last=jnp.asarray(np.tile(np.arange(6) == 5, 5)),
        valid=jnp.ones(30, bool),
        final_obs=jnp.zeros((5, 2)),
        truncated=jnp.ones(5, bool),
        present=jnp.ones(5, bool),
        broken=jnp.zeros((), jnp.int32),
    )


def theta(state):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves((state.policy.net, state.policy.log_std))])


class Compiled:
    """One compiled update and a state of its second iteration, from which numbers are varied."""

    def __init__(self, config):
        self.config = config
        self.update = jax.jit(lambda own, *rest: learner.update(with_numbers(config, own), SPEC, *rest))
        state = learner.init(config, SPEC, jax.random.key(0))
        self.state, _ = self.update(self.inputs(), state, draw(state, 0), jax.random.key(0))
        self.batch = draw(self.state, 1)

    def inputs(self, **other):
        return jax.tree.map(jnp.float32, numbers(self.config) | other)

    def __call__(self, **other):
        return self.update(self.inputs(**other), self.state, self.batch, jax.random.key(1))


def test_every_number_of_cpo_changes_the_policy_without_a_new_program():
    """The constraint is in the way and the shaping on, so that all of them matter."""
    shaping = Shaping(horizon=2, steps=1, hidden=2, start=1)
    run = Compiled(replace(BASE, algo=CPO(calibration=0.1), limit=(4.5,), shape_costs=True, shaping=shaping))
    new, metrics = run()
    again, _ = run()
    np.testing.assert_array_equal(theta(new), theta(again))
    assert metrics["case"] in (1, 2)
    own = run.inputs()
    for name, value in own.items():
        other, _ = run(**{name: jax.tree.map(lambda v: 0.93 * v, value)})
        if name == "algo.calibration":
            # The shaping has just begun, so what was aimed at and what was realised cannot be compared yet.
            np.testing.assert_array_equal(theta(other), theta(new))
        else:
            assert np.max(np.abs(theta(other) - theta(new))) > 1e-5, name
    run.state, run.batch = new, draw(new, 2)
    at_the_limit = tuple(map(float, run()[1]["shaped_cost"]))
    (new, _), (other, _) = (run(**{"limit": at_the_limit, "algo.calibration": rate}) for rate in (0.0, 0.1))
    assert np.max(np.abs(theta(other) - theta(new))) > 1e-5
    assert run.update._cache_size() == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "name", "moves"), [(PDO(nu=0.5, rate=0.1), "algo.rate", False), (FPO(0.5), "algo.penalty", True)]
)
def test_the_numbers_of_the_baselines_change_what_they_should_without_a_new_program(algo, name, moves):
    """PDO’s rate its multiplier, ν + rate (J_C − d), d = 1; FPO’s penalty the policy. Quick tests trace both elsewhere."""
    run = Compiled(replace(BASE, algo=algo, limit=(1.0,)))
    new, metrics = run()
    other, _ = run(**{name: 0.3})
    if moves:
        assert np.max(np.abs(theta(other) - theta(new))) > 1e-5
    else:
        np.testing.assert_array_equal(theta(other), theta(new))
        excess = float(metrics["cost"][0]) - 1.0
        before = float(run.state.algo.nu[0])
        assert excess != 0
        np.testing.assert_allclose(new.algo.nu[0], before + 0.1 * excess, rtol=1e-4)
        np.testing.assert_allclose(other.algo.nu[0], max(before + 0.3 * excess, 0), rtol=1e-4)
    assert run.update._cache_size() == 1


def test_where_multipliers_start_is_a_number_of_the_initial_state():
    config = replace(BASE, algo=PDO())
    start = jax.jit(lambda own: learner.init(with_numbers(config, own), SPEC, jax.random.key(0)).algo.nu)
    np.testing.assert_array_equal(start(jax.tree.map(jnp.float32, numbers(config))), [0])
    np.testing.assert_array_equal(
        start(jax.tree.map(jnp.float32, numbers(config) | {"algo.nu": 1000.0})), [1000]
    )


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
    assert learner.limits(config, env_spec(env)) == (limit,)
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


@pytest.mark.parametrize("env", [*TABLE, "never-heard-of"])
def test_our_preset_adds_calibration_and_critics_that_see_time_and_little_else(env):
    paper, ours = preset(env, "paper"), preset(env)
    assert ours.algo == CPO(calibration=0.1)
    assert ours.critic.sees_time
    assert (ours.critic.method, ours.critic.held_out) == ("adam", 0.1)
    assert ours.gae == (0.98 if env.startswith("point-") else paper.gae)
    assert replace(ours, algo=paper.algo, critic=paper.critic, gae=paper.gae) == paper


def test_a_preset_takes_another_algorithm_and_keeps_a_calibration_that_was_asked_for():
    assert preset("point-circle", "paper", PDO(1000.0)).algo == PDO(1000.0)
    assert preset("point-circle", "corral", TRPO()).algo == TRPO()
    assert preset("point-circle", "corral", CPO(0.25)).algo == CPO(0.25)
    assert preset("point-circle", "paper", CPO(0.25)).algo == CPO(0.25)
    assert preset("point-circle", "corral", CPO(0.0)).algo == CPO(0.0)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"gamma": -0.1}, r"gamma must lie in \[0, 1\], got -0.1"),
        ({"cost_gamma": 1.01}, r"cost_gamma must lie in \[0, 1\], got 1.01"),
        ({"gae": float("nan")}, r"gae must lie in \[0, 1\], got nan"),
        ({"cost_gae": 2.0}, r"cost_gae must lie in \[0, 1\], got 2.0"),
        ({"limit": (1.0, float("nan"))}, r"limit\[1\] must be a finite number, got nan"),
        ({"trust": TrustRegion(delta=0.0)}, "trust.delta must be positive, got 0.0"),
        ({"limit": (float("inf"),)}, r"limit\[0\] must be a finite number, got inf"),
        ({"trust": TrustRegion(delta=float("nan"))}, "trust.delta must be a finite number, got nan"),
        ({"trust": TrustRegion(cg_iterations=0)}, "trust.cg_iterations must be at least 1"),
        ({"trust": TrustRegion(candidates=0)}, "trust.candidates must be at least 1, got 0"),
        ({"trust": TrustRegion(shrink=1.0)}, r"trust.shrink must lie in \(0, 1\), got 1.0"),
        ({"trust": TrustRegion(damping=-1.0)}, "trust.damping must not be negative, got -1.0"),
        ({"critic": Critic(learning_rate=0.0)}, "critic.learning_rate must be positive, got 0.0"),
        ({"critic": Critic(minibatch=0)}, "critic.minibatch must be at least 1, got 0"),
        ({"networks": Networks(log_std=float("inf"))}, "networks.log_std must be a finite number, got inf"),
        ({"algo": PDO(nu=float("nan"))}, "algo.nu must be a finite number, got nan"),
        ({"algo": PDO(rate=-0.1)}, "algo.rate must not be negative, got -0.1"),
        ({"algo": FPO(penalty=-1.0)}, "algo.penalty must not be negative, got -1.0"),
        ({"algo": FPO(penalty=(1.0, -1.0))}, r"algo.penalty must not be negative, got \(1.0, -1.0\)"),
        ({"algo": FPO(penalty=())}, "algo.penalty must name at least one number"),
        ({"task": {"y_lim": float("nan")}}, "task.y_lim must be a finite number, got nan"),
        ({"algo": PDO(nu=(1.0, float("inf")))}, r"algo.nu\[1\] must be a finite number, got inf"),
        ({"trust": TrustRegion(fisher_fraction=0.0)}, r"trust.fisher_fraction must lie in \(0, 1\], got 0.0"),
        ({"networks": Networks(hidden=())}, "networks.hidden must name at least one layer"),
        ({"networks": Networks(hidden=(8, 0))}, r"networks.hidden must be positive, got \(8, 0\)"),
        ({"critic": Critic(epochs=0)}, "critic.epochs must be at least 1, got 0"),
        ({"critic": Critic(held_out=0.95)}, r"critic.held_out must lie in \[0, 0.9\], got 0.95"),
        ({"shaping": Shaping(horizon=0)}, "shaping.horizon must be at least 1, got 0"),
        ({"seed": -1}, r"seed must lie in \[0, 2\^32\), got -1"),
        ({"seed": 2**32}, r"seed must lie in \[0, 2\^32\), got 4294967296"),
        ({"algo": CPO(calibration=1.5)}, r"algo.calibration must lie in \[0, 1\], got 1.5"),
    ],
)
def test_what_cannot_work_is_refused_by_name(changes, message):
    with pytest.raises(CorralError, match=message):
        replace(BASE, **changes)


def test_the_ends_of_every_interval_are_allowed():
    config = replace(
        BASE,
        gamma=1.0,
        cost_gamma=0.0,
        gae=0.0,
        limit=(-1e9,),
        trust=TrustRegion(fisher_fraction=1.0, cg_iterations=1),
        critic=Critic(held_out=0.9),
        seed=2**32 - 1,
        algo=CPO(calibration=1.0),
    )
    assert (config.gamma, config.critic.held_out, config.algo.calibration) == (1.0, 0.9, 1.0)

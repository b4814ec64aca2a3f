"""Every algorithm trains with discrete actions, with two constraints, with seeds side by side, and from a checkpoint."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import BASE, TINY, Walk

import corral
from corral import algos
from corral.config import Config, Critic, TrustRegion, algorithms
from corral.envs.contract import ConstraintSpec, Discrete, EnvSpec
from corral.learning.first_order import FirstOrder
from corral.running import checkpoint
from corral.running.trainer import Trainer

OURS = {name: kind for name, kind in algorithms().items() if kind.__module__.startswith("corral.")}


def of(name):
    """The algorithm with minibatches that fit small batches."""
    kind = OURS[name]
    return kind(minibatch=32, epochs=2) if issubclass(kind, FirstOrder) else kind()


class Steps(Walk):
    """The walk with three actions, down, stay and up, and one constraint."""

    @property
    def spec(self):
        return EnvSpec("steps", 1, Discrete(3), 8, (ConstraintSpec("near", 2.0),))

    def step(self, state, action):
        state, out = super().step(state, (action - 1.0)[None])
        return state, out._replace(costs=out.costs[:1])


SMALL = dict(iterations=2, batch_size=160, networks=TINY, critic=Critic(), trust=TrustRegion(cg_iterations=3))


def test_there_are_fourteen_algorithms_and_more():
    assert len(OURS) == 15
    assert {kind.__name__ for kind in OURS.values()} == set(algos.__all__)
    assert all(getattr(corral, kind.__name__) is kind for kind in OURS.values())


@pytest.mark.slow
@pytest.mark.parametrize("env", [Walk(), Steps()], ids=["two constraints", "discrete"])
@pytest.mark.parametrize("name", OURS)
def test_every_algorithm_moves_the_policy(name, env):
    config = Config(env.spec.name, algo=of(name), **SMALL)
    trainer = Trainer([config, replace(config, seed=1)], env)
    state, plan = trainer.initial(), None
    first = trainer.state_of(state, 0).policy
    for _ in range(2):
        plan = trainer.plan(state, plan)
        state, rows = trainer.iterate(state, plan)
        for row in rows:
            assert row["accepted"]
            assert row["kl"] > 0
            assert all(np.isfinite(v) for k, v in row.items() if isinstance(v, np.floating) and "realised" not in k)
    moved = trainer.state_of(state, 0).policy
    assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(moved), strict=True))


@pytest.mark.parametrize("name", ["cup", pytest.param("trpo-lag", marks=pytest.mark.slow)])
def test_a_run_that_is_resumed_goes_on_bit_for_bit(name, tmp_path):
    """The algorithm's memory, Adam's moments and the controller's past included, is in the checkpoint."""
    trainer = Trainer([replace(BASE, algo=of(name), batch_size=160)], Walk())
    state = trainer.initial()
    plan = trainer.plan(state, None)
    state, _ = trainer.iterate(state, plan)
    path = checkpoint.save(tmp_path, 1, trainer.state_of(state, 0), {})
    loaded, _ = checkpoint.load(path, trainer.state_of(trainer.initial(), 0))
    _, rows = trainer.iterate(state, plan)
    _, again = trainer.iterate(trainer.stacked([jax.tree.map(np.asarray, loaded)]), plan)
    for column, value in rows[0].items():
        if not column.startswith(("seconds", "steps_per")):
            np.testing.assert_array_equal(again[0][column], value)


@pytest.mark.slow
def test_seeds_side_by_side_are_the_runs_that_they_are_alone():
    """PPO's passes end at different times for different seeds; none waits for another."""
    config = replace(BASE, algo=corral.PPO(minibatch=32, epochs=4, target_kl=0.003), batch_size=160, shape_costs=False)
    both, alone = (Trainer([replace(config, seed=s) for s in seeds], Walk()) for seeds in ((0, 1), (1,)))
    state, single = both.initial(), alone.initial()
    plan = both.plan(state, None)
    _, rows = both.iterate(state, plan)
    _, (row,) = alone.iterate(single, plan)
    assert rows[1]["tried"] == row["tried"]
    np.testing.assert_allclose(rows[1]["kl"], row["kl"], rtol=1e-3)


# What each makes of 40 batches of 5,000 steps in Point-Gather, one seed: measured, and set well below.
LEARNS = {"c-trpo": 3.0, "crpo": 3.0, "trpo-lag": 3.0, "ipo": 3.0}
# Multipliers that find their size within 40 updates.
QUICKER = {
    "ppo-lag": dict(rate=0.3),
    "focops": dict(rate=0.3, nu_max=20.0),
    "cup": dict(rate=0.3),
    "pdo": dict(rate=3.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OURS, "cpo with hysteresis"])
def test_it_learns_in_point_gather(name):
    """Returns rise from 0.6; the cost of the first policy, 0.25, falls by a third or more where there is a limit of 0.1."""
    algo = OURS[name](**QUICKER.get(name, {})) if name in OURS else corral.CPO(hysteresis=True)
    metrics = corral.train("point-gather", algo, iterations=40, batch_size=5000).metrics
    assert np.mean(metrics["return"][-5:]) > LEARNS.get(name, 4.0)
    if name not in ("trpo", "ppo", "fpo"):
        assert np.mean(metrics["cost_bombs"][-5:]) < 0.16


def test_without_constraints_those_that_need_none_are_trpo_or_ppo(update, float64):
    from small_policies import make_problem

    from corral.learning import networks
    from corral.learning.surrogates import ConstraintValues

    policy, samples = make_problem(m=1)
    none = samples._replace(cost_weight=samples.cost_weight[:, :0], cost_advantage=samples.cost_advantage[:, :0])
    nothing = ConstraintValues(*(jnp.zeros(0) for _ in range(3)), jnp.asarray(False))
    theta = networks.flatten(policy).theta
    for same, names in (("trpo", ("crpo", "trpo-lag")), ("ppo", ("ppo-lag", "cppo-pid", "p3o", "ipo"))):
        expected, *found = (
            update(of(name), of(name).start(0, theta), (policy, none), nothing)[1].theta for name in (same, *names)
        )
        for one in found:
            np.testing.assert_allclose(one, expected, rtol=1e-9)

"""Runs side by side: each is the run it would be alone, and its updates do what they promise."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import BASE, TINY, Walk, Walker

import corral
from corral import CorralError, devices, envs
from corral.algos import CPO, TRPO
from corral.config import Config, Critic, TrustRegion
from corral.envs.contract import ConstraintSpec, Discrete, Env, EnvSpec, Timestep
from corral.learning import distributions, update
from corral.rollout import device
from corral.rollout.shapes import Plan
from corral.running.trainer import Trainer


@pytest.mark.slow
def test_the_matrix_products_of_training_are_in_full_float32_also_where_less_is_the_default(monkeypatch):
    """Conjugate gradients magnify what a GPU's shorter format for products leaves out."""
    traced_under, plain = [], update.update

    def watched(*given):
        traced_under.append(jax.config.jax_default_matmul_precision)
        return plain(*given)

    monkeypatch.setattr(update, "update", watched)
    trainer = Trainer([BASE], Walk())
    state = trainer.initial()
    trainer.iterate(state, trainer.plan(state, None))
    assert set(traced_under) == {"float32"}


@pytest.mark.slow
def test_programs_that_sample_and_learn_may_have_options_of_the_compiler_as_they_do_on_a_gpu(monkeypatch):
    """JAX refuses those of a program that is part of another. An XLA for CPUs knows the options for GPUs."""
    monkeypatch.setattr(devices, "compiler_options", lambda: {"xla_gpu_enable_triton_gemm": False})
    monkeypatch.setattr(device, "_one_policy", device._one_policy.__wrapped__)
    networks = replace(TINY, normalize_observations=True)
    trainer = Trainer([replace(BASE, algo=TRPO(), networks=networks)], Walk())
    state = trainer.initial()
    _, (row,) = trainer.iterate(state, trainer.plan(state, None))
    assert row["accepted"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 1600}, "runs side by side must have the same batch_size, got 800 and 1600"),
        ({"iterations": 9}, "runs side by side must have the same iterations"),
    ],
)
def test_runs_that_cannot_share_a_program_are_refused(changes, message):
    with pytest.raises(CorralError, match=message):
        Trainer([BASE, replace(BASE, **changes)], Walk())


@pytest.mark.slow
def test_cpo_recovers_from_violating_two_limits_and_then_holds_both(tmp_path):
    """A policy that starts by walking right breaks both limits at once."""
    config = replace(
        BASE,
        algo=CPO(0.1),
        iterations=40,
        batch_size=4000,
        shape_costs=False,
        critic=Critic("adam", epochs=3, held_out=0.1, minibatch=500, sees_time=True),
    )
    trainer = Trainer([config], Walk())
    (start,) = trainer.initial()
    biased = eqx.tree_at(lambda p: p.net.biases[-1], start.policy, start.policy.net.biases[-1] + 1.0)
    state = (start._replace(policy=biased),)
    plan, rows = None, []
    for _ in range(config.iterations):
        plan = trainer.plan(state, plan)
        state, (row,) = trainer.iterate(state, plan)
        rows.append(row)
    assert rows[0]["cost_near"] > 4.0
    assert rows[0]["cost_far"] > 3.0
    assert rows[0]["case"] == "recovery"
    last = rows[-10:]
    assert np.mean([row["cost_near"] for row in last]) < 2.0 * 1.05
    assert np.mean([row["cost_far"] for row in last]) < 1.0 * 1.05
    assert np.mean([row["return"] for row in last]) > 3.0


@pytest.mark.slow
def test_what_an_environment_breaks_after_the_last_step_of_an_episode_is_named_too():
    trainer = Trainer([replace(BASE, algo=TRPO())], Walk(poison_end=1.0))
    state = trainer.initial()
    with pytest.raises(
        CorralError, match=r"walk handed out NaN or infinity as the observation after the last step of an episode"
    ):
        trainer.iterate(state, trainer.plan(state, None))


class Fall(Walk):
    """Ends where x > 1.5, and nothing is seen after that."""

    def step(self, state, action):
        state, out = super().step(state, action)
        fallen = state.x[0] > 1.5
        return state, out._replace(
            obs=jnp.where(fallen, jnp.nan, out.obs), terminated=fallen, truncated=out.truncated & ~fallen
        )


@pytest.mark.parametrize("room", [100, 400])
def test_a_termination_after_which_an_environment_shows_nan_stops_no_update(room):
    """Neither the policy nor its normaliser, the critics or the predictors are given what they never act on."""
    networks = replace(TINY, normalize_observations=True)
    critic = Critic("adam", epochs=2, held_out=0.2, minibatch=200)
    config = replace(BASE, algo=TRPO(), networks=networks, critic=critic, time_limit_ends=False)
    trainer = Trainer([config], Fall())
    state = trainer.initial()
    for _ in range(4):
        state, (row,) = trainer.iterate(state, Plan(100, 1000, room))
        assert row["accepted"]
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    assert row["length"] < 8


class Latch(Env):
    """The first of 50 actions decides: 1 earns and costs one in every step, 0 nothing."""

    @property
    def spec(self):
        return EnvSpec("latch", 2, Discrete(2), 50, (ConstraintSpec("on", 1.0),))

    def reset(self, key):
        return Walker(jnp.zeros(()), jnp.zeros((), jnp.int32)), jnp.array([0.0, 1.0])

    def step(self, state, action):
        on = jnp.where(state.t == 0, action.astype(jnp.float32), state.x)
        t = state.t + 1
        seen = jnp.stack([on, jnp.zeros(())])
        return Walker(on, t), Timestep(seen, on, on[None], jnp.zeros((), bool), t == 50)


@pytest.mark.parametrize("ends", [pytest.param(True, marks=pytest.mark.slow), False])
def test_what_is_promised_of_a_discounted_cost_is_what_happens_to_it_whatever_a_time_limit_is(ends):
    """J_C = p(on at first) Σ_{t<50} 0.99ᵗ, p from the policy itself; c = J_C − d and b must have these units both."""
    config = Config(
        "latch",
        algo=TRPO(),
        batch_size=20_000,
        cost_gamma=0.99,
        cost_gae=1.0,
        time_limit_ends=ends,
        networks=TINY,
        trust=TrustRegion(delta=1e-3),
    )
    trainer = Trainer([config], Latch())
    before = trainer.initial()
    after, (row,) = trainer.iterate(before, trainer.plan(before, None))

    def probability(state):
        logits = trainer.state_of(state, 0).policy(jnp.array([[0.0, 1.0]])).logits
        return float(jax.nn.softmax(logits)[0, 1])

    change = (probability(after) - probability(before)) * (1 - 0.99**50) / (1 - 0.99)
    assert change > 1
    assert row["promised_on"] == pytest.approx(change, rel=0.1)  # 400 episodes


@pytest.mark.slow
def test_the_step_that_was_judged_is_the_step_that_is_taken_where_observations_are_normalised():
    """Statistics that changed by much after the update would make another policy of it: δ is 0.01."""
    config = Config("point-circle", TRPO(), batch_size=3000, networks=replace(TINY, normalize_observations=True))
    trainer = Trainer([config], envs.make("point-circle"))
    state = trainer.initial()
    plan = trainer.plan(state, None)
    batch = trainer.sample(state, plan, 0)
    new, (row,) = trainer.iterate(state, plan)
    before, after = (trainer.state_of(each, 0).policy for each in (state, new))
    obs, valid = batch.obs[0], np.asarray(batch.valid[0])
    moved = np.asarray(distributions.kl(after(obs), before(obs)))[valid].mean()
    assert moved == pytest.approx(float(row["kl"]), abs=1e-3)
    assert before.normalizer.count > 1000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"limit": (1.0,)}, r"limit must have one number for each of the 2 constraints of walk \(near, far\), got 1"),
        (
            {"algo": corral.PDO(nu=(1.0, 2.0, 3.0))},
            r"algo.nu must have one number for each of the 2 constraints of walk \(near, far\), got 3",
        ),
        (
            {"algo": corral.FPO(penalty=(1.0,))},
            r"algo.penalty must have one number for each of the 2 constraints of walk \(near, far\), got 1",
        ),
        ({"batch_size": 5}, r"batch_size 5 is smaller than one episode of walk \(up to 8 steps\)"),
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"gamma": 1.5}, r"gamma must lie in \[0, 1\], got 1.5"),
        ({"limit": (float("nan"), 1.0)}, r"limit\[0\] must be a finite number, got nan"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_before_any_work(changes, message):
    with pytest.raises(CorralError, match=message):
        Trainer([replace(BASE, **changes)], Walk())

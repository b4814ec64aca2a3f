"""The loop: resuming changes nothing, several seeds are several runs, every algorithm moves, bad input is refused."""

import shutil
import subprocess
import sys
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import corral
from corral import CorralError, devices, envs
from corral.config import CPO, FPO, PDO, TRPO, Config, Critic, Networks, Shaping, TrustRegion
from corral.envs.contract import Box, ConstraintSpec, Discrete, Env, EnvSpec, Timestep
from corral.evaluation import evaluate
from corral.learning import distributions, networks
from corral.learning import update as learner
from corral.rollout import device
from corral.rollout.shapes import Plan
from corral.running import checkpoint, config_file, log
from corral.running import loop as training
from corral.running.trainer import Trainer

TINY = Networks(hidden=(8,))


class _Walk(NamedTuple):
    x: jax.Array
    t: jax.Array


class Walk(Env):
    """x ← x + clip(a); the reward is the position, and so are the costs: |x| > 1 costs one, x > 2 costs another."""

    poison: float = 0.0
    poison_end: float = 0.0

    @property
    def spec(self):
        return EnvSpec("walk", 1, Box(1), 8, (ConstraintSpec("near", 2.0), ConstraintSpec("far", 1.0)))

    def reset(self, key):
        state = _Walk(0.1 * jax.random.normal(key, (1,)), jnp.zeros((), jnp.int32))
        return state, state.x

    def step(self, state, action):
        x = state.x + jnp.clip(action, -1, 1)
        t = state.t + 1
        costs = jnp.stack([jnp.abs(x[0]) > 1.0, x[0] > 2.0]).astype(jnp.float32)
        reward = x[0] + jnp.where((t == 5) & (self.poison > 0), jnp.nan, 0.0)
        seen = jnp.where((t == 8) & (self.poison_end > 0), jnp.nan, x)
        return _Walk(x, t), Timestep(seen, reward, costs, jnp.zeros((), bool), t == 8)


BASE = Config(
    "walk", iterations=4, batch_size=800, networks=TINY, shape_costs=True, shaping=Shaping(3, 1.0, 3)
)
ALGOS = {"cpo": CPO(0.1), "trpo": TRPO(), "pdo": PDO(1.0), "fpo": FPO(0.5)}


def folder(path):
    (path / "checkpoints").mkdir(parents=True)
    return path


def columns_that_repeat(directory):
    metrics = log.read(str(directory))
    timed = ("seconds_sampling", "seconds_updating", "steps_per_second")
    return {name: metrics[name] for name in metrics.columns if name not in timed}


def assert_same_run(a, b):
    left, right = columns_that_repeat(a), columns_that_repeat(b)
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)
    assert (a / "policy.npz").read_bytes() == (b / "policy.npz").read_bytes()


def test_the_matrix_products_of_training_are_in_full_float32_also_where_less_is_the_default(monkeypatch):
    """Conjugate gradients magnify what a GPU's shorter format for products leaves out."""
    traced_under, update = [], learner.update

    def watched(*given):
        traced_under.append(jax.config.jax_default_matmul_precision)
        return update(*given)

    monkeypatch.setattr(learner, "update", watched)
    trainer = Trainer([BASE], Walk())
    state = trainer.initial()
    trainer.iterate(state, trainer.plan(state, None))
    assert set(traced_under) == {"float32"}


def test_programs_that_sample_and_learn_may_have_options_of_the_compiler_as_they_do_on_a_gpu(monkeypatch):
    """JAX refuses those of a program that is part of another. An XLA for CPUs knows the options for GPUs."""
    monkeypatch.setattr(devices, "compiler_options", lambda: {"xla_gpu_enable_triton_gemm": False})
    monkeypatch.setattr(device, "_collect_one", device._collect_one.__wrapped__)
    networks = replace(TINY, normalize_observations=True)
    trainer = Trainer([replace(BASE, algo=TRPO(), networks=networks)], Walk())
    state = trainer.initial()
    _, (row,) = trainer.iterate(state, trainer.plan(state, None))
    assert row["accepted"]


@pytest.mark.parametrize(
    "name", ["cpo", *(pytest.param(n, marks=pytest.mark.slow) for n in ("trpo", "pdo", "fpo"))]
)
def test_a_resumed_run_repeats_the_uninterrupted_one_bit_for_bit(name, tmp_path):
    critic = (
        Critic("adam", epochs=2, held_out=0.1, minibatch=200, sees_time=True) if name == "cpo" else Critic()
    )
    config = replace(BASE, algo=ALGOS[name], critic=critic)
    trainer = Trainer([replace(config, seed=3)], Walk())
    whole = folder(tmp_path / "whole")
    training.loop(trainer, [whole], training.Silent(), checkpoint_every=1)
    # A copy as a kill would leave it: two checkpoints, three rows and a torn fourth.
    cut = tmp_path / "cut"
    shutil.copytree(whole, cut)
    (cut / "policy.npz").unlink()
    for k, path in checkpoint.checkpoints(cut / "checkpoints").items():
        if k > 2:
            path.unlink()
    text = (cut / "metrics.csv").read_text().splitlines(keepends=True)
    (cut / "metrics.csv").write_text("".join(text[:4]) + text[4][:20])
    training.loop(trainer, [cut], training.Silent(), checkpoint_every=1, resume=True)
    assert_same_run(whole, cut)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path):
    trainer = Trainer([replace(BASE, algo=TRPO(), seed=3)], Walk())
    whole = folder(tmp_path / "whole")
    training.loop(trainer, [whole], training.Silent(), checkpoint_every=1)
    cut = tmp_path / "cut"
    shutil.copytree(whole, cut)
    newest = list(checkpoint.checkpoints(cut / "checkpoints").values())[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    notes = []
    watcher = training.Silent()
    watcher.note = notes.append
    training.loop(trainer, [cut], watcher, checkpoint_every=1, resume=True)
    assert_same_run(whole, cut)
    assert "damaged" in notes[0]


@pytest.mark.slow
def test_seeds_side_by_side_are_the_runs_they_would_be_alone(tmp_path):
    config = replace(BASE, algo=CPO(), iterations=3, shape_costs=False)
    together = Trainer([config, replace(config, seed=1)], Walk())
    folders = [folder(tmp_path / f"seed-{s}") for s in (0, 1)]
    training.loop(together, folders, training.Silent())
    alone = folder(tmp_path / "alone")
    training.loop(Trainer([replace(config, seed=1)], Walk()), [alone], training.Silent())
    # Not bit for bit: a vmapped program may add in another order.
    for name in ("return", "cost_near", "cost_far", "kl"):
        np.testing.assert_allclose(log.read(folders[1])[name], log.read(alone)[name], rtol=2e-2, atol=2e-3)
    assert not np.allclose(log.read(folders[0])["return"], log.read(folders[1])["return"])


@pytest.mark.slow
def test_algorithms_and_numbers_side_by_side_are_the_runs_they_would_be_alone(tmp_path):
    """Two programs: TRPO between two penalties, which differ in a number only and so share theirs."""
    # Few conjugate-gradient steps, since late ones magnify rounding until another candidate is accepted.
    trust = TrustRegion(cg_iterations=3)
    small = replace(BASE, iterations=3, shape_costs=False, critic=Critic(), trust=trust)
    configs = [replace(small, algo=a, seed=s) for s, a in enumerate((FPO(0.1), TRPO(), FPO(5.0)))]
    together = Trainer(configs, Walk())
    folders = [folder(tmp_path / str(i)) for i in range(3)]
    training.loop(together, folders, training.Silent(), checkpoint_every=1)
    for i, config in enumerate(configs):
        alone = folder(tmp_path / f"alone-{i}")
        training.loop(Trainer([config], Walk()), [alone], training.Silent())
        for name in ("return", "cost_near", "cost_far", "kl"):
            np.testing.assert_allclose(
                log.read(folders[i])[name], log.read(alone)[name], rtol=2e-2, atol=2e-3
            )
        assert log.read(folders[i])["nu_near"][0] == pytest.approx([0.1, 0.0, 5.0][i])
    # And all of them go on from their checkpoints, each from its own.
    again = [tmp_path / f"again-{i}" for i in range(3)]
    for one, two in zip(folders, again, strict=True):
        shutil.copytree(one, two)
        (two / "policy.npz").unlink()
        list(checkpoint.checkpoints(two / "checkpoints").values())[-1].unlink()
    training.loop(together, again, training.Silent(), checkpoint_every=1, resume=True)
    for one, two in zip(folders, again, strict=True):
        assert_same_run(one, two)


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


def test_what_an_environment_breaks_is_named_and_what_was_learned_is_kept(tmp_path):
    where = folder(tmp_path / "run")
    trainer = Trainer([replace(BASE, algo=TRPO())], Walk(poison=1.0))
    with pytest.raises(
        CorralError, match=r"walk handed out nan as reward at step 4 of an episode, in iteration 0"
    ):
        training.loop(trainer, [where], training.Silent())
    assert list(checkpoint.checkpoints(where / "checkpoints")) == [0]


def test_what_an_environment_breaks_after_the_last_step_of_an_episode_is_named_too():
    trainer = Trainer([replace(BASE, algo=TRPO())], Walk(poison_end=1.0))
    state = trainer.initial()
    with pytest.raises(
        CorralError,
        match=r"walk handed out NaN or infinity as the observation after the last step of an episode",
    ):
        trainer.iterate(state, trainer.plan(state, None))


class Latch(Env):
    """The first of 50 actions decides: 1 earns and costs one in every step, 0 nothing."""

    @property
    def spec(self):
        return EnvSpec("latch", 2, Discrete(2), 50, (ConstraintSpec("on", 1.0),))

    def reset(self, key):
        return _Walk(jnp.zeros(()), jnp.zeros((), jnp.int32)), jnp.array([0.0, 1.0])

    def step(self, state, action):
        on = jnp.where(state.t == 0, action.astype(jnp.float32), state.x)
        t = state.t + 1
        seen = jnp.stack([on, jnp.zeros(())])
        return _Walk(on, t), Timestep(seen, on, on[None], jnp.zeros((), bool), t == 50)


@pytest.mark.parametrize("ends", [True, False])
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
        logits = trainer.run(state, 0).policy(jnp.array([[0.0, 1.0]])).logits
        return float(jax.nn.softmax(logits)[0, 1])

    change = (probability(after) - probability(before)) * (1 - 0.99**50) / (1 - 0.99)
    assert change > 1
    assert row["promised_on"] == pytest.approx(change, rel=0.1)  # 400 episodes


def test_the_step_that_was_judged_is_the_step_that_is_taken_where_observations_are_normalised():
    """Statistics that changed by much after the update would make another policy of it: δ is 0.01."""
    config = Config(
        "point-circle", TRPO(), batch_size=3000, networks=replace(TINY, normalize_observations=True)
    )
    trainer = Trainer([config], envs.make("point-circle"))
    state = trainer.initial()
    plan = trainer.plan(state, None)
    batch = trainer.sample(state, plan, 0)
    new, (row,) = trainer.iterate(state, plan)
    before, after = (trainer.run(each, 0).policy for each in (state, new))
    obs, valid = batch.obs[0], np.asarray(batch.valid[0])
    moved = np.asarray(distributions.kl(after(obs), before(obs)))[valid].mean()
    assert moved == pytest.approx(float(row["kl"]), abs=1e-3)
    assert before.normalizer.count > 1000


def test_the_batch_is_as_large_as_asked_and_made_of_whole_episodes():
    trainer = Trainer([BASE], Walk())
    plan = trainer.plan(trainer.initial(), None)
    assert plan.robots == 100  # 800 steps of episodes of 8
    assert trainer.plan(trainer.initial(), plan) == plan


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("where", ["host", "device"])
def test_programs_that_update_are_compiled_before_the_first_batch_of_a_shape(where, seeds, monkeypatch):
    env = Walk() if where == "device" else envs.from_gymnasium(Slide, 2, horizon=5)
    configs = [Config("toy", TRPO(), batch_size=40, networks=TINY, seed=s) for s in range(seeds)]
    trainer = Trainer(configs, env)
    expected = []
    monkeypatch.setattr(
        "corral.running.programs.Group.compile", lambda group, state, shapes: expected.append(shapes)
    )
    state = trainer.initial()
    plan = trainer.plan(state, None)
    trainer.iterate(state, plan)
    trainer.iterate(state, plan)
    assert len(expected) == 1
    roomier = plan._replace(room=2 * plan.room)
    trainer.iterate(state, roomier)
    assert len(expected) == 2
    batch = trainer.sample(state, roomier, 0)
    # A program is found again only if all of this is the same.
    for name, found in batch._asdict().items():
        asked_for = getattr(expected[1], name)
        assert (asked_for.shape, asked_for.dtype) == (np.shape(found), found.dtype), name
        assert asked_for.weak_type == getattr(found, "weak_type", False), name


def after(trainer: Trainer, *lengths: float):
    """The state of a run for each length of its episodes, one update later."""
    (state,) = trainer.initial()
    return (state._replace(iteration=state.iteration + 1, length=np.asarray(lengths, np.float32)),)


@pytest.mark.parametrize(("length", "robots", "room"), [(8, 100, 100), (6.7, 119, 119), (4, 200, 800)])
def test_episodes_that_last_nearly_as_long_as_they_can_need_no_room_to_spare(length, robots, room):
    """At most 8 steps; where the first episodes end long before, there is room for four times as many."""
    trainer = Trainer([BASE], Walk())
    trainer._untrained_length = length
    assert trainer.plan(trainer.initial(), None) == Plan(robots, 1000, room)


@pytest.mark.parametrize(
    ("length", "robots", "room"),
    [
        (8, 100, 100),
        (6.7, 100, 100),  # 119 are needed, at most a fifth more
        (6.5, 100, 492),  # 123: the same robots play again, of 4 · 123 episodes at most
        (11.9, 100, 100),  # 67
        (12.5, 70, 100),  # 64, less than two thirds: a tenth more than these
    ],
)
def test_shapes_are_kept_while_they_serve(length, robots, room):
    trainer = Trainer([BASE], Walk())
    assert trainer.plan(after(trainer, length), Plan(100, 1000, 100)) == Plan(robots, 1000, room)


def test_one_run_with_short_episodes_takes_no_more_robots_for_all():
    """200, 200 and 640 episodes: as many robots as the average, also where there is no plan to go on from."""
    trainer = Trainer([replace(BASE, seed=s) for s in range(3)], Walk())
    plan = Plan(200, 1000, 800)
    assert trainer.plan(after(trainer, 4, 4, 1.25), plan) == plan
    assert trainer.plan(after(trainer, 4, 4, 1.25), None) == Plan(347, 1000, 2560)


def test_two_whole_episodes_stay_where_the_batch_is_hardly_longer_than_one():
    trainer = Trainer([replace(BASE, batch_size=11)], Walk())
    state = trainer.initial()
    plan = trainer.plan(state, None)
    assert plan == Plan(2, 13, 2)
    assert np.asarray(trainer.sample(state, plan, 0).present).sum() == 2


def test_a_checkpoint_with_the_plan_of_another_version_is_resumed_with_a_new_plan():
    assert training._known({"episodes": 100, "rows": 1000}) is None
    assert training._known(None) is None
    assert training._known(Plan(1, 2, 3)._asdict()) == Plan(1, 2, 3)


@pytest.mark.parametrize(("length", "episodes"), [(4, 200), (7, 100), (1, 400)])
def test_robots_play_again_where_a_fifth_more_would_not_do_and_as_far_as_there_is_room(length, episodes):
    """Of 100 robots: 200 episodes of 4 steps, so it was said; 114 are 100 and a seventh; 800 are twice the room."""
    trainer = Trainer([BASE], Walk())
    batch = trainer.sample(after(trainer, length), Plan(100, 4000, 400), 1)
    assert np.asarray(batch.present).sum() == episodes
    assert np.array_equal(batch.truncated, batch.present)  # the walk is ended by the clock
    assert np.asarray(batch.valid).sum() == 8 * episodes


@pytest.mark.parametrize("on_host", [True, False])
def test_room_to_spare_changes_nothing_but_the_padding(on_host):
    env = envs.VectorEnv(Walk(), 16) if on_host else Walk()
    trainer = Trainer([BASE], env)
    state = trainer.initial()
    tight, roomy = (trainer.sample(state, plan, 0) for plan in (Plan(100, 1000, 100), Plan(100, 1000, 400)))
    assert np.asarray(roomy.present).shape == (1, 400)
    kept = np.asarray(tight.valid)[0]
    for name, found, expected in zip(tight._fields, roomy, tight, strict=True):
        found, expected = np.asarray(found)[0], np.asarray(expected)[0]
        if name in ("present", "truncated"):
            assert not found[100:].any()
        if name in ("present", "truncated", "final_obs"):
            found = found[:100]
        elif name != "broken":
            # The roomy batch from the device is squeezed, the tight one, full as it is, is not.
            found, expected = found[: kept.sum()], expected[kept]
        assert np.array_equal(found, expected), name


@pytest.mark.parametrize("on_host", [True, False])
def test_a_run_plays_as_many_episodes_as_the_lengths_before_ask_for(on_host):
    env = envs.VectorEnv(Walk(), 16) if on_host else Walk()
    trainer = Trainer([BASE], env)
    batch = trainer.sample(after(trainer, 16), Plan(100, 1000, 100), 1)
    assert np.asarray(batch.present).shape == (1, 100)
    assert np.asarray(batch.present).sum() == 50  # 800 steps of episodes of 16, so it was said
    assert np.asarray(batch.valid).sum() == 50 * 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"limit": (1.0,)},
            r"limit must have one number for each of the 2 constraints of walk \(near, far\), got 1",
        ),
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


def test_an_existing_run_is_not_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CorralError, match="exists and is not empty"):
        training.run(Config("point-gather"), tmp_path)


def test_training_from_python_takes_a_gymnasium_environment_and_the_user_s_own_cost(tmp_path):
    right = corral.Constraint("right", 5.0, cost=lambda obs, action, next_obs, info: float(next_obs[0] > 0.1))
    result = corral.train(
        "CartPole-v1",
        corral.CPO(),
        [right],
        iterations=2,
        batch_size=600,
        networks=TINY,
        critic=Critic(),
        preset="paper",
    )
    assert result.policy(np.zeros(4, np.float32)).shape == ()
    assert result.policy(np.zeros((3, 4), np.float32)).dtype.kind == "i"
    assert len(result.metrics) == 2
    assert np.all(result.metrics["limit_right"] == 5)
    result.save(tmp_path / "policy.npz")
    again = corral.Result.load(tmp_path / "policy.npz")
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    np.testing.assert_array_equal(again.policy(obs), result.policy(obs))
    np.testing.assert_array_equal(again.metrics["return"], result.metrics["return"])
    assert set(again.metrics.columns) == set(result.metrics.columns)
    np.testing.assert_array_equal(again.metrics["case"], result.metrics["case"])


class Slide(gymnasium.Env):
    """One number between 10 and 20 moves a point; after `breaks` episodes its reward is no number."""

    observation_space = gymnasium.spaces.Box(-100, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Box(10, 20, (1,), np.float32)

    def __init__(self, breaks=1000, fails=1000):
        self.left, self.fails = breaks, fails

    def reset(self, *, seed=None, options=None):
        self.left, self.fails, self.t = self.left - 1, self.fails - 1, 0
        if self.fails < 0:
            raise RuntimeError("motor driver lost")
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.t += 1
        reward = float(action[0]) if self.left >= 0 else np.nan
        return np.zeros(1, np.float32), reward, False, self.t == 5, {"cost": 1.0}


SLIDE = dict(iterations=2, batch_size=40, horizon=5, networks=TINY, critic=Critic(), preset="paper")


@pytest.fixture
def slide_id():
    gymnasium.register("tests/Slide-v0", entry_point=Slide, max_episode_steps=5)
    yield "tests/Slide-v0"
    del gymnasium.registry["tests/Slide-v0"]


def test_a_gymnasium_id_is_trained_evaluated_and_resumed_from_its_folder_alone(slide_id, tmp_path):
    """It costs 1 a step; `task` goes to gymnasium.make, so an episode is 3 steps here."""
    config = Config(slide_id, iterations=2, batch_size=40, limit=(7.0,), networks=TINY)
    config = replace(config, task={"max_episode_steps": 3.0})
    training.run(config, tmp_path)
    np.testing.assert_array_equal(log.read(tmp_path)["cost_cost"], [3, 3])
    (found,) = evaluate(tmp_path, episodes=4)
    assert found.verdict == "met"
    assert found.constraints[0].cost.mean == 3
    config_file.save(replace(config, iterations=3), tmp_path / "config.toml")
    assert training.resume(tmp_path).iterations == 3
    assert log.read(tmp_path)["iteration"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("env", "limit", "message"),
    [
        (
            "tests/Slide-v0",
            (1.0, 2.0),
            "limit may be one number for tests/Slide-v0, that of the cost in its info",
        ),
        ("tests/Slide-v0", (), r"brings no constraint, and CPO needs one.*--limit"),
        ("corral/PointCircle-v0", (1.0,), "states no max_episode_steps .*--task max_episode_steps N"),
        ("Slyde-v0", (1.0,), "Gymnasium cannot make Slyde-v0: .*doesn't exist"),
        ("no_such_module:Slide-v0", (1.0,), "Gymnasium cannot make no_such_module:Slide-v0: No module named"),
        ("point-circel", (1.0,), "no environment is called 'point-circel'; did you mean 'point-circle'"),
    ],
)
@pytest.mark.usefixtures("slide_id")
def test_what_cannot_be_trained_by_its_id_is_said_in_a_line(env, limit, message, tmp_path):
    with pytest.raises(CorralError, match=message):
        training.run(Config(env, limit=limit), tmp_path)


@pytest.mark.parametrize(
    ("env", "ends"),
    [("point-circle", True), (envs.make("point-circle"), False), (Slide, False), ("Pendulum-v1", False)],
)
def test_a_time_limit_is_an_end_in_the_paper_s_tasks_by_name_only(env, ends, monkeypatch):
    seen = []

    def trainer(configs, *rest):
        seen.extend(configs)
        raise CorralError("enough")

    monkeypatch.setattr("corral.api.Trainer", trainer)
    with pytest.raises(CorralError, match="enough"):
        corral.train(env, corral.TRPO(), batch_size=40, horizon=5 if env is Slide else None)
    assert seen[0].time_limit_ends is ends


def test_training_from_python_takes_one_gymnasium_environment_as_it_is():
    result = corral.train(Slide(), corral.CPO(), [corral.Constraint("time", 7.0)], **SLIDE)
    # It costs 1 a step, 5 an episode, whatever it does.
    np.testing.assert_array_equal(result.metrics["cost_time"], 5)
    np.testing.assert_array_equal(result.metrics["length"], 5)
    # And what the policy says can be given to it.
    assert Slide.action_space.contains(result.policy(np.zeros(1)))
    assert result.policy(np.zeros((3, 1))).shape == (3, 1)
    # Twenty at a time: single actions may both lie beyond the same bound, and come out as that.
    drawn = [result.policy(np.zeros((20, 1)), deterministic=False) for _ in range(2)]
    assert not np.array_equal(*drawn)
    seeded = [result.policy(np.zeros(1), deterministic=False, seed=3) for _ in range(2)]
    assert seeded[0] == seeded[1]


def test_what_was_learned_before_the_environment_itself_failed_is_kept(tmp_path):
    limit = [corral.Constraint("time", 7.0)]
    with pytest.raises(RuntimeError, match="motor driver lost") as stopped:
        corral.train(Slide(fails=23), corral.CPO(), limit, **SLIDE)
    assert len(stopped.value.result.metrics) == 1
    config = Config("slide", batch_size=40, iterations=2, networks=TINY)
    env = envs.from_gymnasium(lambda: Slide(fails=23), 1, [ConstraintSpec("time", 7.0)], horizon=5)
    where = folder(tmp_path / "run")
    with pytest.raises(RuntimeError, match="motor driver lost"):
        training.loop(Trainer([config], env), [where], training.Silent())
    assert list(checkpoint.checkpoints(where / "checkpoints")) == [1]


def test_a_policy_of_the_command_line_is_loaded_by_its_folder_or_its_file(tmp_path):
    config = Config("point-gather", batch_size=300, iterations=1, networks=TINY)
    training.run(config, tmp_path / "run")
    for path in (tmp_path / "run", tmp_path / "run" / "policy.npz"):
        result = corral.Result.load(path)
        assert result.policy(np.zeros(result.spec.observation_size)).shape == (2,)
        assert len(result.metrics) == 1
    training.run(config, tmp_path / "two", seeds=2)
    with pytest.raises(CorralError, match=r"holds several seeds: take one of .*seed-0, .*seed-1"):
        corral.Result.load(tmp_path / "two")


SLIPS = """
import corral
for wrong in ({"algo": "cpo"}, {"preset": "papr"}, {"limit": 0.3}, {"iterations": 2.5}):
    try:
        corral.train("point-gather", **wrong)
    except corral.CorralError as error:
        print(error)
"""


def test_slips_in_python_are_answered_in_one_line():
    """In a process of its own: here the types of arguments are enforced, there they are not."""
    done = subprocess.run([sys.executable, "-c", SLIPS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "algo must be corral.CPO(), PDO(), TRPO() or FPO() with its settings, got 'cpo'",
        "preset must be one of paper, corral, got 'papr'",
        "limit must be a tuple with a number for each constraint, such as (25.0,), got 0.3",
        "iterations must be a whole number, got 2.5",
    ]


class Misshapen(Walk):
    """A second number, that its spec does not know, in what it sees; or a single cost where there are two constraints."""

    what: str = eqx.field(static=True, default="obs")

    def step(self, state, action):
        state, out = super().step(state, action)
        if self.what == "obs":
            return state, out._replace(obs=jnp.zeros(2))
        return state, out._replace(costs=out.costs[:1])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("obs", r"walk: the observation must have shape \(1,\), as its spec says, got \(2,\)"),
        ("costs", r"walk: costs must have shape \(2,\), as its spec says, got \(1,\)"),
    ],
)
def test_an_environment_that_is_not_what_its_spec_says_is_refused_before_it_is_compiled(what, message):
    with pytest.raises(CorralError, match=message):
        corral.train(Misshapen(what=what), corral.TRPO(), iterations=1)


def test_what_python_had_learned_before_an_error_comes_with_it():
    # 8 episodes tell how long they are, 8 make the first batch and 8 the second; each reset begins one more.
    limit = [corral.Constraint("time", 7.0)]
    with pytest.raises(
        CorralError, match="Slide handed out nan as reward after 1 steps of an episode"
    ) as stopped:
        corral.train(Slide(breaks=23), corral.CPO(), limit, **SLIDE)
    assert len(stopped.value.result.metrics) == 1
    assert Slide.action_space.contains(stopped.value.result.policy(np.zeros(1)))


@pytest.mark.parametrize(
    "net",
    [
        eqx.nn.MLP(1, 1, 4, 1, key=jax.random.key(0)),  # one row at a time, with functions among its leaves
        networks.MLP((1, 4, 1), "relu", jax.random.key(0)),  # all rows
    ],
)
@pytest.mark.parametrize("normalised", [False, True])
def test_a_network_of_the_user_s_own_is_trained_saved_and_loaded(net, normalised, tmp_path):
    settings = SLIDE | {"networks": replace(TINY, normalize_observations=normalised)}
    result = corral.train(Slide, corral.CPO(), [corral.Constraint("time", 7.0)], net=net, **settings)
    before, after = (jax.tree.leaves(eqx.filter(n, eqx.is_array)) for n in (net, result.module.net))
    assert len(before) == len(after)
    assert any((np.asarray(a) != np.asarray(b)).any() for a, b in zip(before, after, strict=True))
    result.save(tmp_path / "policy.npz")
    obs = np.linspace(-1, 1, 7).reshape(7, 1)
    again = corral.Result.load(tmp_path / "policy.npz", net)
    np.testing.assert_array_equal(again.policy(obs), result.policy(obs))


def test_a_network_that_does_not_fit_is_refused_before_any_work():
    with pytest.raises(
        CorralError, match=r"net must map observations \(n, 1\) to \(n, 1\), or one \(1,\) to \(1,\)"
    ):
        corral.train(Slide(), corral.TRPO(), net=eqx.nn.MLP(1, 2, 4, 1, key=jax.random.key(0)), **SLIDE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("CartPole-v1", corral.CPO()), "brings no constraint, and CPO needs one"),
        (("point-gahter",), "no environment is called 'point-gahter'; did you mean 'point-gather'"),
        (
            ("point-gather", None, [corral.Constraint("x", 1.0)]),
            "point-gather has no constraint x; it has bombs",
        ),
        (
            ("point-gather", None, [corral.Constraint("bombs", np.inf)]),
            "the limit of bombs must be finite",
        ),
        (
            ("CartPole-v1", None, [corral.Constraint("x", 1.0), corral.Constraint("x", 2.0)]),
            "two constraints have the name x",
        ),
    ],
)
def test_training_from_python_says_what_is_missing(arguments, message):
    with pytest.raises(CorralError, match=message):
        corral.train(*arguments)


def test_an_unknown_option_is_refused():
    with pytest.raises(CorralError, match="train has no option colour"):
        corral.train("point-gather", colour="red")


@pytest.mark.slow
def test_host_and_device_rollouts_give_the_same_kind_of_batch():
    """The same environment through its host adapter and on the device: statistically the same numbers."""
    config = replace(BASE, algo=TRPO(), shape_costs=False, batch_size=1600)
    on_device, on_host = Trainer([config], Walk()), Trainer([config], envs.VectorEnv(Walk(), 64))
    results = []
    for trainer in (on_device, on_host):
        state = trainer.initial()
        plan = Plan(200, 1600, 200)  # one compiled update serves both
        _, (row,) = trainer.iterate(state, plan)
        results.append(row)
    a, b = results
    assert a["episodes"] == b["episodes"] == 200
    assert abs(a["return"] - b["return"]) < 5 * np.hypot(a["return_se"], b["return_se"])
    assert abs(a["cost_near"] - b["cost_near"]) < 5 * np.hypot(a["cost_se_near"], b["cost_se_near"])

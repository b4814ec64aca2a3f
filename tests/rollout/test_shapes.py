"""The shapes of programs: how many robots, rows and episodes batches have room for."""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from toys import BASE, TINY, Slide, Walk

from corral import envs
from corral.algos import TRPO
from corral.config import Config
from corral.rollout.shapes import Plan
from corral.running.trainer import Trainer


def after(trainer: Trainer, *lengths: float):
    """The state of a run for each length of its episodes, one update later."""
    (state,) = trainer.initial()
    return (state._replace(iteration=state.iteration + 1, length=np.asarray(lengths, np.float32)),)


def test_the_batch_is_as_large_as_asked_and_made_of_whole_episodes():
    trainer = Trainer([BASE], Walk())
    plan = trainer.plan(trainer.initial(), None)
    assert plan.robots == 100  # 800 steps of episodes of 8
    assert trainer.plan(trainer.initial(), plan) == plan


@pytest.mark.parametrize(
    ("where", "seeds"),
    [
        ("device", 1),
        pytest.param("host", 2, marks=pytest.mark.slow),
        pytest.param("device", 2, marks=pytest.mark.slow),
        pytest.param("host", 1, marks=pytest.mark.slow),
    ],
)
def test_programs_that_update_are_compiled_before_the_first_batch_of_a_shape(where, seeds, monkeypatch):
    env = Walk() if where == "device" else envs.from_gymnasium(Slide, 2, horizon=5)
    configs = [Config("toy", TRPO(), batch_size=40, networks=TINY, seed=s) for s in range(seeds)]
    trainer = Trainer(configs, env)
    expected = []
    monkeypatch.setattr("corral.running.programs.Program.compile", lambda group, state, shapes: expected.append(shapes))
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


@pytest.mark.parametrize(("length", "episodes"), [(4, 200), (7, 100), (1, 400)])
def test_robots_play_again_where_a_fifth_more_would_not_do_and_as_far_as_there_is_room(length, episodes):
    """Of 100 robots: 200 episodes of 4 steps, so it was said; 114 are 100 and a seventh; 800 are twice the room."""
    trainer = Trainer([BASE], Walk())
    batch = trainer.sample(after(trainer, length), Plan(100, 4000, 400), 1)
    assert np.asarray(batch.present).sum() == episodes
    assert np.array_equal(batch.truncated, batch.present)  # the walk is ended by the clock
    assert np.asarray(batch.valid).sum() == 8 * episodes


class Climb(Walk):
    """Ends at once where the first action is negative, else after 8 steps; each step costs 1."""

    def step(self, state, action):
        state, out = super().step(state, action)
        fallen = (state.t == 1) & (action[0] < 0)
        return state, out._replace(costs=jnp.ones(2), terminated=fallen, truncated=out.truncated & ~fallen)


@pytest.mark.parametrize(
    ("robots", "rows"),
    [pytest.param(400, 1000, id="at once"), pytest.param(60, 1000, id="in turns", marks=pytest.mark.slow)],
)
def test_no_episode_is_dropped_where_episodes_suddenly_get_longer(robots, rows):
    """400 episodes were to make 800 steps. Now they are 8 steps long: 3,200, as fit into 1,000 · 1.5³ rows."""
    trainer = Trainer([BASE], Climb())
    (state,) = after(trainer, 2)
    brave = eqx.tree_at(lambda p: p.net.biases[-1], state.policy, state.policy.net.biases[-1] + 100.0)
    state = (state._replace(policy=brave),)
    plan = Plan(robots, rows, 400)
    new, (row,) = trainer.iterate(state, plan)
    assert row["episodes"] == 400
    assert row["cost_near"] == row["cost_far"] == row["length"] == 8
    assert trainer.sample(state, plan, 1).reward.shape == (1, 3375 if robots < 400 else 3200)
    # The next plan has these rows from the start, and the one after a batch that fits again has those of the first.
    following = trainer.plan_after(plan, [row])
    assert following == plan._replace(rows=3375)
    assert trainer.plan(new, following).rows == 3375
    assert trainer.plan_after(following, [row | {"steps": 1000}]) == plan


def test_a_batch_that_is_sampled_again_has_the_episodes_it_had():
    """Of four times as many as fit: with plenty of rows from the start, they are the same."""
    trainer = Trainer([BASE], Climb())
    state = after(trainer, 2)
    tight, roomy = (trainer.sample(state, Plan(60, rows, 400), 1) for rows in (500, 5000))
    lengths = []
    for batch in (tight, roomy):
        assert np.asarray(batch.present).sum() == 400
        lengths.append(
            [np.asarray(x)[np.asarray(batch.valid)] for x in (batch.obs, batch.action, batch.t, batch.episode)]
        )
    for found, expected in zip(*lengths, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert tight.reward.shape[1] < 5000


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

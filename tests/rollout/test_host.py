"""Rollouts on the host, of environments whose episodes are known beforehand."""

import threading

import jax
import numpy as np
import pytest

from corral.config import Networks
from corral.envs.contract import Box, ConstraintSpec, EnvSpec, HostEnv, HostStep
from corral.errors import CorralError
from corral.learning import networks
from corral.rollout.host import HostSampler
from corral.rollout.sampler import Order
from corral.rollout.shapes import Plan

HORIZON = 9
SPEC = EnvSpec("counted", 3, Box(1), HORIZON, (ConstraintSpec("steps", 1.0),))


class Counted(HostEnv):
    """Slot i of lane k plays episodes of i + 1 steps; it sees its lane, its slot and the step it is in.

    The clock ends the episodes of slots with an even number. After the others nothing is seen.
    """

    def __init__(self, lane: int, slots: int) -> None:
        self.spec, self.num_envs, self.lane = SPEC, slots, lane
        self.threads: list[int] = []
        self.waits_for: threading.Event | None = None

    def reset(self, seed: int) -> np.ndarray:
        self.age = np.zeros(self.num_envs, np.int32)
        return self._observed()

    def _observed(self) -> np.ndarray:
        slots = np.arange(self.num_envs)
        return np.stack([np.full(self.num_envs, self.lane), slots, self.age], axis=1).astype(np.float32)

    def step(self, actions, active=None, restart=True):
        if self.waits_for is not None:
            assert self.waits_for.wait(timeout=60)
        self.age = self.age + active
        final = self._observed()
        ended = active & (self.age > np.arange(self.num_envs))
        self.age = np.where(ended, 0, self.age)
        nothing = np.zeros(self.num_envs, bool)
        ones = np.ones(self.num_envs, np.float32)
        cut = ended & (np.arange(self.num_envs) % 2 == 0)
        final[ended & ~cut] = np.nan
        return HostStep(self._observed(), ones, ones[:, None], ended & ~cut, cut, final, nothing)

    def use_threads(self, count: int) -> None:
        self.threads.append(count)


@pytest.fixture
def policy():
    return networks.make_policy(SPEC, Networks(hidden=(4,)), jax.random.key(0))


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_batch_from_the_host_holds_whole_episodes_one_after_the_other(policy, lanes):
    sampler = HostSampler([Counted(k, 4) for k in range(lanes)])
    policies = (jax.tree.map(lambda x: x[None], policy),)
    whole = sampler.collect(Order(policies, np.zeros(1, np.uint32), 0, np.array([6]), Plan(4, 50, 8)))
    batch = jax.tree.map(lambda x: x[0], whole)
    valid, ends = np.asarray(batch.valid), np.flatnonzero(batch.last)
    assert len(valid) == 50
    assert batch.present.tolist() == [True] * 6 + [False] * 2
    assert len(ends) == 6
    steps = valid.sum()
    assert valid[:steps].all()
    assert ends[-1] == steps - 1
    firsts = np.concatenate([[0], ends[:-1] + 1])
    for k, (first, last) in enumerate(zip(firsts, ends, strict=True)):
        rows = slice(first, last + 1)
        assert (batch.episode[rows] == k).all()
        assert batch.t[rows].tolist() == list(range(last + 1 - first))
        # One robot's, from its first step to its last.
        assert (batch.obs[rows, :2] == batch.obs[first, :2]).all()
        assert batch.obs[rows, 2].tolist() == batch.t[rows].tolist()
        assert last + 1 - first == batch.obs[first, 1] + 1
        even = batch.obs[first, 1] % 2 == 0
        assert batch.truncated[k] == even
        assert batch.final_obs[k].tolist() == ([*batch.obs[first, :2], last + 1 - first] if even else [0, 0, 0])
    assert (batch.episode[steps:] == 5).all()
    assert not batch.reward[steps:].any()
    assert not batch.final_obs[6:].any()
    # Every lane has played its share.
    played = [int((batch.obs[firsts, 0] == lane).sum()) for lane in range(lanes)]
    assert played == [6 // lanes] * lanes


def test_a_lane_that_is_over_leaves_its_threads_to_the_other(policy):
    # The second lane makes no step before it has been given what the first one had.
    first, second = Counted(0, 2), Counted(1, 2)
    given = threading.Event()

    def use_threads(count: int) -> None:
        second.threads.append(count)
        if count == 4:
            given.set()

    second.use_threads, second.waits_for = use_threads, given  # type: ignore[method-assign]
    HostSampler([first, second], threads=4).episodes(policy, jax.random.key(1), 4)
    assert first.threads == [2]
    assert second.threads == [2, 4]


def test_lanes_that_were_given_no_threads_keep_those_they_have(policy):
    only = Counted(0, 2)
    HostSampler([only]).episodes(policy, jax.random.key(1), 2)
    assert only.threads == []


@pytest.mark.parametrize("status", [0, 1, None])
def test_an_environment_that_asks_python_to_exit_is_an_error(status, policy):
    class Leaves(Counted):
        def step(self, actions, active=None, restart=True):
            raise SystemExit(status)

    with pytest.raises(CorralError, match=rf"counted asked Python to exit \(SystemExit\({status}\)\)"):
        HostSampler([Counted(0, 2), Leaves(1, 2)]).episodes(policy, jax.random.key(0), 8)

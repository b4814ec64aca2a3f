"""Small environments and programs that several tests share."""

import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import time
import unittest.mock
from typing import NamedTuple

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from corral.config import Config, Critic, Networks, Shaping, TrustRegion
from corral.envs.contract import Box, ConstraintSpec, Env, EnvSpec, Timestep
from corral.learning.networks import Policy, make_policy
from corral.rollout import make
from corral.rollout.sampler import Sampler
from corral.rollout.shapes import Plan
from corral.running import log, loop
from corral.running.trainer import Trainer

TINY = Networks(hidden=(8,))


class Walker(NamedTuple):
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
        state = Walker(0.1 * jax.random.normal(key, (1,)), jnp.zeros((), jnp.int32))
        return state, state.x

    def step(self, state, action):
        x = state.x + jnp.clip(action, -1, 1)
        t = state.t + 1
        costs = jnp.stack([jnp.abs(x[0]) > 1.0, x[0] > 2.0]).astype(jnp.float32)
        reward = x[0] + jnp.where((t == 5) & (self.poison > 0), jnp.nan, 0.0)
        seen = jnp.where((t == 8) & (self.poison_end > 0), jnp.nan, x)
        return Walker(x, t), Timestep(seen, reward, costs, jnp.zeros((), bool), t == 8)


BASE = Config("walk", iterations=4, batch_size=800, networks=TINY, shape_costs=True, shaping=Shaping(3, 1.0, 3))


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


class ChainState(NamedTuple):
    key: jax.Array
    t: jax.Array


class Chain(Env):
    """Each step costs 1; afterwards the episode ends with probability ½, and at the latest after 20 steps.

    The expected cost is Σ_{t<20} 2⁻ᵗ = 2 − 2⁻¹⁹. Long episodes are the costly ones, so a mean over those that happen to
    end inside a window of time would come out too small. With `cut` every end is the clock's.
    """

    cut: bool = False

    @property
    def spec(self):
        return EnvSpec("chain", 1, Box(1), 20, (ConstraintSpec("c", 1.0),))

    def reset(self, key):
        return ChainState(key, jnp.zeros((), jnp.int32)), jnp.zeros(1)

    def step(self, state, action):
        key, draw = jax.random.split(state.key)
        t = state.t + 1
        ends = jax.random.bernoulli(draw)
        over = ends | (t == 20)
        out = Timestep(jnp.ones(1) * t, 1.0 * t, jnp.ones(1), ends & (not self.cut), over & (self.cut | ~ends))
        return ChainState(key, t), out


# Every discount and λ has a value of its own, so that none can be taken for another.
TOY = Config(
    "toy",
    limit=(2.0,),
    gamma=0.9,
    cost_gamma=0.95,
    gae=0.8,
    cost_gae=0.7,
    networks=Networks(hidden=(3,)),
    trust=TrustRegion(cg_iterations=3),
)


class Counted(NamedTuple):
    """The state of a run of `Stub`."""

    iteration: np.ndarray
    x: np.ndarray
    policy: Policy


class Stub(Trainer):
    """Stands in where only the loop and its files matter: an iteration is one step of a congruential generator.

    It depends on the whole state, on the plan, and on the runs side by side and their order, as rounding does. So a run that
    was resumed wrongly, or beside others than before, ends with another policy.
    """

    spec = EnvSpec("stub", 1, Box(2), 4, (ConstraintSpec("c", 1.0),))
    names = ("c",)

    def __init__(self, configs, sampler=None, net=None):
        self.configs, self.config = tuple(configs), configs[0]
        self._beside = sum((config.seed + 1) * 1000**k for k, config in enumerate(configs, 1))

    def compiles(self, plan):
        return False

    def initial(self):
        return self.stacked([self._state(0, config.seed) for config in self.configs])

    @staticmethod
    def _state(iteration, x):
        policy = eqx.tree_at(lambda p: p.log_std, _untrained(), np.asarray([x >> 16, x & 0xFFFF], np.float32) / 2**12)
        return Counted(np.asarray(iteration, np.int64), np.asarray(x, np.uint32), policy)

    def state_of(self, state, i):
        return state[i]

    def stacked(self, runs):
        return tuple(runs)

    def plan(self, state, before):
        return before or Plan(1, 1, 1)

    def plan_after(self, plan, rows):
        return plan._replace(room=plan.room % 7 + 1)

    def iterate(self, state, plan):
        runs, rows = [], []
        for run in state:
            k, x = int(run.iteration), (int(run.x) * 1664525 + 1013904223 + plan.room + self._beside) % 2**32
            runs.append(self._state(k + 1, x))
            row = dict.fromkeys(log.columns(self.names), 0.0)
            row |= {"iteration": k, "return": float(x), "case": "inside", "accepted": True, "tried": 1, "steps": 1}
            rows.append(row | {"seconds_sampling": time.perf_counter()})
        return tuple(runs), rows


@functools.cache
def _untrained():
    return jax.device_get(make_policy(Stub.spec, Networks(hidden=(1,)), jax.random.key(0)))


@contextlib.contextmanager
def stubbed():
    """Let `loop.run` and `loop.resume` train a `Stub`."""
    with (
        unittest.mock.patch.object(loop, "Trainer", Stub),
        unittest.mock.patch.object(make, "from_config", return_value=unittest.mock.MagicMock(spec=Sampler)),
    ):
        yield


def by_two_processes(program, *arguments):
    """What each of two processes that run a program together prints last; they meet on the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env=os.environ | {"CORRAL_COORDINATOR": address, "CORRAL_PROCESSES": "2", "CORRAL_PROCESS": str(i)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    said = [process.communicate(timeout=600) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    return [json.loads(out.splitlines()[-1]) for out, _ in said]

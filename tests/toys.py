"""Small environments that several tests share."""

from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from corral.config import Config, Critic, Networks, Shaping, TrustRegion
from corral.envs.contract import Box, ConstraintSpec, Env, EnvSpec, Timestep

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

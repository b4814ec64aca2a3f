"""An environment in JAX: a boat crosses a river, and each step in the middle costs 1. All runs on the device."""

import sys

import jax
import jax.numpy as jnp

import corral
from corral.envs import Box, ConstraintSpec, Env, EnvSpec, Timestep


class River(Env):
    """The state is (position across, position along, steps); the reward is progress along the river."""

    @property
    def spec(self) -> EnvSpec:
        """Two numbers are seen, two are chosen, an episode has 50 steps."""
        middle = ConstraintSpec("middle", 10.0, "steps in the middle of the river", largest=50.0)
        return EnvSpec("river", 2, Box(2), 50, (middle,))

    def reset(self, key):
        """Start at the left bank, not always at the same place."""
        place = jnp.asarray([-1.0, 0.0]) + 0.1 * jax.random.normal(key, (2,))
        return (place, jnp.zeros((), jnp.int32)), place

    def step(self, state, action):
        """The current is strongest in the middle."""
        place, t = state
        push = 0.1 * jnp.clip(action, -1, 1)
        drift = 0.2 * jnp.exp(-4 * place[0] ** 2)
        after = jnp.stack([jnp.clip(place[0] + push[0], -1.5, 1.5), place[1] + push[1] + drift])
        cost = (jnp.abs(after[0]) < 0.5).astype(jnp.float32)
        out = Timestep(after, after[1] - place[1], cost[None], jnp.zeros((), bool), t + 1 == 50)
        return (after, t + 1), out


def main(quick: bool) -> None:
    """The current pays and costs: CPO takes ten steps of it."""
    iterations, batch = (2, 1_000) if quick else (60, 20_000)
    result = corral.train(River(), corral.CPO(), iterations=iterations, batch_size=batch)
    print("return", result.metrics["return"][[0, -1]].round(2))
    print("middle", result.metrics["cost_middle"][[0, -1]].round(2), "limit", result.metrics["limit_middle"][-1])


if __name__ == "__main__":
    main("--quick" in sys.argv)

"""CartPole with a cost, as a Gymnasium environment that workers can make: `attack.cartpole:CartPoleWithCost-v0`."""

from typing import Any

import gymnasium

ID = "CartPoleWithCost-v0"


class Cost(gymnasium.Wrapper):
    """A step costs 1 where the cart is away from the middle."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, info | {"cost": float(abs(obs[0]) > 0.05)}


def make(**given: Any) -> gymnasium.Env:
    """CartPole, with the cost in its `info`."""
    return Cost(gymnasium.make("CartPole-v1", **given))


gymnasium.register(ID, make, max_episode_steps=30)

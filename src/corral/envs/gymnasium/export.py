"""Corral's environments for Gymnasium's users: `gymnasium.make("corral/AntCircle-v0")` and `make_vec`.

`info["costs"]` holds the costs of a step by the names of the constraints, and `info["cost"]` their sum. Task parameters are
keywords of `make`.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from corral.envs.contract import Box, Discrete, EnvSpec, HostEnv, HostStep, MultiDiscrete
from corral.envs.registry import make_host


def make_env(name: str, **parameters: Any) -> "SingleEnv":
    """One robot; `gymnasium.make` calls this."""
    return SingleEnv(make_host(name, 1, threads=1, **parameters))


def make_vec_env(name: str, num_envs: int, threads: int | None = None, **parameters: Any) -> "ManyEnvs":
    """Many robots on `threads` threads (None: one per core); `gymnasium.make_vec` calls this."""
    return ManyEnvs(make_host(name, num_envs, threads, **parameters))


class SingleEnv(gymnasium.Env[np.ndarray, Any]):
    """A `HostEnv` of one slot as a Gymnasium environment."""

    metadata = {"render_modes": []}  # noqa: RUF012  Gymnasium's own declaration

    def __init__(self, host: HostEnv) -> None:
        self.host = host
        self.observation_space, self.action_space = _spaces(host.spec)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """A fresh start, drawn from the environment's generator."""
        super().reset(seed=seed)
        return self.host.reset(_draw_seed(self.np_random))[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """One step; the caller resets, so the step that ends an episode returns the episode's last observation."""
        step = self.host.step(np.asarray(action)[None])
        info = {"cost": float(step.costs.sum()), "costs": _by_name(self.host.spec, step.costs[0].tolist())}
        ended = bool(step.terminated[0]), bool(step.truncated[0])
        return step.final_obs[0], float(step.reward[0]), *ended, info

    def close(self) -> None:
        """Stop the threads."""
        self.host.close()


class ManyEnvs(gymnasium.vector.VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """A `HostEnv` as a Gymnasium vector environment, which starts the next episode in the step that ends one."""

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, host: HostEnv) -> None:
        self.host = host
        self.num_envs = host.num_envs
        self.single_observation_space, self.single_action_space = _spaces(host.spec)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        """Start every robot; one seed is enough, since every slot has its own stream of random numbers."""
        first = seed[0] if isinstance(seed, list) else seed
        super().reset(seed=first)
        return self.host.reset(_draw_seed(self.np_random)), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        """One step of every robot; where `info["_final_obs"]`, an episode ended with the observation `info["final_obs"]`."""
        step: HostStep = self.host.step(np.asarray(actions))
        ended = step.terminated | step.truncated
        info: dict[str, Any] = {"cost": step.costs.sum(axis=1), "costs": _by_name(self.host.spec, list(step.costs.T))}
        if ended.any():
            info |= {"final_obs": step.final_obs, "_final_obs": ended}
        return step.obs, step.reward, step.terminated, step.truncated, info

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the threads."""
        self.host.close()


def _spaces(spec: EnvSpec) -> tuple[gymnasium.spaces.Box, gymnasium.Space]:
    observation = gymnasium.spaces.Box(-np.inf, np.inf, (spec.observation_size,), np.float32)
    match spec.action:
        case Box(size):
            return observation, gymnasium.spaces.Box(-1, 1, (size,), np.float32)
        case Discrete(size):
            return observation, gymnasium.spaces.Discrete(size)
        case MultiDiscrete(sizes):
            return observation, gymnasium.spaces.MultiDiscrete(list(sizes))


def _by_name(spec: EnvSpec, costs: list) -> dict[str, Any]:
    return {constraint.name: cost for constraint, cost in zip(spec.constraints, costs, strict=True)}


def _draw_seed(generator: np.random.Generator) -> int:
    return int(generator.integers(2**32))

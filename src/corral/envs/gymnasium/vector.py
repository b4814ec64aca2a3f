"""Environments that are vectorised already, Gymnasium's and EnvPool's, as a `HostEnv`: taken as they are."""

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate

from corral.envs.contract import ConstraintSpec, HostEnv, HostStep
from corral.envs.gymnasium import spaces, worker
from corral.envs.gymnasium.wrap import Cost, in_words, spec_of
from corral.errors import CorralError, require


def is_vector(env: Any) -> bool:
    """Whether an environment steps many copies at once."""
    return isinstance(env, VectorEnv) or hasattr(getattr(getattr(env, "spec", None), "config", None), "num_envs")


def from_vector(
    env: Any,
    constraints: Sequence[ConstraintSpec] = (),
    costs: Sequence[Cost] | None = None,
    horizon: int | None = None,
) -> HostEnv:
    """The copies of a vector environment; constraints, costs and horizon are as in `from_gymnasium`.

    Where an episode ended, the environment starts the next one in the same step, with the last observation in
    `info["final_obs"]`, or in the step after, which then counts for nothing (`autoreset_mode` SAME_STEP or NEXT_STEP). It
    steps all copies, also those whose steps nobody needs. Its `reset` gets one seed for all; if it ignores that, as EnvPool
    does, runs are not repeatable.
    """
    require(
        costs is None or len(costs) == len(constraints),
        f"costs must have a function for each of the {len(constraints)} constraints, got {len(costs or ())}",
    )
    return _VectorHost(env, constraints, costs, horizon)


class _VectorHost(HostEnv):
    def __init__(
        self, env: Any, constraints: Sequence[ConstraintSpec], costs: Sequence[Cost] | None, horizon: int | None
    ) -> None:
        self._env, self._costs = env, costs
        pool = getattr(getattr(env, "spec", None), "config", None)  # EnvPool's way to say things
        self.num_envs = int(pool.num_envs if pool is not None else env.num_envs)
        self._space = getattr(env, "single_observation_space", None) or env.observation_space
        action = getattr(env, "single_action_space", None) or env.action_space
        self._seen_space = batch_space(self._space, self.num_envs)
        longest = _stated(env, "max_episode_steps") if pool is None else getattr(pool, "max_episode_steps", None)
        named = _stated(env, "id")
        stated = SimpleNamespace(id=named if isinstance(named, str) else type(env).__name__, max_episode_steps=longest)
        with in_words():
            described = worker.describe(
                SimpleNamespace(observation_space=self._space, action_space=action, spec=stated)
            )
        self.spec = spec_of(described, constraints, horizon)
        self._dtype = np.dtype(described["dtype"])
        mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
        self._mode = None if mode is None else AutoresetMode(mode)
        require(
            self._mode is not AutoresetMode.DISABLED,
            f"{self.spec.name} must start episodes by itself: make it with autoreset_mode SAME_STEP or NEXT_STEP",
        )
        self._begins = np.zeros(self.num_envs, bool)
        """Where the step to come starts an episode instead of being one."""

    def reset(self, seed: int) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # EnvPool's, that it ignores the seed
            seen, _ = self._env.reset(seed=int(np.random.SeedSequence(seed).generate_state(1)[0]) >> 1)
        self._begins[:] = False
        self._obs = self._flat(seen)
        self._keep(seen)
        return self._obs.copy()

    def step(self, actions: np.ndarray, active: np.ndarray | None = None, restart: bool = True) -> HostStep:
        running = np.ones(self.num_envs, bool) if active is None else active
        outside = self.spec.action.outside(np.asarray(actions)).astype(self._dtype)
        seen, reward, terminated, truncated, info = self._env.step(outside)
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        self.only_began = self._begins
        counted = running & ~self._begins
        self._refuse_guess(np.asarray(reward, float), terminated | truncated)
        ended = counted & (terminated | truncated)
        same_step = self._same_step(info, terminated | truncated)
        obs = self._flat(seen)
        slots = np.flatnonzero(ended).tolist() if same_step else []
        last = {slot: _last_seen(self.spec.name, info, slot) for slot in slots}
        final = obs.copy()
        for slot, one in last.items():
            final[slot] = self._flat_one(one)
        costs = np.zeros((self.num_envs, len(self.spec.constraints)), np.float32)
        if self.spec.constraints:
            after = list(self._each(seen)) if self._costs else []
            for slot in np.flatnonzero(counted).tolist():
                said = _of_slot(info.get("final_info", info) if slot in last else info, slot)
                costs[slot] = self._price(slot, outside[slot], last.get(slot, after[slot] if after else None), said)
        self._keep(seen)
        self._begins = np.zeros_like(ended) if same_step else (terminated | truncated) & ~self._begins
        earned = np.where(counted, reward, 0).astype(np.float32)
        for name, values in (("observation", final), ("reward", earned), ("costs", costs)):
            bad = values[~np.isfinite(values)]
            require(bad.size == 0, f"{self.spec.name} handed out {bad.flat[0] if bad.size else ''} as {name}")
        nothing = np.zeros(self.num_envs, bool)
        ends = (ended & terminated, ended & truncated & ~terminated)
        return HostStep(obs, earned, costs, *ends, final, nothing)

    def close(self) -> None:
        self._env.close()

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _same_step(self, info: Mapping[str, Any], over: np.ndarray) -> bool:
        """Whether the observations of slots that ended are of their next episode already."""
        if self._mode is None:
            return bool(over.any()) and "final_obs" in info
        return self._mode is AutoresetMode.SAME_STEP

    def _refuse_guess(self, reward: np.ndarray, over: np.ndarray) -> None:
        """Where nobody says how episodes start, steps that should start one must look like it: their costs are dropped."""
        wrong = self._mode is None and bool(np.any(self._begins & ((reward != 0) | over)))
        require(
            not wrong,
            f'{self.spec.name} must say when it starts episodes: metadata["autoreset_mode"] must be SAME_STEP or NEXT_STEP',
        )

    # -- what is seen --------------------------------------------------------------------------------------------------

    def _flat(self, seen: Any) -> np.ndarray:
        if isinstance(self._space, Box):
            rows = np.asarray(seen)
            expected = (self.num_envs, *self._space.shape)
            require(rows.shape == expected, f"{self.spec.name} handed out observations {rows.shape}, not {expected}")
            return rows.reshape(self.num_envs, -1).astype(self._space.dtype).astype(np.float32)
        return np.stack([self._flat_one(each) for each in self._each(seen)])

    def _flat_one(self, obs: Any) -> np.ndarray:
        return spaces.flat(self.spec.name, self._space, obs, self.spec.observation_size)

    def _each(self, seen: Any) -> Iterator[Any]:
        """The observation of each slot, as the environment of one would hand it out."""
        return iter(iterate(self._seen_space, seen))

    def _keep(self, seen: Any) -> None:
        """Remember what the cost functions get one step later."""
        self._latest = copy.deepcopy(list(self._each(seen))) if self._costs else []

    # -- costs ---------------------------------------------------------------------------------------------------------

    def _price(self, slot: int, action: np.ndarray, obs: Any, info: dict[str, Any]) -> list[float]:
        """The costs of the slot's step that led to `obs`, one per constraint."""
        name, names = self.spec.name, [constraint.name for constraint in self.spec.constraints]
        with in_words():
            if self._costs is None:
                found = worker.reported(name, names, info)
            else:
                found = [price(self._latest[slot], action, obs, info) for price in self._costs]
            return [worker.number(name, f"the cost of {each}", cost) for each, cost in zip(names, found, strict=True)]


def _stated(env: Any, what: str) -> Any:
    """What the specification of a vector environment, or of the first of its environments, says; None if nothing."""
    single = list(getattr(env, "envs", ()))[:1]
    said = (getattr(getattr(each, "spec", None), what, None) for each in (env, *single))
    return next((value for value in said if value is not None), None)


def _last_seen(name: str, info: Mapping[str, Any], slot: int) -> Any:
    """The last observation of the episode that ended in this slot, from `info["final_obs"]`."""
    found = info.get("final_obs")
    if found is None:
        raise CorralError(f'{name} ended an episode without its last observation: info["final_obs"] must have it')
    return _of_slot(found, slot) if isinstance(found, dict) else found[slot]


def _of_slot(info: Mapping[str, Any], slot: int) -> dict[str, Any]:
    """What is said of one slot: of everything with a mask `_name`, only where that is true."""
    own = {}
    for name, value in info.items():
        mask = info.get(f"_{name}")
        said = mask is None or bool(np.asarray(mask)[slot])
        if said and not (name.startswith("_") and name[1:] in info):
            own[name] = _of_slot(value, slot) if isinstance(value, Mapping) else value[slot]
    return own

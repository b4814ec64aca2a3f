"""Any Gymnasium environment as a `HostEnv`, with costs from the user's functions or from the environment."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import flatdim

from corral.envs.contract import Box, ConstraintSpec, Discrete, EnvSpec, HostEnv, HostStep
from corral.envs.gymnasium import spaces
from corral.envs.mjcf import without_log_for_good
from corral.errors import CorralError, brief, require

_LARGEST = float(np.finfo(np.float32).max)

Cost = Callable[[Any, Any, Any, dict[str, Any]], float]
"""cost(obs, action, next_obs, info) -> the cost of this step; all four are the Gymnasium environment's own."""


def from_gymnasium(
    make: str | Callable[[], Any],
    num_envs: int,
    constraints: Sequence[ConstraintSpec] = (),
    costs: Sequence[Cost] | None = None,
    horizon: int | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> HostEnv:
    """`num_envs` copies of a Gymnasium environment, given its id or a function that makes one.

    The costs of the constraints come from `costs`, one function each, or else from the environment: by name from
    `info["costs"]`, or for a single constraint from `info["cost"]` or the third of six values that `step` returns (as in
    Safety-Gymnasium). `horizon` is needed where the environment states no `max_episode_steps`. With an id, `parameters`
    are further arguments of `gymnasium.make`.

    Observations are flattened. Actions of a box are mapped from [-1, 1] onto its bounds and clipped, number by number where
    there are bounds. A number from the environment that is not finite raises a CorralError that names it.
    """
    require(num_envs >= 1, f"num_envs must be at least 1, got {num_envs}")
    require(
        costs is None or len(costs) == len(constraints),
        f"costs must have a function for each of the {len(constraints)} constraints, got {len(costs or ())}",
    )
    require(
        isinstance(make, str) or not parameters,
        "parameters go with an id: let the function that makes the environment set them",
    )
    made = [_made(make, parameters or {}) if isinstance(make, str) else make() for _ in range(num_envs)]
    require(
        len(set(map(id, made))) == num_envs,
        f"the function that makes {type(made[0]).__name__} must make a new one each time it is called: it returned the same "
        "one twice. To train with one robot, pass corral.train the environment instead of a function",
    )
    return _GymnasiumHost(made, constraints, costs, horizon)


def _made(name: str, parameters: Mapping[str, Any]) -> Any:
    """Make an environment by its id; turn any failure, in Gymnasium or in the environment's own code, into a CorralError."""
    without_log_for_good()
    try:
        return gymnasium.make(name, **parameters)
    except Exception as error:
        raise CorralError(f"Gymnasium cannot make {name}: {error or type(error).__name__}") from error


def _space(name: str, env: Any, which: str) -> Any:
    """One of the two spaces of an environment."""
    space = getattr(env, which, None)
    require(
        isinstance(space, gymnasium.Space), f"{name}: its {which} must be a space of Gymnasium's, got {brief(space)}"
    )
    return space


class _GymnasiumHost(HostEnv):
    def __init__(
        self, envs: list[Any], constraints: Sequence[ConstraintSpec], costs: Sequence[Cost] | None, horizon: int | None
    ) -> None:
        first = envs[0]
        space = _space(type(first).__name__, first, "action_space")
        stated = getattr(first, "spec", None)
        name = stated.id if stated else type(first).__name__
        if horizon is None:
            horizon = getattr(stated, "max_episode_steps", None)
        hint = "on the command line: --task max_episode_steps N"
        require(horizon is not None, f"horizon must be given: {name} states no max_episode_steps ({hint})")
        match space:
            case gymnasium.spaces.Discrete():
                action: Box | Discrete = Discrete(int(space.n), int(space.start))
            case gymnasium.spaces.Box():
                bounds = [tuple(map(float, end.ravel())) for end in (space.low, space.high)]
                low, high = bounds if np.isfinite(bounds).any() else (None, None)
                action = Box(int(np.prod(space.shape)), low, high, tuple(space.shape))
            case _:
                raise CorralError(f"{name} has actions of {space}; only Box and Discrete are supported")
        assert horizon is not None
        whole = isinstance(horizon, int | np.integer) and not isinstance(horizon, bool)
        require(
            whole and horizon >= 1, f"{name}: its max_episode_steps must be a whole number from 1 on, got {horizon!r}"
        )
        seen = _space(name, first, "observation_space")
        require(action.size >= 1, f"{name} has an action_space of size 0, {space}: there is nothing to choose")
        require(flatdim(seen) >= 1, f"{name} has an observation_space of size 0, {seen}: there is nothing to see")
        self.spec = EnvSpec(
            name, flatdim(seen), action, int(horizon), tuple(constraints), observation=spaces.to_text(seen)
        )
        self.num_envs = len(envs)
        self._envs = envs
        self._costs = costs
        self._seed = 0
        self._episodes = np.zeros(self.num_envs, int)
        self._steps = np.zeros(self.num_envs, int)
        self._latest: list[Any] = [None] * self.num_envs
        self._obs = np.zeros((self.num_envs, self.spec.observation_size), np.float32)

    def reset(self, seed: int) -> np.ndarray:
        self._seed = seed
        self._episodes[:] = 0
        for slot in range(self.num_envs):
            self._begin(slot)
        return self._obs.copy()

    def step(self, actions: np.ndarray, active: np.ndarray | None = None, restart: bool = True) -> HostStep:
        n, m = self.num_envs, len(self.spec.constraints)
        reward, costs = np.zeros(n, np.float32), np.zeros((n, m), np.float32)
        terminated, truncated = np.zeros((2, n), bool)
        final_obs = self._obs.copy()
        for slot in range(n) if active is None else np.flatnonzero(active).tolist():
            action = self._to_env(actions[slot])
            next_obs, earned, cost, ended, cut, info = _step(self.spec.name, self._envs[slot], action)
            flat = self._flat(next_obs)
            paid = self._price(self._latest[slot], action, next_obs, info, cost)
            self._latest[slot] = self._kept(next_obs)
            self._steps[slot] += 1
            self._require_finite(slot, observation=flat, reward=earned, costs=paid)
            final_obs[slot], reward[slot], costs[slot] = flat, earned, paid
            terminated[slot] = ended
            truncated[slot] = (cut or self._steps[slot] >= self.spec.horizon) and not ended
            self._obs[slot] = final_obs[slot]
            if terminated[slot] or truncated[slot]:
                self._episodes[slot] += 1
                self._begin(slot)
        nothing_broke = np.zeros(n, bool)
        return HostStep(self._obs.copy(), reward, costs, terminated, truncated, final_obs, nothing_broke)

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _begin(self, slot: int) -> None:
        """Start the slot's next episode from its own stream of random numbers."""
        stream = np.random.SeedSequence((self._seed, slot, int(self._episodes[slot])))
        env = self._envs[slot]
        begun = _called(self.spec.name, "reset", env.reset, seed=int(stream.generate_state(1)[0]))
        require(
            isinstance(begun, tuple) and len(begun) == 2 and isinstance(begun[1], dict),
            f"{self.spec.name}: reset must return an observation and a dict, got {type(begun).__name__}",
        )
        obs, _ = begun
        self._latest[slot], self._obs[slot] = self._kept(obs), self._flat(obs)
        self._steps[slot] = 0
        self._require_finite(slot, observation=self._obs[slot])

    def _kept(self, obs: Any) -> Any:
        """A copy for the cost functions, which get it one step later: the environment may have changed its array by then."""
        return copy.deepcopy(obs) if self._costs else None

    def _require_finite(self, slot: int, **fields: Any) -> None:
        for name, value in fields.items():
            bad = np.asarray(value)[~(np.abs(value) <= _LARGEST)]  # also what is not a number
            if bad.size:
                raise CorralError(
                    f"{self.spec.name} handed out {bad.flat[0]} as {name} after {self._steps[slot]} steps of an episode"
                )

    def _flat(self, obs: Any) -> np.ndarray:
        return spaces.flat(self.spec.name, self._envs[0].observation_space, obs, self.spec.observation_size)

    def _to_env(self, action: Any) -> Any:
        outside = self.spec.action.outside(np.asarray(action))
        if isinstance(self.spec.action, Discrete):
            return int(outside)
        return outside.astype(self._envs[0].action_space.dtype)

    def _price(self, obs: Any, action: Any, next_obs: Any, info: dict[str, Any], cost: float | None) -> list[float]:
        """The costs of one step, one per constraint."""
        names = [constraint.name for constraint in self.spec.constraints]
        if self._costs is not None:
            given = obs, action, next_obs, info
            found: list[Any] = [_called(self.spec.name, "cost function", price, *given) for price in self._costs]
        elif all(name in _costs(self.spec.name, info) for name in names):
            found = [info["costs"][name] for name in names]
        else:
            cost = info.get("cost") if cost is None else cost
            require(
                len(names) == 1 and cost is not None,
                f'{self.spec.name} reports no cost for {names}, neither by these names in info["costs"] nor, for a single '
                'constraint, in info["cost"]; give each a function: Constraint(name, limit, cost=...)',
            )
            found = [cost]
        return [_number(self.spec.name, f"the cost of {name}", cost) for name, cost in zip(names, found, strict=True)]


def _step(name: str, env: Any, action: Any) -> tuple[Any, float, Any, bool, bool, dict[str, Any]]:
    """The six values of a step, (obs, reward, cost, ...); cost is None if the environment returns Gymnasium's usual five."""
    match _called(name, "step", env.step, action):
        case (obs, reward, cost, terminated, truncated, info):
            pass
        case (obs, reward, terminated, truncated, info):
            cost = None
        case other:
            got = f"{len(other)}" if isinstance(other, tuple | list) else type(other).__name__
            raise CorralError(f"{name}: step must return five values, or six with the cost third, got {got}")
    require(isinstance(info, dict), f"{name}: the last value of step must be a dict, got {type(info).__name__}")
    ends = _flag(name, "terminated", terminated), _flag(name, "truncated", truncated)
    return obs, _number(name, "the reward", reward), cost, *ends, info


def _called(name: str, what: str, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """What a function of the environment returns; an error of its own says which environment and which call it was in."""
    try:
        return call(*given, **named)
    except Exception as error:
        error.add_note(f"in the environment {name}, in its {what}")
        raise


def _costs(name: str, info: dict[str, Any]) -> Mapping[str, Any]:
    """The costs by name that the environment reports, if it does."""
    found = info.get("costs", {})
    require(
        isinstance(found, Mapping),
        f'{name}: info["costs"] of a step must be a dict with a number for each constraint, got {brief(found)}',
    )
    costs: Mapping[str, Any] = found
    return costs


def _flag(name: str, what: str, value: Any) -> bool:
    """The value as true or false; an array of one is accepted too."""
    if isinstance(value, bool):
        return value
    try:
        array = np.asarray(value)
        fits = array.size == 1 and array.dtype.kind in "biuf"
    except ValueError:  # lists of different lengths
        fits = False
    require(fits, f"{name}: {what} of a step must be true or false, got {brief(value)}")
    return bool(array.item())


def _number(name: str, what: str, value: Any) -> float:
    """The value as a float; an array of one number is accepted too."""
    try:
        return float(np.asarray(value, float).item())
    except (TypeError, ValueError, OverflowError):
        raise CorralError(f"{name}: {what} of a step must be a number, got {brief(value)}") from None

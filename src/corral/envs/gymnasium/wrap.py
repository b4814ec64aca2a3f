"""Any Gymnasium environment as a `HostEnv`, with costs from the user's functions or from the environment.

`worker.Copies` steps the environments: in this process, or in those of a `crew.Crew`. The results are the same.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import cloudpickle
import gymnasium
import numpy as np
from threadpoolctl import ThreadpoolController

from corral.envs.contract import (
    Action,
    Box,
    ConstraintSpec,
    Discrete,
    EnvSpec,
    HostEnv,
    HostStep,
    MultiDiscrete,
    Played,
)
from corral.envs.gymnasium import worker
from corral.envs.gymnasium.crew import Crew, shares
from corral.envs.gymnasium.on_ray import RayCrew
from corral.envs.mjcf import without_log_for_good
from corral.errors import CorralError, brief, require
from corral.policy.acting import Actor

Cost = Callable[[Any, Any, Any, dict[str, Any]], float]
"""cost(obs, action, next_obs, info) -> the cost of this step; all four are the Gymnasium environment's own."""


Workers = int | Literal["ray"]
"""How many processes of this machine step an environment's copies, or that those of a Ray cluster do."""


class Unsendable(CorralError):
    """A function that cannot travel to another process."""


def from_gymnasium(
    make: str | Callable[[], Any],
    num_envs: int,
    constraints: Sequence[ConstraintSpec] = (),
    costs: Sequence[Cost] | None = None,
    horizon: int | None = None,
    parameters: Mapping[str, Any] | None = None,
    workers: Workers = 0,
    python: Path | None = None,
) -> HostEnv:
    """`num_envs` copies of a Gymnasium environment, given its id or a function that makes one.

    The costs of the constraints come from `costs`, one function each, or else from the environment: each by its name from
    `info["costs"]` or from `info`, a single one also from `info["cost"]` or the third of six values that `step` returns (as
    in Safety-Gymnasium). `horizon` is needed where the environment states no `max_episode_steps`. With an id, `parameters`
    are further arguments of `gymnasium.make`.

    Observations are flattened. Actions of a box are mapped from [-1, 1] onto its bounds and clipped, number by number where
    there are bounds. A number from the environment that is not finite raises a CorralError that names it.

    `workers` processes step the copies, or this one where that is 0, or those of a Ray cluster where that is "ray";
    functions go there by cloudpickle. `python` is another interpreter for them, which needs NumPy and Gymnasium or
    Safety-Gymnasium, and takes ids only.
    """
    (only,) = groups_from_gymnasium(make, [num_envs], constraints, costs, horizon, parameters, workers, python)
    return only


def groups_from_gymnasium(
    make: str | Callable[[], Any],
    sizes: Sequence[int],
    constraints: Sequence[ConstraintSpec] = (),
    costs: Sequence[Cost] | None = None,
    horizon: int | None = None,
    parameters: Mapping[str, Any] | None = None,
    workers: Workers = 0,
    python: Path | None = None,
) -> list[HostEnv]:
    """Several groups of copies, of these sizes, that share their workers; each as `from_gymnasium` makes it.

    The workers step one group while the policy is asked for another. Without workers only one group steps at a time:
    copies of a user's environment may have something in common that two threads must not use at once.
    """
    require(all(size >= 1 for size in sizes), f"num_envs must be at least 1, got {min(sizes)}")
    require(workers == "ray" or workers >= 0, f"workers must not be negative, got {workers}")
    require(
        costs is None or len(costs) == len(constraints),
        f"costs must have a function for each of the {len(constraints)} constraints, got {len(costs or ())}",
    )
    require(
        isinstance(make, str) or not parameters,
        "parameters go with an id: let the function that makes the environment set them",
    )
    require(
        python is None or (isinstance(make, str) and costs is None),
        "another Python takes an environment by its id, and its costs by their names: functions cannot go there",
    )
    names, given = [constraint.name for constraint in constraints], dict(parameters or {})
    prices = None if costs is None else list(costs)
    if workers or python:
        parcel = b"" if python else _parcel(make, prices)
        name = make if isinstance(make, str) else getattr(make, "__name__", type(make).__name__)
        crew: Crew | RayCrew
        if workers == "ray":
            crew = RayCrew(name, given, names, parcel, sizes, python)
        else:
            crew = Crew(name, given, names, parcel, sizes, shares(sizes, max(workers, 1)), python)
        try:
            spec = spec_of(crew.description, constraints, horizon)
            shape = _shape(crew.description, spec)
            crew.share(shape)
        except BaseException:
            crew.close()
            raise
        all_rows = crew.rows or [_rows(size, shape) for size in sizes]
        return [_GymnasiumHost(spec, rows, _Away(crew, group)) for group, rows in enumerate(all_rows)]
    without_log_for_good()
    with in_words():
        made = make if callable(make) else lambda: worker.make(make, make, given)
        envs = worker.in_slots(made, sum(sizes))
        description = worker.describe(envs[0])
    spec, lock, groups = spec_of(description, constraints, horizon), threading.Lock(), []
    shape = _shape(description, spec)
    for size in sizes:
        own, envs = envs[:size], envs[size:]
        rows = _rows(size, shape)
        copies = worker.Copies(own, 0, size, rows, names, spec.horizon, prices)
        groups.append(_GymnasiumHost(spec, rows, _Here(copies, lock)))
    return list(groups)


def _rows(size: int, shape: dict[str, Any]) -> worker.Rows:
    """Arrays for so many slots in memory of this process."""
    rows, _ = worker.rows_in(bytearray(worker.rows_in(None, 0, size, shape)[1]), 0, size, shape)
    assert rows is not None
    return rows


def _parcel(make: str | Callable[[], Any], prices: list[Cost] | None) -> bytes:
    """What workers of the same Python need to make environments and price steps."""
    given: Any = make
    if isinstance(make, str):
        with contextlib.suppress(
            gymnasium.error.Error, ImportError
        ):  # what fails here fails there, where it is explained
            given = gymnasium.spec(make)  # also of an environment that only this process has registered
    try:
        return bytes(cloudpickle.dumps((given, prices)))
    except Exception as error:
        raise Unsendable(
            f"{make if isinstance(make, str) else 'the function that makes the environment'}, or a cost function, cannot be "
            f"sent to another process ({type(error).__name__}: {error}); workers=0 steps the environments in this one"
        ) from error


def spec_of(said: Mapping[str, Any], constraints: Sequence[ConstraintSpec], horizon: int | None) -> EnvSpec:
    """The facts about an environment that describes itself (`worker.describe`)."""
    name = said["name"]
    horizon = said["max_episode_steps"] if horizon is None else horizon
    hint = "on the command line: --task max_episode_steps N"
    require(horizon is not None, f"horizon must be given: {name} states no max_episode_steps ({hint})")
    assert horizon is not None
    whole = isinstance(horizon, int | np.integer) and not isinstance(horizon, bool)
    require(
        whole and horizon >= 1, f"{name}: its max_episode_steps must be a whole number from 1 on, got {brief(horizon)}"
    )
    action = _action(name, said)
    require(
        action.size >= 1, f"{name} has an action_space of size 0, {said['action_text']}: there is nothing to choose"
    )
    require(said["observation"] >= 1, f"{name} has an observation_space of size 0: there is nothing to see")
    return EnvSpec(name, said["observation"], action, int(horizon), tuple(constraints), observation=said["space"])


def _action(name: str, said: Mapping[str, Any]) -> Action:
    match said["action"]:
        case ["discrete", n, start]:
            return Discrete(n, start)
        case ["box", shape, _, low, high]:
            bounded = bool(np.isfinite([low, high]).any())
            lowest, highest = (tuple(low), tuple(high)) if bounded else (None, None)
            return Box(int(np.prod(shape)), lowest, highest, tuple(shape))
        case ["binary", shape]:
            return MultiDiscrete((2,) * int(np.prod(shape)), None, tuple(shape))
        case ["several", sizes, start]:
            counts, first = (tuple(np.ravel(numbers).tolist()) for numbers in (sizes, start))
            return MultiDiscrete(counts, first, np.shape(sizes))
    raise CorralError(
        f"{name} has actions of {said['action_text']}, and a policy of Corral's draws Box, Discrete, MultiDiscrete or "
        "MultiBinary: put a gymnasium.ActionWrapper around it that makes its actions of one of these"
    )


def _shape(said: Mapping[str, Any], spec: EnvSpec) -> dict[str, Any]:
    """What `worker.rows_in` and a worker have to know."""
    action = {"action": said["shape"], "dtype": said["dtype"]}
    sizes = {"observation": spec.observation_size, "costs": len(spec.constraints)}
    return {**action, **sizes, "horizon": spec.horizon}


@lru_cache
def _threads_of_blas() -> ThreadpoolController:
    return ThreadpoolController()


def _one_thread() -> Any:
    """NumPy multiplies matrices with one thread meanwhile, as in a worker: with several the last digits may differ."""
    told = "OPENBLAS_NUM_THREADS" in os.environ or "MKL_NUM_THREADS" in os.environ  # so are the workers
    return contextlib.nullcontext() if told else _threads_of_blas().limit(limits=1, user_api="blas")


class _Here:
    """Environments in this process, one group at a time."""

    def __init__(self, copies: worker.Copies, lock: threading.Lock) -> None:
        self._copies, self._lock = copies, lock

    def reset(self, seed: int) -> None:
        with self._lock, in_words():
            self._copies.reset(seed)

    def step(self) -> None:
        with self._lock, in_words():
            self._copies.step()

    def play(self, over: Callable[[], bool], actor: Actor, *play: Any) -> dict[str, np.ndarray]:
        def alive() -> None:
            if over():
                raise CorralError("nobody wants these episodes any more")

        with self._lock, in_words(), _one_thread():
            return self._copies.play(actor, alive, *play)

    def interrupt(self) -> None:
        return None

    def close(self) -> None:
        self._copies.close()


class _Away:
    """Environments in workers."""

    def __init__(self, crew: Crew | RayCrew, group: int) -> None:
        self._crew, self._group = crew, group

    def reset(self, seed: int) -> None:
        self._crew.reset(self._group, seed)

    def step(self) -> None:
        self._crew.step(self._group)

    def play(self, over: Callable[[], bool], actor: Actor, *play: Any) -> dict[str, np.ndarray]:
        return self._crew.play(self._group, actor, *play)

    def interrupt(self) -> None:
        self._crew.interrupt()

    def close(self) -> None:
        self._crew.close()


class _GymnasiumHost(HostEnv):
    """One group of copies: writes actions into its rows, has them stepped, and reads what came of it."""

    def __init__(self, spec: EnvSpec, rows: worker.Rows, stepper: _Here | _Away) -> None:
        self.spec, self.num_envs = spec, len(rows.reward)
        self._rows, self._stepper = rows, stepper

    def reset(self, seed: int) -> np.ndarray:
        self._stepper.reset(seed)
        return self._rows.obs.copy()

    def step(self, actions: np.ndarray, active: np.ndarray | None = None, restart: bool = True) -> HostStep:
        rows = self._rows
        rows.actions[:] = self.spec.action.outside(np.asarray(actions))
        rows.active[:] = True if active is None else active
        self._stepper.step()
        return HostStep(
            rows.obs.copy(),
            rows.reward.copy(),
            rows.costs.copy(),
            rows.terminated.copy(),
            rows.truncated.copy(),
            rows.final_obs.copy(),
            broken=np.zeros(self.num_envs, bool),
        )

    def play(
        self, actor: Actor, episodes: int, seed: int, chance: list[int] | None, over: Callable[[], bool]
    ) -> Played:
        n = self.num_envs
        each = [episodes // n + (i < episodes % n) for i in range(n)]
        return Played(**self._stepper.play(over, actor, seed, chance, each))

    def interrupt(self) -> None:
        self._stepper.interrupt()

    def close(self) -> None:
        self._stepper.close()


@contextlib.contextmanager
def in_words() -> Iterator[None]:
    """Troubles of environments as errors of Corral."""
    try:
        yield
    except worker.Trouble as trouble:
        raise CorralError(str(trouble)) from trouble.__cause__

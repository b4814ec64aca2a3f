"""Samplers for environments and for configurations: the one place that asks which kind an environment is."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from corral import devices, envs
from corral.config import Config, RunOptions
from corral.envs.contract import ConstraintSpec, Env, HostEnv
from corral.envs.gymnasium.wrap import Cost, Unsendable, groups_from_gymnasium
from corral.errors import require
from corral.rollout import processes
from corral.rollout.device import DeviceSampler
from corral.rollout.host import HostSampler
from corral.rollout.sampler import Sampler


def sampler(env: Env | HostEnv | Sampler) -> Sampler:
    """The sampler of an environment: on the device for functional ones, on the host for the others."""
    if isinstance(env, Sampler):
        return env
    return DeviceSampler(env) if isinstance(env, Env) else HostSampler([env])


def from_config(config: Config, how: RunOptions | None = None) -> Sampler:
    """The sampler of a configuration: on the device for the Point and where there is an accelerator, else on threads.

    `how` has the threads, the workers and the Python of the environment. A Gymnasium id brings the constraints that the
    configuration has limits for, on costs that it reports.
    """
    require_given(config)
    how, task = how or RunOptions(), dict[str, Any](config.task)
    if envs.is_gymnasium(config.env):
        return of_gymnasium(config.env, config, how=how)
    require(
        how.workers != "ray", f"workers on Ray are for Gymnasium's environments, and {config.env} is one of Corral's"
    )
    require(how.env_python is None, f"env_python is for Gymnasium's environments, and {config.env} is one of Corral's")
    if config.env.startswith("point-") or jax.default_backend() != "cpu":
        return DeviceSampler(envs.make(config.env, **task))
    # Twice the episodes that fill a batch if none ends early, so that most batches are one round of episodes.
    slots = max(2, min(512, 2 * config.batch_size // envs.spec(config.env, **task).horizon))
    lanes = processes.lanes()
    made = [envs.make_host(config.env, size, 1, **task) for size in lanes.sizes(max(slots, lanes.total))]
    return HostSampler(made, how.threads or devices.cores(), lanes)


def of_gymnasium(
    env: str | Callable[[], Any], config: Config, costs: Sequence[Cost] | None = None, *, how: RunOptions
) -> Sampler:
    """The sampler of a Gymnasium id, or of a function that makes an environment, in two groups of copies.

    The workers step one group while the policy is asked for the other. The number of workers changes no result.
    """
    parameters: dict[str, Any] | None = None
    if isinstance(env, str):
        # Numbers of a configuration are floats; a parameter that counts something must be whole.
        parameters = {name: int(value) if float(value).is_integer() else value for name, value in config.task.items()}
    lanes = processes.lanes()
    sizes = lanes.sizes(max(gymnasium_slots(config, config.horizon), lanes.total))
    workers = some_workers(sum(sizes)) if how.workers is None else how.workers
    given = (env, sizes, gymnasium_constraints(config), costs, config.horizon, parameters)
    try:
        return HostSampler(groups_from_gymnasium(*given, workers, how.env_python), lanes=lanes)
    except Unsendable:
        if how.workers is not None:
            raise
        return HostSampler(groups_from_gymnasium(*given), lanes=lanes)


def some_workers(slots: int) -> int:
    """How many processes step so many copies where nobody says: one per core with at least two copies, 0 for only one."""
    workers = min(devices.cores(), slots // 2)
    return workers if workers > 1 else 0


def require_given(config: Config, given: Sequence[str] = ()) -> None:
    """Require that Python has given all that a run had from Python: env, costs, net."""
    missing = [name for name in config.from_python if name not in given]
    words = {"env": "env=… (its environment)", "costs": "constraints=… (with its cost functions)", "net": "net=…"}
    arguments = ", ".join(words[name] for name in missing)
    require(
        not missing,
        f"{' and '.join(missing)} of this run of {config.env} came from Python, and no file can hold them: in Python, give "
        f"{arguments} to corral.resume(FOLDER, …), corral.evaluate(FOLDER, …) or corral.Result.load(FOLDER, …)",
    )


def gymnasium_constraints(config: Config) -> list[ConstraintSpec]:
    """The constraints of a Gymnasium environment: those that the configuration has limits for."""
    if isinstance(config.limit, tuple):
        require(
            len(config.limit) <= 1,
            f"limit may be one number for {config.env}, that of the cost in its info, got {len(config.limit)}; "
            "name several constraints: --limit torque=10 collision=2",
        )
    named = config.limit if isinstance(config.limit, dict) else dict(zip(["cost"], config.limit, strict=False))
    discount, most = config.discount, config.largest_step
    return [
        ConstraintSpec(name, float(limit), discount=discount.get(name), largest_step=most.get(name))
        for name, limit in named.items()
    ]


def gymnasium_slots(config: Config, horizon: int | None = None) -> int:
    """How many copies of a Gymnasium environment to step side by side."""
    return max(2, min(16, config.batch_size // (horizon or 1000)))

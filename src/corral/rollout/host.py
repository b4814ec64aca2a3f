"""Rollouts of host environments: the simulator's threads step the robots, one jitted call a step draws all actions."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Key

from corral import nets
from corral.envs.base import HostEnv
from corral.errors import CorralError
from corral.estimate import Batch
from corral.nets import Policy


@eqx.filter_jit
def _act(policy: Policy, obs: Any, key: Key[Array, ""], step: Any, deterministic: bool) -> Array:
    z = policy(obs)
    return nets.mode(z) if deterministic else nets.sample(z, jax.random.fold_in(key, step))


def collect(
    env: HostEnv,
    policy: Policy,
    key: Key[Array, ""],
    episodes: int,
    rows: int = 0,
    deterministic: bool = False,
) -> Batch:
    """`episodes` fresh episodes under the policy, each to its end, padded to a multiple of `rows` rows (if given).

    A slot whose episode ends takes the next one that has not been started, and rests when there is none left.
    """
    spec, n = env.spec, env.num_envs
    seed = int(jax.random.randint(jax.random.fold_in(key, 0), (), 0, np.iinfo(np.int32).max))
    play = jax.random.fold_in(key, 1)
    obs = env.reset(seed)
    active = np.arange(n) < episodes
    started = int(active.sum())
    age = np.zeros(n, np.int32)
    limit = spec.horizon * -(-episodes // n) + spec.horizon
    log: list[tuple[np.ndarray, ...]] = []
    for step in range(limit):
        action = np.asarray(_act(policy, obs, play, np.int32(step), deterministic))
        out = env.step(action, active)
        ended = active & (out.terminated | out.truncated)
        log.append(
            (
                obs,
                action,
                out.reward,
                out.costs,
                age.copy(),
                active,
                ended,
                out.truncated,
                out.broken,
                out.final_obs,
            )
        )
        _refuse_endless(spec.name, age, active & ~ended, spec.horizon)
        age = np.where(ended, 0, age + 1).astype(np.int32)
        # Give out the episodes that are left, slot by slot; the others that ended rest.
        takes = ended & (np.cumsum(ended) <= episodes - started)
        started += int(takes.sum())
        active = active & (~ended | takes)
        obs = out.obs
        if not active.any():
            return _batch(log, episodes, rows)
    raise CorralError(f"{spec.name}: {int(active.sum())} episodes had not ended after {limit} steps")


def _refuse_endless(name: str, age: np.ndarray, running: np.ndarray, horizon: int) -> None:
    if np.any(running & (age + 1 >= horizon)):
        raise CorralError(
            f"{name}: an episode went on past its horizon of {horizon} steps; the environment must end it "
            "(terminated or truncated), or declare a longer horizon"
        )


def _batch(log: list[tuple[np.ndarray, ...]], episodes: int, rows: int) -> Batch:
    """Rows slot after slot: each slot's steps are consecutive, so its episodes come out whole and one after the other."""
    columns = [np.swapaxes(np.stack(column), 0, 1) for column in zip(*log, strict=True)]
    used = columns[5]
    obs, action, reward, costs, t, _, last, truncated, broken, final_obs = (
        column[used] for column in columns
    )
    size = len(reward)
    capacity = -(-size // rows) * rows if rows else size

    def padded(x: np.ndarray) -> Any:
        return (
            np.concatenate([x, np.zeros((capacity - size, *x.shape[1:]), x.dtype)]) if capacity > size else x
        )

    # Rows of padding belong to the last episode, as episodes must be in order; they are not valid.
    episode = np.minimum(np.cumsum(np.concatenate([[0], last[:-1]])), episodes - 1).astype(np.int32)
    made: Any = Batch  # NumPy arrays: JAX takes them over when the update is called
    whole: Batch = made(
        obs=padded(obs),
        action=padded(action),
        reward=padded(reward),
        costs=padded(costs),
        t=padded(t),
        episode=np.concatenate([episode, np.full(capacity - size, episodes - 1, np.int32)]),
        last=padded(last),
        valid=padded(np.ones(size, bool)),
        final_obs=final_obs[last],
        truncated=truncated[last],
        present=np.ones(episodes, bool),
        broken=np.int32(np.sum(broken[last])),
    )
    return whole

"""Rollouts of functional environments: all episodes side by side, one scan over time, nothing leaves the device."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Key

from corral import nets
from corral.devices import ROWS
from corral.envs.base import Env, select
from corral.estimate import Batch
from corral.nets import Policy


@partial(jax.named_call, name="rollout")
def collect(
    env: Env,
    policy: Policy,
    key: Key[Array, ""],
    episodes: int,
    deterministic: bool = False,
    mesh: Mesh | None = None,
) -> Batch:
    """`episodes` fresh episodes under the policy, each to its end, as a batch of episodes × horizon rows.

    A robot whose episode is over stays where it is until the slowest is done; its rows are not valid. With a mesh of
    devices, each simulates a share of the episodes.
    """
    horizon = env.spec.horizon
    start, play = jax.random.split(key)
    move = _on_each(mesh, jax.vmap(env.step))
    states, obs = _on_each(mesh, jax.vmap(env.reset))(jax.random.split(start, episodes))

    def step(carry: tuple[Any, Array, Array], key: Array) -> tuple[tuple[Any, Array, Array], Any]:
        states, obs, alive = carry
        z = policy(obs)
        action = nets.mode(z) if deterministic else nets.sample(z, key)
        moved, out = move(states, action)
        ended = out.terminated | out.truncated
        broken = jnp.broadcast_to(jnp.asarray(out.broken), ended.shape)
        row = (
            obs,
            action,
            out.reward,
            out.costs,
            alive,
            alive & ended,
            alive & out.truncated,
            alive & broken,
        )
        states = jax.tree.map(lambda new, old: select(alive, new, old), moved, states)
        obs = jnp.where(alive[:, None], out.obs, obs)
        return (states, obs, alive & ~ended), row

    alive = jnp.ones(episodes, bool)
    (_, final_obs, unfinished), rows = lax.scan(step, (states, obs, alive), jax.random.split(play, horizon))
    # Episodes one after the other: (horizon, episodes, …) → (episodes · horizon, …).
    flat = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]), rows)
    observed, action, reward, costs, valid, last, truncated, broken = flat
    t = jnp.tile(jnp.arange(horizon), episodes)
    # An episode that never says it ended is over at the horizon all the same.
    last |= valid & (t == horizon - 1)
    return Batch(
        obs=observed,
        action=action,
        reward=jnp.where(valid, reward, 0),
        costs=jnp.where(valid[:, None], costs, 0),
        t=t,
        episode=jnp.repeat(jnp.arange(episodes), horizon),
        last=last,
        valid=valid,
        final_obs=final_obs,
        truncated=jnp.any(truncated.reshape(episodes, horizon), axis=1) | unfinished,
        present=jnp.ones(episodes, bool),
        broken=jnp.sum(broken, dtype=jnp.int32),
    )


def _on_each(mesh: Mesh | None, simulate: Callable[..., Any]) -> Callable[..., Any]:
    """A function of many robots, run by each device on its own: a simulator's kernels cannot be partitioned from outside."""
    if mesh is None:
        return simulate
    return jax.shard_map(
        simulate, mesh=mesh, in_specs=PartitionSpec(ROWS), out_specs=PartitionSpec(ROWS), check_vma=False
    )


collect_jit = eqx.filter_jit(collect)

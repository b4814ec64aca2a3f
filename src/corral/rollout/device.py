"""Rollouts of functional environments: all episodes of all runs side by side, nothing leaves the device."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Int, Key

from corral import nets
from corral.devices import ROWS
from corral.envs.base import Env, select
from corral.estimate import Batch
from corral.nets import Policy

# After so many steps at most it is asked whether any episode is still going on. On a GPU every asking waits for the device.
_STRETCH = 100


@partial(jax.named_call, name="rollout")
def collect(
    env: Env,
    policies: Policy,
    keys: Key[Array, " runs"],
    episodes: int,
    rows: int | None = None,
    deterministic: bool = False,
    mesh: Mesh | None = None,
    played: Int[Array, " runs"] | None = None,
    room: int = 0,
) -> Batch:
    """For each run `episodes` fresh episodes under its policy, each to its end; every array has a leading axis of runs.

    Of these only the first `played` (None: all) are made, the others are absent. A robot whose episode is over stays
    where it is until the slowest is done. Its rows are not valid; where most are not, a batch is squeezed into `rows` rows.
    With a mesh of devices, each simulates a share of the episodes. What there is one of per episode is padded to `room`.
    """
    horizon = env.spec.horizon
    stretches = -(-horizon // _STRETCH)
    length = -(-horizon // stretches)
    start, play = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    begin, move = (_on_each(mesh, jax.vmap(jax.vmap(f))) for f in (env.reset, env.step))
    states, obs = begin(jax.vmap(lambda key: jax.random.split(key, episodes))(start))
    drawn = jax.vmap(lambda key: jax.random.split(key, stretches * length), out_axes=1)(play)

    def step(carry: _Carry, now: tuple[Array, Array]) -> tuple[_Carry, _Rows]:
        states, obs, alive = carry
        t, keys = now
        z = jax.vmap(lambda policy, obs: policy(obs))(policies, obs)
        action = nets.mode(z) if deterministic else jax.vmap(nets.sample)(z, keys)
        moved, out = move(states, action)
        # An episode that never says it ended is over at the horizon all the same.
        truncated = out.truncated | ((t == horizon - 1) & ~out.terminated)
        ended = out.terminated | truncated
        broken = jnp.broadcast_to(jnp.asarray(out.broken), ended.shape)
        seen = (alive, alive & ended, alive & truncated, alive & broken)
        row = (obs, action, out.reward, out.costs, *seen)
        states = jax.vmap(select)(alive, moved, states)
        obs = jnp.where(alive[..., None], out.obs, obs)
        return (states, obs, alive & ~ended), row

    present = jnp.ones((len(keys), episodes), bool)
    if played is not None:
        present = jnp.arange(episodes) < played[:, None]
    steps = jax.tree.map(
        lambda x: x.reshape(stretches, length, *x.shape[1:]), (jnp.arange(stretches * length), drawn)
    )
    (_, final_obs, _), seen = _until_all_ended(step, (states, obs, present), steps)
    # Episodes one after the other: (time, runs, episodes, …) → (runs, episodes · time, …).
    observed, action, reward, costs, valid, last, truncated, broken = jax.tree.map(
        lambda x: jnp.moveaxis(x, 0, 2).reshape(len(keys), -1, *x.shape[3:]), seen
    )
    time = stretches * length
    each_run = partial(jnp.broadcast_to, shape=valid.shape)
    batch = Batch(
        obs=observed,
        action=action,
        reward=jnp.where(valid, reward, 0),
        costs=jnp.where(valid[..., None], costs, 0),
        t=each_run(jnp.tile(jnp.arange(time), episodes)),
        episode=each_run(jnp.repeat(jnp.arange(episodes), time)),
        last=last,
        valid=valid,
        final_obs=final_obs,
        truncated=jnp.any(truncated.reshape(-1, episodes, time), axis=2),
        present=present,
        broken=jnp.sum(broken, axis=1, dtype=jnp.int32),
    )
    if rows is not None and rows <= 0.8 * episodes * time:
        batch = jax.vmap(lambda one: squeezed(one, rows))(batch)
    more = max(room - episodes, 0)
    final_obs, truncated, present = (
        jnp.pad(x, [(0, 0), (0, more)] + [(0, 0)] * (x.ndim - 2))
        for x in (batch.final_obs, batch.truncated, batch.present)
    )
    return batch._replace(final_obs=final_obs, truncated=truncated, present=present)


_Carry = tuple[Any, Array, Array]
_Rows = tuple[Array, ...]


def _until_all_ended(
    step: Callable[[_Carry, Any], tuple[_Carry, _Rows]], carry: _Carry, steps: Any
) -> tuple[_Carry, _Rows]:
    """A scan of `step` over stretches of time that ends with the last episode; rows after that are zeros."""
    first = jax.tree.map(lambda x: x[0], steps)
    stretches = jax.tree.leaves(steps)[0].shape[0]
    if stretches == 1:
        return lax.scan(step, carry, first)
    shapes = jax.eval_shape(lambda: lax.scan(step, carry, first)[1])
    blank = jax.tree.map(lambda s: jnp.zeros((stretches, *s.shape), s.dtype), shapes)

    def stretch(now: tuple[Array, _Carry, _Rows]) -> tuple[Array, _Carry, _Rows]:
        i, carry, seen = now
        carry, rows = lax.scan(step, carry, jax.tree.map(lambda x: x[i], steps))
        return i + 1, carry, jax.tree.map(lambda whole, part: whole.at[i].set(part), seen, rows)

    _, carry, seen = lax.while_loop(
        lambda now: (now[0] < stretches) & jnp.any(now[1][2]), stretch, (jnp.int32(0), carry, blank)
    )
    return carry, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), seen)


def squeezed(batch: Batch, rows: int) -> Batch:
    """The valid rows of one run's batch in front, in `rows` rows. Episodes that do not fit whole, the last ones, are absent.

    There is room for a quarter more than is asked for, so that hardly ever happens.
    """
    lengths = jax.ops.segment_sum(batch.valid.astype(jnp.int32), batch.episode, len(batch.present))
    present = jnp.cumsum(lengths) <= rows
    (index,) = jnp.nonzero(batch.valid, size=rows, fill_value=len(batch.valid) - 1)
    valid = (jnp.arange(rows) < jnp.sum(batch.valid)) & present[batch.episode[index]]
    return Batch(
        obs=batch.obs[index],
        action=batch.action[index],
        reward=jnp.where(valid, batch.reward[index], 0),
        costs=jnp.where(valid[:, None], batch.costs[index], 0),
        t=batch.t[index],
        episode=batch.episode[index],
        last=batch.last[index] & valid,
        valid=valid,
        final_obs=batch.final_obs,
        truncated=batch.truncated,
        present=batch.present & present,
        broken=batch.broken,
    )


def _on_each(mesh: Mesh | None, simulate: Callable[..., Any]) -> Callable[..., Any]:
    """A function of many robots (runs, episodes), run by each device on its own episodes.

    A simulator's kernels cannot be partitioned from outside.
    """
    if mesh is None:
        return simulate
    spread = PartitionSpec(None, ROWS)
    return jax.shard_map(simulate, mesh=mesh, in_specs=spread, out_specs=spread, check_vma=False)


@eqx.filter_jit
def collect_one(
    env: Env, policy: Policy, key: Key[Array, ""], episodes: int, deterministic: bool = False
) -> Batch:
    """`collect` for a single policy, without the axis of runs."""
    lead, drop = (lambda x: x[None]), (lambda x: x[0])
    batch = collect(env, jax.tree.map(lead, policy), key[None], episodes, deterministic=deterministic)
    one: Batch = jax.tree.map(drop, batch)
    return one

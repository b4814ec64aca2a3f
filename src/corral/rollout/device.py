"""Rollouts of functional environments: the robots of all runs move side by side, and nothing leaves the device."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key

from corral import devices
from corral.devices import ROWS
from corral.envs.contract import Env, Timestep, select
from corral.learning import distributions
from corral.learning.estimate import Batch
from corral.learning.networks import Policy
from corral.rollout import sampler, shapes
from corral.rollout.sampler import Order, Sampler
from corral.rollout.shapes import Plan

# Steps between two questions whether any episode is still going on; on a GPU each question waits for the device.
_STRETCH = 100

_FIRST_LOOK = 256
"""Episodes of `DeviceSampler.first_look`."""


class DeviceSampler(Sampler):
    """Samples a functional environment with one compiled program for all runs."""

    def __init__(self, env: Env) -> None:
        self.env, self.spec = env, env.spec
        self._mesh = devices.mesh()
        self._shares = 1 if self._mesh is None else self._mesh.size

        def run(policies: Any, seeds: Any, iteration: Any, played: Any, plan: Plan) -> Batch:
            drawn, _ = sampler.keys(seeds, iteration)
            joined: Policy = jax.tree.map(lambda *xs: jnp.concatenate(xs), *policies)
            batch = collect(env, joined, drawn, plan.robots, plan.rows, mesh=self._mesh, played=played, room=plan.room)
            return sampler.spread(batch, self._mesh, jax.lax.with_sharding_constraint)

        self._run = devices.jit(run, static_argnames="plan")

    def plan(self, counts: np.ndarray, batch_size: int, before: Plan | None) -> Plan:
        """As the contract says."""
        return shapes.plan(counts, batch_size, self.spec.horizon, _rows(batch_size), before, self._mesh)

    def after(self, plan: Plan, batch_size: int, steps: int) -> Plan:
        """As the contract says: with rows for as many steps, but no more than it takes."""
        return plan._replace(rows=shapes.holding(_rows(batch_size), steps, self._shares))

    def shapes(self, order: Order) -> Batch:
        """As the contract says."""
        given = _arguments(order)
        self._run.lower(*given, plan=order.plan).compile()
        found: Batch = self._run.eval_shape(*given, plan=order.plan)
        return found

    def collect(self, order: Order) -> Batch:
        """As the contract says. A batch that outgrows the rows of its plan is sampled again, with more of them.

        The keys are the same and so are the episodes. To drop those that do not fit would bias the means: they are the
        longest, and often the costliest.
        """
        plan, given = order.plan, _arguments(order)
        while True:
            batch: Batch = self._run(*given, plan=plan)
            if np.array_equal(np.asarray(batch.present).sum(axis=1), given[-1]):
                return batch
            plan = plan._replace(rows=shapes.holding(plan.rows, plan.rows + 1, self._shares))

    def episodes(self, policy: Policy, key: Key[Array, ""], count: int, deterministic: bool = False) -> Batch:
        """As the contract says."""
        arrays, rest = eqx.partition(self.env, eqx.is_array)
        batch: Batch = _one_policy()(arrays, policy, key, rest, count, deterministic)
        return batch

    def first_look(self, policy: Policy, batch_size: int) -> Batch:
        """As the contract says."""
        return self.episodes(policy, jax.random.key(0), _FIRST_LOOK)


def _rows(batch_size: int) -> int:
    """The rows to begin with: room for a quarter more than is asked for."""
    return batch_size * 5 // 4


def _arguments(order: Order) -> tuple[Any, ...]:
    """The arrays that the program for an order is called with."""
    return order.policies, order.seeds, np.uint32(order.iteration), order.plan.in_rounds(order.counts)


@partial(jax.named_call, name="rollout")
def collect(
    env: Env,
    policies: Policy,
    keys: Key[Array, " runs"],
    robots: int,
    rows: int | None = None,
    deterministic: bool = False,
    mesh: Mesh | None = None,
    played: Int[Array, " runs"] | None = None,
    room: int = 0,
) -> Batch:
    """For each run fresh episodes under its policy, each to its end; every array has a leading axis of runs.

    Every robot plays one episode, then stays where it is until the slowest is done. Where there is `room` for more episodes
    than robots, it plays again while any are left, and the batch is squeezed into `rows` rows. Only the first `played`
    episodes (None: all) are made; the others are absent. Where every robot plays once, a batch is squeezed only if most of
    its rows would not be valid. With a mesh of devices, each simulates a share of the robots.
    """
    horizon, runs = env.spec.horizon, len(keys)
    env = env.beside(-(-runs * robots // (1 if mesh is None else mesh.size)))
    start, play = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    begin, move = (_on_each(mesh, jax.vmap(jax.vmap(f))) for f in (env.reset, env.step))

    def act(states: Any, obs: Array, t: Array, keys: Array) -> tuple[Array, Any, Timestep]:
        z = jax.vmap(lambda policy, obs: policy(obs))(policies, obs)
        action = distributions.mode(z) if deterministic else jax.vmap(distributions.sample)(z, keys)
        moved, out = move(states, action)
        # An episode that never says it ended is over at the horizon all the same.
        truncated = (out.truncated | (t == horizon - 1)) & ~out.terminated
        broken = jnp.broadcast_to(jnp.asarray(out.broken), truncated.shape)
        return action, moved, out._replace(truncated=truncated, broken=broken)

    most = max(room, robots)
    played = jnp.full(runs, most) if played is None else jnp.minimum(played, most)
    if room > robots:
        assert rows is not None, "with more episodes than robots a batch is squeezed: say into how many rows"
        return _in_turns(act, begin, start, play, robots, rows, horizon, played, room)

    def step(carry: _Carry, now: tuple[Array, Array]) -> tuple[_Carry, _Rows]:
        states, obs, alive = carry
        action, moved, out = act(states, obs, *now)
        ended = out.terminated | out.truncated
        seen = (alive, alive & ended, alive & out.truncated, alive & out.broken)
        row = (obs, action, out.reward, out.costs, *seen)
        states = jax.vmap(select)(alive, moved, states)
        obs = jnp.where(alive[..., None], out.obs, obs)
        return (states, obs, alive & ~ended), row

    present = jnp.arange(robots) < played[:, None]
    states, obs = begin(jax.vmap(lambda key: jax.random.split(key, robots))(start))
    (_, final_obs, _), seen = _until_all_ended(
        step, (states, obs, present), lambda carry: carry[2], play, *_stretches(horizon, horizon)
    )
    *values, valid, last, truncated, broken = _by_robot(seen)
    time = valid.shape[1] // robots
    each_run = partial(jnp.broadcast_to, shape=valid.shape)
    batch = _batch(
        values,
        t=each_run(jnp.tile(jnp.arange(time), robots)),
        episode=each_run(jnp.repeat(jnp.arange(robots), time)),
        last=last,
        valid=valid,
        final_obs=final_obs,
        truncated=jnp.any(truncated.reshape(runs, robots, time), axis=2),
        present=present,
        broken=broken,
    )
    if rows is not None and rows <= 0.8 * robots * time:
        batch = jax.vmap(lambda one: squeezed(one, rows))(batch)
    return batch


_Carry = tuple[Any, Array, Array]
_Rows = tuple[Array, ...]


class _Turn(NamedTuple):
    """Robots that play again, each with the number of its episode; one with a number of `played` or more rests."""

    states: Any
    obs: Float[Array, "runs robots o"]
    t: Int[Array, "runs robots"]
    number: Int[Array, "runs robots"]
    begun: Int[Array, " runs"]
    final_obs: Float[Array, "runs room o"]
    truncated: Bool[Array, "runs room"]


def _in_turns(
    act: Callable[..., tuple[Array, Any, Timestep]],
    begin: Callable[..., Any],
    start: Key[Array, " runs"],
    play: Key[Array, " runs"],
    robots: int,
    rows: int,
    horizon: int,
    played: Int[Array, " runs"],
    room: int,
) -> Batch:
    """`collect` with fewer robots than episodes: a robot whose episode is over takes the next one."""
    runs, turns = len(start), -(-room // robots)
    keys = jax.vmap(lambda key: jax.random.split(key, turns * robots))(start)
    # Begun `robots` at a time: a simulator may not have room for more than it steps.
    fresh = lax.map(begin, jnp.moveaxis(keys.reshape(runs, turns, robots), 1, 0))
    fresh = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(runs, turns * robots, *x.shape[3:]), fresh)
    # (runs, robots) of what there is (runs, episodes, …) of
    of = jax.vmap(lambda numbers, x: jax.tree.map(lambda x: x[numbers], x))

    def step(now: _Turn, drawn: tuple[Array, Array]) -> tuple[_Turn, _Rows]:
        alive = now.number < played[:, None]
        action, moved, out = act(now.states, now.obs, now.t, drawn[1])
        over = alive & (out.terminated | out.truncated)
        row = (now.obs, action, out.reward, out.costs, alive, over, alive & out.broken, now.t, now.number)
        ending = (jnp.arange(runs)[:, None], jnp.where(over, now.number, room))
        number = jnp.where(over, now.begun[:, None] + jnp.cumsum(over, axis=1) - 1, now.number)
        states, obs = of(jnp.minimum(number, turns * robots - 1), fresh)
        going = jax.vmap(select)(alive, (moved, out.obs), (now.states, now.obs))
        states, obs = jax.vmap(select)(over, (states, obs), going)
        after = _Turn(
            states,
            obs,
            t=jnp.where(over, 0, now.t + 1),
            number=number,
            begun=now.begun + jnp.sum(over, axis=1),
            final_obs=now.final_obs.at[ending].set(out.obs, mode="drop"),
            truncated=now.truncated.at[ending].set(out.truncated, mode="drop"),
        )
        return after, row

    numbers = jnp.broadcast_to(jnp.arange(robots), (runs, robots))
    states, obs = of(numbers, fresh)
    first = _Turn(
        states,
        obs,
        t=jnp.zeros_like(numbers),
        number=numbers,
        begun=jnp.full(runs, robots),
        final_obs=jnp.zeros((runs, room, obs.shape[-1]), obs.dtype),
        truncated=jnp.zeros((runs, room), bool),
    )
    # The last episode begins when all robots are at others, so, if the batch has rows for them all, after at most
    # rows / robots steps, and is over a horizon later.
    longest = horizon + -(-rows // robots)
    end, seen = _until_all_ended(
        step, first, lambda now: now.number < played[:, None], play, *_stretches(horizon, longest)
    )
    *values, valid, last, broken, t, number = _by_robot(seen)

    def one(
        values: list[Array],
        valid: Bool[Array, " n"],
        last: Bool[Array, " n"],
        t: Int[Array, " n"],
        number: Int[Array, " n"],
        broken: Bool[Array, " n"],
        end: _Turn,
    ) -> Batch:
        # Numbered anew, in the order of the rows.
        begins = valid & (t == 0)
        episode = jnp.maximum(jnp.cumsum(begins) - 1, 0)
        order = number[jnp.nonzero(begins, size=room, fill_value=0)[0]]
        present = jax.ops.segment_sum(last.astype(jnp.int32), episode, room) > 0
        batch = _batch(
            values,
            t=t,
            episode=episode,
            last=last,
            valid=valid,
            final_obs=end.final_obs[order],
            truncated=present & end.truncated[order],
            present=present,
            broken=broken,
        )
        return squeezed(batch, rows)

    return jax.vmap(one)(values, valid, last, t, number, broken, end)


def _by_robot(seen: _Rows) -> list[Array]:
    """The rows of the first robot, then those of the next: (time, runs, robots, …) → (runs, robots · time, …)."""
    return [jnp.moveaxis(x, 0, 2).reshape(x.shape[1], x.shape[2] * x.shape[0], *x.shape[3:]) for x in seen]


def _batch(
    values: list[Array],
    valid: Bool[Array, "*runs n"],
    broken: Bool[Array, "*runs n"],
    final_obs: Float[Array, "*runs e o"],
    truncated: Bool[Array, "*runs e"],
    **rest: Any,
) -> Batch:
    """A batch from its columns: zeros in rows that are not valid, and after episodes that were not truncated.

    A mask does not undo a NaN that an environment shows once an episode is over, since 0 · NaN = NaN.
    """
    obs, action, reward, costs = (_where(valid, x) for x in values)
    return Batch(
        obs=obs,
        action=action,
        reward=reward,
        costs=costs,
        valid=valid,
        final_obs=_where(truncated, final_obs),
        truncated=truncated,
        broken=jnp.sum(broken, axis=-1, dtype=jnp.int32),
        **rest,
    )


def _where(kept: Bool[Array, "*n"], x: Array) -> Array:
    """The entries of x (*n, …) that are kept, zeros in place of the others."""
    return jnp.where(kept.reshape(*kept.shape, *[1] * (x.ndim - kept.ndim)), x, 0)


def _stretches(horizon: int, longest: int) -> tuple[int, int]:
    """The number of stretches for `longest` steps, and their length: one ends at the horizon, as most batches do."""
    length = -(-horizon // -(-horizon // _STRETCH))
    return -(-longest // length), length


def _until_all_ended(
    step: Callable[[Any, Any], tuple[Any, _Rows]],
    carry: Any,
    alive: Callable[[Any], Bool[Array, "runs robots"]],
    play: Key[Array, " runs"],
    stretches: int,
    length: int,
) -> tuple[Any, _Rows]:
    """A scan of `step` over so many stretches of this length that ends with the last episode; rows after that are zeros."""
    drawn = jax.vmap(lambda key: jax.random.split(key, stretches * length), out_axes=1)(play)
    steps = jax.tree.map(lambda x: x.reshape(stretches, length, *x.shape[1:]), (jnp.arange(stretches * length), drawn))
    first = jax.tree.map(lambda x: x[0], steps)
    if stretches == 1:
        return lax.scan(step, carry, first)
    shapes = jax.eval_shape(lambda: lax.scan(step, carry, first)[1])
    blank = jax.tree.map(lambda s: jnp.zeros((stretches, *s.shape), s.dtype), shapes)

    def stretch(now: tuple[Array, Any, _Rows]) -> tuple[Array, Any, _Rows]:
        i, carry, seen = now
        carry, rows = lax.scan(step, carry, jax.tree.map(lambda x: x[i], steps))
        return i + 1, carry, jax.tree.map(lambda whole, part: whole.at[i].set(part), seen, rows)

    _, carry, seen = lax.while_loop(
        lambda now: (now[0] < stretches) & jnp.any(alive(now[1])), stretch, (jnp.int32(0), carry, blank)
    )
    return carry, jax.tree.map(lambda x: x.reshape(stretches * length, *x.shape[2:]), seen)


def squeezed(batch: Batch, rows: int) -> Batch:
    """The valid rows of one run's batch in front, in `rows` rows. Episodes that do not fit whole, the last ones, are
    absent.
    """
    lengths = jax.ops.segment_sum(batch.valid.astype(jnp.int32), batch.episode, len(batch.present))
    present = batch.present & (jnp.cumsum(lengths) <= rows)
    (index,) = jnp.nonzero(batch.valid, size=rows, fill_value=len(batch.valid) - 1)
    valid = (jnp.arange(rows) < jnp.sum(batch.valid)) & present[batch.episode[index]]
    return Batch(
        obs=_where(valid, batch.obs[index]),
        action=_where(valid, batch.action[index]),
        reward=_where(valid, batch.reward[index]),
        costs=_where(valid, batch.costs[index]),
        t=batch.t[index],
        episode=batch.episode[index],
        last=batch.last[index] & valid,
        valid=valid,
        final_obs=batch.final_obs,
        truncated=batch.truncated,
        present=present,
        broken=batch.broken,
    )


def _on_each(mesh: Mesh | None, simulate: Callable[..., Any]) -> Callable[..., Any]:
    """A function of many robots (runs, robots), run by each device on its own robots.

    A simulator's kernels cannot be partitioned from outside.
    """
    if mesh is None:
        return simulate
    spread = PartitionSpec(None, ROWS)
    return jax.shard_map(simulate, mesh=mesh, in_specs=spread, out_specs=spread, check_vma=False)


@cache  # not when this is imported: how it is compiled depends on the backend, which may not be chosen yet
def _one_policy() -> Any:
    """`collect` for a single policy, without the axis of runs, compiled."""

    def collected(arrays: Any, policy: Policy, key: Any, rest: Any, episodes: int, deterministic: bool) -> Any:
        env = eqx.combine(arrays, rest)
        lead, drop = (lambda x: x[None]), (lambda x: x[0])
        batch = collect(env, jax.tree.map(lead, policy), key[None], episodes, deterministic=deterministic)
        return jax.tree.map(drop, batch)

    return devices.jit(collected, static_argnames=("rest", "episodes", "deterministic"))

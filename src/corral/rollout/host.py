"""Rollouts of host environments: threads step the robots, and the policy is asked in a compiled call or in NumPy."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from corral import devices
from corral.envs.contract import EnvSpec, HostEnv, HostStep, Played, action_shape, asked
from corral.errors import CorralError, require
from corral.learning import distributions
from corral.learning.estimate import Batch
from corral.learning.networks import Policy
from corral.rollout import shapes as plans
from corral.rollout.plain import plain
from corral.rollout.processes import Lanes, exchange
from corral.rollout.sampler import Order, Sampler, keys, spread, take
from corral.rollout.shapes import Plan

_keys = jax.jit(keys)


class HostSampler(Sampler):
    """Samples host environments of one kind, lanes, each driven by a thread of its own.

    While one lane asks its policy for actions and judges its step, another simulates, so the cores are never idle. The
    number of lanes is part of the result (each has its own random numbers); the number of threads is not: a lane whose
    episodes are over leaves its threads to the others.
    """

    def __init__(self, envs: Sequence[HostEnv], threads: int | None = None, lanes: Lanes | None = None) -> None:
        """`threads` are shared out among the lanes; None leaves each those it has.

        `envs` are all lanes, or those that this process plays of `lanes`, where several processes train together.
        """
        require(len(envs) > 0, "envs must hold at least one environment")
        self.envs = tuple(envs)
        self._lanes = lanes or Lanes(len(envs), tuple(range(len(envs))))
        self.spec: EnvSpec = envs[0].spec
        self._mesh = devices.mesh()
        self._threads = threads
        self._lock = threading.Lock()
        self._over = threading.Event()
        """Set where a lane has failed: the others need not go on."""

    def plan(self, counts: np.ndarray, batch_size: int, before: Plan | None) -> Plan:
        """As the contract says."""
        return plans.plan(counts, batch_size, self.spec.horizon, batch_size * 9 // 8, before, self._mesh)

    def shapes(self, order: Order) -> Batch:
        """As the contract says; nothing has to be compiled."""
        return batch_shapes(self.spec, len(order.seeds), order.plan.rows, order.plan.room)

    def collect(self, order: Order) -> Batch:
        """As the contract says, one run after the other."""
        drawn, _ = _keys(order.seeds, np.uint32(order.iteration))
        # One copy on one device: a policy on all of them would act once on each.
        copies = jax.device_put(jax.device_get(order.policies), jax.local_devices()[0])
        each = [take(group, s) for group in copies for s in range(len(jax.tree.leaves(group)[0]))]
        played = np.minimum(order.counts, order.plan.room)
        batches = [
            self._play(policy, key, int(count), order.plan.rows, order.plan.room)
            for policy, key, count in zip(each, drawn, played, strict=True)
        ]
        return spread(stack(batches), self._mesh, jax.device_put)

    def episodes(self, policy: Policy, key: Key[Array, ""], count: int, deterministic: bool = False) -> Batch:
        """As the contract says."""
        return self._play(policy, key, count, deterministic=deterministic)

    def first_look(self, policy: Policy, batch_size: int) -> Batch:
        """As the contract says."""
        few = min(32, max(2, batch_size // self.spec.horizon))
        return self.episodes(jax.device_put(policy, jax.local_devices()[0]), jax.random.key(0), few)

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()

    def _play(
        self,
        policy: Policy,
        key: Key[Array, ""],
        episodes: int,
        rows: int = 0,
        room: int = 0,
        deterministic: bool = False,
    ) -> Batch:
        """Fresh episodes under one policy, each to its end.

        The batch is padded to a multiple of `rows` rows and to `room` episodes, if given, so that batches of different
        size have one shape. The share of each lane is fixed beforehand: first come, first served would depend on which
        thread is faster.
        """
        count, own = self._lanes
        shares = [episodes // count + (i < episodes % count) for i in range(count)]
        if len(own) == count:
            played = self._play_own(policy, key, shares, deterministic)
        else:
            try:
                mine: Any = self._play_own(policy, key, shares, deterministic)
            except Exception as error:
                mine = error
            played = exchange(self.spec, count, mine)
        return _batch(list(played.values()), episodes, rows, room)

    def _play_own(
        self, policy: Policy, key: Key[Array, ""], shares: Sequence[int], deterministic: bool
    ) -> dict[int, list[np.ndarray]]:
        """The columns of each lane of this process; `shares` are the episodes of all lanes."""
        envs = dict(zip(self._lanes.own, self.envs, strict=True))

        def play(i: int) -> list[np.ndarray]:
            try:
                return _play(envs[i], policy, jax.random.fold_in(key, i), shares[i], deterministic, self._over)
            except BaseException:
                self._over.set()
                raise
            finally:
                self._share_threads(running, over=i)

        numbers = [i for i in envs if shares[i]]
        running = set(numbers)
        self._share_threads(running)
        self._over.clear()
        with ThreadPoolExecutor(max(1, len(numbers))) as drivers:
            lanes = [drivers.submit(play, i) for i in numbers]
            try:
                wait(lanes, return_when=FIRST_EXCEPTION)
            except BaseException:  # Ctrl-C: the drivers must end before this thread can
                self._over.set()
                for env in self.envs:
                    env.interrupt()
                raise
        failures = [lane.exception() for lane in lanes]
        for failure in failures:
            if isinstance(failure, SystemExit):
                raise CorralError(f"{self.spec.name} asked Python to exit ({failure!r})") from failure
            if failure is not None and not isinstance(failure, _Dropped):
                raise failure
        return {i: lane.result() for i, lane in zip(numbers, lanes, strict=True)}

    def _share_threads(self, running: set[int], over: int | None = None) -> None:
        """Give all threads to the lanes of these numbers, less the one that is over."""
        with self._lock:
            running.difference_update(() if over is None else (over,))
            if self._threads is not None:
                for i in running:
                    self.envs[self._lanes.own.index(i)].use_threads(max(1, self._threads // len(running)))


class _Dropped(Exception):
    """A lane gave up because another has failed."""


# Noise is drawn for this many steps at once: as much work, but a call less in each.
_BLOCK = 64


def _noises(policy: Policy, obs: np.ndarray, key: Key[Array, ""]) -> Iterator[tuple[np.ndarray]]:
    """The noise for the actions of all slots, step after step."""
    for block in itertools.count():
        for row in np.asarray(_noise(policy, obs, key, np.int32(block))):
            yield (row,)


@jax.jit
def _noise(policy: Policy, obs: Any, key: Key[Array, ""], block: Any) -> Array:
    z = policy(obs)
    keys = jax.random.split(jax.random.fold_in(key, block), _BLOCK)
    return jax.vmap(lambda k: distributions.noise(z, k))(keys)


@dataclass(frozen=True)
class _Question:
    """A policy as a function of observations and its arrays: a call with arrays costs less than one with modules."""

    structure: Any
    """The policy without its arrays."""
    answer: Callable[..., Array]
    """`distributions.mode`, or `distributions.act` which also takes noise."""

    def __call__(self, obs: Any, arrays: list[Any], *noise: Any) -> Array:
        return self.answer(jax.tree.unflatten(self.structure, arrays)(obs), *noise)


def _play(
    env: HostEnv, policy: Policy, key: Key[Array, ""], episodes: int, deterministic: bool, over: threading.Event
) -> list[np.ndarray]:
    """The columns of a batch from one lane; `over` ends it early.

    A slot whose episode ends takes the next one that has not been started, and rests when there is none left.
    """
    spec, n = env.spec, env.num_envs
    seed = int(jax.random.randint(jax.random.fold_in(key, 0), (), 0, np.iinfo(np.int32).max))
    play = jax.random.fold_in(key, 1)
    quick = None if env.compiled else plain(policy, spec.action)
    if quick is not None:
        chance = None if deterministic else np.asarray(jax.random.key_data(play)).tolist()
        played = env.play(quick, episodes, seed, chance, over.is_set)
        if played is not None:
            return _columns_of(played)
    obs = env.reset(seed)
    active = np.arange(n) < episodes
    started = int(active.sum())
    age = np.zeros(n, np.int32)
    rounds = -(-episodes // n)
    limit = spec.horizon * rounds + spec.horizon + rounds  # some environments need a step to start an episode
    log: list[tuple[np.ndarray, ...]] = []
    arrays, structure = jax.tree.flatten(policy)
    ask = _Question(structure, distributions.mode if deterministic else distributions.act)
    noises: Iterator[tuple[Any, ...]] = itertools.repeat(()) if deterministic else _noises(policy, obs, play)

    def advance(action: np.ndarray) -> tuple[HostStep, np.ndarray]:
        """The outcome of the actions, and those that follow."""
        if quick is None:
            return env.step_and_ask(action, active, started < episodes, ask, arrays, *next(noises))
        out = env.step(action, active, started < episodes)
        return out, quick(out.obs, *next(noises))

    action = np.asarray(asked(ask, obs, arrays, *next(noises))) if quick is None else quick(obs, *next(noises))
    for _ in range(limit):
        if over.is_set():
            raise _Dropped
        out, following = advance(action)
        stepped = active if env.only_began is None else active & ~env.only_began
        ended = stepped & (out.terminated | out.truncated)
        log.append(
            (
                obs,
                action,
                out.reward,
                out.costs,
                age.copy(),
                stepped,
                ended,
                out.truncated & ~out.terminated,
                out.broken,
                out.final_obs,
            )
        )
        _refuse_endless(spec.name, age, stepped & ~ended, spec.horizon)
        age = np.where(ended, 0, age + stepped).astype(np.int32)
        # Give out the episodes that are left, slot by slot; the others that ended rest.
        takes = ended & (np.cumsum(ended) <= episodes - started)
        started += int(takes.sum())
        active = active & (~ended | takes)
        obs, action = out.obs, following
        if not active.any():
            return _columns(log)
    raise CorralError(f"{spec.name}: {int(active.sum())} episodes had not ended after {limit} steps")


def _refuse_endless(name: str, age: np.ndarray, running: np.ndarray, horizon: int) -> None:
    if np.any(running & (age + 1 >= horizon)):
        raise CorralError(
            f"{name}: an episode went on past its horizon of {horizon} steps; the environment must end it "
            "(terminated or truncated), or declare a longer horizon"
        )


def _columns(log: list[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    """Rows slot after slot: each slot's steps are consecutive, so its episodes come out whole and one after the other."""
    columns = [np.swapaxes(np.stack(column), 0, 1) for column in zip(*log, strict=True)]
    used, ended = columns[5], columns[6]
    # Only the last observation of an episode is ever needed.
    return [column[used] for column in columns[:-1]] + [columns[-1][used & ended]]


def _columns_of(played: Played) -> list[np.ndarray]:
    """The same of episodes that the environment has played by itself."""
    n, ends = len(played.reward), np.cumsum(played.length)
    age = np.arange(n) - np.repeat(ends - played.length, played.length)
    ended, cut = np.zeros(n, bool), np.zeros(n, bool)
    ended[ends - 1], cut[ends - 1] = True, played.truncated
    steps = [played.obs, played.action, played.reward, played.costs, age.astype(np.int32)]
    return [*steps, np.ones(n, bool), ended, cut, np.zeros(n, bool), played.final_obs]


def _batch(lanes: list[list[np.ndarray]], episodes: int, rows: int, room: int) -> Batch:
    """The lanes' episodes one after the other."""
    size = sum(len(columns[0]) for columns in lanes)
    capacity = -(-size // rows) * rows if rows else size
    room = max(room, episodes)

    def joined(parts: Sequence[np.ndarray], to: int) -> Any:
        """One after the other, and zeros up to this length."""
        whole = np.empty((to, *parts[0].shape[1:]), parts[0].dtype)
        used = sum(map(len, parts))
        np.concatenate(parts, out=whole[:used])
        whole[used:] = 0
        return whole

    *columns, final_obs = zip(*lanes, strict=True)
    obs, action, reward, costs, t, valid, last, truncated, broken = (joined(c, capacity) for c in columns)

    # Rows of padding belong to the last episode, as episodes must be in order; they are not valid.
    episode = np.minimum(np.cumsum(last, dtype=np.int32) - last, episodes - 1).astype(np.int32)
    cut = joined([truncated[last]], room)
    made: Any = Batch  # NumPy arrays: JAX takes them over when the update is called
    whole: Batch = made(
        obs=obs,
        action=action,
        reward=reward,
        costs=costs,
        t=t,
        episode=episode,
        last=last,
        valid=valid,
        final_obs=np.where(cut[:, None], joined(final_obs, room), np.float32(0)),
        truncated=cut,
        present=np.arange(room) < episodes,
        broken=np.int32(np.sum(broken[last])),
    )
    return whole


def batch_shapes(spec: EnvSpec, runs: int, rows: int, room: int) -> Batch:
    """The shapes of the batch that `stack` makes of several runs' batches of `rows` rows and `room` episodes."""

    def of(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct((runs, *shape), dtype)

    shape, kind = action_shape(spec.action)
    made: Any = Batch
    whole: Batch = made(
        obs=of(np.float32, rows, spec.observation_size),
        action=of(kind, rows, *shape),
        reward=of(np.float32, rows),
        costs=of(np.float32, rows, len(spec.constraints)),
        t=of(np.int32, rows),
        episode=of(np.int32, rows),
        last=of(bool, rows),
        valid=of(bool, rows),
        final_obs=of(np.float32, room, spec.observation_size),
        truncated=of(bool, room),
        present=of(bool, room),
        broken=of(np.int32),
    )
    return whole


def stack(batches: list[Batch]) -> Batch:
    """Batches of several runs as one, the shorter ones padded with rows that are not valid."""
    if len(batches) == 1:  # a view: nothing is copied
        single: Batch = jax.tree.map(lambda x: np.asarray(x)[None], batches[0])
        return single
    longest = max(len(b.reward) for b in batches)

    def fit(batch: Batch) -> Batch:
        missing = longest - len(batch.reward)
        if missing == 0:
            return batch

        def padded(rows: Any) -> Any:
            return np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])

        others = ("final_obs", "truncated", "present", "episode", "broken")
        rows: dict[str, Any] = {n: padded(x) for n, x in batch._asdict().items() if n not in others}
        rows["episode"] = np.concatenate([batch.episode, np.full(missing, len(batch.present) - 1, np.int32)])
        return batch._replace(**rows)

    stacked: Batch = jax.tree.map(lambda *xs: np.stack(xs), *map(fit, batches))
    return stacked

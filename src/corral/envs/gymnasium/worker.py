"""Steps copies of a Gymnasium environment, in the process that asks for it or in one of its own.

This file needs NumPy and Gymnasium, or Safety-Gymnasium, and nothing of Corral: as a script it runs under any Python from
3.8 on. `crew.py` starts it so, sends commands of 16 bytes through a pipe, and shares the arrays of a step with it (`Rows`).
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import pickle
import signal
import struct
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NoReturn


@contextmanager
def _hushed() -> Iterator[None]:
    """Nothing is printed meanwhile, not even by libraries."""
    before, nothing = [os.dup(1), os.dup(2)], os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nothing, number)
    try:
        yield
    finally:
        for number in (1, 2):
            os.dup2(before[number - 1], number)
        for file in (*before, nothing):
            os.close(file)


NO_GYMNASIUM = 3
"""The exit status where this Python lacks a package."""

try:
    with _hushed() if __name__ == "__main__" else nullcontext():  # packages that announce themselves
        import gymnasium
        import numpy as np
        from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, flatdim, flatten
except ImportError as error:
    if __name__ != "__main__":
        raise
    print(error, file=sys.stderr)
    sys.exit(NO_GYMNASIUM)

COMMAND = struct.Struct("<cBxxIq")
"""What is asked: one of the letters below, the group of slots, the bytes that follow, the seed."""
ATTACH, RESET, STEP, PLAY, LEAVE = b"a", b"r", b"s", b"p", b"l"
LENGTH = struct.Struct("<q")
DONE, TROUBLE = b".", b"!"
"""A reply is the first, for PLAY with what was played (`packed`), or the second with the length of a JSON text and that
text."""


LARGEST = float(np.finfo(np.float32).max)


class Trouble(Exception):
    """What an environment does wrong, in words for its user."""


class Rows:
    """The arrays of a step, one row for each slot; `sliced` are views of some of them."""

    NAMES = ("actions", "active", "obs", "final_obs", "reward", "costs", "terminated", "truncated")

    def __init__(self, **arrays: np.ndarray) -> None:
        (
            self.actions,
            self.active,
            self.obs,
            self.final_obs,
            self.reward,
            self.costs,
            self.terminated,
            self.truncated,
        ) = (arrays[name] for name in self.NAMES)

    def sliced(self, start: int, stop: int) -> Rows:
        """The rows from `start` to before `stop`, of the same memory."""
        return Rows(**{name: getattr(self, name)[start:stop] for name in self.NAMES})


def rows_in(memory: Any, offset: int, count: int, shape: dict[str, Any]) -> tuple[Rows | None, int]:
    """The arrays for `count` slots in a piece of memory from `offset` on, and where they end; no arrays without memory."""
    float32, truth = np.dtype(np.float32), np.dtype(np.bool_)
    seen = (float32, (shape["observation"],))
    number = (float32, ())
    kinds = {"actions": (np.dtype(shape["dtype"]), tuple(shape["action"])), "active": (truth, ())}
    kinds.update(obs=seen, final_obs=seen, reward=number, costs=(float32, (shape["costs"],)))
    kinds.update(terminated=(truth, ()), truncated=(truth, ()))
    found = {}
    for name in Rows.NAMES:
        dtype, each = kinds[name]
        size = count * int(np.prod(each, dtype=int))
        if memory is not None:
            found[name] = np.frombuffer(memory, dtype, size, offset).reshape((count, *each))
        offset += -(-size * dtype.itemsize // 64) * 64
    return (Rows(**found) if memory is not None else None), offset


def beats_in(memory: Any, workers: int) -> tuple[np.ndarray, int]:
    """The steps that each worker has played, which show that it is alive, at the start of a piece of memory; their end."""
    return np.frombuffer(memory, np.int64, workers), -(-8 * workers // 64) * 64


def packed(said: Any, arrays: dict[str, np.ndarray]) -> bytes:
    """What JSON can say and arrays, as bytes that any version of NumPy can read."""
    kinds = [[name, array.dtype.str, array.shape] for name, array in arrays.items()]
    head = json.dumps([said, kinds]).encode()
    return b"".join([LENGTH.pack(len(head)), head, *(array.tobytes() for array in arrays.values())])


def unpacked(read: Callable[[int], Any]) -> tuple[Any, dict[str, np.ndarray]]:
    """What `packed` was given; `read` hands out the next so many of its bytes."""
    said, kinds = json.loads(read(*LENGTH.unpack(read(LENGTH.size))).decode())
    arrays = {}
    for name, kind, shape in kinds:
        dtype, size = np.dtype(kind), int(np.prod(shape, dtype=int))
        arrays[name] = np.frombuffer(read(size * dtype.itemsize), dtype).reshape(shape)
    return said, arrays


# -- one environment ---------------------------------------------------------------------------------------------------


def make(given: Any, name: str, parameters: dict[str, Any]) -> Any:
    """Make an environment, given by its id `name` or Gymnasium's specification of it: Gymnasium's or Safety-Gymnasium's."""
    try:
        maker = gymnasium
        if isinstance(given, str):
            given = _specification(name)
        # Gymnasium has those of Safety-Gymnasium in its list too, but cannot make them: they return six values.
        if str(given.entry_point).startswith("safety_gymnasium"):
            maker, given = importlib.import_module("safety_gymnasium"), given.id
        return maker.make(given, **parameters)
    except Exception as error:
        raise Trouble("Gymnasium cannot make %s: %s" % (name, error or type(error).__name__)) from error


def _specification(name: str) -> Any:
    """What Gymnasium's list, or else Safety-Gymnasium's, says of an id, after importing the module before its colon."""
    module, _, bare = name.rpartition(":")
    if module:
        importlib.import_module(module)
    try:
        return gymnasium.spec(bare)
    except gymnasium.error.UnregisteredEnv as error:
        try:
            importlib.import_module("safety_gymnasium")
        except ImportError:
            hint = ". Safety-Gymnasium needs a Python of its own: `corral safety-gymnasium DIR` sets it up"
            raise Trouble(str(error) + (hint if bare.startswith("Safety") else "")) from error
        return gymnasium.spec(bare)


def describe(env: Any) -> dict[str, Any]:
    """Name, time limit and spaces of an environment, as JSON can say them."""
    stated = getattr(env, "spec", None)
    name = stated.id if stated else type(env).__name__
    for which in ("action_space", "observation_space"):
        if not isinstance(getattr(env, which, None), gymnasium.Space):
            message = "%s: its %s must be a space of Gymnasium's, got %s"
            raise Trouble(message % (name, which, _brief(getattr(env, which, None))))
    space = env.action_space
    return {
        "name": name,
        "max_episode_steps": getattr(stated, "max_episode_steps", None),
        "observation": flatdim(env.observation_space),
        "space": space_to_text(env.observation_space),
        "action": _described(space, bounds=True),
        "action_text": str(space),
        "dtype": np.dtype(getattr(space, "dtype", None) or np.int64).str,
        "shape": list(getattr(space, "shape", None) or ()),
    }


def space_to_text(space: Any) -> str | None:
    """What `flatten` has to know of a space, as JSON; None for plain vectors and for kinds that are not among those here."""
    if isinstance(space, Box) and len(space.shape) == 1:
        return None
    described = _described(space)
    return None if described is None else json.dumps(described)


def _described(space: Any, bounds: bool = False) -> list[Any] | None:
    """The name of a kind of space, and what it takes to make one; None for a kind that is not among these."""
    if isinstance(space, Box):
        ends = [space.low.ravel().tolist(), space.high.ravel().tolist()] if bounds else []
        return ["box", list(space.shape), space.dtype.name, *ends]
    if isinstance(space, Discrete):
        return ["discrete", int(space.n), int(space.start)]
    if isinstance(space, MultiBinary):
        return ["binary", list(space.shape)]
    if isinstance(space, MultiDiscrete):
        start = getattr(space, "start", np.zeros_like(space.nvec))
        return ["several", space.nvec.tolist(), start.tolist()]
    if isinstance(space, Tuple):
        parts = [_described(part) for part in space.spaces]
        return None if None in parts else ["tuple", parts]
    if isinstance(space, Dict):
        named = [(name, _described(part)) for name, part in space.spaces.items()]
        return None if any(part is None for _, part in named) else ["dict", named]
    return None


def flat(name: str, space: Any, obs: Any, size: int) -> np.ndarray:
    """An observation as (size,) numbers; `name` is that of the environment it came from."""
    try:
        plain = np.asarray(obs, space.dtype).ravel() if isinstance(space, Box) else flatten(space, obs)
        found = np.asarray(plain, np.float32)
    except (AttributeError, AssertionError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        message = "%s handed out an observation that is not of %s: %s"
        raise Trouble(message % (name, space, " ".join(str(error).split()))) from error
    if found.shape != (size,):
        message = "%s handed out an observation of %d numbers, and its observation_space has %d"
        raise Trouble(message % (name, found.size, size))
    return found


def five(name: str, values: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """The five values of a step; a sixth, the cost that Safety-Gymnasium returns third, goes into `info["cost"]`."""
    if isinstance(values, (tuple, list)) and len(values) == 5:
        obs, reward, terminated, truncated, info = values
    elif isinstance(values, (tuple, list)) and len(values) == 6:
        obs, reward, cost, terminated, truncated, info = values
        info = dict(info, cost=cost) if isinstance(info, dict) else info
    else:
        got = len(values) if isinstance(values, (tuple, list)) else type(values).__name__
        raise Trouble("%s: step must return five values, or six with the cost third, got %s" % (name, got))
    if not isinstance(info, dict):
        raise Trouble("%s: the last value of step must be a dict, got %s" % (name, type(info).__name__))
    return obs, reward, terminated, truncated, info


def number(name: str, what: str, value: Any) -> float:
    """The value as a float; an array of one number is accepted too."""
    try:
        return float(value if isinstance(value, float) else np.asarray(value, float).item())
    except (TypeError, ValueError, OverflowError):
        raise Trouble("%s: %s of a step must be a number, got %s" % (name, what, _brief(value))) from None


def flag(name: str, what: str, value: Any) -> bool:
    """The value as true or false; an array of one is accepted too."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    try:
        array = np.asarray(value)
        fits = array.size == 1 and array.dtype.kind in "biuf"
    except ValueError:  # lists of different lengths
        fits = False
    if not fits:
        raise Trouble("%s: %s of a step must be true or false, got %s" % (name, what, _brief(value)))
    return bool(array.item())


def _brief(value: Any) -> str:
    """`repr(value)` in one line: the start of a long one."""
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # Python writes no whole number of more than 4,300 digits
        text = "a %s too large to write" % type(value).__name__
    return text if len(text) <= 80 else text[:80] + "…"


def note(error: Exception, name: str, what: str) -> None:
    """Let an error of the environment's own say which environment, and which call of it, it was in."""
    if hasattr(error, "add_note"):
        error.add_note("in the environment %s, in its %s" % (name, what))


def reported(name: str, names: list[str], info: dict[str, Any]) -> list[Any]:
    """The costs of these names that an environment reports.

    Each is `info["costs"][name]`, or else `info[name]`; a single one may also be `info["cost"]`.
    """
    several = info.get("costs")
    places = (several if isinstance(several, dict) else {}, info)
    found = [next((place[cost] for place in places if cost in place), None) for cost in names]
    if len(names) == 1 and found[0] is None:
        found = [info.get("cost")]
    missing = [cost for cost, value in zip(names, found) if value is None]
    if missing:
        there = sorted(set(map(str, info)) | {'costs"]["%s' % key for key in places[0]})
        raise Trouble(
            '%s reports no cost for %s, neither in info["costs"] nor in info; info has %s. Name one of these, or give each '
            "constraint a function: Constraint(name, limit, cost=...)"
            % (name, missing, ", ".join('info["%s"]' % key for key in there) or "nothing in it")
        )
    return found


# -- several -----------------------------------------------------------------------------------------------------------


class Copies:
    """Copies of an environment in slots `first`, `first` + 1, …, which step as `rows` says and write what comes of it there.

    A slot whose episode ends starts the next one at once, from the stream of random numbers of (seed, slot, episode).
    """

    def __init__(
        self,
        envs: list[Any],
        first: int,
        beside: int,
        rows: Rows,
        names: list[str],
        horizon: int,
        prices: list[Callable] | None,
    ) -> None:
        """`beside` are the slots of the group, those of others included."""
        self.at = 0
        """The copy that is being stepped or reset, for messages."""
        self.first = first
        self._beside, self._envs, self._rows = beside, envs, rows
        self._names, self._horizon, self._prices = names, horizon, prices
        self._priced = ["the cost of " + name for name in names]
        stated = getattr(envs[0], "spec", None)
        self._name = stated.id if stated else type(envs[0]).__name__
        self._space, self._size = envs[0].observation_space, rows.obs.shape[1]
        plain = isinstance(self._space, Box) and len(self._space.shape) == 1
        self._plain = self._space.shape if plain else None  # of observations that are vectors already
        self._whole = isinstance(envs[0].action_space, Discrete)
        self._seed = 0
        self._episodes, self._steps = [0] * len(envs), [0] * len(envs)
        self._latest: list[Any] = [None] * len(envs)

    def reset(self, seed: int) -> None:
        """Start every slot afresh."""
        self._afresh(seed, list(range(len(self._envs))))

    def step(self) -> None:
        """Step the active slots; the others earn and cost nothing."""
        rows = self._rows
        for array in (rows.reward, rows.costs, rows.terminated, rows.truncated):
            array[:] = 0
        over = self._advance(np.flatnonzero(rows.active).tolist())
        rows.final_obs[:] = rows.obs
        self._follow(over)

    def play(
        self, actor: Any, alive: Callable[[], None], seed: int, chance: list[int] | None, shares: list[int]
    ) -> dict[str, np.ndarray]:
        """Play `shares[i]` fresh episodes in slot i, asking the policy for every action.

        `actor` is a `policy.acting.Actor`. Its noise in a slot is the stream of random numbers of (chance, slot); None: the
        most likely actions. `alive` is called before each step. The steps of slot after slot: obs (n, o), action, reward
        (n,), costs (n, m); and of the episodes in the same order: length, truncated, final_obs.

        The network sees rows for all slots of the group, most of them zero, so that its last digits do not depend on who
        else plays it (`Actor`).
        """
        rows, count = self._rows, len(self._envs)
        own = slice(self.first, self.first + count)
        seen = np.zeros((self._beside, self._size), np.float32)
        streams = [] if chance is None else [_stream(chance, self.first + i) for i in range(count)]
        left, played = list(shares), [0] * count
        ends: list[list[tuple[int, bool, np.ndarray]]] = [[] for _ in shares]
        active = [i for i in range(count) if left[i]]
        self._afresh(seed, active)
        room, t, noise = 0, 0, None
        log = {"obs": rows.obs, "action": actor(seen, None, own), "reward": rows.reward, "costs": rows.costs}
        log = {name: np.empty((0, *one.shape), one.dtype) for name, one in log.items()}
        while active:
            alive()
            if t == room:
                room = max(256, 2 * room)
                log = _grown(log, room)
                all_obs, all_actions, rewards, costs = log["obs"], log["action"], log["reward"], log["costs"]
            seen[own] = all_obs[t] = rows.obs
            if chance is not None and t % _BLOCK == 0:
                noise = np.stack([actor.noise(stream, _BLOCK) for stream in streams], axis=1)
            all_actions[t] = action = actor(seen, None if noise is None else noise[t % _BLOCK], own)
            rows.actions[:] = actor.outside(action)
            over = self._advance(active)
            rewards[t], costs[t] = rows.reward, rows.costs
            t += 1
            for i in over:
                ends[i].append((t - played[i], bool(rows.truncated[i]), rows.obs[i].copy()))
                played[i] = t
                left[i] -= 1
            if over:
                active = [i for i in active if left[i]]
                self._follow([i for i in over if left[i]])
        # A slot plays its episodes without a pause, so its steps are the first rows.
        found = {
            name: np.concatenate([array[:steps, i] for i, steps in enumerate(played)]) for name, array in log.items()
        }
        episodes = [end for slot in ends for end in slot]
        found["length"] = np.array([end[0] for end in episodes], np.int32)
        found["truncated"] = np.array([end[1] for end in episodes], bool)
        found["final_obs"] = np.array([end[2] for end in episodes], np.float32).reshape(-1, self._size)
        return found

    def _afresh(self, seed: int, slots: list[int]) -> None:
        """Start these slots from the streams of this seed."""
        self._seed = seed
        self._episodes = [0] * len(self._envs)
        for i in slots:
            self._begin(i)
        self._require_finite()

    def _follow(self, slots: list[int]) -> None:
        """Start the next episodes of these slots."""
        for i in slots:
            self._episodes[i] += 1
            self._begin(i)
        if slots:
            self._require_finite()

    def _advance(self, active: list[int]) -> list[int]:
        """Step these slots and write down what comes of it; the slots whose episodes are over, which see their ends."""
        if not active:
            return []
        rows, envs = self._rows, self._envs
        # First all steps, then what came of them, for all copies together where that can be: a bare loop takes 40 µs for a
        # step of HalfCheetah-v5, and one that also writes each number into its array takes a third more.
        actions: Any = rows.actions.tolist() if self._whole else list(rows.actions.copy())
        returned = []
        try:
            for self.at in active:
                returned.append(envs[self.at].step(actions[self.at]))
        except Exception as error:
            note(error, self._name, "step")
            raise
        over = self._take_down(active, actions, returned)
        self._require_finite()
        return over

    def _take_down(self, active: list[int], actions: Any, returned: list[Any]) -> list[int]:
        """Write what the steps of the active copies returned into their rows; the copies whose episodes are over."""
        rows, name, over = self._rows, self._name, []
        for k, each in enumerate(returned):
            if not (type(each) is tuple and len(each) == 5 and type(each[4]) is dict):
                self.at = active[k]
                returned[k] = five(name, each)
        seen, rewards, terminations, truncations, infos = zip(*returned)
        self._see(active, seen)
        self._count(active, [rewards, *zip(*(self._costs(active, actions, seen, infos) if self._names else ()))])
        steps, horizon = self._steps, self._horizon
        for i, terminated, truncated in zip(active, terminations, truncations):
            steps[i] += 1
            if terminated is False and truncated is False and steps[i] < horizon:
                continue
            self.at = i
            terminated, truncated = flag(name, "terminated", terminated), flag(name, "truncated", truncated)
            if terminated or truncated or steps[i] >= horizon:
                rows.terminated[i], rows.truncated[i] = terminated, not terminated
                over.append(i)
        return over

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()

    def _begin(self, i: int) -> None:
        """Start the slot's next episode."""
        self.at = i
        stream = np.random.SeedSequence((self._seed, self.first + i, self._episodes[i]))
        try:
            begun = self._envs[i].reset(seed=int(stream.generate_state(1)[0]))
        except Exception as error:
            note(error, self._name, "reset")
            raise
        if not (isinstance(begun, tuple) and len(begun) == 2 and isinstance(begun[1], dict)):
            message = "%s: reset must return an observation and a dict, got %s"
            raise Trouble(message % (self._name, type(begun).__name__))
        self._see([i], [begun[0]])
        self._latest[i] = self._kept(begun[0])
        self._steps[i] = 0

    def _see(self, slots: list[int], seen: Any) -> None:
        """Write down the observations of these copies, flattened."""
        with np.errstate(over="ignore"):  # what is too large for float32 is found out by `_require_finite`
            if self._plain is not None:
                try:
                    rows = np.asarray(seen)
                    if rows.shape[1:] == self._plain and rows.dtype == self._space.dtype:
                        self._rows.obs[self._at(slots)] = rows
                        return
                except ValueError:  # not all of one shape
                    pass
            for self.at, obs in zip(slots, seen):
                self._rows.obs[self.at] = flat(self._name, self._space, obs, self._size)

    def _at(self, slots: list[int]) -> Any:
        """The index of these slots in an array: a slice where they are all, which is faster."""
        return slots if len(slots) < len(self._envs) else slice(None)

    def _count(self, slots: list[int], values: list[Any]) -> None:
        """Write down the rewards of these copies, which come first in `values`, and their costs."""
        rows, where = self._rows, self._at(slots)
        try:
            found = np.array(values, float)
            usual = found.shape == (1 + len(self._names), len(slots)) and bool((np.abs(found) <= LARGEST).all())
        except (TypeError, ValueError, OverflowError):
            usual = False
        if not usual:
            kinds = [("reward", "the reward"), *(("costs", what) for what in self._priced)]
            found = np.array([self._numbers(*kind, slots, each) for kind, each in zip(kinds, values)])
        rows.reward[where] = found[0]
        rows.costs[where] = found[1:].T

    def _numbers(self, kind: str, what: str, slots: list[int], values: Any) -> np.ndarray:
        """Rewards or costs of these copies as numbers that float32 can hold."""
        each = []
        for self.at, value in zip(slots, values):
            each.append(number(self._name, what, value))
        found = np.array(each)
        fits = np.abs(found) <= LARGEST  # false also for what is not a number
        if not fits.all():
            first = int(np.argmin(fits))
            self.at = slots[first]
            self._refuse(found[first], kind, self._steps[self.at] + 1)
        return found

    def _kept(self, obs: Any) -> Any:
        """A copy for the cost functions, which get it one step later: the environment may have changed its array by then."""
        if self._prices is None:
            return None
        return obs.copy() if isinstance(obs, np.ndarray) else copy.deepcopy(obs)

    def _costs(self, slots: list[int], actions: Any, seen: Any, infos: Any) -> list[list[Any]]:
        """The costs of the steps of these copies, one per constraint."""
        found = []
        if self._prices is None:
            for self.at, info in zip(slots, infos):
                found.append(reported(self._name, self._names, info))
            return found
        latest, prices = self._latest, self._prices
        try:
            for self.at, obs, info in zip(slots, seen, infos):
                before, action = latest[self.at], actions[self.at]
                found.append([price(before, action, obs, info) for price in prices])
        except Exception as error:
            note(error, self._name, "cost function")
            raise
        for i, obs in zip(slots, seen):
            latest[i] = self._kept(obs)
        return found

    def _require_finite(self) -> None:
        """Refuse NaN and infinity in observations; rows of slots that rest are finite."""
        seen = self._rows.obs
        if not np.isfinite(seen).all():
            i, k = np.argwhere(~np.isfinite(seen))[0]
            self.at = int(i)
            self._refuse(seen[i, k], "observation", self._steps[i])

    def _refuse(self, value: Any, kind: str, steps: int) -> NoReturn:
        message = "%s handed out %s as %s after %d steps of an episode"
        raise Trouble(message % (self._name, value, kind, steps))


_BLOCK = 64
"""Noise is drawn for this many steps at once: as much work, but fewer calls."""


def _stream(chance: list[int], slot: int) -> np.random.Generator:
    """The stream of random numbers for the actions of a slot."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([*chance, slot])))


def _grown(arrays: dict[str, np.ndarray], steps: int) -> dict[str, np.ndarray]:
    """The arrays (steps before, …) with room for so many steps."""
    larger = {name: np.empty((steps, *array.shape[1:]), array.dtype) for name, array in arrays.items()}
    for name, array in arrays.items():
        larger[name][: len(array)] = array
    return larger


def in_slots(made: Callable[[], Any], count: int) -> list[Any]:
    """`count` environments, each a new one."""
    found = [made() for _ in range(count)]
    if isinstance(found[0], gymnasium.vector.VectorEnv):
        raise Trouble("%s steps many copies already: hand it over itself, not a function" % type(found[0]).__name__)
    if len(set(map(id, found))) < count:
        raise Trouble(
            "the function that makes %s must make a new one each time it is called: it returned the same one twice. To "
            "train with one robot, pass corral.train the environment instead of a function" % type(found[0]).__name__
        )
    return found


# -- a process of its own ----------------------------------------------------------------------------------------------


class Worker:
    """The other end of `crew.Crew`: waits for commands and carries them out."""

    def __init__(self, order: dict[str, Any], parcel: bytes, commands: int, memory: int, replies: list[int]) -> None:
        self._order, self._commands, self._memory, self._replies = order, commands, memory, replies
        self._names: list[str] = order["constraints"]
        self._groups: dict[int, Copies] = {}
        acting: dict[str, Any] = {"__name__": "acting"}
        exec(compile(order["acting"], "acting.py", "exec"), acting)
        self._actor = acting["Actor"]
        # Made by cloudpickle, under this very Python.
        sent: Any = pickle.loads(parcel) if parcel else (order["id"], None)
        given, self._prices = sent
        made = given if callable(given) else lambda: make(given, order["id"], order["parameters"])
        said = [order["quiet"]]

        def once_aloud() -> Any:
            """What a copy says while it is made, such as that it is old, every copy says: one is enough."""
            with _hushed() if said[0] else nullcontext():
                said[0] = True
                return made()

        self._envs = in_slots(once_aloud, sum(stop - start for start, stop in order["slots"]))
        self._described = json.dumps(describe(self._envs[0])).encode()

    def serve(self) -> None:
        """Answer until told to leave, or until whoever asks is gone."""
        _write(self._replies[0], DONE + LENGTH.pack(len(self._described)) + self._described)
        while True:
            command = _read(self._commands, COMMAND.size)
            kind, group, following, seed = COMMAND.unpack(command)
            if kind == LEAVE:
                break
            try:
                if kind == STEP:
                    self._groups[group].step()
                elif kind == RESET:
                    self._groups[group].reset(seed)
                elif kind == PLAY:
                    (play, how), arrays = unpacked(lambda size: _read(self._commands, size))
                    played = self._groups[group].play(self._actor(how, arrays), self._alive, *play)
                    _write(self._replies[group], DONE + packed(None, played))
                    continue
                else:
                    self._attach(json.loads(_read(self._commands, following).decode()))
            except Exception as error:
                own = self._groups.get(group)
                report(self._replies[group], error, None if own is None else own.first + own.at)
            else:
                os.write(self._replies[group], DONE)
        for env in self._envs:
            env.close()

    def _attach(self, shape: dict[str, Any]) -> None:
        """Find the rows of this worker's slots in the memory that is shared."""
        import mmap

        memory, left = mmap.mmap(self._memory, shape["bytes"]), list(self._envs)
        beats, offset = beats_in(memory, shape["workers"])
        self._beat = beats[self._order["place"] :]
        for group, (count, (start, stop)) in enumerate(zip(shape["counts"], self._order["slots"])):
            rows, offset = rows_in(memory, offset, count, shape)
            own, left = left[: stop - start], left[stop - start :]
            if own:
                assert rows is not None
                mine = rows.sliced(start, stop)
                self._groups[group] = Copies(own, start, count, mine, self._names, shape["horizon"], self._prices)

    def _alive(self) -> None:
        """Show whoever waits that this worker goes on."""
        self._beat[0] += 1


def report(reply: int, error: BaseException, slot: int | None) -> None:
    """Send what went wrong, in a line: the words for the user, or else the error's own and where it was; its traceback."""
    own = isinstance(error, Trouble)
    said = str(error) if own else "%s: %s%s" % (type(error).__name__, error, _where(error))
    said = " ".join(said.splitlines())[:1000]
    trace = "" if own else "".join(traceback.format_exception(type(error), error, error.__traceback__))
    text = json.dumps({"message": said, "traceback": trace, "slot": slot}).encode()
    _write(reply, TROUBLE + LENGTH.pack(len(text)) + text)


def _where(error: BaseException) -> str:
    """The file and the line in which an error was raised, if they are known."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return "" if last is None else " (%s, line %d)" % (last.tb_frame.f_code.co_filename, last.tb_lineno)


def _without_log() -> None:
    """Keep MuJoCo from writing its warnings to MUJOCO_LOG.TXT in the user's folder."""
    with suppress(Exception):
        importlib.import_module("mujoco").set_mju_user_warning(lambda message: None)


def _read(source: int, size: int) -> bytes:
    """So many bytes; ends the process where there is nobody left to send them."""
    found = b""
    while len(found) < size:
        more = os.read(source, size - len(found))
        if not more:
            os._exit(1)
        found += more
    return found


def _write(to: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(to, left) :]


def _end_with_parent(life: int) -> NoReturn:
    """Wait until the process that started this one is gone, then end at once, whatever the environment is doing."""
    os.read(life, 1)
    os._exit(1)


def main(arguments: list[str]) -> None:
    """Serve: the arguments are the numbers of the open files for commands, for the memory and for the replies."""
    commands, memory, *replies = map(int, arguments)
    # These are for the process that started this one, which then ends it; a cluster sends SIGTERM to both.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Standard input brings the order, and ends with the parent; environments have none. What they print goes to stderr.
    life, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    order = json.loads(_read(life, *LENGTH.unpack(_read(life, LENGTH.size))).decode())
    parcel = _read(life, order["parcel"])
    threading.Thread(target=_end_with_parent, args=(life,), daemon=True).start()
    # The folder of this file is no place to import from; `path` is where the process that asks imports from.
    sys.path[:] = order["path"] or sys.path[1:]
    if order["quiet"]:
        warnings.simplefilter("ignore")
    _without_log()
    try:
        worker = Worker(order, parcel, commands, memory, replies)
    except Exception as error:
        report(replies[0], error, None)
        return
    try:
        worker.serve()
    except BrokenPipeError:  # nobody is left to hear of it
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])

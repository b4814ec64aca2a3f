"""Workers on a Ray cluster: the same as of a `Crew`, each started by an actor wherever Ray finds a free processor.

A worker plays episodes that follow from the policy, the seed and the slots alone. So where one is lost, with its machine or
without, another plays the same episodes again, and the results are those of a run that lost nothing.
"""

import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corral.envs.gymnasium import crew
from corral.errors import CorralError, package
from corral.policy.acting import Actor

RETRIES = 3
"""How often the same episodes are played again after their worker was lost."""
_LOOK = 1.0
"""Seconds between two looks whether somebody has interrupted."""
_PLACED = 30.0
"""Seconds for which workers that are there wait for another to be placed."""


class _Task(NamedTuple):
    """What every worker has to know of the environment: arguments of `Crew`."""

    env: str
    parameters: dict[str, Any]
    constraints: list[str]
    parcel: bytes
    sizes: tuple[int, ...]
    split: dict[int, list[tuple[int, int]]]
    python: Path | None
    path: list[str]
    """Where modules are imported from in the process that learns."""


class _Post:
    """An actor: it has the workers of these numbers, which it starts when they are first asked for."""

    def __init__(self, task: _Task) -> None:
        self._task = task
        self._crews: dict[int, crew.Crew] = {}
        sys.path.extend(path for path in task.path if path not in sys.path)

    def describe(self, number: int) -> dict[str, Any]:
        """What the environments of a worker say of themselves."""
        return dict(self._crew(number).description)

    def ready(self) -> None:
        """Show that it is there."""
        return None

    def play(self, number: int, order: tuple[Any, ...]) -> dict[str, np.ndarray]:
        """What a worker has played (`Crew.play`)."""
        shape, group, play, how, arrays = order
        own = self._crew(number)
        try:
            if own.rows is None:
                own.share(shape)
            return own.play(group, Actor(how, arrays), *play)
        except BaseException:
            self._crews.pop(number).close()
            raise

    def _crew(self, number: int) -> crew.Crew:
        if number not in self._crews:
            env, parameters, constraints, parcel, sizes, split, python, _ = self._task
            alone = {number: split[number]}
            self._crews[number] = crew.Crew(env, parameters, constraints, parcel, sizes, alone, python)
        return self._crews[number]


class RayCrew:
    """As `Crew`, with workers on the cluster of RAY_ADDRESS, or on the one of this machine, else on this machine alone.

    There are as many as there are free processors, at most one for each slot. They play; they cannot be asked for single
    steps, which would take a message each.
    """

    rows = None
    """No memory is shared."""

    def __init__(
        self,
        env: str,
        parameters: Mapping[str, Any],
        constraints: Sequence[str],
        parcel: bytes,
        sizes: Sequence[int],
        python: Path | None = None,
    ) -> None:
        """Start them; the arguments are those of `Crew`."""
        self._ray, self._env = package("ray"), env
        self._mine = not self._ray.is_initialized()
        if self._mine:
            self._ray.init(log_to_driver=False)
        workers = max(1, min(self._free(), sum(sizes)))
        split = crew.shares(sizes, workers)
        self._task = _Task(env, dict(parameters), list(constraints), parcel, tuple(sizes), split, python, [*sys.path])
        self._actor = self._ray.remote(num_cpus=1, max_restarts=0)(_Post)
        self._lock, self._stopped = threading.Lock(), False
        # The actor of each worker; several have the same where some were lost and there was no room for others.
        self._posts: list[Any] = [self._actor.remote(self._task) for _ in split]
        try:
            asked = [post.describe.remote(number) for number, post in enumerate(self._posts)]
            self.description = self._soon(asked, crew.PATIENCE)[0]
        except BaseException:
            self.close()
            raise

    def share(self, shape: Mapping[str, Any]) -> None:
        """Remember the sizes of the arrays, for the workers."""
        self._shape = dict(shape)

    def reset(self, group: int, seed: int) -> None:
        """Refuse: see above."""
        raise CorralError(
            "a network of your own is asked in this process in every step, and workers on Ray play whole episodes by "
            "themselves: give workers=N, a number of processes of this machine"
        )

    def step(self, group: int) -> None:
        """Refuse, as `reset`, which comes first."""
        self.reset(group, 0)

    def play(
        self, group: int, actor: Actor, seed: int, chance: Sequence[int] | None, shares: Sequence[int]
    ) -> dict[str, np.ndarray]:
        """As `Crew.play`; what a lost worker should have played is played again."""
        numbers = [k for k, slots in self._task.split.items() if any(shares[slice(*slots[group])])]
        order = self._ray.put((self._shape, group, (seed, chance, list(shares)), actor.how, dict(actor.arrays)))
        asked = {k: self._ask(k, order) for k in numbers}
        lost, found = dict.fromkeys(numbers, 0), {}
        while asked:
            done, _ = self._ray.wait([answer for _, answer in asked.values()], timeout=_LOOK)
            if self._stopped:
                raise CorralError(f"the workers of {self._env} have been stopped")
            for k, (post, answer) in list(asked.items()):
                if answer not in done:
                    continue
                try:
                    found[k] = self._ray.get(answer)
                    del asked[k]
                    continue
                except self._ray.exceptions.RayTaskError as error:  # the actor is there, and says what went wrong
                    trouble = self._words(error)
                except self._ray.exceptions.RayError as error:
                    said = (str(error).splitlines() or [type(error).__name__])[0]
                    trouble = crew.Lost(f"worker {k} of {self._env} on Ray was lost: {said}")
                    self._replace(post)
                lost[k] += 1
                if lost[k] > RETRIES or not isinstance(trouble, crew.Lost):
                    raise trouble
                asked[k] = self._ask(k, order)
        return {name: np.concatenate([found[k][name] for k in numbers]) for name in found[numbers[0]]}

    def interrupt(self) -> None:
        """End the workers at once; whoever waits for them gets an error."""
        self._stopped = True
        self.close()

    def close(self) -> None:
        """End the workers, whose processes end with their actors, and leave a cluster that was joined here."""
        with self._lock:
            posts, self._posts = set(self._posts), []
            for post in posts:
                self._ray.kill(post)
        if posts and self._mine:
            self._ray.shutdown()

    # -- actors --------------------------------------------------------------------------------------------------------

    def _ask(self, number: int, order: Any) -> tuple[Any, Any]:
        """Ask a worker to play: its actor, and the answer to come."""
        with self._lock:
            if not self._posts:
                raise CorralError(f"the workers of {self._env} have been closed")
            post = self._posts[number]
            if self._posts.index(post) != number:  # a guest of another worker's actor: there may be room now
                post = self._posts[number] = self._new() or post
            return post, post.play.remote(number, order)

    def _replace(self, gone: Any) -> None:
        """Find another actor for the workers of one that is gone: a new one, or one that is there if there is no room."""
        with self._lock:
            others = [post for post in dict.fromkeys(self._posts) if post != gone]
            for k, post in enumerate(self._posts):
                if post == gone:
                    self._posts[k] = self._new(alone=not others) or others[k % len(others)]

    def _new(self, alone: bool = False) -> Any:
        """A new actor, or None where there is no room for one; where it would be alone, that is an error."""
        if not alone and not self._free():
            return None
        post = self._actor.remote(self._task)
        try:  # a machine that has just gone may still be counted as free
            self._soon([post.ready.remote()], crew.PATIENCE if alone else _PLACED)
        except CorralError:
            self._ray.kill(post)
            if alone:
                raise
            return None
        return post

    def _free(self) -> int:
        """How many processors of the cluster are free."""
        return int(self._ray.available_resources().get("CPU", 0))

    def _soon(self, answers: list[Any], seconds: float) -> list[Any]:
        """The answers of actors that have just been asked for, which must come in so many seconds."""
        try:
            return list(self._ray.get(answers, timeout=seconds))
        except self._ray.exceptions.RayTaskError as error:
            raise self._words(error) from None
        except self._ray.exceptions.GetTimeoutError:
            raise CorralError(
                f"Ray has found no processors for the workers of {self._env} in {seconds:g} seconds"
            ) from None
        except self._ray.exceptions.RayError as error:
            raise CorralError(f"Ray cannot start workers of {self._env}: {error}") from None

    def _words(self, error: Any) -> BaseException:
        """The error that a worker raised, with its traceback."""
        cause = error.cause
        return cause if isinstance(cause, CorralError) else CorralError(f"{self._env} failed on Ray: {error}")

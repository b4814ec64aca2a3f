"""The contract of everything that collects batches: `Sampler`. `rollout.make` chooses the implementation."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from corral import devices
from corral.envs.contract import EnvSpec
from corral.learning.estimate import Batch
from corral.learning.networks import Policy
from corral.rollout.shapes import Plan


class Order(NamedTuple):
    """What is to be sampled for several runs side by side."""

    policies: tuple[Policy, ...]
    """One entry for each group of runs that share a program; its arrays have a leading axis of runs."""
    seeds: np.ndarray
    """(runs,) in the order of the groups."""
    iteration: int
    counts: np.ndarray
    """(runs,) episodes that make a batch."""
    plan: Plan


class Sampler(abc.ABC):
    """Collects batches of whole episodes of one environment, for several runs side by side.

    A batch of several runs has a leading axis of runs in every array. Everything random follows from the seeds of the runs
    and the iteration.
    """

    spec: EnvSpec
    """The environment."""

    @abc.abstractmethod
    def plan(self, counts: np.ndarray, batch_size: int, before: Plan | None) -> Plan:
        """The shapes for batches of `counts` (runs,) episodes, as in the plan before where that still serves."""

    def after(self, plan: Plan, batch_size: int, steps: int) -> Plan:
        """The plan that the next one follows, after an iteration with `plan` whose longest batch had so many steps."""
        return plan

    @abc.abstractmethod
    def shapes(self, order: Order) -> Batch:
        """The shapes of the batch that `collect` returns for this order; compiles the program that `collect` runs."""

    @abc.abstractmethod
    def collect(self, order: Order) -> Batch:
        """A batch of about so many episodes for each run, under its policy."""

    @abc.abstractmethod
    def episodes(self, policy: Policy, key: Any, count: int, deterministic: bool = False) -> Batch:
        """`count` fresh episodes of a single policy, drawn or with its most likely actions; no axis of runs."""

    @abc.abstractmethod
    def first_look(self, policy: Policy, batch_size: int) -> Batch:
        """A few episodes of an untrained policy, from which its episode length and observations are estimated."""

    def close(self) -> None:
        """Give back threads and processes; the sampler is of no use afterwards."""
        return None

    def __enter__(self) -> "Sampler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def keys(seeds: Any, iteration: Any) -> tuple[Any, Any]:
    """For every run, a key to sample with and one to update with."""
    pairs = jax.vmap(lambda s: jax.random.split(jax.random.fold_in(jax.random.key(s), iteration)))(seeds)
    return pairs[:, 0], pairs[:, 1]


def spread(batch: Batch, mesh: Mesh | None, put: Callable[[Any, Any], Any]) -> Batch:
    """Split the rows of a batch among the devices of a mesh; arrays with one entry per episode go to all of them whole."""
    if mesh is None:
        return batch
    rows, all_of_it = devices.split(mesh, 1), devices.whole(mesh)
    size = batch.reward.shape
    return jax.tree.map(lambda x: put(x, rows if x.shape[:2] == size else all_of_it), batch)


def take(tree: Any, run: int) -> Any:
    """The part of a tree with a leading axis of runs that belongs to one of them."""
    return jax.tree.map(lambda x: x[run], tree)

"""Compiled programs: one updates all the runs whose configurations differ in numbers only."""

import copy
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh

from corral import devices
from corral.config import Config, get
from corral.envs.contract import EnvSpec
from corral.errors import require
from corral.learning import update
from corral.learning.estimate import Batch
from corral.learning.update import LearnerState
from corral.rollout.sampler import keys


class Program:
    """The program that updates some runs, which differ in numbers only and lie from run `first` on in a batch."""

    def __init__(
        self,
        members: Sequence[int],
        configs: Sequence[Config],
        spec: EnvSpec,
        first: int,
        mesh: Mesh | None,
        net: Any | None,
    ) -> None:
        """`configs` are those of the members, which are named by their positions among all runs."""
        self.members = tuple(members)
        config = configs[0]
        self._seeds = np.asarray([c.seed for c in configs], np.uint32)
        self._numbers = jax.tree.map(lambda *xs: np.asarray(xs, np.float32), *map(numbers, configs))

        def init(own: Numbers, seed: Any) -> LearnerState:
            key = jax.random.fold_in(jax.random.key(seed), 2**31 - 1)
            return _arrays_only(update.init(with_numbers(config, own), spec, key, net))

        def one(own: Numbers, state: Any, batch: Any, key: Any) -> Any:
            return update.update(with_numbers(config, own), spec, state, batch, key)

        def part(own: Numbers, state: Any, batch: Any, seeds: Any, iteration: Any) -> Any:
            mine = jax.tree.map(lambda x: x[first : first + len(members)], batch)
            return jax.vmap(one)(own, state, mine, keys(seeds, iteration)[1])

        everywhere = None if mesh is None else devices.whole(mesh)
        self._init = jax.jit(jax.vmap(init), out_shardings=everywhere)
        self._update = devices.jit(part, out_shardings=everywhere)

    def initial(self) -> LearnerState:
        """The states before the first iteration."""
        made: LearnerState = self._init(self._numbers, self._seeds)
        return made

    def compile(self, state: LearnerState, shapes: Any) -> None:
        """Compile the program for a batch of these shapes; `update` then finds it."""
        self._update.lower(self._numbers, state, shapes, self._seeds, np.uint32(0)).compile()

    def update(self, state: LearnerState, batch: Batch, iteration: int) -> tuple[LearnerState, dict[str, Any]]:
        """New states and metrics of these runs, from the batch of all."""
        done: tuple[LearnerState, dict[str, Any]] = self._update(
            self._numbers, state, batch, self._seeds, np.uint32(iteration)
        )
        return done


def _arrays_only(state: LearnerState) -> LearnerState:
    """Require a state of arrays only, so that it can be stacked, saved and restored."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        require(eqx.is_array(leaf), f"the learner's state holds {type(leaf).__name__} at {jax.tree_util.keystr(path)}")
    return state


def alike(configs: Sequence[Config]) -> list[list[int]]:
    """Positions of the configurations, those of one program together."""
    programs: list[Config] = []
    groups: list[list[int]] = []
    for i, config in enumerate(map(program, configs)):
        if config not in programs:
            programs.append(config)
            groups.append([])
        groups[programs.index(config)].append(i)
    return groups


Numbers = dict[str, Any]
"""By dotted name of the field: a number, or a tuple of them; stacked over runs, or traced by a compiler."""


def numbers(config: Config) -> Numbers:
    """The fields that are inputs of the compiled program; all others but the seed are part of the program itself.

    Runs whose configurations differ in these fields and the seed only are one program, side by side.
    """
    names = ["limit", "gamma", "cost_gamma", "gae", "cost_gae", "trust.delta", "shaping.coefficient"]
    kinds = get_type_hints(type(config.algo))
    names += [f"algo.{f.name}" for f in fields(config.algo) if _is_number(kinds[f.name])]
    found = {name: get(config, name) for name in names}
    return {name: 0.0 if value is None else value for name, value in found.items()}


def with_numbers(config: Config, values: Numbers) -> Config:
    """The configuration with these numbers, unchecked, since they may not be plain numbers."""
    changed = copy.copy(config)
    for name, value in values.items():
        *path, last = name.split(".")
        holder: Any = changed
        for part in path:
            object.__setattr__(holder, part, copy.copy(getattr(holder, part)))
            holder = getattr(holder, part)
        object.__setattr__(holder, last, value)
    return changed


def program(config: Config) -> Config:
    """The configuration with its numbers and its seed blanked: equal for runs of one program."""
    blank = jax.tree.map(lambda _: 0.0, numbers(config))
    return with_numbers(config, blank | {"seed": 0})


def _is_number(kind: Any) -> bool:
    """Whether a field holds a number with a fraction, or one for each constraint: float, float | None, PerConstraint."""
    return float in (get_args(kind) or (kind,))

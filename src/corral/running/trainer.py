"""Runs side by side: the sampling and the updating of one iteration, for seeds, algorithms and grid points together.

A run is a function of its configuration: iteration k uses the keys that follow from (seed, k), environments start afresh in
every iteration, and everything else that matters is in the `LearnerState` and, where robots play more than one episode, in
the number of robots (`Plan`), which follows from all runs beside it. Its rows are padding, and sums over them are rounded
differently with other padding, so they follow from the batch before alone, and are a part of the checkpoint too.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from corral import devices
from corral.config import Config, require_one_each
from corral.envs.contract import Env, EnvSpec, HostEnv
from corral.errors import CorralError, require
from corral.learning.estimate import Batch
from corral.learning.update import LearnerState
from corral.rollout import make
from corral.rollout.sampler import Order, Sampler, take
from corral.rollout.shapes import Plan
from corral.running import certain, programs
from corral.running.programs import Program
from corral.trust_region.dual import Case

Row = dict[str, Any]
State = tuple[LearnerState, ...]

_LAST = "the observation after the last step of an episode"


class Trainer:
    """Runs side by side on one environment: seeds, algorithms, grid points.

    One sampler serves all. Runs whose configurations differ in numbers only (`programs.numbers`) are updated by one program
    too. The state is a tuple of `LearnerState`s, one for each program, with a leading axis of runs.
    """

    _compiled_for: Plan | None = None

    def __init__(self, configs: Sequence[Config], env: Env | HostEnv | Sampler, net: Any | None = None) -> None:
        self.sampler = make.sampler(env)
        self.spec: EnvSpec = self.sampler.spec
        for config in configs:
            _check(config, self.spec)
        _check_alike(configs)
        _check_room(configs, self.spec)
        self.config, self.configs = configs[0], tuple(configs)
        mesh = devices.mesh()
        self._several_devices = mesh is not None
        self.names = [c.name for c in self.spec.constraints]
        self._programs: list[Program] = []
        for members in programs.alike(configs):
            first = sum(len(program.members) for program in self._programs)
            own = [configs[i] for i in members]
            self._programs.append(Program(members, own, self.spec, first, mesh, net))
        # As the runs lie in a batch: program after program.
        order = [i for program in self._programs for i in program.members]
        self._seeds = np.asarray([configs[i].seed for i in order], np.uint32)
        self._untrained_length: float | None = None

    # -- state ---------------------------------------------------------------------------------------------------

    def initial(self) -> State:
        """The state before the first iteration.

        Statistics of observations start with a few episodes. Without them the first batch would change the normaliser so
        much that the policy after the first update would not be the one whose step was judged.
        """
        state = tuple(program.initial() for program in self._programs)
        if not self.config.networks.normalize_observations:
            return state
        return self.stacked([self._begun(self.state_of(state, i)) for i in range(len(self.configs))])

    def _begun(self, run: LearnerState) -> LearnerState:
        batch = self.sampler.first_look(run.policy, self.config.batch_size)
        policy = jax.device_put(run.policy)
        seen = policy.normalizer.updated(jnp.asarray(batch.obs), jnp.asarray(batch.valid, jnp.float32))
        begun: LearnerState = jax.device_get(run._replace(policy=replace(policy, normalizer=seen)))
        return begun

    def state_of(self, state: State, i: int) -> LearnerState:
        """The state of the run with number i, on the host."""
        for program, part in zip(self._programs, state, strict=True):
            if i in program.members:
                found: LearnerState = take(jax.device_get(part), program.members.index(i))
                return found
        raise IndexError(i)

    def stacked(self, runs: Sequence[LearnerState]) -> State:
        """The state of all runs, from that of each."""
        return tuple(
            jax.tree.map(lambda *xs: np.stack(xs), *(runs[i] for i in program.members)) for program in self._programs
        )

    def plan(self, state: State, before: Plan | None) -> Plan:
        """Robots and room for the episodes that make a batch."""
        return self.sampler.plan(self._episodes(state), self.config.batch_size, before)

    def plan_after(self, plan: Plan, rows: Sequence[Row]) -> Plan:
        """The plan that the next one follows, after an iteration with `plan` that made these rows of metrics."""
        return self.sampler.after(plan, self.config.batch_size, max(int(row["steps"]) for row in rows))

    def _episodes(self, state: State) -> np.ndarray:
        """How many episodes make a batch of each run, program after program, judged by the lengths of its last batch."""
        if int(np.asarray(state[0].iteration)[0]) == 0:
            if self._untrained_length is None:
                self._untrained_length = self._first_length(state)
            lengths = np.full(len(self.configs), self._untrained_length)
        else:
            lengths = np.concatenate([np.asarray(part.length) for part in state])
        return np.maximum(2, np.round(self.config.batch_size / np.maximum(lengths, 1))).astype(np.int32)

    def _first_length(self, state: State) -> float:
        """Mean length of a few episodes of the untrained policy: the horizon is only a bound."""
        policy = take(jax.device_get(state[0].policy), 0)
        batch = self.sampler.first_look(policy, self.config.batch_size)
        return float(np.sum(batch.valid) / np.sum(batch.present))

    # -- one iteration -------------------------------------------------------------------------------------------

    def compiles(self, plan: Plan) -> bool:
        """Whether an iteration with this plan begins with compiling its programs."""
        return plan != self._compiled_for

    def iterate(self, state: State, plan: Plan) -> tuple[State, list[Row]]:
        """Sample and update; one row of metrics for each run, in the order of the configurations."""
        k = int(np.asarray(state[0].iteration)[0])
        # Shapes do not say how arrays lie on several devices: there, the first call compiles.
        if self.compiles(plan) and not self._several_devices:
            self._compile(state, plan, k)
        self._compiled_for = plan
        started = time.perf_counter()
        batch = jax.block_until_ready(self.sample(state, plan, k))
        sampled = time.perf_counter()
        updates = [program.update(own, batch, k) for program, own in zip(self._programs, state, strict=True)]
        new, metrics = zip(*jax.block_until_ready(updates), strict=True)
        updated = time.perf_counter()
        found = jax.device_get(metrics)
        self._refuse_non_finite(batch, found, k)
        times = (sampled - started, updated - sampled)
        return new, self._rows(k, new, found, times)

    def sample(self, state: State, plan: Plan, iteration: int) -> Batch:
        """A batch for every run, with a leading axis of runs, program after program."""
        return self.sampler.collect(self._order(state, iteration, plan))

    def _order(self, state: State, iteration: int, plan: Plan) -> Order:
        policies = tuple(part.policy for part in state)
        return Order(policies, self._seeds, iteration, self._episodes(state), plan)

    def _compile(self, state: State, plan: Plan, iteration: int) -> None:
        """Compile all programs before there is a batch, so that the seconds of an iteration are those of its work.

        One after the other: on a GPU the compiler times kernels, and programs compiled side by side would disturb that.
        """
        shapes = self.sampler.shapes(self._order(state, iteration, plan))
        for program, own in zip(self._programs, state, strict=True):
            program.compile(own, shapes)

    def _refuse_non_finite(self, batch: Batch, metrics: Sequence[Row], iteration: int) -> None:
        """Raise an error that names the value if the environment handed out NaN or infinity; the policy never sees it."""
        flags = np.concatenate([found["finite"] for found in metrics])
        fields = {"observation": batch.obs, "reward": batch.reward, "costs": batch.costs, _LAST: batch.final_obs}
        # Rows of other processes and observations after an episode cannot be named by their step.
        at_hand = batch.valid.is_fully_addressable if isinstance(batch.valid, jax.Array) else True
        for (name, values), fine in zip(fields.items(), np.all(flags, axis=0).tolist(), strict=True):
            if not fine:
                require(
                    at_hand and name != _LAST,
                    f"{self.spec.name} handed out NaN or infinity as {name} in iteration {iteration}; "
                    "what was learned before it is saved",
                )
                valid = np.asarray(batch.valid)
                seen = valid.reshape(*valid.shape, *([1] * (np.ndim(values) - 2)))
                bad = np.argwhere(~np.isfinite(np.asarray(values)) & seen)[0]
                row = (int(bad[0]), int(bad[1]))
                raise CorralError(
                    f"{self.spec.name} handed out {np.asarray(values)[tuple(bad)]} as {name} at step "
                    f"{int(np.asarray(batch.t)[row])} of an episode, in iteration {iteration}; "
                    "what was learned before it is saved"
                )

    def _rows(self, k: int, state: State, metrics: Sequence[Row], times: tuple[float, float]) -> list[Row]:
        """Metrics as flat rows: one column per constraint, cases by name, a column for each critic."""
        total = sum(float(np.sum(found["steps"])) for found in metrics)
        rows: dict[int, Row] = {}
        for program, part, found in zip(self._programs, state, metrics, strict=True):
            for s, i in enumerate(program.members):
                row: Row = {"iteration": k, "env_steps": int(np.asarray(part.env_steps)[s])}
                for name, values in found.items():
                    value = values[s]
                    if name in ("explained_variance", "signal", "gae"):
                        row[name] = value[0]
                        row.update({f"{name}_{c}": v for c, v in zip(self.names, value[1:], strict=True)})
                    elif name == "episode_costs":
                        row |= certain.at_most(self.configs[i], self.spec, value, int(found["broken"][s]), k)
                    elif name != "finite" and np.ndim(value) == 1:
                        row.update({f"{name}_{c}": v for c, v in zip(self.names, value, strict=True)})
                    elif name != "finite":
                        row[name] = value[()]
                row["case"] = Case(int(row["case"])).name.lower()
                row["seconds_sampling"], row["seconds_updating"] = times
                row["steps_per_second"] = total / sum(times)
                rows[i] = row
        return [rows[i] for i in range(len(rows))]


def _check(config: Config, spec: EnvSpec) -> None:
    """Refuse a configuration that does not fit the environment, before any work is done."""
    m = len(spec.constraints)
    certain.require_ranges(config, spec)
    require_one_each(config, spec.name, [c.name for c in spec.constraints])
    require(
        m > 0 or not config.algo.constrained,
        f"{spec.name} brings no constraint, and {config.algo.name.upper()} needs one: corral.Constraint(name, limit) "
        'takes the cost that an environment reports in info["cost"] (on the command line: --limit), or a function of '
        "your own; or choose another algorithm, such as TRPO",
    )
    require(m > 0 or not config.shape_costs, f"{spec.name} has no costs to shape: leave shape_costs off")
    require(
        config.batch_size >= spec.horizon,
        f"batch_size {config.batch_size} is smaller than one episode of {spec.name} (up to {spec.horizon} steps)",
    )


def _check_alike(configs: Sequence[Config]) -> None:
    """Runs side by side share an environment and shapes."""
    require(len(configs) > 0, "configs must hold at least one configuration")
    for name in ("env", "task", "batch_size", "iterations", "networks"):
        values = [getattr(config, name) for config in configs]
        require(
            all(value == values[0] for value in values),
            f"runs side by side must have the same {name}, got {values[0]} and "
            f"{next((value for value in values if value != values[0]), None)}",
        )


def _check_room(configs: Sequence[Config], spec: EnvSpec) -> None:
    """Refuse runs whose batches and networks alone are larger than the memory of the host, before anything is allocated.

    An accelerator says itself when its memory is over; a host whose memory is over kills processes without a word.
    """
    if jax.default_backend() != "cpu":
        return
    config, m = configs[0], len(spec.constraints)
    row = spec.observation_size + spec.action.size + 2 * m + 4
    widths = [spec.observation_size, *config.networks.hidden, spec.action.size]
    weights = (2 + m) * sum(a * b for a, b in pairwise(widths))
    needed, there = 4.0 * len(configs) * (config.batch_size * row + weights), devices.memory()
    require(
        needed <= there,
        f"{len(configs)} batches of {config.batch_size:,} steps and networks with {weights:,} weights need at least "
        f"{needed / 2**30:,.0f} GiB, and this machine has {there / 2**30:,.1f}: choose a smaller batch_size, "
        "networks.hidden or seeds",
    )

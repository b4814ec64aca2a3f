"""Runs side by side: the sampling and the updating of one iteration, for seeds, algorithms and grid points together.

A run is a function of its configuration: iteration k uses the keys that follow from (seed, k), environments start afresh in
every iteration, and everything else that matters is in the `LearnerState` and, where robots play more than one episode, in
the number of robots (`Plan`), which follows from all runs beside it.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from corral import devices
from corral.config import CPO, Config, require_one_each
from corral.envs.contract import Env, EnvSpec, HostEnv
from corral.errors import CorralError, require
from corral.learning.estimate import Batch
from corral.learning.networks import Policy
from corral.learning.update import LearnerState
from corral.rollout import device, host
from corral.rollout import shapes as rollout_plan
from corral.rollout.host import Lanes
from corral.rollout.shapes import Plan
from corral.running import programs as groups
from corral.running.programs import Group
from corral.trust_region.dual import Case

Row = dict[str, Any]
State = tuple[LearnerState, ...]

_keys = jax.jit(groups.keys)

_LAST = "the observation after the last step of an episode"


class Trainer:
    """Runs side by side on one environment: seeds, algorithms, grid points.

    All are sampled by one program. Those whose configurations differ in numbers only (`config.numbers`) form a group and
    are updated by one program too. The state is a tuple of `LearnerState`s, one for each group, with a leading axis of runs.
    """

    def __init__(self, configs: Sequence[Config], env: Env | HostEnv | Lanes, net: Any | None = None) -> None:
        self.spec: EnvSpec = env.spec
        for config in configs:
            _check(config, self.spec)
        _check_alike(configs)
        self.config, self.configs = configs[0], tuple(configs)
        self.mesh = devices.mesh()
        self.env: Env | Lanes = Lanes([env]) if isinstance(env, HostEnv) else env
        self.names = [c.name for c in self.spec.constraints]
        self._groups: list[Group] = []
        for members in groups.alike(configs):
            first = sum(len(group.members) for group in self._groups)
            own = [configs[i] for i in members]
            self._groups.append(Group(members, own, self.spec, first, self.mesh, net))
        # As the runs lie in a batch: group after group.
        self._seeds = np.asarray(
            [configs[i].seed for group in self._groups for i in group.members], np.uint32
        )
        self._compiled_for: Plan | None = None
        self._untrained_length: float | None = None

        def collect(parts: tuple[Any, ...], seeds: Any, iteration: Any, played: Any, plan: Plan) -> Any:
            keys, _ = groups.keys(seeds, iteration)
            policies = jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)
            batch = device.collect(
                env,  # type: ignore[arg-type]
                policies,
                keys,
                plan.robots,
                plan.rows,
                mesh=self.mesh,
                played=played,
                room=plan.room,
            )
            return self._spread(batch, jax.lax.with_sharding_constraint)

        self._collect = devices.jit(collect, static_argnames="plan")

    def _spread(self, batch: Batch, put: Callable[[Any, Any], Any]) -> Batch:
        """Rows split among the devices, what there is one of per episode on all of them."""
        if self.mesh is None:
            return batch
        rows, all_of_it = devices.split(self.mesh, 1), devices.whole(self.mesh)
        size = batch.reward.shape
        return jax.tree.map(lambda x: put(x, rows if x.shape[:2] == size else all_of_it), batch)

    # -- state ---------------------------------------------------------------------------------------------------

    def initial(self) -> State:
        """The state before the first iteration.

        Statistics of observations are begun with a few episodes: if the first batch were the first to count, the policy
        that the first update ends with would not be the one whose step was judged.
        """
        state = tuple(group.initial() for group in self._groups)
        if not self.config.networks.normalize_observations:
            return state
        return self.stacked([self._begun(self.run(state, i)) for i in range(len(self.configs))])

    def _begun(self, run: LearnerState) -> LearnerState:
        batch, policy = self._few_episodes(run.policy), jax.device_put(run.policy)
        seen = policy.normalizer.updated(jnp.asarray(batch.obs), jnp.asarray(batch.valid, jnp.float32))
        begun: LearnerState = jax.device_get(run._replace(policy=Policy(policy.net, policy.log_std, seen)))
        return begun

    def run(self, state: State, i: int) -> LearnerState:
        """The state of one run, on the host."""
        for group, part in zip(self._groups, state, strict=True):
            if i in group.members:
                return _take(jax.device_get(part), group.members.index(i))
        raise IndexError(i)

    def stacked(self, runs: Sequence[LearnerState]) -> State:
        """The state of all runs, from that of each."""
        return tuple(
            jax.tree.map(lambda *xs: np.stack(xs), *(runs[i] for i in group.members))
            for group in self._groups
        )

    def plan(self, state: State, before: Plan | None) -> Plan:
        """Robots and room for the episodes that make a batch."""
        counts = self._episodes(state)
        shares = 1 if self.mesh is None else self.mesh.size
        if before is not None:
            return rollout_plan.following(before, counts, shares)
        on_host = isinstance(self.env, Lanes)
        return rollout_plan.first(counts, self.config.batch_size, self.spec.horizon, on_host, shares)

    def _episodes(self, state: State) -> np.ndarray:
        """How many episodes make a batch of each run, group after group, judged by the lengths of its previous batch."""
        if int(np.asarray(state[0].iteration)[0]) == 0:
            if self._untrained_length is None:
                self._untrained_length = self._first_length(state)
            lengths = np.full(len(self.configs), self._untrained_length)
        else:
            lengths = np.concatenate([np.asarray(part.length) for part in state])
        return np.maximum(2, np.round(self.config.batch_size / np.maximum(lengths, 1))).astype(np.int32)

    def _first_length(self, state: State) -> float:
        """Mean length of a few episodes of the untrained policy: the horizon is only a bound."""
        batch = self._few_episodes(_take(jax.device_get(state[0].policy), 0))
        return float(np.sum(batch.valid) / np.sum(batch.present))

    def _few_episodes(self, policy: Policy) -> Batch:
        key = jax.random.key(0)
        if isinstance(self.env, Lanes):
            few = min(32, max(2, self.config.batch_size // self.spec.horizon))
            return host.collect(self.env, jax.device_put(policy, jax.local_devices()[0]), key, few)
        return device.collect_one(self.env, policy, key, 256)

    # -- one iteration -------------------------------------------------------------------------------------------

    def iterate(self, state: State, plan: Plan) -> tuple[State, list[Row]]:
        """Sample and update; one row of metrics for each run, in the order of the configurations."""
        k = int(np.asarray(state[0].iteration)[0])
        # Not for several devices: shapes do not say how arrays lie on them.
        if plan != self._compiled_for and self.mesh is None:
            self._compile(state, plan, k)
        started = time.perf_counter()
        batch = jax.block_until_ready(self.sample(state, plan, k))
        sampled = time.perf_counter()
        updates = [group.update(own, batch, k) for group, own in zip(self._groups, state, strict=True)]
        new, metrics = zip(*jax.block_until_ready(updates), strict=True)
        updated = time.perf_counter()
        found = jax.device_get(metrics)
        self._refuse_non_finite(batch, found, k)
        times = (sampled - started, updated - sampled)
        return new, self._rows(k, new, found, times)

    def sample(self, state: State, plan: Plan, iteration: int) -> Batch:
        """A batch for every run, with a leading axis of runs, group after group."""
        if isinstance(self.env, Lanes):
            played = plan.played(self._episodes(state), on_host=True)
            keys, _ = _keys(self._seeds, np.uint32(iteration))
            # One copy on one device: a policy on all of them would act once on each.
            copies = jax.device_put(jax.device_get([p.policy for p in state]), jax.local_devices()[0])
            policies = [
                _take(c, s) for c, p in zip(copies, state, strict=True) for s in range(len(p.iteration))
            ]
            batches = [
                host.collect(self.env, policy, key, int(count), plan.rows, room=plan.room)
                for policy, key, count in zip(policies, keys, played, strict=True)
            ]
            return self._spread(host.stack(batches), jax.device_put)
        batch: Batch = self._collect(*self._given(state, plan, iteration), plan=plan)
        return batch

    def _given(self, state: State, plan: Plan, iteration: int) -> tuple[Any, ...]:
        """What the program that samples is called with."""
        played = plan.played(self._episodes(state), on_host=False)
        return tuple(part.policy for part in state), self._seeds, np.uint32(iteration), played

    def _compile(self, state: State, plan: Plan, iteration: int) -> None:
        """All programs, before there is a batch, so that the seconds of an iteration are those of its work.

        One after the other: on a GPU the compiler tries out kernels, and what is tried side by side waits for each other.
        """
        if isinstance(self.env, Lanes):
            shapes = host.shapes(self.spec, len(self.configs), plan.rows, plan.room)
        else:
            given = self._given(state, plan, iteration)
            shapes = self._collect.eval_shape(*given, plan=plan)
            self._collect.lower(*given, plan=plan).compile()
        for group, own in zip(self._groups, state, strict=True):
            group.compile(own, shapes)
        self._compiled_for = plan

    def _refuse_non_finite(self, batch: Batch, metrics: Sequence[Row], iteration: int) -> None:
        """An environment that hands out NaN or infinity is an error, named; nothing of it reaches the policy."""
        flags = np.concatenate([found["finite"] for found in metrics])
        fields = {
            "observation": batch.obs,
            "reward": batch.reward,
            "costs": batch.costs,
            _LAST: batch.final_obs,
        }
        # Where a value and its step can be told: not of other processes' rows, nor of what comes after an episode.
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
        """Metrics as flat rows: one column per constraint, names of cases, the critics' columns told apart."""
        total = sum(float(np.sum(found["steps"])) for found in metrics)
        rows: dict[int, Row] = {}
        for group, part, found in zip(self._groups, state, metrics, strict=True):
            for s, i in enumerate(group.members):
                row: Row = {"iteration": k, "env_steps": int(np.asarray(part.env_steps)[s])}
                for name, values in found.items():
                    value = values[s]
                    if name == "explained_variance":
                        row[name] = value[0]
                        row.update({f"{name}_{c}": v for c, v in zip(self.names, value[1:], strict=True)})
                    elif name != "finite" and np.ndim(value) == 1:
                        row.update({f"{name}_{c}": v for c, v in zip(self.names, value, strict=True)})
                    elif name != "finite":
                        row[name] = value[()]
                row["case"] = Case(int(row["case"])).name.lower()
                row["seconds_sampling"], row["seconds_updating"] = times
                row["steps_per_second"] = total / sum(times)
                rows[i] = row
        return [rows[i] for i in range(len(rows))]


def _take(tree: Any, s: int) -> Any:
    """The part of a stacked tree that belongs to one run."""
    return jax.tree.map(lambda x: x[s], tree)


def _check(config: Config, spec: EnvSpec) -> None:
    """What can be wrong between a configuration and an environment, said before any work is done."""
    m = len(spec.constraints)
    require_one_each(config, spec.name, [c.name for c in spec.constraints])
    require(
        m > 0 or not isinstance(config.algo, CPO),
        f"{spec.name} brings no constraint, and CPO needs one: corral.Constraint(name, limit) takes the cost that an "
        'environment reports in info["cost"] (on the command line: --limit), or a function of your own; or choose '
        "another algorithm, such as TRPO",
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

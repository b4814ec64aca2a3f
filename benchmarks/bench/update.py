"""Measure each part of an update beside its floors: matrix products at their measured rate, bytes once through memory.

The batch is synthetic: 32 observations, 8 actions, one cost and networks of (64, 32), unless the caller asks for others.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from benchmarks.bench import work
from benchmarks.bench.clock import Note, Row, in_turns, ratios, spread
from benchmarks.bench.floors import Floors, Work, bytes_of, flops
from benchmarks.bench.work import Done
from corral import devices, presets
from corral.config import Config, TrustRegion
from corral.envs.contract import Box, ConstraintSpec, EnvSpec
from corral.learning import critics, networks, predictors, surrogates
from corral.learning import update as learner
from corral.learning.estimate import Batch, advantages, unsafe_ahead
from corral.learning.surrogates import ConstraintValues, Local, Samples
from corral.learning.update import LearnerState
from corral.trust_region import dual

EPISODE = 500


class Problem(NamedTuple):
    """A synthetic batch and the state of a learner that updates on it."""

    config: Config
    spec: EnvSpec
    state: LearnerState
    batch: Batch
    rows: int


def problem(
    rows: int, m: int = 1, hidden: tuple[int, ...] = (64, 32), preset: Any = "paper", mesh: Mesh | None = None
) -> Problem:
    """Make a problem whose rewards and costs follow from the observations, rows split among the devices of the mesh."""
    rows = max(2, rows // EPISODE) * EPISODE
    config = presets.preset("ant-circle", preset)
    config = replace(config, batch_size=rows, networks=replace(config.networks, hidden=hidden))
    spec = EnvSpec("made up", 32, Box(8), EPISODE, tuple(ConstraintSpec(f"c{i}", 50.0) for i in range(m)))
    state = jax.jit(lambda key: learner.init(config, spec, key))(jax.random.key(0))
    # Shaping of costs begins with the third update.
    state = state._replace(iteration=jnp.asarray(3, jnp.int32))
    batch = _batch(rows, m)
    if mesh is not None:
        rows_of = devices.split(mesh, 0), devices.whole(mesh)
        batch = jax.tree.map(
            lambda x: jax.device_put(x, rows_of[0] if np.shape(x)[:1] == (rows,) else rows_of[1]), batch
        )
        state = jax.device_put(state, devices.whole(mesh))
    return Problem(config, spec, state, jax.tree.map(jnp.asarray, batch), rows)


def _batch(rows: int, m: int) -> Any:
    rng = np.random.default_rng(0)
    episodes = rows // EPISODE
    obs = rng.standard_normal((rows, 32), np.float32)
    t = np.tile(np.arange(EPISODE, dtype=np.int32), episodes)
    made: Any = Batch
    return made(
        obs=obs,
        action=rng.standard_normal((rows, 8), np.float32),
        reward=np.tanh(obs[:, 0]) + 0.1 * rng.standard_normal(rows, np.float32),
        costs=(obs[:, 1 : 1 + m] > 1).astype(np.float32),
        t=t,
        episode=np.repeat(np.arange(episodes, dtype=np.int32), EPISODE),
        last=t == EPISODE - 1,
        valid=np.ones(rows, bool),
        final_obs=np.zeros((episodes, 32), np.float32),
        truncated=np.ones(episodes, bool),
        present=np.ones(episodes, bool),
        broken=np.int32(0),
    )


class Part(NamedTuple):
    """A jitted part of an update, its arguments, and the matrix products it cannot do without."""

    function: Callable[..., Any]
    given: tuple[Any, ...]
    work: Callable[[Any], Work]
    """The work as a function of the results, since some of it depends on the data."""

    def call(self) -> Any:
        """Carry out the part once."""
        return self.function(*self.given)


def measure(sizes: Sequence[int], repeats: int, note: Note, leave_out: Sequence[str] = ()) -> Iterator[Row]:
    """Yield a row for each size and part; sizes one after the other, since each may take minutes to compile."""
    for size in sizes:
        note(f"update: {size:,} samples: compiling")
        chosen = {name: part for name, part in parts(size, devices.mesh()).items() if name not in leave_out}
        for row in against_floors(chosen, repeats, note, f"{size:,} samples"):
            yield {"samples": size, **row}


def against_floors(chosen: dict[str, Part], repeats: int, note: Note, what: str) -> list[Row]:
    """Return a row for each part: its time in turns with its floors by flops and by bytes."""
    calls = {name: part.call for name, part in chosen.items()}
    works, moved = {}, {}
    for name, part in chosen.items():
        found = part.call()
        works[name] = part.work(found)
        moved[name] = bytes_of(part.given) + bytes_of(found)
    floors = Floors(list(works.values()), devices.mesh())
    note(f"update: {what}, {repeats} rounds")
    times = in_turns(calls | floors.calls(), repeats)
    bandwidth = floors.bandwidth(times)
    rows = []
    for name in chosen:
        by_flops = floors.seconds(times, works[name])
        by_bytes = [moved[name] / b for b in bandwidth]
        floor = [max(pair) for pair in zip(by_flops, by_bytes, strict=True)]
        count = flops(works[name])
        rows.append(
            {
                "part": name,
                "seconds": spread(times[name]),
                "gflop": count / 1e9,
                "gflop_per_second": spread(count / 1e9 / t for t in by_flops) if count else None,
                "flop_floor": spread(by_flops),
                "megabytes": moved[name] / 1e6,
                "byte_floor": spread(by_bytes),
                "of_floor": ratios(floor, times[name]),
            }
        )
    return rows


def parts(size: int, mesh: Mesh | None) -> dict[str, Part]:
    """Return every part of an update on this many samples; the cost is at its limit, so that all parts have work."""
    paper, ours = problem(size, mesh=mesh), problem(size, preset="corral", mesh=mesh)
    fifth, full = paper.config.trust, TrustRegion()
    samples = _samples(paper)
    given = paper.state.policy, samples
    # The results of a part are the arguments of the next, so that nothing is compiled twice.
    judged = devices.jit(_advantages)
    gradients = devices.jit(lambda p, s: _local(p, s, full).gradients())
    g, B = gradients(*given)
    step = 0.05 * g / jnp.linalg.norm(g)

    def counted(problem: Problem, name: str, trust: TrustRegion = full) -> Work:
        config = replace(problem.config, trust=trust)
        return work.parts(config, problem.spec, problem.rows, Done(tried=1))[name]

    def fisher(trust: TrustRegion) -> Part:
        function = devices.jit(lambda p, s, g, B: surrogates.restricted(_local(p, s, trust), g, B)[0][:3])
        return Part(function, (*given, g, B), lambda _: counted(paper, "fisher", trust))

    def value_fits(problem: Problem) -> Part:
        _, returns = judged(problem.state, problem.batch)
        return _value_fits(problem, returns)

    all_rows = fisher(full)
    q, r, S = all_rows.call()
    return {
        "values and advantages": Part(judged, (paper.state, paper.batch), lambda _: counted(paper, "values")),
        "g and B": Part(gradients, given, lambda _: counted(paper, "gradients")),
        "Fisher products and CG, all rows": all_rows,
        "Fisher products and CG, a fifth": fisher(fifth),
        "dual": Part(devices.jit(dual.solve), (q, r, S, jnp.asarray([0.1]), jnp.asarray(0.01)), lambda _: {}),
        "line search, one candidate": Part(
            devices.jit(_search), (*given, step), lambda _: counted(paper, "line_search")
        ),
        "policy update, all rows": _policy_update(paper, samples, full),
        "policy update, a fifth": _policy_update(paper, samples, fifth),
        "value fits, natural step": value_fits(paper),
        "value fits, Adam": value_fits(ours),
        "predictor": Part(_jitted_predictor(paper), (paper.state, paper.batch), lambda _: counted(paper, "predictor")),
        "whole update, paper": whole(paper),
        "whole update, corral": whole(ours),
    }


def _local(policy: Any, samples: Samples, trust: TrustRegion) -> Local:
    return surrogates.make(networks.flatten(policy), samples, trust)


def _samples(problem: Problem) -> Samples:
    batch, n = problem.batch, problem.rows
    weight = batch.valid / n
    made = jax.jit(
        lambda b: Samples(
            b.obs, b.action, weight, b.reward, jnp.broadcast_to((weight * EPISODE)[:, None], b.costs.shape), b.costs
        )
    )(batch)
    found: Samples = made
    return found


def _advantages(state: LearnerState, batch: Batch) -> Any:
    earned = jnp.concatenate([batch.reward[:, None], batch.costs], axis=1)
    count = earned.shape[1]
    values = state.critics(batch.obs, batch.t / EPISODE)
    after = jnp.zeros((len(batch.present), count))
    gamma, lam = jnp.full(count, 0.995), jnp.full(count, 0.95)
    return advantages(earned, values, after, batch, gamma, lam)


def _search(policy: Any, samples: Samples, step: Any) -> Any:
    """Try one candidate and accept it: recovery does not ask for a gain, and the limits are far."""
    m = samples.cost_advantage.shape[1]
    trust = TrustRegion(delta=1e3)
    here, far = _local(policy, samples, trust), jnp.full(m, 1e6)
    return surrogates.search(here, step, surrogates.unit(m), far, jnp.ones((), bool)).tried


def _policy_update(problem: Problem, samples: Samples, trust: TrustRegion) -> Part:
    config = replace(problem.config, trust=trust)
    m = len(problem.spec.constraints)

    def update(policy: Any, samples: Samples) -> Any:
        at, limit = jnp.full(m, 9.9), jnp.full(m, 10.0)
        stand = ConstraintValues(at, limit, realised=jnp.zeros(m), comparable=jnp.zeros((), bool))
        algo = problem.config.algo
        _, step = algo.update(algo.init(m), _local(policy, samples, trust), stand)
        return step.theta, step.search.tried

    def counted(found: Any) -> Work:
        return work.policy_update(config, problem.spec, problem.rows, Done(tried=int(found[1])))

    return Part(devices.jit(update), (problem.state.policy, samples), counted)


def _value_fits(problem: Problem, returns: Any) -> Part:
    config = problem.config

    def fitted(state: LearnerState, batch: Batch, returns: Any) -> Any:
        share = config.trust.fisher_fraction
        key = jax.random.key(1)
        return critics.fit_critics(state.critics, batch, batch.t / EPISODE, returns, config.critic, key, share)

    def counted(found: Any) -> Work:
        done = Done(1, epochs(problem.config, problem.rows, problem.state.critics, found))
        return work.parts(config, problem.spec, problem.rows, done)["critics"]

    return Part(devices.jit(fitted), (problem.state, problem.batch, returns), counted)


def epochs(config: Config, rows: int, before: Any, after: Any) -> float:
    """Return the number of passes that Adam made over the training rows, from its own count of steps."""
    if config.critic.method == "natural":
        return 0.0
    steps = np.mean(np.asarray(after.optimizer[0].count) - np.asarray(before.optimizer[0].count))
    return float(steps) / math.ceil(rows * (1 - config.critic.held_out) / min(config.minibatch, rows))


def _jitted_predictor(problem: Problem) -> Callable[..., Any]:
    shaping = problem.config.shaping

    @devices.jit
    def fitted(state: LearnerState, batch: Batch) -> Any:
        ahead = unsafe_ahead(batch.costs, batch, shaping.horizon)
        return state.predictors(batch.obs), predictors.fit_predictors(state.predictors, batch, ahead, shaping)

    return fitted


def whole(problem: Problem) -> Part:
    """Return a whole update as a part."""
    config, spec = problem.config, problem.spec

    def update(state: LearnerState, batch: Batch) -> Any:
        new, metrics = learner.update(config, spec, state, batch, jax.random.key(1))
        return new, metrics["tried"]

    def counted(found: Any) -> Work:
        new, tried = found
        made = epochs(config, problem.rows, problem.state.critics, new.critics)
        return work.update(config, spec, problem.rows, Done(int(tried), made))

    return Part(devices.jit(update), (problem.state, problem.batch), counted)

"""Measure the policy update of every algorithm on 20,000 samples beside its floor; PPO also as it was published.

The batch is that of the part `update`: 32 observations, 8 actions, one cost, here with the corral preset. The critics, which
are fitted alike for all algorithms, are not in it.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.bench import update, work
from benchmarks.bench.clock import Note, Row
from benchmarks.bench.floors import Work, backward, forward, times, total
from benchmarks.bench.update import Part, Problem
from benchmarks.bench.work import Done
from corral import devices
from corral.config import Algorithm, algorithms
from corral.learning import honest, networks, surrogates
from corral.learning.first_order import FirstOrder
from corral.learning.surrogates import ConstraintValues, Samples

# Nothing ends the passes early: as much work in every round as the settings allow.
_PUBLISHED = {"epochs": 40, "minibatch": 64, "learning_rate": 3e-4, "target_kl": 1e6}


def cases(quick: bool) -> dict[str, Algorithm]:
    """Every algorithm of Corral with its own settings, and PPO with the published ones."""
    ours = {name: kind for name, kind in sorted(algorithms().items()) if kind.__module__.startswith("corral.")}
    chosen = [name for name in ours if not quick or name in ("ppo", "trpo")]
    found: dict[str, Algorithm] = {name: ours[name]() for name in chosen}
    for name, algo in found.items():
        if isinstance(algo, FirstOrder):
            found[name] = replace(algo, target_kl=1e6)
    if not quick:
        found["ppo, 40 passes over minibatches of 64"] = ours["ppo"](**_PUBLISHED)
    return found


def measure(size: int, repeats: int, quick: bool, note: Note) -> Iterator[Row]:
    """Yield a row for each algorithm."""
    problem = update.problem(size, hidden=(64, 64), preset="corral")
    samples = update._samples(problem)
    for name, algo in cases(quick).items():
        note(f"algorithms: {name}: compiling")
        rows = update.against_floors({name: _part(problem, samples, algo)}, repeats, note, name)
        yield from ({"samples": problem.rows, **row} for row in rows)


def _part(problem: Problem, samples: Samples, algo: Algorithm) -> Part:
    m, trust = len(problem.spec.constraints), problem.config.trust
    batch, signal = problem.batch, problem.state.signal
    assert signal is not None, "the corral preset judges steps by halves"
    state = algo.start(m, networks.flatten(problem.state.policy).theta)

    def stepped(policy: Any, samples: Samples, state: Any) -> Any:
        stand = ConstraintValues(jnp.full(m, 9.9), jnp.full(m, 10.0), jnp.zeros(m), jnp.zeros((), bool))
        halves = honest.split(batch.episode, batch.present, jax.random.key(2), signal, jnp.asarray(3))
        local = surrogates.make(networks.flatten(policy), samples, trust, halves, jax.random.key(1))
        _, step = algo.update(state, local, stand)
        return step.theta, step.search.tried

    def counted(found: Any) -> Work:
        return work_of(problem, algo, int(found[1]))

    return Part(devices.jit(stepped), (problem.state.policy, samples, state), counted)


def work_of(problem: Problem, algo: Algorithm, tried: int) -> Work:
    """Return the products of an update that tried so many candidates, or made so many passes."""
    sizes, rows = work.nets(problem.config, problem.spec).policy, problem.rows
    if isinstance(algo, FirstOrder):
        step = total([forward(sizes, algo.minibatch), backward(sizes, algo.minibatch)])
        # The policy before and at the end, on all rows.
        return total([times(tried * -(-rows // algo.minibatch), step), times(2, forward(sizes, rows))])
    spec = problem.spec if algo.constrained else replace(problem.spec, constraints=())
    return work.policy_update(problem.config, spec, rows, Done(tried))

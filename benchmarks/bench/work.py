"""Count the matrix products that an update cannot do without, from its configuration: the floor of its flops.

One forward pass serves the gradients and the Fisher products; padding and held-out rows do not count. All other work of the
program lies between it and its floor.
"""

from typing import NamedTuple

from benchmarks.bench.floors import Sizes, Work, backward, fisher, forward, times, total
from corral.config import Config
from corral.envs.contract import EnvSpec
from corral.learning.surrogates import stride


class Done(NamedTuple):
    """The amounts of work that depend on the data."""

    tried: float
    """Candidates of the line search."""
    epochs: float = 0
    """Passes of Adam over the batch."""


class Nets(NamedTuple):
    """The layer widths of the three kinds of network."""

    policy: Sizes
    critic: Sizes
    predictor: Sizes


def nets(config: Config, spec: EnvSpec) -> Nets:
    """Return the layer widths of a configuration's networks."""
    o, hidden = spec.observation_size, config.networks.hidden
    return Nets(
        (o, *hidden, spec.action.size), (o + config.critic.sees_time, *hidden, 1), (o, config.shaping.hidden, 1)
    )


def parts(config: Config, spec: EnvSpec, rows: int, done: Done) -> dict[str, Work]:
    """Return the work of each part of an update on `rows` samples."""
    m, k = len(spec.constraints), nets(config, spec)
    each = 1 + m
    some = rows // stride(config.trust.fisher_fraction)
    # Two halves of the batch have gradients and solves of their own.
    sides = each * (2 if config.trust.honest else 1)
    # The forward pass counts with g and B; the Fisher products need no other.
    return {
        "values": times(each, forward(k.critic, rows)),
        "gradients": total([forward(k.policy, rows), backward(k.policy, rows, sides)]),
        # After conjugate gradients, the subproblem on their span needs one more product HV.
        "fisher": total(
            [times(config.trust.cg_iterations, fisher(k.policy, some, sides)), fisher(k.policy, some, each)]
        ),
        "dual": {},
        "line_search": times(done.tried, forward(k.policy, rows)),
        "critics": times(each, _critic(config, k.critic, rows, some, done)),
        "predictor": times(m * config.shape_costs, _predictor(config, k.predictor, rows)),
    }


def _critic(config: Config, sizes: Sizes, rows: int, some: int, done: Done) -> Work:
    critic = config.critic
    if critic.method == "natural":
        # Residuals before and after the step, their gradient, and 10 conjugate-gradient iterations.
        return total([times(2, forward(sizes, rows)), backward(sizes, rows), times(10, fisher(sizes, some))])
    size = min(config.minibatch, rows)
    steps = rows / size * (1 - critic.held_out)
    train = times(steps * done.epochs, total([forward(sizes, size), backward(sizes, size)]))
    # The error on the held-out rows, before the first epoch and after each.
    return total([train, times(critic.held_out * (1 + done.epochs), forward(sizes, rows))])


def _predictor(config: Config, sizes: Sizes, rows: int) -> Work:
    """Return the work of the bonus and of all full-batch steps."""
    step = total([forward(sizes, rows), backward(sizes, rows)])
    return total([forward(sizes, rows), times(config.shaping.steps, step)])


POLICY = ("gradients", "fisher", "dual", "line_search")
"""The parts of the policy's own update."""


def policy_update(config: Config, spec: EnvSpec, rows: int, done: Done) -> Work:
    """Return the work of the policy's own update."""
    found = parts(config, spec, rows, done)
    return total([found[name] for name in POLICY])


def update(config: Config, spec: EnvSpec, rows: int, done: Done) -> Work:
    """Return the work of a whole update."""
    return total(list(parts(config, spec, rows, done).values()))


def acting(config: Config, spec: EnvSpec, rows: int) -> Work:
    """Return the work of drawing the actions of so many steps."""
    return forward(nets(config, spec).policy, rows)

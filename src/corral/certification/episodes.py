"""Fresh episodes from a stream of random numbers that training never uses.

Training with seed s draws iteration k from the key fold_in(key(s), k), k < 2³¹ − 3, its first networks from number 2³¹
− 1, and `corral evaluate` from number 2³¹ − 2. A certificate draws from number 2³¹ − 3, and within it from the number
of its stream. A fold is a permutation of 64-bit blocks (threefry), so different numbers give different keys, for one
seed without exception.
"""

from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import Array, Float, Key

from corral.certificates import bounds, certificate
from corral.certificates.certificate import Statement
from corral.certification.subject import Range, Subject
from corral.envs.contract import EnvSpec
from corral.errors import require
from corral.evaluation import refuse_non_finite, totals
from corral.rollout.sampler import Sampler

STREAM = 2**31 - 3
"""The number under a run's seed from which certificates draw; see the docstring of the module."""

_AT_ONCE = 200_000  # steps sampled at once at most, five times as many on an accelerator, which bounds memory


def stream_key(seed: int | Array, stream: int | Array, portion: int | Array) -> Key[Array, ""]:
    """The key of one portion of a certificate's episodes."""
    within = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), STREAM), stream)
    return jax.random.fold_in(within, portion)


def portions(
    sampler: Sampler, subject: Subject, ranges: list[Range], stream: int, most: int, deterministic: bool
) -> Iterator[tuple[Float[np.ndarray, "e columns"], int]]:
    """Return and costs of fresh episodes, one row each, and how many of them broke."""
    at_once = _AT_ONCE if jax.default_backend() == "cpu" else 5 * _AT_ONCE
    size = max(2, at_once // subject.spec.horizon)
    gamma = np.asarray(subject.discounts, float)
    for portion, start in enumerate(range(0, most, size)):
        count = min(size, most - start)
        key = stream_key(subject.seed, stream, portion)
        batch = jax.device_get(sampler.episodes(subject.policy, key, count, deterministic))
        refuse_non_finite(subject.spec, batch)
        _require_in_range(subject.spec, ranges, np.asarray(batch.costs)[np.asarray(batch.valid)])
        sums = totals(batch, gamma)
        require(len(sums) == count, f"{subject.spec.name} played {len(sums)} episodes of {count}")
        yield sums, int(batch.broken)


def _require_in_range(spec: EnvSpec, ranges: list[Range], costs: Float[np.ndarray, "n m"]) -> None:
    """Refuse a step whose cost is not what the bounds rest on; clipped, it would make a cost look smaller."""
    for k, (constraint, allowed) in enumerate(zip(spec.constraints, ranges, strict=True)):
        own = costs[:, k]
        most, least = float(own.max(initial=0)), float(own.min(initial=0))
        require(
            most <= allowed.step,
            f"a step of {constraint.name} in {spec.name} cost {most:g}, more than the stated maximum of {allowed.step:g}: "
            "no bound that rests on that maximum holds. State the true one with --max-step-cost",
        )
        require(least >= 0, f"a step of {constraint.name} in {spec.name} cost {least:g}: costs must not be negative")


class Seen:
    """The episodes so far."""

    def __init__(
        self,
        subject: Subject,
        ranges: list[Range],
        alpha: float,
        anytime: bool,
        stream: int = 0,
        worst: float | None = None,
    ) -> None:
        """`worst` is the least return that an episode can have, if known."""
        self.anytime, self.alpha, self.broken = anytime, alpha, 0
        self._subject, self._ranges, self._stream, self._worst = subject, ranges, stream, worst
        self._parts: list[np.ndarray] = []

    def add(self, sums: Float[np.ndarray, "e columns"], broken: int) -> None:
        """Add a portion. What a broken episode would have cost is unknown: it counts as the costliest there can be.

        Which of the portion broke is unknown too, so the cheapest stand for them. Their returns count as the worst there
        can be, or that was seen where nobody knows it.

        The portion is then put in random order, since the bets need one that says nothing about the costs: on the host
        the order of a batch depends on how long its episodes were, and where several episodes cost the least, the first
        of them stand for those that broke.
        """
        sums = sums.copy()
        if broken:
            for k, allowed in enumerate(self._ranges, start=1):
                sums[:, k] = bounds.with_broken(sums[:, k], broken, allowed.episode)
            worst = sums[:, 0].min() if self._worst is None else self._worst
            sums[np.argsort(-sums[:, 0], kind="stable")[:broken], 0] = worst
        order = np.random.default_rng([self._subject.seed, STREAM, self._stream, len(self._parts)])
        self._parts.append(order.permutation(sums))
        self.broken += broken

    @property
    def count(self) -> int:
        """How many."""
        return sum(map(len, self._parts))

    @property
    def returns(self) -> Float[np.ndarray, " n"]:
        """Of every episode."""
        return np.concatenate(self._parts)[:, 0]

    @property
    def costs(self) -> Float[np.ndarray, "n m"]:
        """Of every episode."""
        return np.concatenate(self._parts)[:, 1:]

    def statements(self, ahead: bool = True) -> tuple[Statement, ...]:
        """What they say of each constraint; with `ahead`, also how many more would decide."""
        found, costs = [], self.costs
        for k, constraint in enumerate(self._subject.spec.constraints):
            limit, most = self._subject.limits[k], self._ranges[k].episode
            own = costs[:, k], most, self.alpha, self.anytime, ahead
            found.append(certificate.state(constraint.name, limit, *own))
        return tuple(found)

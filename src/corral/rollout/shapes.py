"""The shapes of compiled programs: for how many robots, rows and episodes they have room, however much a batch fills."""

from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

# A batch may fall short of its episodes by this factor: that is better than compiling everything again for a little more
# room, or letting all robots wait for a few that play once more.
_SHORT = 1.2


class Plan(NamedTuple):
    """Sizes that fix the shapes of the compiled program; they change rarely, and are part of a checkpoint."""

    robots: int
    """Side by side on the device, for each run."""
    rows: int
    """Host batches are padded to a multiple of this; device batches with gaps are squeezed into it, or into half as many
    more, and so on, where they have more steps."""
    room: int
    """The most episodes of a run's batch. Where there are fewer robots, they play again."""

    def in_rounds(self, counts: np.ndarray) -> np.ndarray:
        """How many episodes each run plays on the device, of the `counts` that would make its batch.

        A few episodes less are better than one more round for them.
        """
        played = np.minimum(counts, self.room)
        few = (self.robots < played) & (played <= _SHORT * self.robots)
        return np.where(few, self.robots, played)


def plan(counts: np.ndarray, batch_size: int, horizon: int, rows: int, before: Plan | None, mesh: Mesh | None) -> Plan:
    """The plan for batches of `counts` episodes on these devices: the one before while it serves, or a first one."""
    shares = 1 if mesh is None else mesh.size
    if before is not None:
        return following(before, counts, shares)
    return first(counts, batch_size, horizon, rows, shares)


def first(counts: np.ndarray, batch_size: int, horizon: int, rows: int, shares: int) -> Plan:
    """The plan to begin with, for runs whose batches are `counts` episodes; its sizes are multiples of `shares`.

    `rows` leave room for batches that turn out longer than `batch_size`, so that all have one shape.
    """
    robots, needed = _multiple(round(float(counts.mean())), shares), int(counts.max())
    # Episodes that last nearly as long as they can may well go on doing so.
    steady = needed <= _SHORT * max(2, round(batch_size / horizon))
    return Plan(robots, _multiple(rows, shares), robots if steady else 4 * needed)


def following(before: Plan, counts: np.ndarray, shares: int) -> Plan:
    """The plan before, while it serves: every new shape is compiled.

    Runs whose episodes got shorter play more of them with the robots they have, so that one of them does not slow down
    the others. Fewer robots are taken once the average run could do with two thirds.
    """
    needed, average = int(counts.max()), float(counts.mean())
    robots, room = before.robots, before.room
    if needed > _SHORT * room:
        room = 4 * needed
    if robots > 1.5 * average:
        robots = _multiple(int(1.1 * average), shares)
    return Plan(robots, before.rows, room)


def holding(rows: int, steps: int, shares: int) -> int:
    """A multiple of `shares` for a batch of so many steps: at least `rows`, enlarged by half until it holds them.

    There are only a few such sizes, since each is compiled.
    """
    rows = _multiple(rows, shares)
    while rows < steps:
        rows = _multiple(-(-3 * rows // 2), shares)
    return rows


def _multiple(count: int, shares: int) -> int:
    """At least so many, and divisible into equal shares."""
    return shares * -(-count // shares)

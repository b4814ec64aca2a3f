"""A courier in a gridworld with two kinds of hazard and an energy budget: three constraints that all bind."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from corral.errors import require, require_in, require_shape
from corral.tabular.cmdp import CMDP, ArrayLike

MAP = """
. . . . . . . . . .
. # # # . . # # # .
. # W W W W W W # .
S . . . # # . . . G
. # F F # # F F # .
. # F . . . . F # .
. # . . # # . . # .
. . . . . . . . . .
"""
"""S start, G goal, # wall, F fire, W water. The way through the water is short, the way round the walls long and safe."""

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1), (0, 0))
"""Row and column steps of the actions north, east, south, west and wait."""
COSTS = ("fire", "water", "energy")
"""Cells of fire entered, cells of water entered, moves made (waiting is free)."""


@dataclass(frozen=True, eq=False)
class Gridworld:
    """A gridworld as a CMDP, and the cell of each state."""

    cmdp: CMDP
    rows: tuple[str, ...]
    """The map, one string without blanks per row."""
    cells: tuple[tuple[int, int], ...]
    """Row and column of each state."""


def gridworld(
    grid: str = MAP, slip: float = 0.1, gamma: float = 0.97, limits: ArrayLike = (1.0, 2.0, 25.0)
) -> Gridworld:
    """Build the CMDP of a courier who walks from S to G for reward 1 and is put back at S, for ever.

    A move goes to the left or right of its direction with probability slip/2 each; walls and the edge stop it. `limits`
    bound the discounted numbers of fire cells entered, water cells entered and moves made.
    """
    require_in("slip", slip, 0.0, 1.0)
    require_shape("limits", limits, (len(COSTS),), ", ".join(COSTS))
    rows = tuple(line.replace(" ", "") for line in grid.split("\n") if line.strip())
    require(len({len(row) for row in rows}) == 1, "grid must have rows of one length")
    unknown = sorted(set("".join(rows)) - set("SG#FW."))
    require(not unknown, f"grid may hold S, G, #, F, W and '.', got {unknown}")
    for mark in "SG":
        require("".join(rows).count(mark) == 1, f"grid must have exactly one {mark}")
    cells = tuple((i, j) for i, row in enumerate(rows) for j, kind in enumerate(row) if kind != "#")
    kinds = np.array([rows[i][j] for i, j in cells])
    start, goal = (int(np.flatnonzero(kinds == mark)[0]) for mark in "SG")
    P = _transitions(cells, slip)
    P[goal] = np.eye(len(cells))[start]
    R = np.zeros(P.shape)
    R[:, :, goal] = 1.0
    C = np.zeros((3, *P.shape))
    C[0][:, :, kinds == "F"] = 1.0
    C[1][:, :, kinds == "W"] = 1.0
    C[2][:, :4] = 1.0
    C[:, goal] = 0.0
    return Gridworld(CMDP(P, R, C, np.eye(len(cells))[start], gamma, limits), rows, cells)


def _transitions(cells: tuple[tuple[int, int], ...], slip: float) -> Float64[np.ndarray, "S A S"]:
    """P (S, A, S) of moves that slip sideways and stop at walls."""
    index = {cell: s for s, cell in enumerate(cells)}
    P = np.zeros((len(cells), len(MOVES), len(cells)))
    for (i, j), s in index.items():
        ends = [index.get((i + di, j + dj), s) for di, dj in MOVES]
        for a in range(4):
            P[s, a, ends[a]] += 1 - slip
            P[s, a, ends[(a + 1) % 4]] += slip / 2
            P[s, a, ends[(a + 3) % 4]] += slip / 2
        P[s, 4, s] = 1.0
    return P

import numpy as np
import pytest

from corral.errors import CorralError
from corral.tabular.cmdp import evaluate
from corral.tabular.gridworld import gridworld
from corral.tabular.optimum import optimum

NORTH, EAST, SOUTH, WEST, WAIT = range(5)
SMALL = """
S W
F G
"""


def test_moves_slip_sideways_and_stop_at_the_edge():
    P = gridworld(SMALL, slip=0.2).cmdp.P  # states: 0 start, 1 water, 2 fire, 3 goal
    np.testing.assert_allclose(P[0, EAST], [0.1, 0.8, 0.1, 0.0])  # north slips into the edge, south to the fire
    np.testing.assert_allclose(P[0, NORTH], [0.9, 0.1, 0.0, 0.0])  # up and left are the edge
    np.testing.assert_allclose(P[1, SOUTH], [0.1, 0.1, 0.0, 0.8])
    np.testing.assert_allclose(P[2, WAIT], [0.0, 0.0, 1.0, 0.0])


def test_walls_stop_moves_too():
    world = gridworld("S # G\n. . .", slip=0.0)
    assert world.cells == ((0, 0), (0, 2), (1, 0), (1, 1), (1, 2))
    np.testing.assert_array_equal(world.cmdp.P[0, EAST], [1, 0, 0, 0, 0])
    np.testing.assert_array_equal(world.cmdp.P[3, NORTH], [0, 0, 0, 1, 0])


def test_a_round_trip_through_the_water_earns_and_costs_what_arithmetic_says():
    # start → water → goal → start … without slipping: period 3, γ = ½, so 1/(1 − ⅛) = 8/7 rounds, discounted.
    cmdp = gridworld(SMALL, slip=0.0, gamma=0.5).cmdp
    policy = np.eye(5)[[EAST, SOUTH, WAIT, NORTH]]
    found = evaluate(cmdp, policy)
    rounds = 8 / 7
    # Water entered at t = 0, the goal (reward 1) at t = 1; moves at t = 0 and 1; the way back is free.
    np.testing.assert_allclose(found.J, 0.5 * rounds)
    np.testing.assert_allclose(found.J_C, [0.0, rounds, 1.5 * rounds])


def test_waiting_costs_nothing_and_earns_nothing():
    cmdp = gridworld().cmdp
    found = evaluate(cmdp, np.eye(5)[[WAIT] * cmdp.states])
    assert found.J == 0.0
    np.testing.assert_array_equal(found.J_C, [0.0, 0.0, 0.0])


def test_all_three_limits_of_the_default_gridworld_bind():
    cmdp = gridworld().cmdp
    best = optimum(cmdp)
    np.testing.assert_allclose(best.J_C, cmdp.limits, rtol=1e-9)
    assert best.multipliers.min() > 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"grid": "S .\nG"}, "grid must have rows of one length"),
        ({"grid": ""}, "grid must have rows of one length"),
        ({"grid": "S X G"}, r"grid may hold S, G, #, F, W and '.', got \['X'\]"),
        ({"grid": "S . ."}, "grid must have exactly one G"),
        ({"grid": "S G S"}, "grid must have exactly one S"),
        ({"slip": 1.5}, r"slip must lie in \[0, 1\], got 1.5"),
        ({"gamma": 1.0}, r"gamma must lie in \[0, 1\)"),
        ({"limits": (1.0, 2.0)}, r"limits must have shape \(3,\) = fire, water, energy, got \(2,\)"),
    ],
)
def test_bad_maps_and_numbers_are_refused(arguments, message):
    with pytest.raises(CorralError, match=message):
        gridworld(**arguments)

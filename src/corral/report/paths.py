"""A few episodes of every final policy, seen from above; they begin alike for all policies."""

from itertools import pairwise
from typing import Any

import numpy as np

from corral import envs
from corral.envs.models import WALL_HALF_THICKNESS, WALL_INNER
from corral.envs.scenarios import Scenario
from corral.envs.tasks import Circle, Gather
from corral.errors import CorralError
from corral.report.render.record import Trajectory, policy_actor, record
from corral.report.runs import Run

EPISODES = 4
"""Episodes of each policy."""
_SEED = 0
"""Seed of starts, layouts and actions: the same for every policy, so that policies can be compared."""
_POINTS = 300
"""Most points of a path."""


def play(run: Run) -> dict[str, Any]:
    """Episodes of the run's final policy with the map they happen on, or `missing`: why there are none."""
    if not run.finished:
        return {"missing": f"no final policy, {len(run.metrics):,} of {run.config.iterations:,} iterations done"}
    if run.config.env not in envs.names() or run.config.from_python:
        return {"missing": f"there is no map of {run.config.env}"}
    try:
        scenario = envs.scenario(run.config.env, **run.config.task)
        policy, _ = run.directory.policy(run.config, scenario.spec)
    except CorralError as error:
        return {"missing": str(error)}
    if not isinstance(scenario.task, Circle | Gather):
        return {"missing": f"there is no map of {run.config.env}"}
    trajectories = record(scenario, policy_actor(policy, _SEED), EPISODES, _SEED)
    return {"map": _map(scenario), "episodes": [_episode(t) for t in trajectories]}


def _map(scenario: Scenario) -> dict[str, Any]:
    """The fixed parts of the map, in metres."""
    task = scenario.task
    if isinstance(task, Gather):
        walls = {"wall": WALL_INNER, "thick": 2 * WALL_HALF_THICKNESS}
        return {"kind": "gather", "apples": task.apples, "catch": task.catch_range} | walls
    assert isinstance(task, Circle)
    return {"kind": "circle", "d": task.d, "x": task.x_lim, "y": task.y_lim}


def _episode(trajectory: Trajectory) -> dict[str, Any]:
    """The path, rounded to centimetres; a long path keeps every k-th point, and k steps are costly if one of them is."""
    every = -(-trajectory.steps // _POINTS) if trajectory.steps else 1
    chosen = [*range(0, trajectory.steps, every), trajectory.steps]
    path, costly = trajectory.com[:, :2], trajectory.costly
    return {
        "path": _metres(path[chosen]),
        "costly": "".join("1" if costly[a:b].any() else "0" for a, b in pairwise(chosen)),
        "hits": _metres(path[1:][costly]) if len(trajectory.objects) else [],
        "objects": _metres(trajectory.objects),
        "left": "".join("1" if present else "0" for present in trajectory.present[-1]),
        "steps": trajectory.steps,
        "return": float(f"{trajectory.reward.sum():.5g}"),
        "costs": [float(f"{cost:.5g}") for cost in trajectory.costs.sum(axis=0)],
    }


def _metres(points: np.ndarray) -> list[float]:
    """x, y, x, y, …"""
    return [round(float(value), 2) for value in np.nan_to_num(points).ravel()]

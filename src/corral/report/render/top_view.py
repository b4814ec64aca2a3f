"""Draw recorded episodes: the paths from above, with the marks of the task; in velocity tasks also the speed over time."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from corral.envs.models import WALL_HALF_THICKNESS, WALL_INNER
from corral.envs.scenarios import Scenario
from corral.envs.tasks import Circle, Gather
from corral.envs.velocity import Velocity
from corral.errors import require
from corral.report.render.record import Trajectory, speeds
from corral.report.style import BLUE, GREEN, GREY, RED, SKY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PANELS = 12
"""The most episodes of Gather in one figure: each has its own layout, and so its own panel."""


def top_down(
    trajectories: Sequence[Trajectory], scenario: Scenario, limits: Sequence[float] = (), name: str = ""
) -> "Figure":
    """Draw the paths of the centre of mass; steps with a cost are red.

    Circle: all episodes in one panel, with the target circle and the safe region. Gather: one panel for each of the first
    12 episodes, with its objects, hollow if they were caught. Velocity: the speed over time against the threshold, and the
    paths too if the robot is free in the plane. Other tasks: the paths alone. The heading gives `limits` (the scenario's
    own if empty) and the `name` of the policy, if there is one.
    """
    require(len(trajectories) > 0, "trajectories must hold at least one episode")
    from matplotlib import rc_context

    style: Any = {"font.size": 10, "legend.fontsize": 9, "axes.titlesize": 10}
    heading = (f"{name} in " if name else "") + _heading(trajectories, scenario, limits)
    with rc_context(style):
        if isinstance(scenario.task, Gather):
            return _gather_figure(trajectories, scenario.task, heading)
        if isinstance(scenario.task, Circle):
            return _circle_figure(trajectories, scenario.task, heading)
        return _plain_figure(trajectories, scenario, heading)


def _heading(trajectories: Sequence[Trajectory], scenario: Scenario, limits: Sequence[float]) -> str:
    """The scenario, the number of episodes, the mean return, the mean costs and their limits."""
    count = len(trajectories)
    costs = np.mean([t.costs.sum(axis=0) for t in trajectories], axis=0)
    constraints = scenario.spec.constraints
    told = zip(constraints, costs, limits or [c.limit for c in constraints], strict=True)
    parts = [f"{c.description}: {cost:.3g} (limit {limit:g})" for c, cost, limit in told]
    episodes = "one episode" if count == 1 else f"mean of {count} episodes"
    mean = float(np.mean([t.reward.sum() for t in trajectories]))
    return f"{scenario.name}, {episodes}\n" + "; ".join([f"return {mean:.3g}", *parts])


def _circle_figure(trajectories: Sequence[Trajectory], task: Circle, heading: str) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(6.6, 4.7), layout="constrained")
    ax = figure.add_subplot()
    reach = max(1.25 * task.d, 1.05 * max(float(np.abs(t.com[:, :2]).max()) for t in trajectories))
    _shade_unsafe(ax, task, reach)
    angle = np.linspace(0, 2 * np.pi, 361)
    ax.plot(task.d * np.cos(angle), task.d * np.sin(angle), color=GREEN, lw=2.2)
    _mark_corners(ax, task)
    for trajectory in trajectories:
        _draw_path(ax, trajectory, alpha=max(0.4, len(trajectories) ** -0.5))
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xlabel="x (m)", ylabel="y (m)")
    ax.set_title(heading, loc="left")
    beyond_y = "" if task.y_lim is None else f"\nor |y| > {task.y_lim:g}"
    handles = [
        _line(GREEN, f"target circle, d = {task.d:g}", 2.2),
        Patch(facecolor=SKY, alpha=0.35, label=f"costs 1 a step:\n|x| > {task.x_lim:g}{beyond_y}"),
        Patch(facecolor="white", edgecolor=GREY, label="safe region"),
        *_path_handles(),
        _line(RED, "path, where it costs", 1.6),
    ]
    ax.legend(handles=handles, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    return figure


def _shade_unsafe(ax: Any, task: Circle, reach: float) -> None:
    """Shade the strips beyond the limits, and draw the limits."""
    for sign in (-1, 1):
        for limit, strip, line in ((task.x_lim, ax.axvspan, ax.axvline), (task.y_lim, ax.axhspan, ax.axhline)):
            if limit is not None:
                strip(sign * limit, sign * 10 * reach, color=SKY, alpha=0.35, lw=0)
                line(sign * limit, color=BLUE, lw=1, ls="--")


def _mark_corners(ax: Any, task: Circle) -> None:
    """Mark A, B, C, D, where the circle crosses |x| = x_lim at |y| = √(d² - x_lim²); AD and BC are the best safe path."""
    if task.x_lim >= task.d or task.y_lim is not None:
        return
    y = math.sqrt(task.d**2 - task.x_lim**2)
    for name, sx, sy in (("A", -1, 1), ("B", 1, 1), ("C", 1, -1), ("D", -1, -1)):
        ax.plot(sx * task.x_lim, sy * y, "s", color="black", ms=4)
        offset = {"xytext": (9 * sx, 7 * sy), "textcoords": "offset points", "ha": "center", "va": "center"}
        ax.annotate(name, (sx * task.x_lim, sy * y), weight="bold", **offset)


def _draw_path(ax: Any, trajectory: Trajectory, alpha: float = 1.0) -> None:
    """Draw the path from above."""
    _draw_line(ax, trajectory.com[:, :2], trajectory.costly, alpha)


def _draw_line(ax: Any, path: np.ndarray, costly: np.ndarray, alpha: float, width: float = 1.6) -> None:
    """Draw a line from a hollow dot to a full one; steps with a cost are red and lie on top."""
    from matplotlib.collections import LineCollection

    steps = np.stack([path[:-1], path[1:]], axis=1)
    for chosen, colour in ((steps[~costly], BLUE), (steps[costly], RED)):
        ax.add_collection(LineCollection(list(chosen), colors=colour, lw=width, alpha=alpha, zorder=4))
    ax.plot(*path[0], "o", ms=5, mfc="white", mec="black", mew=1, zorder=5)
    ax.plot(*path[-1], "o", ms=4, color="black", zorder=5)


def _plain_figure(trajectories: Sequence[Trajectory], scenario: Scenario, heading: str) -> "Figure":
    """The figure of a task that has no marks on the floor."""
    from matplotlib.figure import Figure

    alpha = max(0.6, len(trajectories) ** -0.5)
    velocity = scenario.task if isinstance(scenario.task, Velocity) else None
    path = velocity is None or velocity.planar
    figure = Figure(figsize=(8.4 if path and velocity else 6.6, 4.2), layout="constrained")
    handles = [*_path_handles("path" if path else "speed"), _line(RED, "where it costs", 1.6)]
    if velocity is not None:
        _draw_speeds(figure.add_subplot(1, 1 + path, 1), trajectories, velocity, alpha)
        handles.append(_line("black", f"threshold, {velocity.threshold:g} m/s", 1, ls="--"))
    if path:
        ax = figure.add_subplot(1, 1 + (velocity is not None), 1 + (velocity is not None))
        for trajectory in trajectories:
            _draw_path(ax, trajectory, alpha)
        ax.update_datalim([(-1, -1), (1, 1)])  # a robot that hardly moves is not magnified
        ax.set(xlabel="x (m)", ylabel="y (m)")
        ax.set_aspect("equal", adjustable="datalim")
    figure.suptitle(heading, x=0.01, ha="left", fontsize=10)
    figure.legend(handles=handles, loc="outside right center", frameon=False)
    return figure


def _draw_speeds(ax: Any, trajectories: Sequence[Trajectory], task: Velocity, alpha: float) -> None:
    """Draw the speed of every episode over its steps, red where it exceeds the threshold."""
    for trajectory in trajectories:
        time = np.arange(trajectory.steps + 1)
        _draw_line(ax, np.stack([time, speeds(task, trajectory)], axis=1), trajectory.costly, alpha, 0.9)
    ax.axhline(task.threshold, color="black", lw=1, ls="--", zorder=6)
    ax.set(xlabel="step", ylabel="speed in the plane (m/s)" if task.planar else "speed along x (m/s)")
    ax.set_xlim(0, max(1, *(t.steps for t in trajectories)))


def _gather_figure(trajectories: Sequence[Trajectory], task: Gather, heading: str) -> "Figure":
    from matplotlib.figure import Figure

    shown = trajectories[:_PANELS]
    columns = {4: 2, 5: 3, 6: 3}.get(len(shown), min(len(shown), 4))
    rows = -(-len(shown) // columns)
    side = 4.2 if columns == 1 else 2.7
    figure = Figure(figsize=(columns * side + 1.7, rows * side + 0.7), layout="constrained")
    for number, trajectory in enumerate(shown):
        ax = figure.add_subplot(rows, columns, number + 1)
        _draw_arena(ax, trajectory, task)
        if len(shown) > 1:
            ax.set_title(f"return {trajectory.reward.sum():g}, bombs {trajectory.costs.sum():g}")
        ax.label_outer()
    more = f"; the first {_PANELS} are shown" if len(trajectories) > _PANELS else ""
    figure.suptitle(heading + more, x=0.01, ha="left", fontsize=10)
    figure.legend(handles=_gather_handles(task), loc="outside right center", frameon=False)
    return figure


def _draw_arena(ax: Any, trajectory: Trajectory, task: Gather) -> None:
    """Draw the walls, the path, and the objects with the range in which they are caught."""
    from matplotlib.patches import Circle as Disc
    from matplotlib.patches import Rectangle

    outer = WALL_INNER + 2 * WALL_HALF_THICKNESS
    ax.add_patch(Rectangle((-outer, -outer), 2 * outer, 2 * outer, color=GREY, lw=0))
    ax.add_patch(Rectangle((-WALL_INNER, -WALL_INNER), 2 * WALL_INNER, 2 * WALL_INNER, color="white", lw=0))
    for i, (x, y) in enumerate(trajectory.objects):
        colour, marker = (GREEN, "o") if i < task.apples else (RED, "X")
        left = bool(trajectory.present[-1, i])
        ax.plot(x, y, marker, ms=9, mec=colour, mfc=colour if left else "white", mew=1.2, zorder=3)
        ax.add_patch(Disc((x, y), task.catch_range, fill=False, ec=colour, lw=0.6, ls=":"))
    _draw_path(ax, trajectory)
    ax.plot(*trajectory.com[1:, :2][trajectory.costly].T, "D", ms=5, color=RED, mec="black", mew=0.8, zorder=6)
    ax.set(xlim=(-outer, outer), ylim=(-outer, outer), aspect="equal", xlabel="x (m)", ylabel="y (m)")
    ax.set(xticks=range(-6, 7, 2), yticks=range(-6, 7, 2))


def _gather_handles(task: Gather) -> list[Any]:
    return [
        *(
            _line(colour, f"{name}{caught}", 0, marker=marker, ms=8, mew=1.2, mfc=fill)
            for name, colour, marker in (("apple", GREEN, "o"), ("bomb", RED, "X"))
            for caught, fill in (("", colour), (", caught", "white"))
        ),
        _line(GREY, f"caught within {task.catch_range:g} m", 0.8, ls=":"),
        *_path_handles(),
        _line(RED, "where a bomb was caught", 0, marker="D", ms=5, mec="black", mew=0.8),
    ]


def _path_handles(name: str = "path") -> list[Any]:
    return [
        _line(BLUE, name, 1.6),
        _line("black", "start", 0, marker="o", ms=5, mfc="white"),
        _line("black", "end", 0, marker="o", ms=4),
    ]


def _line(colour: str, label: str, width: int | float, **more: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, label=label, lw=width, **more)

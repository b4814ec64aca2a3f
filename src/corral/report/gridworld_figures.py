"""The figures of `corral tabular`: how exact CPO approaches the optimum, and where its policies go."""

from pathlib import Path
from typing import Any

import numpy as np

from corral.errors import require, require_shape
from corral.report.style import BLACK, BLUE, GREEN, ORANGE, RED, drawing
from corral.tabular.cmdp import Evaluation, require_kind
from corral.tabular.gridworld import MOVES, Gridworld
from corral.tabular.optimum import Optimum
from corral.tabular.update import Run

__all__ = ["grid_figure", "progress_figure"]

_MARKS = {"F": (RED, "fire"), "W": (BLUE, "water"), "#": ("#444444", ""), "S": (BLACK, "start"), "G": (GREEN, "goal")}
_LIKELY = {"arrowstyle": "-|>", "color": ORANGE, "lw": 2.2, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 12}
_UNLIKELY = _LIKELY | {"arrowstyle": "-"}


def progress_figure(world: Gridworld, cpo: Run, guaranteed: Run, best: Optimum, path: Path) -> None:
    """Draw J and each J_Cᵢ of every policy of two runs, with the optimum and the limits."""
    require_kind("world", world, Gridworld)
    require_kind("best", best, Optimum)
    for argument, run in (("cpo", cpo), ("guaranteed", guaranteed)):
        require_kind(argument, run, Run)
        require(run.start.cmdp is world.cmdp, f"{argument} must be a run on the CMDP of world")
    titles = ["deliveries (return J)", "fire entered (J_C1)", "water entered (J_C2)", "moves made (J_C3)"]
    levels = [best.J, *world.cmdp.limits]
    with drawing(path, len(titles), (15.5, 4.0)) as axes:
        for k, (ax, title, level) in enumerate(zip(axes, titles, levels, strict=True)):
            for run, colour, name in ((guaranteed, ORANGE, "guaranteed update"), (cpo, BLUE, "exact CPO")):
                ax.plot([policy.returns[k] for policy in run.policies], color=colour, marker=".", label=name)
            top = 1.12 * max(level, *(policy.returns[k] for run in (cpo, guaranteed) for policy in run.policies))
            ax.axhline(level, color=RED, ls="--", lw=1.5, label=f"limit {level:g}" if k else "LP optimum")
            if k:
                ax.axhspan(level, top, color=RED, alpha=0.08, lw=0)
            ax.set(title=title, xlabel="update", xlim=(0, len(cpo.updates)), ylim=(0, top))
        axes[0].set_ylabel("discounted sum, exact")
        axes[0].legend(loc="center right")
        for ax in axes[1:]:
            ax.legend(handles=ax.get_lines()[2:], loc="upper right")


def grid_figure(world: Gridworld, policies: dict[str, Evaluation], path: Path) -> None:
    """Draw a map for each policy: its time in each cell (grey) and its actions there (lines as long as √probability)."""
    require_kind("world", world, Gridworld)
    require(len(policies) > 0, "policies must not be empty")
    for title, policy in policies.items():
        require_shape(f"policies[{title!r}].d", policy.d, (world.cmdp.states,), "the states of world")
    size = (6.6 * len(policies) + 0.8, 0.62 * len(world.rows) + 0.6)
    top = max(float(policy.d.max()) for policy in policies.values())
    with drawing(path, len(policies), size) as axes:
        for ax, (title, policy) in zip(axes, policies.items(), strict=True):
            image = _draw_time(ax, world, policy, top)
            _draw_cells(ax, world)
            _draw_actions(ax, world, policy)
            ax.set(title=title, xticks=[], yticks=[])
            ax.spines[:].set_visible(True)
        bar = axes[0].figure.colorbar(image, ax=axes, fraction=0.025, pad=0.01)
        bar.set_label("share of discounted time, d^π")


def _draw_time(ax: Any, world: Gridworld, policy: Evaluation, top: float) -> Any:
    from matplotlib.colors import PowerNorm

    time = np.full((len(world.rows), len(world.rows[0])), np.nan)
    for cell, share in zip(world.cells, policy.d, strict=True):
        time[cell] = share
    return ax.imshow(time, cmap="Greys", norm=PowerNorm(0.5, 0, top), alpha=0.75)


def _draw_cells(ax: Any, world: Gridworld) -> None:
    from matplotlib.patches import Rectangle

    for i, row in enumerate(world.rows):
        for j, kind in enumerate(row):
            if kind in _MARKS:
                colour, name = _MARKS[kind]
                half = 0.5 if kind == "#" else 0.46
                box = Rectangle((j - half, i - half), 2 * half, 2 * half, color=colour, fill=kind == "#", lw=2)
                ax.add_patch(box)
                ax.text(j - 0.43, i - 0.27, name, color=colour, fontsize=7, weight="bold")


def _draw_actions(ax: Any, world: Gridworld, policy: Evaluation) -> None:
    for (i, j), share, probabilities in zip(world.cells, policy.d, policy.policy, strict=True):
        # Leave out cells that the courier never visits, and the goal, where every action does the same.
        if share < 1e-4 or world.rows[i][j] == "G":
            continue
        lengths = np.where(probabilities > 0.01, np.sqrt(probabilities), 0.0)
        for (di, dj), length in zip(MOVES[:4], lengths[:4], strict=True):
            end = (j + 0.44 * length * dj, i + 0.44 * length * di)
            if length > 0:
                ax.annotate("", end, (j, i), arrowprops=_LIKELY if length > 0.6 else _UNLIKELY)
        if lengths[4] > 0:
            ax.plot(j, i, "o", color=ORANGE, ms=8 * lengths[4])

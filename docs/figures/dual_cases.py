"""Draw the cases of the trust-region subproblem in the plane: `python docs/figures/dual_cases.py`.

Every step, case and path is an answer of `corral.trust_region.dual.solve`; nothing is placed by hand. Each point of the
path x(α) is the answer for one size of the trust region, so the script solves the same problem for many sizes.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np
from matplotlib import patches, patheffects
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from corral.report.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, STYLE, save
from corral.trust_region import dual
from corral.trust_region.dual import Case

OUT = Path(__file__).parents[1] / "img"
VIEW_X, VIEW_Y = (-1.75, 1.75), (-1.45, 1.45)
CONSTRAINT_COLOURS = (ORANGE, PURPLE)
DOTS = (0, (1, 1.7))

# ½xᵀHx ≤ δ with δ = ½: an ellipse with half-axes 1.3 and 0.85, turned by 20°.
DELTA = 0.5
TURN = np.deg2rad(20)
AXES = np.array([[np.cos(TURN), -np.sin(TURN)], [np.sin(TURN), np.cos(TURN)]])
HALF_AXES = np.array([1.3, 0.85])
H = AXES @ np.diag(HALF_AXES**-2) @ AXES.T


@dataclass(frozen=True)
class Panel:
    """One picture: an objective, constraints cᵢ + bᵢᵀx ≤ 0, and the case they must give."""

    title: str
    note: str
    g: tuple[float, float]
    B: tuple[tuple[float, float], ...]
    """One row per constraint."""
    c: tuple[float, ...]
    case: Case
    labels: tuple[float, ...] = (0.0, 0.0)
    """Where along its boundary the name of each constraint stands."""


def _towards(degrees: float) -> tuple[float, float]:
    return (float(np.cos(np.deg2rad(degrees))), float(np.sin(np.deg2rad(degrees))))


UP, FLAT = _towards(75), (0.0, 0.0)
PANELS = (
    Panel("INSIDE", "no boundary in reach: the plain step", UP, (_towards(-35),), (-1.25,), Case.INSIDE, (0.25,)),
    Panel(
        "BOUNDARY", "feasible now, a boundary cuts the ellipse", UP, (_towards(60),), (-0.5,), Case.BOUNDARY, (-0.8,)
    ),
    Panel(
        "BOUNDARY, at a vertex",
        "g between b₁ and b₂, corner in reach: λ = 0",
        UP,
        (_towards(40), _towards(100)),
        (-0.46, -0.71),
        Case.BOUNDARY,
        (-0.95, 1.0),
    ),
    Panel(
        "FEASIBLE_RECOVERY",
        "violated now, can be repaired in one step",
        UP,
        (_towards(15),),
        (0.45,),
        Case.FEASIBLE_RECOVERY,
        (-1.0,),
    ),
    Panel("RECOVERY, m = 1", "out of reach: straight towards it", UP, (_towards(25),), (1.5,), Case.RECOVERY, (-0.7,)),
    Panel(
        "RECOVERY, m = 2",
        "towards the nearest point that obeys both",
        UP,
        (_towards(65), _towards(-35)),
        (0.75, 1.25),
        Case.RECOVERY,
        (-1.2, 0.75),
    ),
    Panel(
        "CONTRADICTORY",
        "no point obeys both: equal violations",
        UP,
        (_towards(15), _towards(195)),
        (1.1, -0.1),
        Case.CONTRADICTORY,
        (-0.75, -1.0),
    ),
    Panel(
        "ZERO_GRADIENT",
        "b₂ = 0 and c₂ > 0: only b₁ is repaired",
        UP,
        (_towards(-10), FLAT),
        (0.6, 0.4),
        Case.ZERO_GRADIENT,
        (1.05,),
    ),
)

solve_all = jax.jit(jax.vmap(dual.solve, in_axes=(None, None, None, None, 0)))


def solve_for_sizes(panel: Panel, deltas: np.ndarray) -> tuple[np.ndarray, dual.Solution]:
    """Steps (k, 2) and solutions of a panel's problem for k sizes of the trust region."""
    g, B, c = np.array(panel.g), np.array(panel.B), np.array(panel.c)
    v, W = np.linalg.solve(H, g), np.linalg.solve(H, B.T)
    found = solve_all(g @ v, B @ v, B @ W, c, deltas)
    steps = np.asarray(found.alpha)[:, None] * v - np.asarray(found.beta) @ W.T
    return steps, found


def _arrow(ax: Any, start: np.ndarray, end: np.ndarray, colour: str, width: float, zorder: float) -> None:
    style = f"-|>,head_length={3 + 2 * width},head_width={1.2 + width}"
    ax.add_patch(
        patches.FancyArrowPatch(
            start, end, arrowstyle=style, lw=width, color=colour, shrinkA=0, shrinkB=0, zorder=zorder
        )
    )


def _label(ax: Any, at: np.ndarray, text: str, colour: str = BLACK, size: float = 10) -> None:
    halo = [patheffects.withStroke(linewidth=2.5, foreground="white")]
    ax.text(*at, text, color=colour, fontsize=size, ha="center", va="center", path_effects=halo, zorder=9)


def _half_plane(ax: Any, b: np.ndarray, c: float, colour: str, name: str, where: float) -> None:
    """Shade c + bᵀx > 0 and draw the normal b on the boundary, at the position `where` along it."""
    length = np.linalg.norm(b)
    normal, along = b / length, np.array([-b[1], b[0]]) / length
    foot, far = -c / length * normal, 6.0
    left, right = foot - far * along, foot + far * along
    corners = [left, right, right + far * normal, left + far * normal]
    ax.add_patch(patches.Polygon(corners, closed=True, facecolor=colour, alpha=0.2, lw=0, zorder=2))
    ax.plot(*np.array([left, right]).T, color=colour, lw=1.8, zorder=3)
    base = foot + where * along
    _arrow(ax, base, base + 0.32 * normal, colour, 1.4, 3)
    _label(ax, base + 0.5 * normal, name)


def _draw_regions(ax: Any, panel: Panel) -> None:
    """Draw the trust region below the shade of the constraints and its outline above it."""
    for style in ({"fc": SKY, "alpha": 0.3, "zorder": 1}, {"fc": "none", "ec": BLUE, "lw": 1.5, "zorder": 4}):
        ax.add_patch(patches.Ellipse((0, 0), *(2 * HALF_AXES), angle=np.rad2deg(TURN), **style))
    for i, (b, c, colour) in enumerate(zip(panel.B, panel.c, CONSTRAINT_COLOURS, strict=False)):
        if any(b):
            _half_plane(ax, np.array(b), c, colour, f"$b_{i + 1}$", panel.labels[i])
        else:
            ax.axvspan(*VIEW_X, color=colour, alpha=0.2, lw=0, zorder=2)
            _label(ax, np.array([0.48, -1.29]), f"constraint {i + 1}: violated everywhere", size=9)


def _draw_path(ax: Any, panel: Panel, step: np.ndarray) -> None:
    """Draw x(α) from x(0) to the step as a line and beyond it as dots; a recovery step does not reach x(0)."""
    sizes = DELTA * np.geomspace(1e-4, 40, 600)
    points, found = solve_for_sizes(panel, sizes)
    feasible = np.asarray(found.case) <= Case.FEASIBLE_RECOVERY
    inside, beyond = points[feasible & (sizes <= DELTA)], points[feasible & (sizes > DELTA)]
    if len(inside):
        inside, beyond = np.vstack([inside, step]), np.vstack([step, beyond])
    ax.plot(*inside.T, color=GREEN, lw=2.4, zorder=5)
    ax.plot(*beyond.T, color=GREEN, lw=1.5, ls=DOTS, zorder=5)
    nearest = nearest_feasible(panel)
    if nearest is not None and np.any(nearest):
        ax.plot(*nearest, "o", mfc="white", mec=GREEN, mew=1.8, ms=7, zorder=8)
        if panel.case is Case.RECOVERY:
            ax.plot(*np.array([step, nearest]).T, color=BLACK, lw=1.2, ls=DOTS, zorder=5)


def _draw_equal_distances(ax: Any, panel: Panel, step: np.ndarray) -> None:
    """Draw the distances from the step to both boundaries, equal in the norm of H and directed along H⁻¹b."""
    b, c = np.array(panel.B), np.array(panel.c)
    away = np.linalg.solve(H, b[0])
    ends = step - np.outer((c + b @ step) / (b @ away), away)
    ax.plot(*ends.T, color=BLACK, lw=1.2, ls=DOTS, marker="|", ms=8, zorder=5)


def _draw(ax: Any, panel: Panel) -> None:
    (step,), found = solve_for_sizes(panel, np.array([DELTA]))
    case = Case(int(found.case[0]))
    if case is not panel.case:
        raise SystemExit(f"{panel.title} was drawn for {panel.case.name}, but solve says {case.name}")
    _draw_regions(ax, panel)
    _draw_path(ax, panel, step)
    if case is Case.CONTRADICTORY:
        _draw_equal_distances(ax, panel, step)
    origin, g = np.zeros(2), np.array(panel.g)
    _arrow(ax, origin, 0.5 * g, BLUE, 1.6, 6)
    _label(ax, 0.67 * g, "$g$", BLUE)
    _arrow(ax, origin, step, BLACK, 2.2, 7)
    ax.plot(*origin, "o", color=BLACK, ms=4, zorder=8)
    ax.set(xlim=VIEW_X, ylim=VIEW_Y, aspect="equal", xticks=[], yticks=[])
    ax.set_title(panel.title, fontweight="bold", pad=21)
    ax.text(0, 1.025, panel.note, transform=ax.transAxes, fontsize=9.2, va="bottom")
    beta, nu = (", ".join(f"{x:.2f}" for x in np.asarray(values[0])) for values in (found.beta, found.nu))
    answer = f"α {found.alpha[0]:.2f}   β {beta}   λ {found.lam[0]:.2f}   ν {nu}"
    ax.set_xlabel(answer, fontsize=8.6, loc="left")


def nearest_feasible(panel: Panel) -> np.ndarray | None:
    """x(0), the least-norm point of the linearised constraints: the step without an objective in a huge trust region."""
    aimless = replace(panel, g=(0.0, 0.0))
    (point,), found = solve_for_sizes(aimless, np.array([1e6]))
    return point if int(found.case[0]) <= Case.FEASIBLE_RECOVERY else None


def _legend(figure: Any) -> None:
    entries = [
        (patches.Patch(facecolor=SKY, alpha=0.4, ec=BLUE), "trust region ½xᵀHx ≤ δ"),
        (patches.Patch(facecolor=ORANGE, alpha=0.3, ec=ORANGE), "forbidden: cᵢ + bᵢᵀx > 0"),
        (Line2D([], [], color=GREEN, lw=2.4), "path x(α)"),
        (Line2D([], [], color=GREEN, lw=1.5, ls=DOTS), "its course in a larger trust region"),
        (Line2D([], [], marker="o", mfc="white", mec=GREEN, mew=1.8, ms=7, ls=""), "x(0), nearest feasible point"),
        (Line2D([], [], color=BLACK, lw=2.2, marker=">", markevery=[-1], ms=6), "the step"),
    ]
    figure.legend(*zip(*entries, strict=True), loc="outside lower center", ncols=6, fontsize=9, handlelength=1.8)


def main() -> None:
    """Write docs/img/dual-cases.png."""
    jax.config.update("jax_enable_x64", True)
    frames = {"axes.spines.top": True, "axes.spines.right": True, "axes.grid": False, "axes.edgecolor": "#bbbbbb"}
    with matplotlib.rc_context(STYLE | frames):
        figure = Figure(figsize=(13.4, 7.4), layout="constrained")
        figure.get_layout_engine().set(h_pad=0.12, w_pad=0.07, rect=(0, 0, 1, 0.985))
        for ax, panel in zip(figure.subplots(2, 4).flat, PANELS, strict=True):
            _draw(ax, panel)
        _legend(figure)
        save(figure, OUT / "dual-cases.png", dpi=130)
    print(f"wrote {OUT / 'dual-cases.png'}")


if __name__ == "__main__":
    main()

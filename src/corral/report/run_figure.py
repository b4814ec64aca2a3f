"""The figure of one run: return above, every cost against its limit below."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from corral.errors import require
from corral.report.stats import LAST, final
from corral.report.style import BLUE, GREY, ORANGE, PURPLE, RED, STYLE, save
from corral.running.directory import RunDirectory

Curves = Float[np.ndarray, "seeds iterations"]


def run_figure(run_directory: Path) -> Path:
    """Draw a run with all its seeds as figure.png and figure.svg in its folder; returns the PNG's path."""
    found = RunDirectory.find(run_directory)
    runs = [run.metrics() for run in found]
    shared = min(len(run) for run in runs)
    require(shared > 0, f"{run_directory} has no iterations to draw yet")
    config = found[0].config()
    names = runs[0].constraints

    def curves(column: str) -> Curves:
        return np.stack([run[column][:shared].astype(float) for run in runs])

    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 1.1 + 2.3 * (1 + len(names))), layout="constrained")
        panels = figure.subplots(1 + len(names), sharex=True, squeeze=False)[:, 0]
        x, over = runs[0]["iteration"][:shared] + 1, f"over the last {min(LAST, shared)}"
        returns = curves("return")
        _draw(panels[0], x, returns, curves("return_se"), BLUE, "return")
        panels[0].set_title(f"return   ({_ending(returns)} {over})")
        panels[0].legend(loc="lower right")
        for axes, name in zip(panels[1:], names, strict=True):
            held = _draw_costs(axes, x, config.shape_costs, name, curves)
            axes.set_title(f"cost {name}   ({held} {over})")
            axes.legend(loc="upper right", ncols=2)
        for axes in panels:
            axes.set_ylabel("per episode")
        panels[-1].set_xlabel("iteration")
        which = f"seed {config.seed}" if len(runs) == 1 else f"{len(runs)} seeds"
        steps = np.mean([run["env_steps"][shared - 1] for run in runs]) / 1e6
        title = f"{config.algo.name.upper()} on {config.env}, {which}, {shared:,} iterations, {steps:.3g} million steps"
        figure.suptitle(title, x=0.02, ha="left", fontweight="bold")
        figure.align_ylabels(panels)
        for kind in ("svg", "png"):
            save(figure, run_directory / f"figure.{kind}", dpi=150)
    return run_directory / "figure.png"


def _draw_costs(axes: Any, x: np.ndarray, shaped: bool, name: str, curves: Callable[[str], Curves]) -> str:
    """Draw a cost against its limit; returns its final value in words, and that of the shaped cost if there is one."""
    cost, limit = curves(f"cost_{name}"), curves(f"limit_{name}")[0]
    shown, held = [cost], _ending(cost)
    _draw(axes, x, cost, curves(f"cost_se_{name}"), ORANGE, "cost C")
    if shaped:
        shown.append(curves(f"shaped_cost_{name}"))
        _draw(axes, x, shown[-1], curves(f"shaped_cost_se_{name}"), PURPLE, "shaped cost C⁺")
        held = f"C⁺ {_ending(shown[-1])}, C {held}"
    axes.plot(x, limit, color=RED, linestyle=(0, (6, 3)), linewidth=1.5, zorder=1.9, label=f"limit {limit[-1]:g}")
    effective = np.mean(curves(f"effective_limit_{name}"), axis=0)
    if np.any(np.isfinite(effective) & (np.abs(effective - limit) > 1e-3 * np.abs(limit))):
        axes.plot(x, effective, color=GREY, linestyle=":", linewidth=1.2, label="calibrated limit")
    axes.set_ylim(*_cost_range(np.concatenate(shown), float(limit[-1])))
    return held


def _draw(axes: Any, x: np.ndarray, values: Curves, errors: Curves, colour: str, label: str) -> None:
    """The mean over seeds in a band of one standard deviation; a single seed has a band of two standard errors."""
    mean = np.mean(values, axis=0)
    if len(values) > 1:
        half, meaning = np.std(values, axis=0, ddof=1), "±1 sd over seeds"
    else:
        half, meaning = 2 * errors[0], "±2 se of the batch"
    axes.fill_between(x, mean - half, mean + half, color=colour, alpha=0.22, linewidth=0)
    axes.plot(x, mean, color=colour, linewidth=1.5, label=f"{label}, {meaning}")


def _ending(values: Curves) -> str:
    """The final value; for several seeds its mean and the standard deviation over them."""
    means = [final(seed) for seed in values]
    return f"{np.mean(means):.4g}" + (f" ± {np.std(means, ddof=1):.2g}" if len(means) > 1 else "")


def _cost_range(values: np.ndarray, limit: float) -> tuple[float, float]:
    """The range of all costs, except that a start far above the limit may leave the picture."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return 0.0, max(2 * limit, 1.0)
    later = values[:, values.shape[1] // 3 :]
    recent = float(np.nanmax(later)) if np.any(np.isfinite(later)) else 0.0
    high = max(1.45 * limit, 1.25 * recent, min(1.1 * float(finite.max()), 4 * limit))
    return min(0.0, 1.1 * float(finite.min())), high if high > 0 else 1.0

"""The figure of `corral bounds`: how tight the paper's bounds are, and how much tighter than older ones."""

from pathlib import Path
from typing import Any

import numpy as np

from corral.errors import require
from corral.report.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, YELLOW, drawing
from corral.tabular.bounds import theorem_1
from corral.tabular.cmdp import evaluate, require_count, require_kind
from corral.tabular.examples import random_cmdp, random_policy
from corral.tabular.older_bounds import schulman_2015
from corral.tabular.survey import Survey

__all__ = ["bounds_figure"]


def bounds_figure(found: Survey, states: int, actions: int, seed: int, path: Path) -> None:
    """Draw three panels: the bounds along a path of policies, errors against allowances, older against new allowances."""
    require_kind("found", found, Survey)
    require(len(found.tallies) > 0, "found must hold instances, got an empty survey")
    require_count("states", states, 2)
    require_count("actions", actions, 2)
    require_count("seed", seed, 0)
    with drawing(path, 3, (15.5, 4.7)) as (left, middle, right):
        _bounds_along_a_path(left, states, actions, seed)
        _error_against_allowance(middle, found)
        _improvement(right, found)


def _bounds_along_a_path(ax: Any, states: int, actions: int, seed: int) -> None:
    gamma, rng = 0.5, np.random.default_rng(seed)
    cmdp = random_cmdp(rng, states, actions, 0, gamma)
    old, goal = (evaluate(cmdp, random_policy(rng, cmdp)) for _ in range(2))
    shares = np.linspace(0, 1, 60)
    path = [evaluate(cmdp, (1 - t) * old.policy + t * goal.policy) for t in shares]
    new, past = [theorem_1(old, p, old.V[0]) for p in path], [schulman_2015(old, p) for p in path]
    change, estimate = np.array([b.value for b in new]), np.array([b.estimate for b in new])
    for bounds, colour, label in ((past, ORANGE, "Schulman et al. 2015 allows"), (new, SKY, "Theorem 1 allows")):
        width = np.array([b.allowance for b in bounds])
        ax.fill_between(shares, estimate - width, estimate + width, color=colour, lw=0, label=label)
    ax.plot(shares, change, color=BLACK, lw=3, label="J(π') − J(π), exact")
    ax.plot(shares, estimate, color=YELLOW, lw=1.4, ls="--", label="surrogate")
    reach = 1.15 * max(b.allowance + abs(b.estimate) for b in new)
    ax.set(ylim=(-reach, reach), xlim=(0, 1), xlabel="share of the way from π to a random policy")
    ax.set(ylabel="change of the return", title=f"The bounds along a path (γ = {gamma:g})")
    ax.legend(loc="upper left")


def _error_against_allowance(ax: Any, found: Survey) -> None:
    tally = found.tallies["Theorem 1: f = V^π"]
    kinds, error, allowance = np.array(tally.pairs), np.array(tally.errors), np.array(tally.allowances)
    labels = {
        "close": ("logits moved by 0.01", SKY),
        "near": ("logits moved by 0.1", BLUE),
        "far": ("two random policies", GREEN),
        "deterministic": ("to deterministic", ORANGE),
        "from deterministic": ("from deterministic", RED),
        "fork": ("the fork, which attains it", BLACK),
    }
    for kind, (label, colour) in labels.items():
        # Errors as small as rounding show nothing about the bound.
        shown = (kinds == kind) & (error > 1e-12)
        ax.scatter(allowance[shown], error[shown], s=7, color=colour, alpha=0.6, lw=0, label=label)
    ends = np.array([allowance[allowance > 0].min() / 2, allowance.max() * 2])
    ax.plot(ends, ends, color=BLACK, lw=1)
    ax.text(ends[1] / 3, ends[1], "attained", ha="right", va="top")
    ax.set(xscale="log", yscale="log", xlabel="allowed by Theorem 1, 2γε·E[D_TV]/(1−γ)²")
    ax.set(ylabel="|J(π') − J(π) − surrogate|", title=f"Theorem 1, f = V^π: {tally.violations} violations")
    ax.legend(loc="lower right", markerscale=2.5, handletextpad=0.1)


def _improvement(ax: Any, found: Survey) -> None:
    rows = {
        "Lemma 3: divergence": ("Lemma 3 and max-TV", PURPLE, "-"),
        "Theorem 1: f = V^π": ("Theorem 1 and Schulman 2015", BLUE, "-"),
        "Corollary 3: reward": ("Corollary 3 and its KL form", GREEN, "-"),
        "Corollary 1: mixture": ("Corollary 1 and Kakade 2002", ORANGE, "--"),
    }
    for name, (label, colour, style) in rows.items():
        ratios = np.sort(found.tallies[name].improvements)
        if not ratios.size:
            continue
        share = np.arange(1, len(ratios) + 1) / len(ratios)
        ax.plot(ratios, share, color=colour, ls=style, label=f"{label}: {np.median(ratios):.3g}")
    ax.axvline(1, color=GREY, lw=1)
    ax.set(xscale="log", xlim=(0.3, 30_000), ylim=(0, 1), ylabel="share of instances")
    ax.set(xlabel="older allowance / new allowance", title="Improvement on the older bounds")
    ax.legend(loc="center right", title="median ratio", alignment="left", handlelength=1.3)

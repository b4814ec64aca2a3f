"""What README says about the steps of other implementations of CPO, computed from their formulas.

All of them write the paper's Theorem 2 for one constraint, with q, r, s, c, δ and

    A = q − r²/s     B = 2δ − c²/s     λ_a = √(A/B)     λ_b = √(q/2δ)

where the boundary c + bᵀx = 0 cuts the trust region. λ_a and λ_b are clipped to [0, r/c] and [r/c, ∞) (for c > 0 the other
way round), the better by f_a(λ) = −½(A/λ + Bλ) − rc/s and f_b(λ) = −½(q/λ + 2δλ) is taken, and ν = (λc − r)₊/s.
The theorem minimises gᵀx. An implementation that maximises has −g in its place: r = −bᵀH⁻¹g. safety-starter-agents
minimises; OmniSafe and SafePO maximise, with r = +bᵀH⁻¹g. README names the files and versions that were read.
"""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from corral.trust_region import dual

README = Path(__file__).parents[2] / "README.md"
COUNT, DELTA, ROUNDING = 100_000, 0.01, 1e-8


@pytest.fixture(scope="module")
def problems():
    """H = 1, normal g and b in eight dimensions, c uniform over the values for which the boundary cuts the trust region."""
    rng = np.random.default_rng(0)
    g, b = rng.normal(size=(2, COUNT, 8))
    c = rng.uniform(-1, 1, COUNT) * np.sqrt(2 * DELTA) * np.linalg.norm(b, axis=1)
    return g, b, c


def theorem_2(q, r, s, c, clip):
    """(λ, ν) of the theorem; `clip(x, low, high)` decides what becomes of an empty interval."""
    A, B, edge = q - r**2 / s, 2 * DELTA - c**2 / s, r / c
    inner, outer = (0 * c, edge), (edge, np.inf + 0 * c)
    la = np.where(c < 0, clip(np.sqrt(A / B), *inner), clip(np.sqrt(A / B), *outer))
    lb = np.where(c < 0, clip(np.sqrt(q / (2 * DELTA)), *outer), clip(np.sqrt(q / (2 * DELTA)), *inner))
    fa = -0.5 * (A / (la + ROUNDING) + B * la) - r * c / s
    fb = -0.5 * (q / (lb + ROUNDING) + 2 * DELTA * lb)
    lam = np.where(fa >= fb, la, lb)
    return lam, np.maximum(lam * c - r, 0) / s


def of_theorem(problems, sign, clip):
    g, b, c = problems
    q, r, s = (np.sum(x, axis=1) for x in (g * g, sign * g * b, b * b))
    lam, nu = theorem_2(q, r, s, c, clip)
    return (g - nu[:, None] * b) / (lam[:, None] + ROUNDING)


def of_corral(problems):
    g, b, c = problems
    q, r, s = (np.sum(x, axis=1) for x in (g * g, g * b, b * b))

    def solve(q, r, s, c):
        found = dual.solve(q, r[None], s[None, None], c[None], delta=DELTA)
        return found.alpha, found.beta[0]

    with jax.enable_x64(True):
        alpha, beta = jax.vmap(solve)(*map(jnp.asarray, (q, r, s, c)))
    return np.asarray(alpha)[:, None] * g - np.asarray(beta)[:, None] * b


def shares(problems, x, best):
    """Shares of steps that differ from the best by over 0.1% of the radius, and of recovery steps that stay outside."""
    _, b, c = problems
    radius = np.sqrt(2 * DELTA)
    wrong = np.linalg.norm(x - best, axis=1) > 1e-3 * radius
    broken = c + np.sum(b * x, axis=1) > 1e-3 * radius * np.linalg.norm(b, axis=1)
    return np.mean(wrong), np.mean(broken[c > 0])


def low_wins(x, low, high):
    """An empty interval gives its lower end."""
    return np.maximum(np.minimum(x, high), low)


def high_wins(x, low, high):
    """An empty interval gives its upper end, as in PyTorch's clamp: here a λ below zero."""
    return np.minimum(np.maximum(x, low), high)


def test_the_shares_in_readme_s_table_are_those_of_the_formulas(problems):
    best = of_corral(problems)
    minimising = shares(problems, of_theorem(problems, -1, low_wins), best)
    maximising = shares(problems, of_theorem(problems, +1, high_wins), best)
    assert minimising == (0, 0)  # an independent way to the same steps
    page = README.read_text()
    for title, k in (("steps that are not optimal", 0), ("feasible recovery steps that leave the limit broken", 1)):
        row = next(line for line in page.splitlines() if line.startswith(f"| {title}"))
        corral, omnisafe, safepo, starter = (float(x) for x in re.findall(r"\| ([\d.]+)%", row))
        assert corral == starter == 0
        assert omnisafe == safepo == pytest.approx(100 * maximising[k], abs=0.06 if k else 0.6)

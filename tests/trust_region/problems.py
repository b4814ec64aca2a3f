"""Random subproblems of every family, and a certificate of optimality that needs no solver.

Vectors g and bᵢ are drawn in ℝⁿ and q, r, S formed from them with H = I, which loses nothing: the solution depends on
q, r, S, c, δ alone. The certificate works in float64 on the numbers exactly as the solver received them.
"""

from typing import NamedTuple

import clarabel
import numpy as np
import scipy.sparse

from corral.trust_region.dual import Case


class Problems(NamedTuple):
    """A batch of subproblems with the same m; the vectors are kept for the conic solver."""

    q: np.ndarray
    r: np.ndarray
    S: np.ndarray
    c: np.ndarray
    delta: np.ndarray
    g: np.ndarray
    B: np.ndarray


def gram(g, B, c, delta, dtype=np.float64):
    q = np.einsum("pn,pn->p", g, g)
    r = np.einsum("pmn,pn->pm", B, g)
    S = np.einsum("pin,pjn->pij", B, B)
    return Problems(*(np.asarray(x, dtype) for x in (q, r, S, c, delta)), g, B)


def _generic(rng, count, m, n):
    g, B = rng.normal(size=(count, n)), rng.normal(size=(count, m, n))
    # c in trust-region radii: a mixture of far, cutting and violated.
    c = rng.normal(size=(count, m)) * rng.choice([0.3, 1.0, 3.0], size=(count, 1)) - rng.choice([0, 0.7], (count, 1))
    return g, B, c * np.linalg.norm(B, axis=-1)


def _spread(rng, count, m, n):
    return _generic(rng, count, m, n)


def _few_dimensions(rng, count, m, n):
    """Fewer dimensions than constraints: S is singular."""
    return _generic(rng, count, m, max(1, m // 2))


def _repeated(rng, count, m, n):
    g, B, c = _generic(rng, count, m, n)
    if m > 1:
        B[:, 1] = B[:, 0]
        c[:, 1] = np.where(rng.random(count) < 0.5, c[:, 0], c[:, 1])
    return g, B, c


def _opposite(rng, count, m, n):
    g, B, c = _generic(rng, count, m, n)
    if m > 1:
        B[:, 1] = -B[:, 0]
        c[:, 1] = np.where(rng.random(count) < 0.3, -c[:, 0], c[:, 1])
    return g, B, c


def _zero_gradient(rng, count, m, n):
    g, B, c = _generic(rng, count, m, n)
    B[rng.random((count, m)) < 0.5] = 0
    return g, B, c + rng.normal(size=c.shape)


def _no_objective(rng, count, m, n):
    g, B, c = _generic(rng, count, m, n)
    return 0 * g, B, c


def _parallel(rng, count, m, n):
    """g along ± the first constraint's gradient: q s = r²."""
    g, B, c = _generic(rng, count, m, n)
    if m > 0:
        g = B[:, 0] * rng.choice([-1, 1], size=(count, 1)) * rng.uniform(0.1, 3, size=(count, 1))
    return g, B, c


def _in_the_cone(rng, count, m, n):
    """g a non-negative combination of the constraints' gradients: λ → 0 where they are active."""
    g, B, c = _generic(rng, count, m, n)
    if m > 0:
        weights = rng.uniform(0, 1, size=(count, m)) * (rng.random((count, m)) < 0.7)
        g = np.einsum("pm,pmn->pn", weights, B)
        c = -0.4 * np.abs(c) / (1 + np.abs(c))
    return g, B, c


def _on_the_boundary(rng, count, m, n):
    g, B, c = _generic(rng, count, m, n)
    c[rng.random(c.shape) < 0.7] = 0
    return g, B, c


def _nearly(rng, count, m, n):
    """One of the degenerate families, moved off the degeneracy by 1e-12 to 1e-1."""
    families = (_few_dimensions, _repeated, _opposite, _parallel, _in_the_cone, _on_the_boundary)
    g, B, c = families[rng.integers(len(families))](rng, count, m, n)
    size = 10.0 ** rng.uniform(-12, -1, size=(count, 1))
    g = g + size * rng.normal(size=g.shape)
    B = B + size[..., None] * rng.normal(size=B.shape)
    return g, B, c + size * rng.normal(size=c.shape)


FAMILIES = {
    f.__name__[1:]: f
    for f in (
        _spread,
        _few_dimensions,
        _repeated,
        _opposite,
        _zero_gradient,
        _no_objective,
        _parallel,
        _in_the_cone,
        _on_the_boundary,
        _nearly,
    )
}


def draw(family, rng, count, m, dtype=np.float64, scales=True):
    """Problems of a family; with `scales`, g, each bᵢ and H are rescaled over many orders of magnitude."""
    g, B, c = FAMILIES[family](rng, count, m, m + 3)
    size = 10.0 ** rng.uniform(-4, 4, size=(count, 2 + m)) if scales else np.ones((count, 2 + m))
    delta = size[:, 0] ** 2 / 2
    return gram(g * size[:, 1:2], B * size[:, 2:, None], c * size[:, 2:] * size[:, :1], delta, dtype)


def residuals(problems, solution):
    """The largest relative residual of each problem's optimality conditions, and its name, from q, r, S, c, δ alone.

    Every residual is a sum that should vanish (or not be positive), relative to the sum of its terms' magnitudes: that is
    what rounding the inputs and the answer to the working precision can change it by.
    """
    q, r, S, c, delta = (np.asarray(x, np.float64) for x in problems[:5])
    alpha, beta, lam, nu, case = (np.asarray(x, np.float64) for x in solution)
    m = c.shape[1]

    def ratio(value, size):
        value, size = np.broadcast_arrays(value, size)
        out = np.zeros(value.shape)
        np.divide(value, size, out=out, where=size > 0)
        return np.where((size == 0) & (value != 0), np.inf, out)

    Sb, Sb_size = np.einsum("pij,pj->pi", S, beta), np.einsum("pij,pj->pi", np.abs(S), beta)
    norm2 = alpha**2 * q - 2 * alpha * np.sum(r * beta, 1) + np.sum(beta * Sb, 1)
    norm2_size = alpha**2 * q + 2 * alpha * np.sum(np.abs(r) * beta, 1) + np.sum(beta * Sb_size, 1)
    value = c + alpha[:, None] * r - Sb
    lengths = np.sqrt(np.maximum(np.einsum("pii->pi", S), 0))
    value_size = np.abs(c) + alpha[:, None] * np.abs(r) + Sb_size + np.sqrt(2 * delta)[:, None] * lengths
    live = lengths > 0

    feasible = case <= Case.FEASIBLE_RECOVERY
    found = {}
    found["trust region"] = ratio(np.maximum(norm2 - 2 * delta, 0), 2 * delta + norm2_size)
    found["sign"] = np.max(np.maximum(-beta, 0), axis=1, initial=0) + np.maximum(-alpha, 0)
    found["constraint"] = feasible * np.max(ratio(np.maximum(value, 0), value_size), axis=1, initial=0)

    # λ > 0: α times the duality gap is ½(2δ − ‖x‖²) − βᵀ(c + Bᵀx), a sum of two complementarity terms.
    smooth = feasible & (lam > 0)
    gap = (delta - norm2 / 2) - np.sum(beta * value, 1)
    found["gap"] = smooth * ratio(np.abs(gap), delta + norm2_size / 2 + np.sum(beta * value_size, 1))
    found["multipliers"] = smooth * (
        np.abs(alpha * lam - 1)
        + np.max(ratio(np.abs(nu - lam[:, None] * beta), nu + lam[:, None] * beta), axis=1, initial=0)
    )
    # λ = 0: g = Bν, and the objective gᵀx = −cᵀν.
    vertex = feasible & (lam == 0)
    miss = q - 2 * np.sum(r * nu, 1) + np.einsum("pi,pij,pj->p", nu, S, nu)
    miss_size = q + 2 * np.sum(np.abs(r) * nu, 1) + np.einsum("pi,pij,pj->p", nu, np.abs(S), nu)
    found["stationarity at a vertex"] = vertex * ratio(np.abs(miss), miss_size)
    found["gap at a vertex"] = vertex * ratio(np.abs(np.sum(nu * value, 1)), np.sum(nu * value_size, 1))

    # Recovery: β is a multiple of μ maximising cᵀμ − ½μᵀSμ over μ ≥ 0, as long as the trust region allows.
    recovery = (case == Case.RECOVERY) & (m > 0)
    cb = np.sum(c * beta, 1)
    scale = np.where(recovery, cb / (2 * delta), 1)  # μ = scale·β, because (Sμ)_A = c_A and ‖Bβ‖² = 2δ
    slack = c - scale[:, None] * Sb
    slack_size = np.abs(c) + scale[:, None] * Sb_size
    found["recovery length"] = recovery * ratio(np.abs(norm2 - 2 * delta), 2 * delta + norm2_size)
    found["recovery direction"] = recovery * np.max(
        np.where(live, ratio(np.maximum(slack, 0), slack_size), 0), axis=1, initial=0
    )
    found["recovery needed"] = recovery * np.maximum(1 - scale, 0)
    found["reward while recovering"] = ((case >= Case.RECOVERY) & (case <= Case.ZERO_GRADIENT)) * (alpha != 0)

    contradictory = np.flatnonzero(case == Case.CONTRADICTORY)
    least = np.zeros(len(q))
    eps = np.finfo(problems.q.dtype).eps
    for p in contradictory:
        least[p] = _least_violation_residual(S[p], c[p], delta[p], beta[p], eps)
    found["least violation"] = least

    worst = np.stack(list(found.values()))
    assert all(np.all(np.isfinite(x)) for x in (alpha, beta, lam, nu))
    names = np.asarray(list(found))
    return worst.max(0), names[worst.argmax(0)]


def _least_violation_residual(S, c, delta, beta, eps):
    """How far x = −Bβ may be from minimising maxᵢ (cᵢ + bᵢᵀx)/‖bᵢ‖ over ‖x‖² ≤ 2δ, relative to the terms of a violation.

    Any u ≥ 0 with Σu = 1 proves that no point does better than uᵀc − ‖Bu‖ (the ball's support function). A conic solver
    proposes u; what it proves does not depend on the solver.
    """
    length = np.sqrt(np.diag(S))
    live = length > 0
    length, S, c, beta = length[live], S[np.ix_(live, live)], c[live], beta[live]
    radius = np.sqrt(2 * delta)
    S, c, beta = S / np.outer(length, length), c / (length * radius), beta * length / radius
    u = _prices_of_the_largest_violation(S, c)
    # An inner product in floating point is known to some units of rounding of ‖bᵢ‖‖bⱼ‖ = 1, 8 here; so is ‖Bu‖² = uᵀSu.
    proven = u @ c - np.sqrt(max(u @ S @ u - 8 * eps, 0))
    size = 1 + (np.abs(c) + np.abs(S) @ beta).max()
    return max((c - S @ beta).max() - proven, 0) / size


def _prices_of_the_largest_violation(S, c):
    """The multipliers u of c + Bᵀx ≤ v in: minimise v over x and v with ‖x‖ ≤ 1."""
    m = len(c)
    w, V = np.linalg.eigh(S)
    BT = V * np.sqrt(np.maximum(w, 0))
    planes = np.hstack([BT, -np.ones((m, 1))])
    ball = np.vstack([np.zeros((1, m + 1)), -np.eye(m, m + 1)])
    cones = [clarabel.NonnegativeConeT(m), clarabel.SecondOrderConeT(m + 1)]
    right = np.concatenate([-c, [1.0], np.zeros(m)])
    found = solve_conic(np.append(np.zeros(m), 1.0), np.vstack([planes, ball]), right, cones)
    u = np.maximum(found.z[:m], 0)
    return u / u.sum()


def solve_conic(objective, A, b, cones):
    """minimise objectiveᵀx subject to b − Ax in the product of `cones`, by Clarabel."""
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
    P = scipy.sparse.csc_matrix((len(objective), len(objective)))
    return clarabel.DefaultSolver(P, objective, scipy.sparse.csc_matrix(A), b, cones, settings).solve()

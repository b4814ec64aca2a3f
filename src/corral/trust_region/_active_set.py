"""The least-norm point of a polyhedron that moves with one parameter t, by an active-set method.

For unit vectors bᵢ with Gram matrix S, a base c, a slope k and a given t ≥ 0,

    β(t) = argmin_{β ≥ 0} ½βᵀSβ − (c + tk)ᵀβ                                                            (1)

holds the multipliers of the projection onto {x : c + tk − Sβ ≤ 0}. On a set A of active constraints β is linear in t,

    β_A(t) = S_AA⁻¹(c_A + t k_A),

so the squared norm of the step is a quadratic in t with coefficients in closed form, and whoever knows the right A knows
where the step reaches length one. One tableau holds all these numbers:

    T = [ S  c  k ]      swept on A (symmetric Gauss-Jordan pivots): T_AA = −S_AA⁻¹, T_Ac = S_AA⁻¹c_A, T_Ak = S_AA⁻¹k_A,
        [ cᵀ 0  0 ]      T_jc + t T_jk is the violation of an inactive j, T_jj its squared distance from the span of A,
        [ kᵀ 0  κ ]      T_cc = −c_AᵀS_AA⁻¹c_A,  T_kk = κ − k_AᵀS_AA⁻¹k_A.

A pivot is a rank-one update, so many vmapped problems run as elementwise array operations, without LAPACK.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int


def rounding(dtype: jnp.dtype) -> float:
    """A difference of numbers of this dtype means nothing where it is smaller than this share of them."""
    return 8 * float(jnp.finfo(dtype).eps)


class Problem(NamedTuple):
    """The constants of problem (1) in this module's docstring."""

    S: Float[Array, "m m"]
    """Cosines of the angles between the bᵢ."""
    c: Float[Array, " m"]
    """Distances to the constraints' boundaries: the unit ball reaches none with c ≤ −1 (satisfied) or c > 1 (violated)."""
    k: Float[Array, " m"]
    """The slope: for a unit vector g as objective, the cosines of the angles between g and the bᵢ."""
    kappa: Float[Array, ""]
    """κ = ‖g‖²: 1, or 0 where there is no objective."""
    live: Bool[Array, " m"]
    """Whether each constraint has a gradient; those without take no part."""


class Point(NamedTuple):
    """The solution of problem (1) at one t; the search for another t starts from it."""

    T: Float[Array, "n n"]
    active: Bool[Array, " m"]
    beta: Float[Array, " m"]
    unbounded: Bool[Array, ""]
    """No x satisfies the constraints at this t: the minimum of (1) along `ray` is −∞."""
    ray: Float[Array, " m"]
    """u ≥ 0 with Bu = 0 and (c + tk)ᵀu > 0: Farkas' proof that the constraints contradict each other."""


def _tableau(problem: Problem) -> Float[Array, "n n"]:
    columns = jnp.stack([problem.c, problem.k], axis=1)
    corner = jnp.zeros((2, 2), problem.S.dtype).at[1, 1].set(problem.kappa)
    return jnp.block([[problem.S, columns], [columns.T, corner]])


def _sweep(T: Float[Array, "n n"], at: Bool[Array, " m"], sign: int) -> Float[Array, "n n"]:
    """Pivot the tableau on the index marked in `at`, if any: sign +1 takes it into A, −1 takes it out again."""
    n = T.shape[0]
    e = jnp.concatenate([at, jnp.zeros(n - at.shape[0], bool)])
    pivot = jnp.sum(jnp.where(e, jnp.diagonal(T), 0))
    pivot = jnp.where(pivot == 0, 1, pivot)
    row = e.astype(T.dtype) @ T
    scaled = row / pivot
    swept = T - row[:, None] * scaled
    swept = jnp.where(e[:, None], sign * scaled, jnp.where(e, sign * scaled[:, None], swept))
    swept = jnp.where(e[:, None] & e, -1 / pivot, swept)
    return jnp.where(jnp.any(at), swept, T)


def _mark(index: Int[Array, ""], m: int, when: Bool[Array, ""]) -> Bool[Array, " m"]:
    return (jnp.arange(m) == index) & when


def unsolved(problem: Problem) -> Point:
    """A point to start from: no constraint is active."""
    m, dtype = problem.c.shape[0], problem.c.dtype
    none, zero = jnp.zeros(m, bool), jnp.zeros(m, dtype)
    return Point(_tableau(problem), none, zero, jnp.zeros((), bool), zero)


def minimise(problem: Problem, t: Float[Array, ""], start: Point, consistent: bool = False) -> Point:
    """Solve problem (1) of the module's docstring at t, from the solution at another t.

    The method changes the active set A by one constraint at a time, and every change lowers the objective of (1). It
    moves towards the minimum on A's face. If a multiplier would turn negative on the way, that constraint leaves A;
    otherwise the most violated constraint enters. A constraint whose gradient lies in the span of A cannot enter beside
    it, so it replaces the member of A that blocks first; if none blocks, the constraints contradict each other. After
    many changes Bland's rule (the lowest index that may enter) takes over, which ends every cycle of ties.

    `consistent` says that the constraints are known not to contradict each other. A constraint that seems to contradict
    the others is then violated by less than the inputs resolve, and the method ignores it.
    """
    m, dtype = problem.c.shape[0], problem.c.dtype
    tiny, half_the_digits = rounding(dtype), float(jnp.finfo(dtype).eps) ** 0.5 / 32
    load_size = jnp.abs(problem.c) + jnp.abs(t * problem.k)
    patience, limit = 4 * m + 8, 12 * m + 24

    class Loop(NamedTuple):
        point: Point
        ignored: Bool[Array, " m"]
        done: Bool[Array, ""]
        rounds: Int[Array, ""]

    def change(loop: Loop) -> Loop:
        T, active, beta, _, _ = loop.point
        face = T[:m, m] + t * T[:m, m + 1]  # multipliers on A, violations off A
        target = jnp.where(active, face, 0)

        # A multiplier would turn negative on the way to the face's minimum: stop there and drop it.
        falling = active & (target < 0)
        stop = jnp.where(falling, beta / jnp.where(falling, beta - target, 1), jnp.inf)
        leaves = jnp.argmin(stop)
        blocked = jnp.any(falling)
        partway = jnp.where(active, beta + jnp.min(stop, initial=1.0) * (target - beta), 0)

        # Otherwise the step reaches the minimum. Is an inactive constraint violated beyond rounding?
        violation = jnp.where(problem.live & ~active & ~loop.ignored, face, -jnp.inf)
        # b_j = B_A z + e with ‖e‖² = T_jj = ‖b_j‖² − 2zᵀS_Aj + zᵀS_AAz, which is zero to the rounding of those terms where
        # b_j is in the span of A. So half the digits of e are known, and of its part eᵀx in the violation of j.
        weights = jnp.where(active[:, None], jnp.abs(T[:m, :m]), 0)
        spread = 1 + jnp.sum(weights, axis=0)
        spanned = jnp.diagonal(T)[:m] <= tiny * spread**2
        vague = half_the_digits * (1 + jnp.abs(problem.c) + jnp.abs(problem.c) @ weights)
        allowance = tiny * (load_size + jnp.abs(problem.S) @ target) + jnp.where(spanned, vague, 0)
        excess = violation - allowance
        enters = jnp.where(loop.rounds < patience, jnp.argmax(excess), jnp.argmax(excess > 0))
        found = ~blocked & jnp.any(excess > 0)
        entering = _mark(enters, m, found)
        along = jnp.where(active, entering.astype(dtype) @ T[:m, :m], 0)  # S_AA⁻¹S_Aj
        # A contradiction must be certain. Consistent constraints leave room for j, so there any doubt about its own
        # direction counts in its favour.
        least = jnp.finfo(dtype).eps if consistent else tiny
        dependent = jnp.any(entering & (jnp.diagonal(T)[:m] <= least * spread**2))
        # j can replace i only if b_j leaves the span of A when i does: its squared distance is then z_i²/(S_AA⁻¹)_ii.
        freed = along**2 / jnp.where(active, -jnp.diagonal(T)[:m], 1)
        size = jnp.abs(along) + entering
        blocking = active & (along > 0) & (freed > tiny * (size @ jnp.abs(problem.S) @ size))
        room = jnp.where(blocking, target / jnp.where(blocking, along, 1), jnp.inf)
        exchanged = jnp.argmin(room)
        unbounded = dependent & ~jnp.any(blocking)
        exchange = dependent & ~unbounded
        amount = jnp.where(exchange, jnp.min(room, initial=jnp.inf), 0)

        out = _mark(jnp.where(blocked, leaves, exchanged), m, blocked | exchange)
        into = entering & ~unbounded
        T = _sweep(_sweep(T, out, -1), into, +1)
        moved = jnp.where(blocked, partway, target - amount * along + jnp.where(into, amount, 0))
        beta = jnp.where(out, 0, jnp.maximum(moved, 0))
        ignored = loop.ignored | (entering & unbounded)
        unbounded &= not consistent
        ray = jnp.where(unbounded, jnp.maximum(jnp.where(entering, 1, -along), 0), 0)
        point = Point(T, (active & ~out) | into, beta, unbounded, ray)
        return Loop(point, ignored, (~blocked & ~found) | unbounded, loop.rounds + 1)

    no = jnp.zeros((), bool)
    start = start._replace(T=refactored(problem, start.active), unbounded=no)
    first = Loop(start, jnp.zeros(m, bool), no, jnp.zeros((), jnp.int32))
    return lax.while_loop(lambda loop: ~loop.done & (loop.rounds < limit), change, first).point


def refactored(problem: Problem, active: Bool[Array, " m"]) -> Float[Array, "n n"]:
    """Sweep a fresh tableau on `active`, largest pivots first, to be rid of the rounding that the search piled up."""
    m = problem.c.shape[0]

    def take(_: Int[Array, ""], state: tuple[Array, Array]) -> tuple[Array, Array]:
        T, left = state
        pivots = jnp.where(left, jnp.diagonal(T)[:m], -jnp.inf)
        at = _mark(jnp.argmax(pivots), m, jnp.max(pivots, initial=-jnp.inf) > 0)
        return _sweep(T, at, +1), left & ~at

    T, _ = lax.fori_loop(0, m, take, (_tableau(problem), active))
    return T


def multipliers(problem: Problem, active: Bool[Array, " m"], T: Array) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
    """(p, d) with β(t) = p + t d on A, each corrected once by its residual."""
    m = problem.c.shape[0]
    p, d = T[:m, m], T[:m, m + 1]
    return _refined(problem, active, T, problem.c, p), _refined(problem, active, T, problem.k, d)


def multipliers_at(problem: Problem, t: Float[Array, ""], active: Bool[Array, " m"], T: Array) -> Float[Array, " m"]:
    """β(t) ≥ 0, corrected at t itself, because p and t d are huge and cancel where S_AA is nearly singular."""
    p, d = multipliers(problem, active, T)
    load = problem.c + t * problem.k
    beta = lax.fori_loop(0, 3, lambda _, beta: _refined(problem, active, T, load, beta), p + t * d)
    return jnp.where(active, jnp.maximum(beta, 0), 0)


def _refined(
    problem: Problem, active: Bool[Array, " m"], T: Array, load: Float[Array, " m"], beta: Float[Array, " m"]
) -> Float[Array, " m"]:
    """Correct β_A by the residual of S_AA β_A = load_A, with the inverse of S_AA in the swept tableau T."""
    m = problem.c.shape[0]
    beta = jnp.where(active, beta, 0)
    residual = jnp.where(active, load - problem.S @ beta, 0)
    return beta + jnp.where(active, -T[:m, :m] @ residual, 0)


def residual(problem: Problem, t: Float[Array, ""], beta: Float[Array, " m"]) -> Float[Array, ""]:
    """How far β is from solving (1) at t: its largest violation, or slack under a multiplier > 0, relative to 1 + |c|."""
    value = problem.c + t * problem.k - problem.S @ beta
    size = jnp.abs(problem.c) + jnp.abs(t * problem.k) + jnp.abs(problem.S) @ beta
    wrong = jnp.where(beta > 0, jnp.abs(value), jnp.maximum(value, 0))
    # Add what the rounding of the terms can hide: a huge t with a huge β must not look exact by luck.
    wrong = (wrong + rounding(value.dtype) * size) / (1 + jnp.abs(problem.c))
    return jnp.max(jnp.where(problem.live, wrong, 0), initial=0.0)

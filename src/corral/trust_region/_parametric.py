"""Least-norm points of a polyhedron that moves with one parameter t: the engine behind `dual`.

For unit vectors bᵢ with Gram matrix S, a base c and a slope k, and for given t ≥ 0,

    β(t) = argmin_{β ≥ 0} ½βᵀSβ − (c + tk)ᵀβ                                                            (1)

holds the multipliers of the projection onto {x : c + tk − Sβ ≤ 0}. On a set A of active constraints β is linear in t,

    β_A(t) = S_AA⁻¹(c_A + t k_A),

so squared norms of the step are quadratics in t with coefficients known in closed form, and finding where the step
reaches length one is finding the right A. All of it is read off one tableau

    T = [ S  c  k ]      swept on A (symmetric Gauss-Jordan pivots): T_AA = −S_AA⁻¹, T_Ac = S_AA⁻¹c_A, T_Ak = S_AA⁻¹k_A,
        [ cᵀ 0  0 ]      T_jc + t T_jk the violation of an inactive j, T_jj its squared distance from the span of A,
        [ kᵀ 0  κ ]      T_cc = −c_AᵀS_AA⁻¹c_A,  T_kk = κ − k_AᵀS_AA⁻¹k_A.

A pivot is a rank-one update, so a hundred thousand problems vmapped are elementwise array operations, no LAPACK.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int


def rounding(dtype: jnp.dtype) -> float:
    """The size, relative to its terms, below which a difference of numbers rounded to dtype means nothing."""
    return 8 * float(jnp.finfo(dtype).eps)


class Problem(NamedTuple):
    """The constant parts of (1)."""

    S: Float[Array, "m m"]
    c: Float[Array, " m"]
    k: Float[Array, " m"]
    kappa: Float[Array, ""]
    live: Bool[Array, " m"]
    """Constraints with a gradient; the others take no part."""


class Point(NamedTuple):
    """A solution of (1) at some t, kept as the warm start of the next."""

    T: Float[Array, "n n"]
    active: Bool[Array, " m"]
    beta: Float[Array, " m"]
    unbounded: Bool[Array, ""]
    """No x satisfies the constraints at this t: (1) decreases for ever along `ray`."""
    ray: Float[Array, " m"]
    """u ≥ 0 with Bu = 0 and (c + tk)ᵀu > 0: Farkas' proof that the constraints contradict each other."""


def _tableau(problem: Problem) -> Float[Array, "n n"]:
    columns = jnp.stack([problem.c, problem.k], axis=1)
    corner = jnp.zeros((2, 2), problem.S.dtype).at[1, 1].set(problem.kappa)
    return jnp.block([[problem.S, columns], [columns.T, corner]])


def _sweep(T: Float[Array, "n n"], at: Bool[Array, " m"], sign: int) -> Float[Array, "n n"]:
    """Pivot on the one index marked in `at` (none marked: no change): +1 takes it into A, −1 out of A again."""
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


def _start(problem: Problem) -> Point:
    m, dtype = problem.c.shape[0], problem.c.dtype
    none, zero = jnp.zeros(m, bool), jnp.zeros(m, dtype)
    return Point(_tableau(problem), none, zero, jnp.zeros((), bool), zero)


def _minimise(problem: Problem, t: Float[Array, ""], start: Point, consistent: bool = False) -> Point:
    """Solve (1) at t by an active-set method from a warm start.

    The set A changes by one constraint at a time, and the objective of (1) falls with every change: towards the minimum
    on A's face until a multiplier would turn negative (that constraint leaves), then by the most violated constraint
    (it enters). One whose gradient already lies in the span of A cannot simply enter: it is exchanged for the member of
    A that blocks first; if none blocks, the constraints contradict each other. After many changes Bland's rule (the
    lowest index that may enter) takes over, under which ties cannot cycle.

    `consistent` says that the constraints are already known not to contradict each other: one that seems to can only be
    violated by less than the inputs resolve, and is left alone.
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

        # Otherwise the minimum is reached; is an inactive constraint violated beyond rounding?
        violation = jnp.where(problem.live & ~active & ~loop.ignored, face, -jnp.inf)
        # b_j = B_A z + e with ‖e‖² = T_jj = ‖b_j‖² − 2zᵀS_Aj + zᵀS_AAz, zero to the rounding of those terms where b_j is
        # in the span of A. So e is known to half the digits, and so is its part eᵀx in the violation of j.
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
        # A contradiction must be certain. Consistent constraints leave room for j: if it may have a direction of its own,
        # it has.
        least = jnp.finfo(dtype).eps if consistent else tiny
        dependent = jnp.any(entering & (jnp.diagonal(T)[:m] <= least * spread**2))
        # Without i, b_j would be at squared distance z_i²/(S_AA⁻¹)_ii from the span: only such an i can be exchanged for j.
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
    start = start._replace(T=_refactored(problem, start.active), unbounded=no)
    first = Loop(start, jnp.zeros(m, bool), no, jnp.zeros((), jnp.int32))
    return lax.while_loop(lambda loop: ~loop.done & (loop.rounds < limit), change, first).point


def _refactored(problem: Problem, active: Bool[Array, " m"]) -> Float[Array, "n n"]:
    """The tableau swept on `active` afresh, largest pivots first, so that no rounding of the search is left in it."""
    m = problem.c.shape[0]

    def take(_: Int[Array, ""], state: tuple[Array, Array]) -> tuple[Array, Array]:
        T, left = state
        pivots = jnp.where(left, jnp.diagonal(T)[:m], -jnp.inf)
        at = _mark(jnp.argmax(pivots), m, jnp.max(pivots, initial=-jnp.inf) > 0)
        return _sweep(T, at, +1), left & ~at

    T, _ = lax.fori_loop(0, m, take, (_tableau(problem), active))
    return T


def _multipliers(
    problem: Problem, active: Bool[Array, " m"], T: Array
) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
    """(p, d) with β(t) = p + t d on A, corrected once by their own residuals."""
    m = problem.c.shape[0]
    p, d = T[:m, m], T[:m, m + 1]
    return _refined(problem, active, T, problem.c, p), _refined(problem, active, T, problem.k, d)


def _multipliers_at(
    problem: Problem, t: Float[Array, ""], active: Bool[Array, " m"], T: Array
) -> Float[Array, " m"]:
    """β(t) ≥ 0, corrected at this very t: where S_AA is nearly singular p and t d are huge and cancel."""
    p, d = _multipliers(problem, active, T)
    load = problem.c + t * problem.k
    beta = lax.fori_loop(0, _REFINEMENTS, lambda _, beta: _refined(problem, active, T, load, beta), p + t * d)
    return jnp.where(active, jnp.maximum(beta, 0), 0)


_REFINEMENTS = 3


def _refined(
    problem: Problem, active: Bool[Array, " m"], T: Array, load: Float[Array, " m"], beta: Float[Array, " m"]
) -> Float[Array, " m"]:
    """β_A corrected by the residual of S_AA β_A = load_A, with the inverse that the swept T holds."""
    m = problem.c.shape[0]
    beta = jnp.where(active, beta, 0)
    residual = jnp.where(active, load - problem.S @ beta, 0)
    return beta + jnp.where(active, -T[:m, :m] @ residual, 0)


def _residual(problem: Problem, t: Float[Array, ""], beta: Float[Array, " m"]) -> Float[Array, ""]:
    """How far β is from solving (1) at t: the worst violation, or slack under a positive multiplier, in its own units."""
    value = problem.c + t * problem.k - problem.S @ beta
    size = jnp.abs(problem.c) + jnp.abs(t * problem.k) + jnp.abs(problem.S) @ beta
    wrong = jnp.where(beta > 0, jnp.abs(value), jnp.maximum(value, 0))
    # What the terms' own rounding can hide counts as well: a huge t with β to match must not look exact by luck.
    wrong = (wrong + rounding(value.dtype) * size) / (1 + jnp.abs(problem.c))
    return jnp.max(jnp.where(problem.live, wrong, 0), initial=0.0)


class Path(NamedTuple):
    """Where x(t) = t·g − Bβ(t) meets the unit sphere, and where it started."""

    t: Float[Array, ""]
    beta: Float[Array, " m"]
    nu: Float[Array, " m"]
    """dβ/dt at the end; g = Bν where `vertex`."""
    vertex: Bool[Array, ""]
    """x(t) stops inside the ball: the optimum is a vertex (or face) of the polyhedron."""
    start: Float[Array, " m"]
    """β(0): −Bβ(0) is the least-norm feasible point."""
    start_norm: Float[Array, ""]
    contradictory: Bool[Array, ""]


class _Search(NamedTuple):
    t: Float[Array, ""]
    low: Float[Array, ""]
    """The largest t known to keep the step inside the ball."""
    high: Float[Array, ""]
    """The smallest t known not to."""
    point: Point
    done: Bool[Array, ""]
    rounds: Int[Array, ""]


def _between(proposal: Array, low: Array, high: Array) -> Array:
    """The proposal where it lies strictly between low and high, else a midpoint (geometric, once low > 0)."""
    middle = jnp.where(low > 0, jnp.sqrt(low) * jnp.sqrt(high), high / 2)
    return jnp.where((proposal > low) & (proposal < high), proposal, middle)


def _settled(a: Array, b: Array) -> Array:
    return jnp.abs(a - b) <= 4 * jnp.finfo(a.dtype).eps * jnp.abs(b)


_SEARCH_LIMIT = 100


def follow_objective(
    S: Float[Array, "m m"],
    c: Float[Array, " m"],
    rho: Float[Array, " m"],
    g: Float[Array, ""],
    live: Float[Array, " m"],
) -> Path:
    """The t at which x(t), the projection of t·g onto {x : c + Bᵀx ≤ 0}, has length one.

    With A fixed, ‖x(t)‖² = t²(‖g‖² − ρ_AᵀS_AA⁻¹ρ_A) + c_AᵀS_AA⁻¹c_A = t² T_kk − T_cc: the two parts are orthogonal. Each
    round solves (1) at t, takes the root of that quadratic as the next t, and ends when A stays the same; ‖x(t)‖ is
    non-decreasing, so a bracket keeps every proposal honest. T_kk can be distinguished from zero only down to rounding,
    so no t above 1/√rounding can: a step still inside the ball there has stopped at a vertex.
    """
    m, dtype = c.shape[0], c.dtype
    problem = Problem(S, c, rho, g, live > 0)
    largest = jnp.asarray(rounding(dtype) ** -0.5, dtype)
    zero, one = jnp.zeros((), dtype), jnp.ones((), dtype)

    origin = _minimise(problem, zero, _start(problem))
    origin = origin._replace(beta=_multipliers_at(problem, zero, origin.active, origin.T))
    start_norm = jnp.sqrt(jnp.maximum(c @ origin.beta, 0))  # ‖Bβ‖² = βᵀSβ = cᵀβ
    feasible = ~origin.unbounded & (start_norm <= 1)

    def root(T: Array) -> Array:
        across, along = T[m + 1, m + 1], -T[m, m]
        usable = across > largest**-2
        return jnp.where(usable, jnp.sqrt(jnp.maximum(1 - along, 0) / jnp.where(usable, across, 1)), largest)

    def step(search: _Search) -> _Search:
        point = _minimise(problem, search.t, search.point, consistent=True)
        across, along = point.T[m + 1, m + 1], -point.T[m, m]
        proposal = jnp.minimum(root(point.T), largest)
        over = search.t**2 * jnp.maximum(across, 0) + along > 1
        # A vertex is an answer only inside the ball; outside, its stationary norm says nothing of where to go.
        done = _settled(proposal, search.t) & ((proposal < largest) | ~over)
        low, high = jnp.where(over, search.low, search.t), jnp.where(over, search.t, search.high)
        done |= _settled(low, high)
        t = jnp.where(done, search.t, _between(proposal, low, high))
        # An upper end nobody has tried yet must be tried, not approached.
        t = jnp.where(~done & (proposal >= high) & (high == largest) & ~over, largest, t)
        return _Search(t, low, high, point, done, search.rounds + 1)

    first = _Search(one * g, zero, largest, origin, ~feasible | (g == 0), jnp.zeros((), jnp.int32))
    search = lax.while_loop(lambda s: ~s.done & (s.rounds < _SEARCH_LIMIT), step, first)

    T = _refactored(problem, search.point.active)
    p, d = _multipliers(problem, search.point.active, T)
    end = root(T)
    vertex = (end >= largest) | (g == 0)
    # At a vertex the step is the same for every t at which this A is the right one: β ≥ 0 on it, no violation off it,
    # each linear in t. The smallest such t has the least cancellation in t·g − Bβ.
    value, slope = (
        jnp.where(search.point.active, p, -T[:m, m]),
        jnp.where(search.point.active, d, -T[:m, m + 1]),
    )
    late = problem.live & (value < 0) & (slope > 0)
    earliest = jnp.max(jnp.where(late, -value / jnp.where(late, slope, 1), 0), initial=0.0)
    t = jnp.where(g == 0, 0, jnp.where(vertex, jnp.minimum(earliest, largest), end))
    beta = jnp.where(search.point.active, jnp.maximum(p + t * d, 0), 0)
    nu = jnp.where(search.point.active, jnp.maximum(d, 0), 0)
    # With gradients in A dependent almost to rounding, the search's own answer can be the better one.
    worse = (g > 0) & (_residual(problem, t, beta) > _residual(problem, search.t, search.point.beta))
    t, beta = jnp.where(worse, search.t, t), jnp.where(worse, search.point.beta, beta)
    return Path(t, beta, nu, vertex, origin.beta, start_norm, origin.unbounded)


def least_violation(
    S: Float[Array, "m m"], c: Float[Array, " m"], live: Float[Array, " m"], wanted: Bool[Array, ""]
) -> Float[Array, " m"]:
    """β of the step −Bβ, ‖Bβ‖ ≤ 1, that minimises the largest violation maxᵢ (cᵢ + bᵢᵀx), where `wanted`; else zeros.

    A violation is a distance here (the bᵢ are unit vectors), so the answer does not depend on the units of a constraint.
    Lowering the allowed violation from v₀ = max c, where x = 0 will do, to v₀ − t moves all boundaries alike: (1) with
    base c − v₀ and slope 1. The answer is the largest t at which the least-norm point still lies in the ball, or beyond
    which there is none; a ray u then says which t that is.
    """
    m, dtype = c.shape[0], c.dtype
    alive = live > 0
    highest = jnp.max(jnp.where(alive, c, -jnp.inf), initial=-jnp.inf)
    base = jnp.where(alive & wanted, c - highest, 0)
    problem = Problem(S, base, live, jnp.zeros((), dtype), alive)
    zero = jnp.zeros((), dtype)

    def root(T: Array) -> Array:
        # ‖Bβ(t)‖² = a t² + 2 b t + e with a = 1ᵀS_AA⁻¹1 and so on; its largest root of = 1.
        a, b, e = -T[m + 1, m + 1], -T[m, m + 1], -T[m, m]
        usable = a > 0
        return jnp.where(
            usable, (-b + jnp.sqrt(jnp.maximum(b * b - a * (e - 1), 0))) / jnp.where(usable, a, 1), jnp.inf
        )

    # Contradicting constraints pull x both ways, and the ball allows a move of one: t ≤ 2 + the spread of c.
    widest = 2 - jnp.min(base, initial=0.0)

    def step(search: _Search) -> _Search:
        point = _minimise(problem, search.t, search.point)
        # A point where (1) has no solution is no warm start; its ray bounds t instead: uᵀ(c − v₀ + t) ≤ ‖Bu‖ in the ball.
        ray, none = point.ray, point.unbounded
        point = jax.tree.map(lambda old, new: jnp.where(none, old, new), search.point, point)
        length = jnp.maximum(ray @ live, jnp.finfo(dtype).tiny)
        # ‖Bu‖², a sum of cancelling terms, means nothing below their rounding; its root would be half the digits.
        squared = ray @ S @ ray
        squared = jnp.where(squared > rounding(dtype) * (ray @ jnp.abs(S) @ ray), squared, 0)
        bound = (jnp.sqrt(squared) - ray @ base) / length
        proposal = jnp.minimum(root(point.T), widest)
        a, b, e = -point.T[m + 1, m + 1], -point.T[m, m + 1], -point.T[m, m]
        over = none | (a * search.t**2 + 2 * b * search.t + e > 1)
        low, high = jnp.where(over, search.low, search.t), jnp.where(over, search.t, search.high)
        high = jnp.where(none & (bound < high) & (bound >= low), bound, high)
        done = _settled(low, high) | (~none & _settled(proposal, search.t))
        untried = none & (high < search.t) & (proposal >= high)
        t = jnp.where(done, search.t, jnp.where(untried, high, _between(proposal, low, high)))
        return _Search(t, low, high, point, done, search.rounds + 1)

    first = _Search(widest, zero, widest, _start(problem), ~wanted, jnp.zeros((), jnp.int32))
    search = lax.while_loop(lambda s: ~s.done & (s.rounds < _SEARCH_LIMIT), step, first)
    T = _refactored(problem, search.point.active)
    t = jnp.where(root(T) <= search.high, root(T), search.t)
    beta = _multipliers_at(problem, t, search.point.active, T)
    worse = _residual(problem, t, beta) > _residual(problem, search.t, search.point.beta)
    beta = jnp.where(worse, search.point.beta, beta)
    norm = jnp.sqrt(jnp.maximum(beta @ S @ beta, 0))
    return jnp.where(wanted, beta / jnp.maximum(norm, 1), 0)

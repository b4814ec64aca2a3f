"""Search for the length of the optimal step when there are two constraints or more: the engine behind `dual`.

`_active_set` finds the least-norm point of a polyhedron that moves with a parameter t. Here t is searched for: where the
path of these points leaves the unit ball, and by how much the violations of contradictory constraints can be lowered.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from corral.trust_region import _active_set as active_set


class Solved(NamedTuple):
    """An answer to the problem in unit lengths: the step is t·g − Bβ."""

    t: Float[Array, ""]
    beta: Float[Array, " m"]
    """β at t if the problem is feasible."""
    recovery: Float[Array, " m"]
    """β of the step −Bβ to take if it is not; the step is never longer than one."""
    nu: Float[Array, " m"]
    """ν with g = Bν, at a vertex."""
    vertex: Bool[Array, ""]
    """λ = 0: g is a non-negative combination of active constraint gradients, and the optimum is a vertex (or face)."""
    outside: Bool[Array, ""]
    """No point of the trust region is feasible."""
    contradictory: Bool[Array, ""]
    """No point at all is feasible."""


class _Search(NamedTuple):
    t: Float[Array, ""]
    low: Float[Array, ""]
    """The largest t known to keep the step inside the ball."""
    high: Float[Array, ""]
    """The smallest t known not to."""
    point: active_set.Point
    done: Bool[Array, ""]
    rounds: Int[Array, ""]


def _between(proposal: Array, low: Array, high: Array) -> Array:
    """The proposal if it lies strictly between low and high, else a midpoint (geometric where low > 0)."""
    middle = jnp.where(low > 0, jnp.sqrt(low) * jnp.sqrt(high), high / 2)
    return jnp.where((proposal > low) & (proposal < high), proposal, middle)


def _settled(a: Array, b: Array) -> Array:
    return jnp.abs(a - b) <= 4 * jnp.finfo(a.dtype).eps * jnp.abs(b)


_SEARCH_LIMIT = 100


def follow_objective(problem: active_set.Problem) -> Solved:
    """Find the t at which x(t) = t·g − Bβ(t), the projection of t·g onto {x : c + Bᵀx ≤ 0}, has length one.

    While the active set A stays the same, x(t) is the sum of two orthogonal parts, with T the tableau of `_active_set`:

        ‖x(t)‖² = t²(‖g‖² − ρ_AᵀS_AA⁻¹ρ_A) + c_AᵀS_AA⁻¹c_A = t² T_kk − T_cc

    Each round finds A at t and takes the root of this quadratic as the next t, until t repeats. ‖x(t)‖ never falls, so a
    bracket catches proposals that lead astray. Rounding hides a T_kk below rounding(dtype) and so any t above
    1/√rounding: a step that is still inside the ball there has stopped at a vertex.
    """
    c, g = problem.c, problem.kappa
    m, dtype = c.shape[0], c.dtype
    largest = jnp.asarray(active_set.rounding(dtype) ** -0.5, dtype)
    zero = jnp.zeros((), dtype)

    origin = active_set.minimise(problem, zero, active_set.unsolved(problem))
    origin = origin._replace(beta=active_set.multipliers_at(problem, zero, origin.active, origin.T))
    start_norm = jnp.sqrt(jnp.maximum(c @ origin.beta, 0))  # ‖Bβ‖² = βᵀSβ = cᵀβ
    outside = origin.unbounded | (start_norm > 1)

    def root(T: Array) -> Array:
        across, along = T[m + 1, m + 1], -T[m, m]
        usable = across > largest**-2
        return jnp.where(usable, jnp.sqrt(jnp.maximum(1 - along, 0) / jnp.where(usable, across, 1)), largest)

    def step(search: _Search) -> _Search:
        point = active_set.minimise(problem, search.t, search.point, consistent=True)
        across, along = point.T[m + 1, m + 1], -point.T[m, m]
        proposal = jnp.minimum(root(point.T), largest)
        over = search.t**2 * jnp.maximum(across, 0) + along > 1
        # A vertex is an answer only inside the ball; outside, its constant norm does not show where to go.
        done = _settled(proposal, search.t) & ((proposal < largest) | ~over)
        low, high = jnp.where(over, search.low, search.t), jnp.where(over, search.t, search.high)
        done |= _settled(low, high)
        t = jnp.where(done, search.t, _between(proposal, low, high))
        # An upper end that no round has tried must be tried, not approached.
        t = jnp.where(~done & (proposal >= high) & (high == largest) & ~over, largest, t)
        return _Search(t, low, high, point, done, search.rounds + 1)

    first = _Search(g, zero, largest, origin, outside | (g == 0), jnp.zeros((), jnp.int32))
    search = lax.while_loop(lambda s: ~s.done & (s.rounds < _SEARCH_LIMIT), step, first)

    T = active_set.refactored(problem, search.point.active)
    p, d = active_set.multipliers(problem, search.point.active, T)
    end = root(T)
    vertex = (end >= largest) | (g == 0)
    # At a vertex every t gives the same step as long as this A is right: β ≥ 0 on A and no violation off A, both linear
    # in t. The smallest such t has the least cancellation in t·g − Bβ.
    value, slope = (jnp.where(search.point.active, p, -T[:m, m]), jnp.where(search.point.active, d, -T[:m, m + 1]))
    late = problem.live & (value < 0) & (slope > 0)
    earliest = jnp.max(jnp.where(late, -value / jnp.where(late, slope, 1), 0), initial=0.0)
    t = jnp.where(g == 0, 0, jnp.where(vertex, jnp.minimum(earliest, largest), end))
    beta = jnp.where(search.point.active, jnp.maximum(p + t * d, 0), 0)
    nu = jnp.where(search.point.active, jnp.maximum(d, 0), 0)
    # Where the gradients in A are dependent almost to rounding, the search's own answer can be the better one.
    searched = active_set.residual(problem, search.t, search.point.beta)
    worse = (g > 0) & (active_set.residual(problem, t, beta) > searched)
    t, beta = jnp.where(worse, search.t, t), jnp.where(worse, search.point.beta, beta)
    # If the least-norm point lies beyond the boundary, take its direction up to the boundary (α = 0).
    towards = origin.beta * (1 / jnp.maximum(start_norm, 1))
    recovery = jnp.where(origin.unbounded, _least_violation(problem, origin.unbounded), towards)
    return Solved(t, beta, recovery, nu, vertex, outside, origin.unbounded)


def _least_violation(given: active_set.Problem, wanted: Bool[Array, ""]) -> Float[Array, " m"]:
    """β of the step x = −Bβ in the unit ball that minimises the largest violation maxᵢ (cᵢ + bᵢᵀx); zeros unless `wanted`.

    A violation is a distance here (the bᵢ are unit vectors), so the answer does not depend on the units of a constraint.
    x = 0 has the violation v₀ = max c. To allow only v₀ − t moves all boundaries alike: problem (1) of `_active_set` with
    base c − v₀ and slope 1. The answer is the largest t whose least-norm point exists and lies in the ball. Where some t
    has no such point, a ray u proves it and bounds t.
    """
    S, c, live = given.S, given.c, given.live
    m, dtype = c.shape[0], c.dtype
    highest = jnp.max(jnp.where(live, c, -jnp.inf), initial=-jnp.inf)
    base, slope = jnp.where(live & wanted, c - highest, 0), live.astype(dtype)
    zero = jnp.zeros((), dtype)
    problem = active_set.Problem(S, base, slope, zero, live)

    def root(T: Array) -> Array:
        # The larger root of ‖Bβ(t)‖² = a t² + 2 b t + e = 1, with a = 1ᵀS_AA⁻¹1 and so on.
        a, b, e = -T[m + 1, m + 1], -T[m, m + 1], -T[m, m]
        larger = -b + jnp.sqrt(jnp.maximum(b * b - a * (e - 1), 0))
        return jnp.where(a > 0, larger / jnp.where(a > 0, a, 1), jnp.inf)

    # Contradicting constraints pull x both ways, and the ball allows a move of one: t ≤ 2 + the spread of c.
    widest = 2 - jnp.min(base, initial=0.0)

    def step(search: _Search) -> _Search:
        point = active_set.minimise(problem, search.t, search.point)
        # No search can start where (1) has no solution, but its ray bounds t: uᵀ(c − v₀ + t) ≤ ‖Bu‖ in the ball.
        ray, none = point.ray, point.unbounded
        point = jax.tree.map(lambda old, new: jnp.where(none, old, new), search.point, point)
        length = jnp.maximum(ray @ slope, jnp.finfo(dtype).tiny)
        # ‖Bu‖² is a sum of terms that cancel and means nothing below their rounding; its root has half the digits.
        squared = ray @ S @ ray
        squared = jnp.where(squared > active_set.rounding(dtype) * (ray @ jnp.abs(S) @ ray), squared, 0)
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

    first = _Search(widest, zero, widest, active_set.unsolved(problem), ~wanted, jnp.zeros((), jnp.int32))
    search = lax.while_loop(lambda s: ~s.done & (s.rounds < _SEARCH_LIMIT), step, first)
    T = active_set.refactored(problem, search.point.active)
    t = jnp.where(root(T) <= search.high, root(T), search.t)
    beta = active_set.multipliers_at(problem, t, search.point.active, T)
    worse = active_set.residual(problem, t, beta) > active_set.residual(problem, search.t, search.point.beta)
    beta = jnp.where(worse, search.point.beta, beta)
    norm = jnp.sqrt(jnp.maximum(beta @ S @ beta, 0))
    return jnp.where(wanted, beta / jnp.maximum(norm, 1), 0)

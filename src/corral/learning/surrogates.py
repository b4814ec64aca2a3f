"""The neighbourhood of the current policy, as a batch shows it: surrogates, their gradients, KL and Fisher products.

    objective  L(θ)   = mean over samples of (π_θ/π_k) Â,  Â standardised
    cost i     L_i(θ) = (1/N) Σ_episodes Σ_t γ_C^t (π_θ/π_k − 1) Â_i,  in the units of the cost's return, as c_i and d_i are
    kl         D(θ)   = mean over states of D(π_θ ‖ π_k)

All three are zero at θ_k (the objective up to a constant), and b = ∇L_i shares its units with c.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from corral.config import TrustRegion
from corral.learning import distributions
from corral.learning.honest import Halves
from corral.learning.networks import Flat
from corral.trust_region import cg, crossfit, dual, fisher, line_search, subspace


class Samples(NamedTuple):
    """The rows of a batch, as the surrogates need them."""

    obs: Float[Array, "n o"]
    action: Array
    weight: Float[Array, " n"]
    """1/(number of samples) on valid rows, 0 elsewhere."""
    advantage: Float[Array, " n"]
    """Of the reward, standardised."""
    cost_weight: Float[Array, "n m"]
    """γ_C^t/(number of episodes) on valid rows, for each cost's own γ_C."""
    cost_advantage: Float[Array, "n m"]
    """Of each cost, centred only: its scale matters."""
    far: Float[Array, "n m"] | None = None
    """The same with λ = 1, which sees all that follows; None where nothing is judged by it."""


class ConstraintValues(NamedTuple):
    """Where the constraints stand."""

    value: Float[Array, " m"]
    """J_C(π_k), of the shaped costs where they are shaped."""
    limit: Float[Array, " m"]
    """d, as configured."""
    realised: Float[Array, " m"]
    """J_C(π_k) − J_C(π_{k−1})."""
    comparable: Bool[Array, ""]
    """Whether the last update caused that change: not in the first iteration, nor where cost shaping has just begun."""
    se: Float[Array, " m"] | float = 0.0
    """The standard error of J_C(π_k)."""


class Local(NamedTuple):
    """Functions of θ around θ_k."""

    flat: Flat
    samples: Samples
    old: distributions.Distribution
    old_log_prob: Float[Array, " n"]
    trust: TrustRegion
    halves: Halves | None = None
    """The batch in two halves, which judge each other's steps; None: a step is judged by the batch it was computed from."""
    key: Key[Array, ""] | None = None
    """Chance for an update that needs it, such as one that draws minibatches."""
    radius: Float[Array, ""] | float = 1.0
    """The share of the configured δ that a step may take."""
    near: Float[Array, ""] | float = 0.0
    """How near its limit the nearest cost is (`nearness`)."""

    @property
    def delta(self) -> Any:
        """δ, the mean divergence that a step may take."""
        return self.radius * self.trust.delta

    @property
    def steps(self) -> Float[Array, " m"]:
        """Σ_t γ_C^t of a mean episode, for each cost: what turns a cost's return into its mean per step."""
        return jnp.sum(self.samples.cost_weight, axis=0)

    def surrogates(self, theta: Float[Array, " p"]) -> Float[Array, " c"]:
        """(L, L_1, …, L_m) at θ."""
        return self._surrogates(theta, 1, self.samples.cost_advantage)

    def _surrogates(
        self, theta: Float[Array, " p"], weight: Float[Array, " n"] | int, cost_advantage: Float[Array, "n k"]
    ) -> Float[Array, " k+1"]:
        """The objective and the surrogates of costs with these advantages, with this weight on each row."""
        s = self.samples
        ratio = jnp.exp(distributions.log_prob(self.flat.policy(theta)(s.obs), s.action) - self.old_log_prob)
        change = weight * jnp.where(s.weight > 0, ratio - 1, 0)
        weights = jnp.tile(s.cost_weight, cost_advantage.shape[1] // max(s.cost_weight.shape[1], 1))
        objective, costs = (change * s.weight) @ s.advantage[:, None], change @ (weights * cost_advantage)
        return jnp.concatenate([objective, costs])

    def kl(self, theta: Float[Array, " p"]) -> Float[Array, ""]:
        """Mean D(π_θ ‖ π_k)."""
        per_state = distributions.kl(self.flat.policy(theta)(self.samples.obs), self.old)
        return jnp.sum(jnp.where(self.samples.weight > 0, per_state, 0) * self.samples.weight)

    def gradients(self) -> tuple[Float[Array, " p"], Float[Array, "p m"]]:
        """(g, B) at θ_k."""
        jacobian = jax.jacrev(self.surrogates)(self.flat.theta)
        return jacobian[0], jacobian[1:].T

    def gradients_of_halves(self, far: bool = False) -> tuple[Float[Array, "p k"], Float[Array, "p k"]]:
        """[g, B] of each half, doubled: their mean is that of the batch; with `far`, then B of far-sighted costs, if any."""
        halves, s = self.halves, self.samples
        assert halves is not None, "this batch is not split"
        costs = jnp.concatenate([s.cost_advantage, s.far], axis=1) if far and s.far is not None else s.cost_advantage

        def both(theta: Float[Array, " p"]) -> Float[Array, "2 k"]:
            return jnp.stack([self._surrogates(theta, 1 + sign * halves.sign, costs) for sign in (1, -1)])

        a, b = jax.jacrev(both)(self.flat.theta)
        return a.T, b.T


class Step(NamedTuple):
    """A policy update and its record."""

    theta: Float[Array, " p"]
    promised: Float[Array, " m"]
    """L_i at the new θ (zero where nothing was accepted)."""
    kl: Float[Array, ""]
    case: Int[Array, ""]
    """A `dual.Case`."""
    lam: Float[Array, ""]
    nu: Float[Array, " m"]
    effective_limit: Float[Array, " m"]
    cg_residual: Float[Array, ""]
    """The largest relative residual of the conjugate-gradient solves."""
    search: line_search.LineSearch
    signal: tuple[Float[Array, "k k"], Float[Array, " m"]] | None = None
    """The averages of `honest.Signal` with this batch's, where the batch was split."""
    in_sample: Float[Array, " m"] | None = None
    """What the batch itself promises for the accepted step: `promised` without the correction."""


def make(
    flat: Flat, samples: Samples, trust: TrustRegion, halves: Halves | None = None, key: Key[Array, ""] | None = None
) -> Local:
    """The local model of the policy with parameters `flat` on these samples."""
    old = flat.policy(flat.theta)(samples.obs)
    return Local(flat, samples, old, distributions.log_prob(old, samples.action), trust, halves, key)


def nearness(value: Float[Array, " m"], limit: Float[Array, " m"]) -> Float[Array, ""]:
    """1 where a cost is at its limit d or above, 0 where all are |d| or more below theirs, in between in proportion."""
    room = (limit - value) / jnp.maximum(jnp.abs(limit), jnp.finfo(limit.dtype).tiny)
    return 1 - jnp.clip(jnp.min(room, initial=1), 0, 1)


def stride(fraction: float) -> int:
    """k, where one row of every k makes up this share of the batch."""
    return max(1, round(1 / fraction))


def some(x: Float[Array, "n *rest"], fraction: float) -> Float[Array, "k *rest"]:
    """One row of every k: Fisher products may use a share of the batch, taken from all episodes alike.

    The offset rotates by one per block: with a fixed offset, episodes of equal length would always give the same steps.
    """
    every = stride(fraction)
    if every == 1:
        return x
    blocks = len(x) // every
    cut = x[: blocks * every].reshape(blocks, every, *x.shape[1:])
    which = jnp.reshape(jnp.arange(blocks) % every, (blocks, *[1] * x.ndim))
    return jnp.take_along_axis(cut, which, axis=1)[:, 0]


def restricted(
    local: Local, g: Float[Array, " p"], B: Float[Array, "p m"]
) -> tuple[subspace.Restricted, Float[Array, ""]]:
    """The subproblem on the span of conjugate-gradient solutions for g and B, and CG's worst residual."""
    product = fisher_products(local)
    solved = _directions(local, product, jnp.concatenate([g[:, None], B], axis=1))
    problem = subspace.restrict(solved.x, product(solved.x), g, B)
    return problem, jnp.max(solved.residual)


def _directions(
    local: Local, product: Callable[[Float[Array, "p k"]], Float[Array, "p k"]], columns: Float[Array, "p k"]
) -> cg.CGResult:
    """H⁻¹ times these columns, by conjugate gradients, in which the deviations of a Gaussian are held back near a limit.

    Less noise is the quickest way to pay less, and a policy that takes it has stopped exploring before it has learned
    anything. A deviation's own curvature is 2, apart from all others; 2(1 + k) makes it move 1 + k times as slowly.
    """
    trust = local.trust
    if trust.hold_deviations == 0:  # nothing is added, so that the compiled program, and its rounding, is the plain one
        return cg.solve(product, columns, iterations=trust.cg_iterations)
    held = 2 * trust.hold_deviations * local.near * local.flat.deviations[:, None]
    return cg.solve(lambda V: product(V) + held * V, columns, iterations=trust.cg_iterations)


def fisher_products(local: Local) -> Callable[[Float[Array, "p k"]], Float[Array, "p k"]]:
    """Products with the Fisher matrix of the current policy."""
    s, trust = local.samples, local.trust
    obs, weight = some(s.obs, trust.fisher_fraction), some(s.weight, trust.fisher_fraction)
    weight = weight / jnp.sum(weight)
    return fisher.operator(
        lambda theta: local.flat.policy(theta)(obs), local.flat.theta, weights=weight, damping=trust.damping
    )


class Judged(NamedTuple):
    """A subproblem, and how much more of a step its own samples promise than honest terms do."""

    problem: subspace.Restricted
    cg_residual: Float[Array, ""]
    optimism: Float[Array, "k c"] | None = None
    """In-sample less honest change of the objective and of each cost, for each direction of the basis; None: not known."""
    signal: tuple[Float[Array, "k k"], Float[Array, " m"]] | None = None
    """The averages of `honest.Signal` with this batch's."""

    def correction(self, z: Float[Array, " k"]) -> Float[Array, " c"] | None:
        """What to add to the surrogates along the step with coordinates z."""
        return None if self.optimism is None else -(z @ self.optimism)


def judged(local: Local, objective: Float[Array, " c"], constrained: bool) -> Judged:
    """The subproblem of maximising objective · (L, L_1, …), with its constraints or without, judged by halves if any."""
    if local.halves is None:
        g, B = local.gradients()
        if not constrained:
            g, B = objective[0] * g + B @ objective[1:], B[:, :0]
        return Judged(*restricted(local, g, B))
    c = len(objective)
    Ga, Gb = local.gradients_of_halves(far=constrained)
    Ja, Jb = Ga[:, c:], Gb[:, c:]
    # The objective's column is that of the weighted sum; the costs keep theirs.
    weighted = jnp.eye(c).at[:, 0].set(objective)
    Ga, Gb = Ga[:, :c] @ weighted, Gb[:, :c] @ weighted
    k = c if constrained else 1
    product = fisher_products(local)
    solved = _directions(local, product, jnp.concatenate([Ga[:, :k], Gb[:, :k]], axis=1))
    V = (solved.x[:, :k], solved.x[:, k:])
    halves = local.halves
    terms = crossfit.terms(V, (Ga, Gb), halves.signal.relative[:k, :k], halves.rate, halves.balance)
    far, terms_seen = halves.signal.reach, terms.honest
    if Ja.shape[1]:
        reach = crossfit.reach(
            (V[0][:, 1:], V[1][:, 1:]),
            (Ja, Jb),
            jnp.diagonal(terms.in_sample)[1:],
            jnp.diagonal(terms.signal)[1:],
            far,
            halves.rate / 2,  # it is noisier than the shares, and changes as slowly
            halves.balance,
        )
        far, terms_seen = reach.average, terms_seen.at[:, 1:].mul(reach.factor)
    mean = (V[0] + V[1]) / 2
    problem, coordinates = subspace.with_terms(mean, product(mean), terms_seen[:, :k])
    optimism = coordinates.T @ (terms.in_sample - terms_seen)
    return Judged(problem, jnp.max(solved.residual), optimism, (terms.signal, far))


def search(
    local: Local,
    step: Float[Array, " p"],
    objective: Float[Array, " c"],
    cost_limit: Float[Array, " m"],
    recovering: Array,
    correction: Float[Array, " c"] | None = None,
    barrier: Callable[[Float[Array, " m"]], Float[Array, ""]] | None = None,
    known: Array | bool = True,
) -> line_search.LineSearch:
    """Backtrack until KL ≤ δ, every L_i ≤ cost_limit_i and, unless recovering, objective · (L, L_1, …) improves.

    The correction of the objective and of each L_i along the whole step, which takes off their optimism, is added in
    proportion to the length of the candidate. A barrier, a function of (L_1, …, L_m), takes its value off δ.

    Where no step is `known`, since the numbers of the subproblem were not finite, every candidate is refused as not finite.

    The checks, in this order: kl, objective, each cost.
    """
    trust = local.trust
    step = jnp.where(known, step, jnp.nan)

    def check(theta: Float[Array, " p"]) -> line_search.Checks:
        values = local.surrogates(theta)
        gain = values @ objective
        if correction is not None:
            along = (theta - local.flat.theta) @ step / jnp.maximum(step @ step, jnp.finfo(step.dtype).tiny)
            gain, values = gain + along * correction[0], values + along * correction
        value = jnp.concatenate([local.kl(theta)[None], -gain[None], values[1:]])
        # An improvement must be strict; recovery may cost any amount of reward.
        must = jnp.where(recovering, jnp.inf, -jnp.finfo(gain.dtype).tiny)
        room = local.delta if barrier is None else local.delta - barrier(values[1:])
        limit = jnp.concatenate([jnp.asarray(room, gain.dtype)[None], must[None], cost_limit])
        return line_search.Checks(value, limit)

    return line_search.backtrack(check, local.flat.theta, step, shrink=trust.shrink, candidates=trust.candidates)


def finish(
    found: line_search.LineSearch,
    cg_residual: Array,
    limit: Float[Array, " m"],
    solution: dual.Solution,
    nu: Float[Array, " m"],
    signal: tuple[Float[Array, "k k"], Float[Array, " m"]] | None = None,
    correction: Float[Array, " c"] | None = None,
) -> Step:
    """The record of an update from its line search."""
    accepted = found.accepted
    promised = jnp.where(accepted, found.checks.value[2:], 0)
    return Step(
        theta=found.theta,
        promised=promised,
        kl=jnp.where(accepted, found.checks.value[0], 0),
        case=solution.case,
        lam=solution.lam,
        nu=nu,
        effective_limit=limit,
        cg_residual=cg_residual,
        search=found,
        signal=signal,
        in_sample=None if correction is None else promised - found.scale * correction[1:],
    )


def unit(m: int) -> Float[Array, " c"]:
    """Weights that pick the objective out of (L, L_1, …, L_m)."""
    return jnp.zeros(1 + m).at[0].set(1.0)


def unconstrained(
    local: Local, objective: Float[Array, " c"], limit: Float[Array, " m"], nu: Float[Array, " m"]
) -> Step:
    """The step of every algorithm without hard constraints: along H⁻¹d, d = ∇(objective · (L, L_1, …)), to the boundary."""
    here = judged(local, objective, constrained=False)
    problem = here.problem
    solution = dual.solve(problem.q, problem.r, problem.S, jnp.zeros(0), local.delta)
    correction = here.correction(problem.coordinates(solution))
    no_limit, no = jnp.full(limit.shape, jnp.inf), jnp.zeros((), bool)
    known = solution.case != dual.Case.NOT_FINITE
    found = search(local, problem.step(solution), objective, no_limit, no, correction, known=known)
    return finish(found, here.cg_residual, limit, solution, nu, here.signal, correction)

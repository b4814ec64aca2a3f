"""Updates of a tabular softmax policy: the part that exact CPO and the guaranteed update share.

With logits θ (S, A) and π = softmax(θ), the inputs of the trust-region subproblem have closed forms:

    gradients           ∂J/∂θ(s, a) = d^π(s) π(a|s) A(s, a)/(1−γ),   with A_Cᵢ in place of A for J_Cᵢ
    Fisher matrix       H = blockdiag_s d^π(s)(diag π_s − π_s π_sᵀ),  the Hessian of the mean KL
    natural gradients   H⁻¹∂J/∂θ = A/(1−γ),   because (diag π − ππᵀ)A = πA where Σ_a πA = 0

H is singular along constants per state, which do not change π; A/(1−γ) is the solution of mean zero under π.
"""

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float64

from corral.errors import require, require_finite
from corral.tabular.bounds import ROUNDING, Bound
from corral.tabular.cmdp import CMDP, ArrayLike, Evaluation, as_floats, as_policy, evaluate, require_kind
from corral.tabular.measures import promise_of
from corral.trust_region import dual

Table = Float64[np.ndarray, "S A"]
Signals = Float64[np.ndarray, "k S A"]
Returns = Float64[np.ndarray, " k"]

_LINEARISATIONS = 20
_LOGIT_RANGE = 20.0
_compiled_solve = jax.jit(dual.solve)


@dataclass(frozen=True, eq=False)
class Update:
    """One update, accepted or refused, with the paper's claims about it."""

    policy: Evaluation
    """π_{k+1}, which is π_k if the step was refused."""
    delta: float
    """The trust region's size."""
    case: dual.Case
    """The case of the subproblem."""
    share: float
    """The accepted share of the proposed step; 0 if the step was refused."""
    bounds: dict[str, Bound]
    """The paper's claims whose premises this update meets, by name."""


@dataclass(frozen=True, eq=False)
class Run:
    """A sequence of policies, from the first to the last."""

    start: Evaluation
    updates: tuple[Update, ...]
    converged: bool
    """Whether the run ended because no step of any size helped, and not after its last iteration."""

    @property
    def policies(self) -> list[Evaluation]:
        """π₀, π₁, …: one more than there are updates."""
        return [self.start, *(update.policy for update in self.updates)]

    @property
    def final(self) -> Evaluation:
        """The last policy."""
        return self.policies[-1]

    @property
    def broken(self) -> list[tuple[int, str]]:
        """(update, name) of every claim that does not hold; according to the paper there is none."""
        claims = [(k, *claim) for k, update in enumerate(self.updates) for claim in update.bounds.items()]
        return [(k, name) for k, name, bound in claims if not bound.holds]

    def gap_closed(self, best: float, reference: float | None = None) -> float:
        """(J(last) − reference)/(best − reference): 1 at the optimum. The reference is J(π₀) by default.

        If π₀ breaks the limits, J(π₀) may lie above the optimum: give the return of a feasible policy instead.
        """
        origin = self.start.J if reference is None else reference
        require_finite("best", best)
        require_finite("reference", origin)
        require(best != origin, f"best must differ from the reference, both are {best:g}")
        return (self.final.J - origin) / (best - origin)


def softmax(logits: ArrayLike) -> Table:
    """π(a|s) = exp θ(s, a)/Σ_b exp θ(s, b) for logits θ (S, A)."""
    logits = as_floats("logits", logits)
    require(logits.ndim == 2 and logits.size > 0, f"logits must have shape (states, actions), got {logits.shape}")
    weights = np.exp(bounded(logits))
    return weights / weights.sum(axis=1, keepdims=True)


def bounded(logits: Table) -> Table:
    """Shift the logits of each state to have maximum 0, and raise those below −20 to −20.

    This keeps every probability above 1e-10. A step can drop an action for almost no KL, and an action whose
    probability rounds to zero could never return, whatever its advantage becomes.
    """
    return np.maximum(logits - logits.max(axis=1, keepdims=True), -_LOGIT_RANGE)


def start_logits(cmdp: CMDP, start: ArrayLike) -> tuple[Table, Evaluation]:
    """The logits of the policy `start` (S, A), which must give every action a probability, and its evaluation."""
    require_kind("cmdp", cmdp, CMDP)
    policy = as_policy("start", start, cmdp)
    zero = np.argwhere(policy == 0)
    where = tuple(int(i) for i in zero[0]) if len(zero) else ()
    require(not len(zero), f"start must give every action a probability (softmax does), got 0 at index {where}")
    logits = bounded(np.log(policy))
    return logits, evaluate(cmdp, softmax(logits))


def natural_gradients(policy: Evaluation) -> Signals:
    """H⁻¹∂J/∂θ and H⁻¹∂J_Cᵢ/∂θ = A(s, a)/(1−γ)."""
    return policy.A / (1 - policy.cmdp.gamma)


def gradients(policy: Evaluation) -> Signals:
    """∂J/∂θ and ∂J_Cᵢ/∂θ = d(s) π(a|s) A(s, a)/(1−γ), which are also the surrogates' gradients at π_k."""
    return policy.d[:, None] * policy.policy * natural_gradients(policy)


def sizes(policy: Evaluation) -> Returns:
    """The largest |V| of the reward and of each cost: tolerances for rounding are relative to it."""
    return np.abs(policy.V).max(axis=1)


def propose(old: Evaluation, logits: Table, delta: float, *, guaranteed: bool = False) -> tuple[Table, dual.Case]:
    """Propose a step x with D̄_KL ≤ δ that satisfies the surrogate constraints themselves, if the iteration finds one.

    The subproblem limits cᵢ + bᵢᵀx, but the step must keep cᵢ + surrogateᵢ(x) ≤ 0, plus the worst case if `guaranteed`.
    The two differ to second order, and a strict line search would refuse every step along a binding limit. So this
    function replaces cᵢ by cᵢ + surrogateᵢ(x) − bᵢᵀx and solves again until the constraints hold: the second-order
    correction of sequential quadratic programming. It corrects the quadratic model of the KL by a smaller δ.
    """
    natural, slopes = natural_gradients(old), gradients(old)
    gram = np.einsum("jsa,ksa->jk", slopes, natural)
    excess = old.J_C - old.cmdp.limits
    c, radius, case = excess, delta, dual.Case.INSIDE
    for _ in range(_LINEARISATIONS):
        alpha, beta, corrected = _solve(gram, c, radius)
        case = corrected if c is excess else case
        recovering = case >= dual.Case.RECOVERY
        if recovering != (corrected >= dual.Case.RECOVERY):
            # The correction changed which case this is, so the step was too long to be corrected.
            c, radius = excess, radius / 4
            continue
        step = alpha * natural[0] - np.einsum("i,isa->sa", beta, natural[1:])
        promised = promise_of(old, softmax(logits + step))
        kl = float(promised.kl)
        if not kl <= delta:
            c, radius = excess, radius * min(max(0.99 * delta / kl, 0.1), 0.99)
            continue
        actual = excess + promised.change[1:] + (promised.worst[1:] if guaranteed else 0.0)
        # While recovering, a step need not reach a broken limit, but must not move away from it.
        over = actual - (np.maximum(excess, 0.0) if recovering else 0.0)
        if np.all(over <= ROUNDING / 10 * sizes(old)[1:]):
            break
        linear = np.einsum("isa,sa->i", slopes[1:], step)
        c = c + np.maximum(over, 0.0) / _share_of_recovery(c, linear) if recovering else actual - linear
    return step, case


def _share_of_recovery(c: Float64[np.ndarray, " m"], linear: Float64[np.ndarray, " m"]) -> float:
    """The share of the way to the broken limits that a recovery step covers, from 0.01 to 1 (1 means bᵢᵀx = −cᵢ)."""
    broken = c > 0
    return float(np.clip(np.min(-linear[broken] / c[broken], initial=1.0), 0.01, 1.0))


def _solve(
    gram: Float64[np.ndarray, "n n"], c: Float64[np.ndarray, " m"], delta: float
) -> tuple[float, Float64[np.ndarray, " m"], dual.Case]:
    """`dual.solve` in float64; q, r and S are the inner products of the natural gradients under H."""
    with jax.enable_x64(True):
        found = _compiled_solve(gram[0, 0], gram[0, 1:], gram[1:, 1:], c, delta)
        return float(found.alpha), np.asarray(found.beta), dual.Case(int(found.case))

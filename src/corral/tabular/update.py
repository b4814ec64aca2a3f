"""What exact CPO and the guaranteed update share: a softmax policy, its surrogates, steps by `trust_region`.

With logits θ (S, A) and π = softmax(θ), everything the trust region needs has a closed form:

    gradients           ∂J/∂θ(s, a) = d^π(s) π(a|s) A(s, a)/(1−γ),   and with A_Cᵢ for J_Cᵢ
    Fisher matrix       H = blockdiag_s d^π(s)(diag π_s − π_s π_sᵀ),  the Hessian of the mean KL
    natural gradients   H⁻¹∂J/∂θ = A/(1−γ),   because (diag π − ππᵀ)A = πA where Σ_a πA = 0

H is singular along constants per state, which leave π alone; A/(1−γ) is the solution of mean zero under π.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float64

from corral.errors import require, require_finite
from corral.tabular.bounds import ROUNDING, Bound
from corral.tabular.cmdp import CMDP, ArrayLike, Evaluation, as_floats, as_policy, evaluate, require_kind
from corral.tabular.measures import promise_of
from corral.trust_region import dual

__all__ = ["Run", "Update", "softmax"]

Table = Float64[np.ndarray, "S A"]
Signals = Float64[np.ndarray, "k S A"]
Returns = Float64[np.ndarray, " k"]

_LINEARISATIONS = 20
_LOGIT_RANGE = 20.0


@dataclass(frozen=True, eq=False)
class Update:
    """One update, taken or not, with the paper's promises about it."""

    policy: Evaluation
    """π_{k+1}; π_k itself where no step was taken."""
    delta: float
    """The trust region's size."""
    case: dual.Case
    """What the subproblem looked like."""
    share: float
    """The part of the proposed step that was taken; 0 where all of it was refused."""
    bounds: dict[str, Bound]
    """The paper's claims whose premises this update meets, by name, evaluated."""


@dataclass(frozen=True, eq=False)
class Run:
    """Policies from the first to the last."""

    start: Evaluation
    updates: tuple[Update, ...]
    converged: bool
    """Whether the run ended because no step of any size helped, not because its iterations were used up."""

    @property
    def policies(self) -> list[Evaluation]:
        """π₀, π₁, ..: one more than there are updates."""
        return [self.start, *(update.policy for update in self.updates)]

    @property
    def final(self) -> Evaluation:
        """The last policy."""
        return self.policies[-1]

    @property
    def broken(self) -> list[tuple[int, str]]:
        """(update, claim) for every claim that does not hold; the paper says there is none."""
        claims = [(k, *claim) for k, update in enumerate(self.updates) for claim in update.bounds.items()]
        return [(k, name) for k, name, bound in claims if not bound.holds]

    def gap_closed(self, best: float, reference: float | None = None) -> float:
        """(J(last) − reference)/(best − reference), 1 at the optimum. The reference is J(π₀) by default.

        From a start that breaks the limits J(π₀) may lie anywhere, even above the optimum: give a feasible one.
        """
        origin = self.start.J if reference is None else reference
        require_finite("best", best)
        require_finite("reference", origin)
        require(best != origin, f"best must differ from the reference, both are {best:g}")
        return (self.final.J - origin) / (best - origin)


def softmax(logits: ArrayLike) -> Table:
    """π(a|s) = exp θ(s, a)/Σ_b exp θ(s, b) for logits θ (S, A)."""
    logits = as_floats("logits", logits)
    require(
        logits.ndim == 2 and logits.size > 0,
        f"logits must have shape (states, actions), got {logits.shape}",
    )
    weights = np.exp(bounded(logits))
    return weights / weights.sum(axis=1, keepdims=True)


def bounded(logits: Table) -> Table:
    """Logits with largest entry 0 in each state and none below −20.

    The bound keeps every probability above 1e-10: a step may drop an action for next to no KL, and an action
    whose probability rounds to zero could never return, whatever its advantage becomes.
    """
    return np.maximum(logits - logits.max(axis=1, keepdims=True), -_LOGIT_RANGE)


def start_logits(cmdp: CMDP, start: ArrayLike) -> tuple[Table, Evaluation]:
    """The logits of the policy `start` (S, A), in which every action must be possible, and its evaluation."""
    require_kind("cmdp", cmdp, CMDP)
    policy = as_policy("start", start, cmdp)
    zero = np.argwhere(policy == 0)
    where = tuple(int(i) for i in zero[0]) if len(zero) else ()
    require(
        not len(zero), f"start must give every action a probability (softmax does), got 0 at index {where}"
    )
    logits = bounded(np.log(policy))
    return logits, evaluate(cmdp, softmax(logits))


def natural_gradients(policy: Evaluation) -> Signals:
    """H⁻¹∂J/∂θ and H⁻¹∂J_Cᵢ/∂θ = A(s, a)/(1−γ)."""
    return policy.A / (1 - policy.cmdp.gamma)


def gradients(policy: Evaluation) -> Signals:
    """∂J/∂θ and ∂J_Cᵢ/∂θ = d(s) π(a|s) A(s, a)/(1−γ), which are also the surrogates' gradients at π_k."""
    return policy.d[:, None] * policy.policy * natural_gradients(policy)


def sizes(policy: Evaluation) -> Returns:
    """The largest |V| of the reward and of each cost, to which rounding is relative."""
    return np.abs(policy.V).max(axis=1)


def propose(
    old: Evaluation, logits: Table, delta: float, *, guaranteed: bool = False
) -> tuple[Table, dual.Case]:
    """A step x with D̄_KL ≤ δ that satisfies the surrogate constraints themselves, where one is found.

    The subproblem sees cᵢ + bᵢᵀx, but cᵢ + surrogateᵢ(x) counts, plus the worst case if `guaranteed`. They
    differ to second order, enough for a strict line search to refuse every step along a binding limit. So cᵢ
    is replaced by cᵢ + surrogateᵢ(x) − bᵢᵀx and the subproblem solved again until the constraints hold: the
    second-order correction of sequential quadratic programming. A smaller δ corrects the model of the KL.
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
            # The correction, not π_k, changed what is feasible: the step was too long to be corrected.
            c, radius = excess, radius / 4
            continue
        step = alpha * natural[0] - np.einsum("i,isa->sa", beta, natural[1:])
        promised = promise_of(old, softmax(logits + step))
        kl = float(promised.kl)
        if not kl <= delta:
            c, radius = excess, radius * min(max(0.99 * delta / kl, 0.1), 0.99)
            continue
        actual = excess + promised.change[1:] + (promised.worst[1:] if guaranteed else 0.0)
        # While recovering, a broken limit need not be reached, only not be left further behind.
        over = actual - (np.maximum(excess, 0.0) if recovering else 0.0)
        if np.all(over <= ROUNDING / 10 * sizes(old)[1:]):
            break
        linear = np.einsum("isa,sa->i", slopes[1:], step)
        c = c + np.maximum(over, 0.0) / _share_of_recovery(c, linear) if recovering else actual - linear
    return step, case


def _share_of_recovery(c: Float64[np.ndarray, " m"], linear: Float64[np.ndarray, " m"]) -> float:
    """How much of the way to the constraints a recovery step goes: it is that share of a step with bᵢᵀx = −cᵢ."""
    broken = c > 0
    return float(np.clip(np.min(-linear[broken] / c[broken], initial=1.0), 0.01, 1.0))


def _solve(
    gram: Float64[np.ndarray, "n n"], c: Float64[np.ndarray, " m"], delta: float
) -> tuple[float, Float64[np.ndarray, " m"], dual.Case]:
    """`dual.solve` in float64; q, r and S are the inner products of the natural gradients under H."""
    with jax.enable_x64(True):
        found = _jitted_solve()(gram[0, 0], gram[0, 1:], gram[1:, 1:], c, delta)
        return float(found.alpha), np.asarray(found.beta), dual.Case(int(found.case))


@functools.cache
def _jitted_solve() -> Any:
    return jax.jit(dual.solve)

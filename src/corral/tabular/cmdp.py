"""Finite constrained Markov decision processes and the exact quantities of a policy in them.

    J(π)    = E[Σ_t γ^t R(s_t, a_t, s_{t+1})],   s_0 ~ μ, a_t ~ π(·|s_t), s_{t+1} ~ P(·|s_t, a_t)
    J_Cᵢ(π) = the same with Cᵢ for R;            feasible policies have J_Cᵢ(π) ≤ dᵢ for i = 1..m

All numbers are float64 NumPy, from linear solves, without sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from corral.errors import CorralError, brief, require, require_finite, require_in, require_shape

if TYPE_CHECKING:
    from numpy.typing import ArrayLike as ArrayLike
else:
    # The run-time type checker of the tests refuses plain floats for NumPy's union type.
    ArrayLike = Any

# Sums may be off by float32 rounding: `as_distribution` rescales them to one in float64.
_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, init=False, eq=False, repr=False)
class CMDP:
    """A finite CMDP with S states, A actions and m ≥ 0 constraints; its arrays are read-only float64.

    `P[s, a, t]` is the probability of s → t under a, `R[s, a, t]` and `C[i, s, a, t]` the reward and cost i
    of that transition, `mu` the start distribution, `gamma` the discount and `limits` the dᵢ in J_Cᵢ(π) ≤ dᵢ.
    """

    P: Float64[np.ndarray, "S A S"]
    R: Float64[np.ndarray, "S A S"]
    C: Float64[np.ndarray, "m S A S"]
    mu: Float64[np.ndarray, " S"]
    gamma: float
    limits: Float64[np.ndarray, " m"]
    reward: Float64[np.ndarray, "S A"]
    """E[R(s, a, s') | s, a]."""
    costs: Float64[np.ndarray, "m S A"]
    """E[Cᵢ(s, a, s') | s, a]."""

    def __init__(
        self, P: ArrayLike, R: ArrayLike, C: ArrayLike, mu: ArrayLike, gamma: ArrayLike, limits: ArrayLike
    ) -> None:
        P = as_floats("P", P, (None, None, None), "(states, actions, states)")
        states, actions, _ = P.shape
        require(states > 0 and actions > 0, f"P must have states and actions, got shape {P.shape}")
        require_shape("P", P, (states, actions, states), "(states, actions, states)")
        R = as_floats("R", R, P.shape, "(states, actions, states)")
        limits = as_floats("limits", limits, (None,), "(constraints,)")
        C = as_floats("C", C, (len(limits), *P.shape), "(constraints, states, actions, states)")
        mu = as_floats("mu", mu, (states,), "(states,)")
        gamma = float(as_floats("gamma", gamma, ()))
        require_in("gamma", gamma, 0.0, 1.0, closed="[)")
        P, mu = as_distribution("P", P), as_distribution("mu", mu)
        fields = {"P": P, "R": R, "C": C, "mu": mu, "limits": limits}
        fields |= {"reward": np.einsum("sat,sat->sa", P, R), "costs": np.einsum("sat,isat->isa", P, C)}
        for name, array in fields.items():
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        object.__setattr__(self, "gamma", gamma)

    @property
    def states(self) -> int:
        """S."""
        return int(self.P.shape[0])

    @property
    def actions(self) -> int:
        """A."""
        return int(self.P.shape[1])

    @property
    def constraints(self) -> int:
        """m."""
        return len(self.limits)

    def with_limits(self, limits: ArrayLike) -> "CMDP":
        """The same CMDP under other limits."""
        return CMDP(self.P, self.R, self.C, self.mu, self.gamma, limits)

    def __repr__(self) -> str:
        sizes = f"states={self.states}, actions={self.actions}, constraints={self.constraints}"
        return f"CMDP({sizes}, gamma={self.gamma:g})"


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A policy with its exact state distribution, values, advantages and returns.

    The k = 1 + m rows of `V`, `Q`, `A` and `returns` are the reward (row 0) and the m costs (rows 1..m).
    """

    cmdp: CMDP
    policy: Float64[np.ndarray, "S A"]
    """π(a|s)."""
    d: Float64[np.ndarray, " S"]
    """d^π = (1−γ) Σ_t γ^t P(s_t = s | π): the discounted future state distribution."""
    V: Float64[np.ndarray, "k S"]
    """The expected discounted sum of each signal from state s on."""
    Q: Float64[np.ndarray, "k S A"]
    """The same from state s and action a on."""
    A: Float64[np.ndarray, "k S A"]
    """Advantages Q − V."""
    returns: Float64[np.ndarray, " k"]
    """J(π), J_C₁(π), .., J_Cₘ(π)."""

    @property
    def J(self) -> float:
        """The return J(π)."""
        return float(self.returns[0])

    @property
    def J_C(self) -> Float64[np.ndarray, " m"]:
        """The constraint returns J_Cᵢ(π)."""
        return self.returns[1:]

    @property
    def violation(self) -> float:
        """max_i J_Cᵢ(π) − dᵢ, negative strictly inside the limits; −inf without constraints."""
        return float(np.max(self.J_C - self.cmdp.limits, initial=-np.inf))


def evaluate(cmdp: CMDP, policy: ArrayLike) -> Evaluation:
    """Solve for the exact state distribution, values, advantages and returns of `policy` (states, actions).

    d^π = (1−γ)(I − γP_π)⁻¹μ,   V = (I − γP_π)⁻¹r_π,   Q(s, a) = r(s, a) + γ Σ_t P(t|s, a) V(t),   J = μᵀV
    (d^π is equation (18) of the paper, whose P_π has columns that sum to one; here rows do).
    """
    require_kind("cmdp", cmdp, CMDP)
    pi = as_policy("policy", policy, cmdp)
    signals = signals_of(cmdp)
    resolvent = np.eye(cmdp.states) - cmdp.gamma * np.einsum("sa,sat->st", pi, cmdp.P)
    # The exact d is never negative; rounding in the solver can make it so.
    d = np.maximum(np.linalg.solve(resolvent.T, (1 - cmdp.gamma) * cmdp.mu), 0.0)
    V = np.linalg.solve(resolvent, np.einsum("sa,ksa->sk", pi, signals)).T
    Q = signals + cmdp.gamma * np.einsum("sat,kt->ksa", cmdp.P, V)
    return Evaluation(cmdp, pi, d, V, Q, Q - V[:, :, None], V @ cmdp.mu)


def require_kind(name: str, value: Any, kind: type) -> None:
    """Require an instance of `kind`."""
    require(isinstance(value, kind), f"{name} must be an instance of {kind.__name__}, got {type(value).__name__}")


def require_count(name: str, value: int, least: int) -> None:
    """Require a whole number of at least `least`."""
    require(isinstance(value, int | np.integer), f"{name} must be a whole number, got {value}")
    require(value >= least, f"{name} must be at least {least}, got {brief(value)}")
    require(value < 2**63, f"{name} must be below 2^63, got {brief(value)}")


def signals_of(cmdp: CMDP) -> Float64[np.ndarray, "k S A"]:
    """The expected reward (row 0) and costs (rows 1..m) of each state and action."""
    return np.concatenate([cmdp.reward[None], cmdp.costs])


def as_policy(name: str, policy: ArrayLike, cmdp: CMDP) -> Float64[np.ndarray, "S A"]:
    """Return `policy` as a validated float64 array (states, actions) whose rows sum to one."""
    return as_distribution(name, as_floats(name, policy, (cmdp.states, cmdp.actions), "(states, actions)"))


def as_floats(
    name: str, value: ArrayLike, shape: Sequence[int | None] | None = None, meaning: str = ""
) -> Float64[np.ndarray, "..."]:
    """Return `value` as a new array of finite float64 numbers, of `shape` if one is given (see `require_shape`)."""
    try:
        array = np.array(value)
    except ValueError:
        raise CorralError(f"{name} must be a rectangular array of numbers") from None
    require(array.dtype.kind in "bifu", f"{name} must hold real numbers, got dtype {array.dtype}")
    if shape is not None:
        require_shape(name, array, shape, meaning)
    require_finite(name, array.astype(np.float64))
    return array.astype(np.float64)


def as_distribution(name: str, p: Float64[np.ndarray, "... n"]) -> Float64[np.ndarray, "... n"]:
    """Return `p` rescaled to sum to one along its last axis; negative entries and sums far from one are errors."""
    negative = np.argwhere(p < 0)
    if len(negative):
        where = tuple(int(i) for i in negative[0])
        raise CorralError(f"{name} must hold probabilities, got {p[where]:g} at index {where}")
    sums = p.sum(axis=-1, keepdims=True)
    off = np.argwhere(np.abs(sums[..., 0] - 1) > _SUM_TOLERANCE)
    if len(off):
        row = tuple(int(i) for i in off[0])
        which = f"{name}[{', '.join(map(str, row))}]" if row else name
        more = f" ({len(off)} such rows)" if len(off) > 1 else ""
        raise CorralError(f"{which} must sum to 1, got {sums[(*row, 0)]:.9g}{more}")
    return p / sums

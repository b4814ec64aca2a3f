"""Random CMDPs whose limits bind, random policies near and far, and a CMDP that attains Theorem 1."""

import numpy as np
from jaxtyping import Float64

from corral.errors import CorralError, require, require_in
from corral.tabular.cmdp import CMDP, evaluate
from corral.tabular.optimum import optimum, safest

_ATTEMPTS = 100


def random_cmdp(
    rng: np.random.Generator, states: int, actions: int, constraints: int = 1, gamma: float = 0.9
) -> CMDP:
    """A random CMDP that is strictly feasible and whose unconstrained optimum breaks every limit.

    Transitions and start are Dirichlet (sparse rows, so that actions matter), rewards standard normal, costs
    uniform on [0, 1]. With u the constraint returns of the unconstrained optimum and z the most by which some
    policy undercuts u in all of them at once, dᵢ = uᵢ − ρᵢz with ρᵢ uniform on [0.2, 0.8]: every limit cuts
    off the unconstrained optimum, and some policy satisfies all of them with room.
    """
    require(states >= 1, f"states must be at least 1, got {states}")
    require(actions >= 1, f"actions must be at least 1, got {actions}")
    require(constraints >= 0, f"constraints must be at least 0, got {constraints}")
    require_in("gamma", gamma, 0, 1, closed="[)")
    for _ in range(_ATTEMPTS):
        cmdp = CMDP(
            P=rng.dirichlet(np.full(states, 0.3), size=(states, actions)),
            R=rng.normal(size=(states, actions, states)),
            C=rng.uniform(size=(constraints, states, actions, states)),
            mu=rng.dirichlet(np.ones(states)),
            gamma=gamma,
            limits=np.zeros(constraints),
        )
        if not constraints:
            return cmdp
        free = CMDP(cmdp.P, cmdp.R, np.zeros((0, *cmdp.P.shape)), cmdp.mu, gamma, [])
        u = evaluate(cmdp, optimum(free).policy).J_C
        z = -safest(cmdp.with_limits(u)).violation
        if z > 1e-6 * np.max(u):
            return cmdp.with_limits(u - rng.uniform(0.2, 0.8, size=constraints) * z)
    raise CorralError(
        f"constraints must be fewer: with states={states} and actions={actions} no draw of {_ATTEMPTS} "
        f"let {constraints} limits bind at once"
    )


def random_policy(rng: np.random.Generator, cmdp: CMDP) -> Float64[np.ndarray, "S A"]:
    """Each state's action distribution uniform on the simplex."""
    return rng.dirichlet(np.ones(cmdp.actions), size=cmdp.states)


def nearby_policy(
    rng: np.random.Generator, policy: Float64[np.ndarray, "S A"], distance: float
) -> Float64[np.ndarray, "S A"]:
    """`policy` with its logits moved by normal noise of size `distance`."""
    moved = policy * np.exp(distance * rng.normal(size=policy.shape))
    return moved / moved.sum(axis=1, keepdims=True)


def random_deterministic_policy(rng: np.random.Generator, cmdp: CMDP) -> Float64[np.ndarray, "S A"]:
    """One action in each state, drawn uniformly."""
    return np.eye(cmdp.actions)[rng.integers(cmdp.actions, size=cmdp.states)]


def fork(gamma: float = 0.9) -> CMDP:
    """From state 0 action 0 leads to state 1 for ever (reward 1 a step), action 1 to state 2 for ever (−1).

    For policies that differ only in state 0 the divergence lemma and Theorem 1 with f = 0 hold with equality:
    no constant in them can be improved. One cost, 1 a step in state 2, limited to half of the most it can be.
    """
    P = np.zeros((3, 2, 3))
    P[0, 0, 1] = P[0, 1, 2] = 1.0
    P[1, :, 1] = P[2, :, 2] = 1.0
    R = np.zeros((3, 2, 3))
    R[1], R[2] = 1.0, -1.0
    C = np.zeros((1, 3, 2, 3))
    C[0, 2] = 1.0
    return CMDP(P, R, C, mu=[1.0, 0.0, 0.0], gamma=gamma, limits=[0.5 * gamma / (1 - gamma)])

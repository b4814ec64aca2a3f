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
    require_in("gamma", gamma, 0.0, 1.0, closed="[)")
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
    """From state 0 to states 1 and 2 for ever; action 0 pays 1 in state 1 and −1 in 2, action 1 the reverse.

    For the policies of `fork_policies` the divergence lemma, Theorem 1 with f = 0 or V^π and Corollaries 1
    and 2 (the cost is −R) are attained as `tremble` goes to 0: no constant in them can be improved.
    """
    P = np.zeros((3, 2, 3))
    P[0, 0, 1] = P[0, 1, 2] = 1.0
    P[1, :, 1] = P[2, :, 2] = 1.0
    R = np.zeros((3, 2, 3))
    R[1], R[2] = [[1.0], [-1.0]], [[-1.0], [1.0]]
    return CMDP(P, R, C=[-R], mu=[1.0, 0.0, 0.0], gamma=gamma, limits=[0.0])


def fork_policies(
    shift: float, tremble: float
) -> tuple[Float64[np.ndarray, "3 2"], Float64[np.ndarray, "3 2"]]:
    """π uniform, and π' that moves `shift` from state 1 to state 2 and `tremble` to action 0 in both.

    What π' does better in state 1 it does worse in state 2, which it reaches more often: as bad as Theorem 1
    fears. ε = 2·tremble, and D̄_TV = (1−γ)·shift + γ·tremble, of which only the shift moves d^π.
    """
    old = np.full((3, 2), 0.5)
    new = old + np.array([[-shift, shift], [tremble, -tremble], [tremble, -tremble]])
    return old, new

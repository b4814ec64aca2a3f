"""Random CMDPs whose limits bind, random policies near and far, and a CMDP that attains the paper's Theorem 1."""

import numpy as np
from jaxtyping import Float64

from corral.errors import CorralError, require_in
from corral.tabular.cmdp import CMDP, ArrayLike, as_distribution, as_floats, evaluate, require_count, require_kind
from corral.tabular.optimum import optimum, safest

_ATTEMPTS = 100


def random_cmdp(rng: np.random.Generator, states: int, actions: int, constraints: int = 1, gamma: float = 0.9) -> CMDP:
    """Draw a strictly feasible CMDP whose unconstrained optimum breaks every limit.

    Transitions and start are Dirichlet (sparse rows, so that actions matter), rewards standard normal, costs
    uniform on [0, 1]. Let u be the constraint returns of the unconstrained optimum, and z the largest margin by which
    one policy undercuts all of them. The limits are dᵢ = uᵢ − ρᵢz with ρᵢ uniform on [0.2, 0.8]: every limit
    excludes the unconstrained optimum, and some policy satisfies all of them with room.
    """
    require_kind("rng", rng, np.random.Generator)
    require_count("states", states, 1)
    require_count("actions", actions, 1)
    require_count("constraints", constraints, 0)
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
    """Draw the action distribution of each state uniformly from the simplex."""
    require_kind("rng", rng, np.random.Generator)
    require_kind("cmdp", cmdp, CMDP)
    return rng.dirichlet(np.ones(cmdp.actions), size=cmdp.states)


def nearby_policy(rng: np.random.Generator, policy: ArrayLike, distance: float) -> Float64[np.ndarray, "S A"]:
    """Add normal noise of size `distance` to the logits of `policy` (S, A)."""
    require_kind("rng", rng, np.random.Generator)
    policy = as_distribution("policy", as_floats("policy", policy, (None, None), "(states, actions)"))
    # A distance of 100 changes odds by a factor e^100, further apart than any two policies worth drawing.
    require_in("distance", distance, 0.0, 100.0)
    moved = policy * np.exp(distance * rng.normal(size=policy.shape))
    return moved / moved.sum(axis=1, keepdims=True)


def random_deterministic_policy(rng: np.random.Generator, cmdp: CMDP) -> Float64[np.ndarray, "S A"]:
    """Draw one action for each state, uniformly."""
    require_kind("rng", rng, np.random.Generator)
    require_kind("cmdp", cmdp, CMDP)
    return np.eye(cmdp.actions)[rng.integers(cmdp.actions, size=cmdp.states)]


def fork(gamma: float = 0.9) -> CMDP:
    """A CMDP on which the paper's bounds are attained.

    State 0 leads to state 1 or 2, for ever. Action 0 pays 1 in state 1 and −1 in state 2, action 1 the reverse; the
    cost is −R. As `tremble` goes to 0, the policies of `fork_policies` attain the bounds of Lemma 3, Theorem 1 with
    f = 0 or V^π, and Corollaries 1 and 2: no constant in them can be improved.
    """
    P = np.zeros((3, 2, 3))
    P[0, 0, 1] = P[0, 1, 2] = 1.0
    P[1, :, 1] = P[2, :, 2] = 1.0
    R = np.zeros((3, 2, 3))
    R[1], R[2] = [[1.0], [-1.0]], [[-1.0], [1.0]]
    return CMDP(P, R, C=[-R], mu=[1.0, 0.0, 0.0], gamma=gamma, limits=[0.0])


def fork_policies(shift: float, tremble: float) -> tuple[Float64[np.ndarray, "3 2"], Float64[np.ndarray, "3 2"]]:
    """The policies π and π' for `fork`: π is uniform, π' goes to state 2 by `shift` and to action 0 by `tremble` more often.

    π' gains in state 1 and loses as much in state 2, which it reaches more often: the worst case of Theorem 1.
    ε = 2·tremble and D̄_TV = (1−γ)·shift + γ·tremble; only the shift moves d^π.
    """
    require_in("shift", shift, 0.0, 0.5)
    require_in("tremble", tremble, 0.0, 0.5)
    old = np.full((3, 2), 0.5)
    new = old + np.array([[-shift, shift], [tremble, -tremble], [tremble, -tremble]])
    return old, new

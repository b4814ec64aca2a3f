import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from corral.errors import CorralError
from corral.tabular.cmdp import evaluate
from corral.tabular.examples import random_cmdp
from corral.tabular.measures import promise
from corral.tabular.optimum import interior_policy, safest
from corral.tabular.update import Run, Update, bounded, gradients, natural_gradients, propose, softmax, start_logits
from corral.trust_region.dual import Case


@pytest.fixture
def logits(rng, cmdp):
    return bounded(rng.normal(size=(cmdp.states, cmdp.actions)))


def test_gradients_agree_with_finite_differences_of_the_exact_returns(cmdp, logits):
    found, h = gradients(evaluate(cmdp, softmax(logits))), 1e-5
    for s in range(cmdp.states):
        for a in range(cmdp.actions):
            shift = np.zeros_like(logits)
            shift[s, a] = h
            up, down = (evaluate(cmdp, softmax(logits + sign * shift)).returns for sign in (1, -1))
            np.testing.assert_allclose(found[:, s, a], (up - down) / (2 * h), rtol=1e-6, atol=1e-9)


def test_natural_gradients_invert_the_hessian_of_the_mean_kl(cmdp, logits):
    old = evaluate(cmdp, softmax(logits))
    with jax.enable_x64(True):

        def mean_kl(theta):
            new = jax.nn.log_softmax(theta)
            return jnp.dot(old.d, jnp.sum(jnp.exp(new) * (new - np.log(old.policy)), axis=1))

        H = np.asarray(jax.hessian(mean_kl)(jnp.asarray(logits))).reshape(15, 15)
    g, v = gradients(old).reshape(3, 15), natural_gradients(old).reshape(3, 15)
    np.testing.assert_allclose(v @ H, g, rtol=1e-9, atol=1e-12)
    # q, r and S are those of the pseudo-inverse: what H cannot see makes no difference.
    np.testing.assert_allclose(g @ v.T, g @ np.linalg.pinv(H, rcond=1e-9) @ g.T, rtol=1e-8)


def best_surrogate(old, delta):
    """The best surrogate of all policies under the constraints of the paper's (10), by sequential quadratic programming."""
    shape = old.policy.shape
    floor = 1e-9

    def at(x):
        return promise(old, softmax(x.reshape(shape)))

    found = minimize(
        lambda x: -at(x).change[0],
        np.log(old.policy).ravel(),
        method="SLSQP",
        constraints=[
            {"type": "ineq", "fun": lambda x: old.cmdp.limits - old.J_C - at(x).change[1:]},
            {"type": "ineq", "fun": lambda x: delta - float(at(x).kl)},
        ],
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert np.all(old.cmdp.limits - old.J_C - at(found.x).change[1:] >= -floor)
    return float(at(found.x).change[0])


@pytest.mark.parametrize(("delta", "share"), [(1e-4, 0.97), (1e-2, 0.85)])
@pytest.mark.parametrize("constraints", [1, 2])
def test_a_proposal_keeps_the_constraints_exactly_and_is_nearly_the_best_of_all_policies(constraints, delta, share):
    cmdp = random_cmdp(np.random.default_rng(1), 4, 3, constraints, gamma=0.8)
    start = interior_policy(cmdp)
    # Limits that the plain step would break: the constraints bind.
    old = evaluate(cmdp.with_limits(evaluate(cmdp, start).J_C + 1e-3 * np.sqrt(delta)), start)
    step, case = propose(old, np.log(start), delta)
    found = promise(old, softmax(np.log(start) + step))
    assert case == Case.BOUNDARY
    assert np.all(old.J_C + found.change[1:] <= old.cmdp.limits + 1e-9)
    assert found.kl <= delta
    best = best_surrogate(old, delta)
    # The dual sees the KL to second order: the longer the step, the less it is the best.
    assert share * best < found.change[0] <= best * (1 + 1e-6)


def test_a_guaranteed_proposal_leaves_room_for_the_worst_case(rng):
    cmdp = random_cmdp(rng, 5, 3, 2, gamma=0.8)
    start = interior_policy(cmdp)
    old = evaluate(cmdp, start)
    step, _ = propose(old, np.log(start), 1e-3, guaranteed=True)
    found = promise(old, softmax(np.log(start) + step))
    assert np.all(old.J_C + found.change[1:] + found.worst[1:] <= cmdp.limits + 1e-9)
    assert found.kl > 0


def test_where_no_step_is_feasible_the_proposal_lowers_the_violated_costs(rng):
    cmdp = random_cmdp(rng, 5, 3, 1, gamma=0.8)
    uniform = np.full((5, 3), 1 / 3)
    old = evaluate(cmdp.with_limits([safest(cmdp).violation + cmdp.limits[0]]), uniform)
    step, case = propose(old, np.log(uniform), 1e-3)
    assert case == Case.RECOVERY
    assert promise(old, softmax(np.log(uniform) + step)).change[1] < 0


def test_no_probability_rounds_to_zero():
    policy = softmax(np.array([[0.0, -1e4, 5.0]]))
    assert policy.min() > 1e-10
    np.testing.assert_allclose(policy.sum(), 1.0)


def test_constants_per_state_do_not_change_the_policy(rng, logits):
    np.testing.assert_allclose(softmax(logits + rng.normal(size=(5, 1))), softmax(logits), rtol=1e-13)


def test_starts_must_allow_every_action(cmdp):
    policy = np.full((5, 3), 1 / 3)
    policy[2] = [0.5, 0.5, 0.0]
    with pytest.raises(CorralError, match=r"start must give every action a probability .* got 0 at index \(2, 2\)"):
        start_logits(cmdp, policy)
    with pytest.raises(CorralError, match=r"start\[0\] must sum to 1"):
        start_logits(cmdp, np.ones((5, 3)))


def test_the_gap_is_counted_from_the_start_or_from_a_reference(chain):
    # Leaving with probability p earns p/(1 − ½(1 − p)).
    policies = [evaluate(chain, [[1 - p, p], [0.5, 0.5]]) for p in (0.125, 0.5, 0.2)]
    run = Run(policies[0], tuple(Update(p, 0.1, Case.INSIDE, 1.0, {}) for p in policies[1:]), True)
    first, last = 0.125 / 0.5625, 0.2 / 0.6
    assert run.gap_closed(0.4) == pytest.approx((last - first) / (0.4 - first))
    assert run.gap_closed(0.4, reference=0.1) == pytest.approx((last - 0.1) / 0.3)
    assert run.final is policies[2]

"""Algorithms on the trust region: each step against matrices written out, a solver, or a recursion by hand."""

from dataclasses import replace

import clarabel
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from small_policies import BOTH, DELTA, EPISODES, ROWS, TRUST, boundary_step, explicit, make_problem, standing

from corral.algos import CPO, CRPO, CTRPO, FPO, PCPO, PDO, TRPO, TRPOLag, cpo, ctrpo, pdo
from corral.errors import CorralError
from corral.learning import honest, networks, recovery, surrogates
from corral.trust_region.dual import Case

# -- PCPO -------------------------------------------------------------------------------------------------------------


def projected(x, B, c, M):
    """argmin ½(y − x)ᵀM(y − x) subject to c + Bᵀy ≤ 0, by Clarabel."""
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    upper, rows = scipy.sparse.csc_matrix(np.triu(M)), scipy.sparse.csc_matrix(B.T)
    cones = [clarabel.NonnegativeConeT(len(c))]
    return np.asarray(clarabel.DefaultSolver(upper, -M @ x, rows, -c, cones, settings).solve().x)


@BOTH
@pytest.mark.parametrize("norm", ["kl", "l2"])
def test_pcpo_steps_to_the_projection_that_a_conic_solver_finds(norm, kind, m, update, float64):
    problem = make_problem(kind, m)
    theta, g, B, H = explicit(*problem)
    half = boundary_step(g, H)
    c = -0.3 * (B.T @ half)  # feasible now, and broken by the reward's step where that raises a cost
    assert np.any(c + B.T @ half > 0)
    x = projected(half, B, c, H if norm == "kl" else np.eye(len(g)))
    x *= min(1, np.sqrt(2 * DELTA / (x @ H @ x)))
    algo = PCPO(norm)
    _, step = update(algo, algo.init(m), problem, standing(5 + c, np.full(m, 5.0)))
    assert step.search.accepted
    np.testing.assert_allclose(step.theta - theta, float(step.search.scale) * x, rtol=2e-3, atol=2e-6)
    assert np.any(np.asarray(step.nu) > 0)


def test_pcpo_projects_onto_what_the_other_half_says_of_costs(float64):
    """Judged by halves, a step x changes the costs by Bᵀx less its optimism, (basisᵀHx)ᵀ O: by (B − H·basis·O)ᵀx.

    Projected onto what the batch itself says, which is more than the line search believes, no step would be accepted.
    """
    policy, samples = make_problem(m=2)
    episodes = jnp.repeat(jnp.arange(EPISODES), ROWS // EPISODES)
    nothing = honest.begin(2, 0.9, 0.9, False)
    halves = honest.split(episodes, jnp.ones(EPISODES, bool), jax.random.key(1), nothing, jnp.zeros((), jnp.int32))
    local = surrogates.make(networks.flatten(policy), samples, TRUST, halves)
    here = surrogates.judged(local, surrogates.unit(2), constrained=True)
    theta, _, B, H = explicit(policy, samples)
    basis = np.asarray(here.problem.basis)
    believed = B - H @ basis @ np.asarray(here.optimism)[:, 1:]
    half = basis @ np.asarray(here.problem.a) * np.sqrt(2 * DELTA / float(here.problem.q))
    c = -0.3 * (believed.T @ half)
    assert np.any(c + believed.T @ half > 0)
    x = projected(half, believed, c, np.eye(len(theta)))
    x *= min(1, np.sqrt(2 * DELTA / (x @ H @ x)))
    _, step = PCPO("l2").update((), local, standing(5 + c, [5.0, 5.0]))
    assert step.search.accepted
    np.testing.assert_allclose(step.theta - theta, float(step.search.scale) * x, rtol=2e-3, atol=2e-6)


def test_from_far_above_a_limit_pcpo_is_brought_back_to_the_trust_region(update, float64):
    """The projection onto c + bᵀx ≤ 0 with c → ∞ is along −H⁻¹b: CPO's recovery."""
    problem = make_problem()
    theta, _, B, H = explicit(*problem)
    _, step = update(PCPO(), PCPO().init(1), problem, standing(1e6, 0.0))
    x = boundary_step(-B[:, 0], H)
    np.testing.assert_allclose(step.theta - theta, float(step.search.scale) * x, rtol=1e-3, atol=1e-6)
    assert step.search.accepted


def test_pcpo_with_limits_far_away_is_trpo(update, float64):
    problem, far = make_problem(m=2), standing([0.0] * 2, [1e6] * 2)
    _, step = update(PCPO(), PCPO().init(2), problem, far)
    _, free = update(TRPO(), TRPO().init(2), problem, far)
    np.testing.assert_allclose(step.theta, free.theta, rtol=1e-6, atol=1e-8)


def test_where_limits_contradict_each_other_pcpo_steps_as_cpo_does(update, float64):
    policy, samples = make_problem(m=2)
    opposite = samples._replace(cost_advantage=samples.cost_advantage[:, :1] * jnp.array([1.0, -1.0]))
    constraints = standing(np.array([0.005, 0.003]), [0.0, 0.0])
    _, step = update(PCPO(), PCPO().init(2), (policy, opposite), constraints)
    assert step.case == Case.CONTRADICTORY
    assert step.search.accepted
    _, theirs = update(CPO(), CPO().init(2), (policy, opposite), constraints)
    np.testing.assert_allclose(step.theta, theirs.theta, rtol=1e-6)


# -- C-TRPO -----------------------------------------------------------------------------------------------------------


def test_the_divergence_is_bregman_s_for_s_log_s(float64):
    """φ(y) − φ(s) − φ'(s)(y − s) with φ(x) = x log x, y = s − L; its Hessian in L at 0 is 1/s."""
    s = jnp.array([0.5, 2.0, 25.0])
    L = jnp.array([0.3, -1.0, 24.0])
    phi = lambda x: x * jnp.log(x)  # noqa: E731
    y = s - L
    expected = phi(y) - phi(s) - jax.vmap(jax.grad(phi))(s) * (y - s)
    np.testing.assert_allclose(ctrpo.divergence(L, s), expected, rtol=1e-9)
    hessian = jax.hessian(lambda L: jnp.sum(ctrpo.divergence(L, s)))(jnp.zeros(3))
    np.testing.assert_allclose(hessian, np.diag(1 / np.asarray(s)), rtol=1e-9)
    assert np.all(np.isinf(ctrpo.divergence(s * np.array([1.0, 1.5, 2.0]), s)))


def test_the_divergence_of_a_small_change_keeps_its_digits():
    """L²/(2s) to first order: in single precision s log s alone would lose 4.5e-10 in rounding errors of 0.03."""
    found = ctrpo.divergence(jnp.array([0.03, 1.0], jnp.float32), jnp.array([1e6, 1e4], jnp.float32))
    np.testing.assert_allclose(found, [4.5e-10, 5e-5], atol=1e-7)


@BOTH
def test_c_trpo_steps_along_the_inverse_of_the_shaped_metric(kind, m, update, float64):
    """H + β Σ bᵢbᵢᵀ/sᵢ written out; then the line search asks for KL + β D_φ ≤ δ."""
    problem = make_problem(kind, m)
    theta, g, B, H = explicit(*problem)
    slack, beta = np.array([0.02, 0.05])[:m], 0.7
    algo = CTRPO(beta=beta)
    _, step = update(algo, algo.init(m), problem, standing(5 - slack, np.full(m, 5.0)))
    x = boundary_step(g, H + beta * (B / slack) @ B.T)
    assert step.search.accepted
    np.testing.assert_allclose(step.theta - theta, float(step.search.scale) * x, rtol=1e-3, atol=1e-6)
    shaped = float(step.kl) + beta * float(jnp.sum(ctrpo.divergence(step.promised, jnp.asarray(slack))))
    assert step.kl < shaped <= DELTA * (1 + 1e-6)
    # The barriers make a difference: TRPO's step changes every cost by more.
    _, free = update(TRPO(), TRPO().init(m), problem, standing(np.zeros(m), np.full(m, 1e6)))
    assert np.all(np.abs(np.asarray(step.promised)) < np.abs(np.asarray(free.promised)))


def test_above_its_limit_c_trpo_reduces_the_cost_only(update, float64):
    problem = make_problem()
    theta, _, B, H = explicit(*problem)
    state, step = update(CTRPO(), CTRPO().init(1), problem, standing(1e3, 0.5))
    np.testing.assert_allclose(
        step.theta - theta, float(step.search.scale) * boundary_step(-B[:, 0], H), rtol=1e-4, atol=1e-7
    )
    assert bool(state.repaired[0])
    assert step.case == Case.RECOVERY


# -- hysteresis -------------------------------------------------------------------------------------------------------


def test_repairs_begin_above_the_limit_and_end_below_its_share():
    """d = 10, share 0.8; for a negative limit the share is of its size: −10 − 0.2·10 = −12."""
    for limit, values in ((10.0, [9.0, 10.5, 9.0, 8.1, 7.9, 9.0]), (-10.0, [-11.0, -9.5, -11.0, -11.9, -12.1, -11.0])):
        repaired, seen = jnp.zeros(1, bool), []
        for value in values:
            repaired = recovery.repaired(repaired, standing(value, limit), 0.8)
            seen.append(bool(repaired[0]))
        assert seen == [False, True, True, True, False, False]


@pytest.mark.parametrize("algo", [CPO(hysteresis=True, lower=0.8), CTRPO(lower=0.8)], ids=lambda a: a.name)
def test_with_hysteresis_costs_alone_are_reduced_until_they_are_well_below(algo, update, float64):
    problem = make_problem()
    theta, _, B, H = explicit(*problem)
    down = boundary_step(-B[:, 0], H)
    state, seen = algo.init(1), []
    for value in (0.9, 1.1, 0.9, 0.79, 0.9):  # d = 1
        state, step = update(algo, state, problem, standing(value, 1.0))
        x = np.asarray(step.theta) - theta
        seen.append(np.allclose(x, float(step.search.scale) * down, rtol=1e-3, atol=1e-6))
        assert step.search.accepted
    assert seen == [False, True, True, False, False]


def test_a_cost_that_is_kept_does_not_grow_while_another_is_repaired(update, float64):
    """The second cost is just below its limit: the step keeps it, while the first comes down."""
    policy, samples = make_problem(m=2)
    rng = np.random.default_rng(1)
    against = -samples.cost_advantage[:, 0] + 0.2 * rng.normal(size=len(samples.obs))
    problem = policy, samples._replace(cost_advantage=samples.cost_advantage.at[:, 1].set(jnp.asarray(against)))
    theta, _, B, H = explicit(*problem)
    assert (B[:, 1] @ boundary_step(-B[:, 0], H)) > 0  # straight down would raise it
    _, step = update(CTRPO(), CTRPO().init(2), problem, standing([1e3, 4.98], [0.0, 5.0]))
    x = np.asarray(step.theta) - theta
    assert B[:, 0] @ x < 0
    assert abs(B[:, 1] @ x) < 1e-4
    assert step.promised[1] < 0.02


REPAIRING = pytest.mark.parametrize("algo", [CPO(hysteresis=True), CTRPO()], ids=lambda a: a.name)


@REPAIRING
@pytest.mark.parametrize("slack", [1e-3, 1e-2])
def test_a_small_violation_is_repaired_beside_a_cost_that_goes_against_it(algo, slack, update, float64):
    """The second cost rises where the first falls, and is `slack` below its limit: the step keeps both."""
    policy, samples = make_problem(m=2)
    rng = np.random.default_rng(1)
    against = -samples.cost_advantage[:, 0] + 0.2 * rng.normal(size=len(samples.obs))
    problem = policy, samples._replace(cost_advantage=samples.cost_advantage.at[:, 1].set(jnp.asarray(against)))
    _, step = update(algo, algo.init(2), problem, standing([5 + 1e-3, 5 - slack], [5.0, 5.0]))
    assert step.search.accepted
    assert step.promised[0] < 0
    assert step.promised[1] <= slack


@REPAIRING
def test_a_violation_is_repaired_as_far_as_an_opposite_limit_allows(algo, update, float64):
    """Two exactly opposite costs: the first may fall by the slack of the second, 0.002, and no more."""
    policy, samples = make_problem(m=2)
    opposite = samples._replace(cost_advantage=samples.cost_advantage[:, :1] * jnp.array([1.0, -1.0]))
    _, step = update(algo, algo.init(2), (policy, opposite), standing([5 + 1e-3, 5 - 2e-3], [5.0, 5.0]))
    assert step.search.accepted
    assert -0.002 - 1e-9 <= step.promised[0] < 0
    assert step.promised[1] <= 0.002


@REPAIRING
def test_repairs_of_limits_that_contradict_each_other_go_on(algo, update, float64):
    policy, samples = make_problem(m=2)
    opposite = samples._replace(cost_advantage=samples.cost_advantage[:, :1] * jnp.array([1.0, -1.0]))
    _, step = update(algo, algo.init(2), (policy, opposite), standing([5.02, 5.003], [5.0, 5.0]))
    assert step.search.accepted
    assert step.promised[0] < 0
    assert 0 < step.promised[1] < 0.02


@REPAIRING
@pytest.mark.parametrize("m", [1, 2])
def test_a_limit_of_zero_that_is_kept_does_not_stop_learning(algo, m, update, float64):
    """No episode had the first cost: its gradient is zero, and nothing is to be repaired."""
    policy, samples = make_problem(m=m)
    problem = policy, samples._replace(cost_advantage=samples.cost_advantage.at[:, 0].set(0))
    _, step = update(algo, algo.init(m), problem, standing([0.0, 1.0][:m], [0.0, 5.0][:m]))
    assert step.search.accepted
    assert step.kl > DELTA / 10


def test_at_its_limit_a_cost_that_can_change_is_repaired_by_c_trpo(update, float64):
    """There is no slack to divide by."""
    _, step = update(CTRPO(), CTRPO().init(1), make_problem(), standing(5.0, 5.0))
    assert step.case == Case.RECOVERY
    assert step.search.accepted
    assert step.promised[0] < 0


def test_repairs_leave_calibration_as_it_is(update, float64):
    """J = 3.001 after 0.4 more than expected: ē = ¼·0.4 with hysteresis as without."""
    at = standing(3.001, 3.0, 0.4)
    found = []
    for algo in (CPO(calibration=0.25), CPO(calibration=0.25, hysteresis=True)):
        state, _ = update(algo, algo.init(1), make_problem(), at)
        found.append(float(state.excess[0]))
    np.testing.assert_allclose(found, [0.1, 0.1], rtol=1e-9)


@pytest.mark.parametrize("algo", [TRPO(), FPO()], ids=lambda a: a.name)
def test_without_limits_to_keep_their_nearness_changes_nothing(algo, float64):
    """`hold_deviations` slows deviations near a limit; these algorithms have none."""
    policy, samples = make_problem()
    trust = replace(TRUST, hold_deviations=2.0)
    found = []
    for near in (0.0, 1.0):
        local = surrogates.make(networks.flatten(policy), samples, trust)._replace(near=near)
        found.append(algo.update(algo.init(1), local, standing(5.0, 5.0))[1].theta)
    np.testing.assert_array_equal(*found)


def test_without_hysteresis_cpo_remembers_what_it_always_did():
    assert CPO().init(2).repaired is None
    assert len(jax.tree.leaves(CPO().init(2))) == 2
    assert isinstance(CPO().init(2), cpo.State)


# -- CRPO -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "direction"),
    [
        ([1.9, 3.9], [1, 0, 0]),
        ([2.2, 3.9], [0, -1, 0]),
        ([2.2, 5.0], [0, 0, -1]),  # 10% and 25% above
        ([2.05, 4.05], [1, 0, 0]),  # within the tolerance
    ],
)
def test_crpo_improves_the_reward_or_repairs_the_worst_cost(value, direction, update, float64):
    problem = make_problem(m=2)
    theta, g, B, H = explicit(*problem)
    algo = CRPO(tolerance=0.1)
    _, step = update(algo, (), problem, standing(value, [2.0, 4.0]))
    d = np.column_stack([g, B]) @ np.array(direction, float)
    np.testing.assert_allclose(step.theta - theta, float(step.search.scale) * boundary_step(d, H), rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(step.nu, [-x for x in direction[1:]])


# -- TRPO-Lagrangian --------------------------------------------------------------------------------------------------


def test_the_prices_of_a_pid_controller_by_hand(update, float64):
    """Δ = (J − d)/|d| with d = (2, 4), K = (2, ½, 4): ν = (2Δ + I + 4 (rise)₊)₊, I ← (I + ½Δ)₊."""
    problem, algo = make_problem(m=2), TRPOLag(kp=2.0, ki=0.5, kd=4.0)
    state = algo.init(2)
    by_hand = [
        # J_C, ν
        ([3.0, 2.0], [1.25, 0.0]),  # Δ = ½, −½: 1 + ¼ and (−1 + 0)₊
        ([4.0, 5.0], [4.75, 3.625]),  # Δ = 1, ¼: 2 + ¾ + 4·½; ½ + ⅛ + 4·¾ = 3.625
        ([1.0, 4.0], [0.0, 0.125]),  # Δ = −½, 0: (−1 + ½)₊; ⅛
    ]
    for value, nu in by_hand:
        state, step = update(algo, state, problem, standing(value, [2.0, 4.0]))
        np.testing.assert_allclose(step.nu, nu, atol=1e-6)


def test_with_its_integral_alone_it_takes_the_steps_of_pdo_with_the_price_that_pdo_learns(update, float64):
    """ν_PDO/step = K_I Δ/T = α (J − d) where K_I = α T|d|: PDO uses that price one update later."""
    problem, constraints = make_problem(), standing(3.0, 2.0)
    T = float(np.sum(problem[1].cost_weight))
    alpha = 0.3
    lag = TRPOLag(kp=0.0, ki=alpha * T * 2.0, kd=0.0)
    _, ours = update(lag, lag.init(1), problem, constraints)
    learned, _ = update(PDO(rate=alpha), PDO().init(1), problem, constraints)
    _, theirs = update(PDO(rate=alpha), pdo.State(learned.nu), problem, constraints)
    np.testing.assert_allclose(ours.theta, theirs.theta, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("algo", "message"),
    [
        (CPO(lower=0.0), r"algo\.lower must lie in \(0, 1\], got 0\.0"),
        (CTRPO(beta=0.0), r"algo\.beta must be positive, got 0\.0"),
        (CTRPO(lower=1.5), r"algo\.lower must lie in \(0, 1\], got 1\.5"),
        (CRPO(tolerance=-1.0), r"algo\.tolerance must not be negative, got -1\.0"),
        (TRPOLag(ki=-1.0), r"algo\.ki must not be negative, got -1\.0"),
    ],
    ids=lambda x: x.name if hasattr(x, "name") else "",
)
def test_a_parameter_out_of_its_range_is_refused(algo, message):
    with pytest.raises(CorralError, match=message):
        algo.check()

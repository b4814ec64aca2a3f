"""Each algorithm's update against its recursion by hand and its step from matrices written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_policies import BOTH, DELTA, KINDS, boundary_step, explicit, make_problem, standing

from corral.algos import CPO, FPO, PDO, TRPO, pdo
from corral.learning import calibration, networks
from corral.learning.surrogates import ConstraintValues
from corral.trust_region.dual import Case

# -- CPO --------------------------------------------------------------------------------------------------------------


def test_of_constraints_that_contradict_each_other_the_lesser_may_grow_until_it_is_the_largest(update, float64):
    """b₂ = −b₁: what the first cost gives up the second gains. c = (0.5, 0.3)s meet at 0.4s, if that is within reach."""
    policy, samples = make_problem(m=2)
    opposite = samples.cost_advantage[:, :1] * jnp.array([1.0, -1.0])
    problem = policy, samples._replace(cost_advantage=opposite)
    c = np.array([0.5, 0.3]) * 0.01
    _, step = update(CPO(calibration=0.0), CPO().init(2), problem, standing(c, [0.0, 0.0]))
    assert step.case == Case.CONTRADICTORY
    assert step.search.accepted
    np.testing.assert_allclose(c + step.promised, 0.4 * 0.01, rtol=0.05)


def test_the_calibration_of_cpo_is_a_running_average_by_hand(update, float64):
    """ē ← ē + 0.25 (realised − expected), from 0; not where the two cannot be compared. The limit in force is d − ē."""
    problem = make_problem(m=2)
    config = CPO(calibration=0.25)
    state = config.init(2)
    np.testing.assert_array_equal(state.excess, 0)
    limit = np.array([3.0, 1.0])
    updates = [
        # realised, expected, comparable and ē after it
        ([0.4, -0.2], [0.0, -0.2], False, [0.0, 0.0]),
        ([0.4, -0.2], [0.0, -0.2], True, [0.1, 0.0]),  # ¼·0.4; nothing
        ([0.3, 0.6], [-0.2, 0.2], True, [0.225, 0.1]),  # 0.1 + ¼·0.5; ¼·0.4
        ([9.0, 9.0], [0.0, 0.0], False, [0.225, 0.1]),
        ([-0.6, 0.1], [0.0, 0.4], True, [0.075, 0.025]),  # 0.225 − ¼·0.6; 0.1 − ¼·0.3
        ([-0.7, 0.0], [0.0, 0.0], True, [0.0, 0.025]),  # −0.1 would aim above the limit
        ([99.0, 0.4], [0.0, 0.0], True, [3.0, 0.125]),  # ¼·99 would aim below 0
    ]
    for realised, aimed, comparable, excess in updates:
        constraints = standing([0.0, 0.0], limit, realised, comparable)
        state, step = update(config, state._replace(aimed=jnp.asarray(aimed)), problem, constraints)
        np.testing.assert_allclose(state.excess, excess, atol=1e-12)
        np.testing.assert_allclose(step.effective_limit, limit - excess, atol=1e-12)


@pytest.mark.parametrize(
    ("before", "realised", "after"),
    [
        (1.0, 8.0, 1.0),  # 1 + ¼·8 would aim lower still, which no step can follow
        (1.0, -1.0, 0.75),  # 1 − ¼·1
        (1.0, -9.0, 0.0),  # 1 − ¼·9 would aim above the limit
        (-1.0, 1.0, 0.0),  # from a run of 0.1, which could aim above the limit
    ],
)
def test_where_the_limit_is_out_of_reach_the_calibration_only_shrinks(before, realised, after, update, float64):
    config = CPO(calibration=0.25)
    known = CPO().init(1)._replace(excess=jnp.full(1, before))
    state, step = update(config, known, make_problem(), standing([1e3], np.array([10.0]), [realised]))
    assert step.case == Case.RECOVERY
    np.testing.assert_allclose(state.excess, after, atol=1e-12)


def test_a_constraint_that_is_kept_is_calibrated_though_another_is_out_of_reach(update, float64):
    config = CPO(calibration=0.25)
    known = CPO().init(2)._replace(excess=jnp.ones(2))
    state, step = update(config, known, make_problem(m=2), standing([1e3, 1.0], np.array([10.0, 10.0]), [8.0, 8.0]))
    assert step.case == Case.RECOVERY
    np.testing.assert_allclose(state.excess, [1.0, 3.0], atol=1e-12)  # 1 + ¼·8


def test_the_calibrated_limit_is_the_one_the_step_aims_at(update, float64):
    """d = 3 with ē = 0.04 moves the policy as d = 2.96 does without calibration, and otherwise than d = 3."""
    problem = make_problem()
    plain, none = CPO(), CPO().init(1)
    value = 2.99
    state, calibrated = update(
        CPO(calibration=0.1),
        CPO().init(1)._replace(excess=jnp.asarray([0.04])),
        problem,
        standing(value, 3.0, comparable=False),
    )
    _, lower = update(plain, none, problem, standing(value, 2.96))
    _, higher = update(plain, none, problem, standing(value, 3.0))
    np.testing.assert_allclose(calibrated.theta, lower.theta, rtol=1e-9)
    assert np.max(np.abs(calibrated.theta - higher.theta)) > 1e-4
    assert calibrated.case == Case.FEASIBLE_RECOVERY
    assert higher.case == Case.BOUNDARY
    # The share s of the step is expected to add s((2.96 − 2.99) + ē) = s(d − J): at J = d nothing is left to correct.
    np.testing.assert_allclose(state.aimed, calibrated.search.scale * (3 - value), rtol=1e-6)


def test_a_noisy_batch_is_believed_as_far_as_expectations_have_missed_before(update, float64):
    """K = 1 − N/S by hand, with S ← S + ¼((J − e)² − S) and N = se² before and after; without calibration a batch is all."""
    known = CPO(memory=True).init(1)._replace(aimed=jnp.asarray([-0.5]))
    told = known.memory._replace(value=jnp.asarray([2.0]), surprise=jnp.asarray([4.0]))
    for value, se, believed in (
        (2.5, 0.9, 1.5 + (1 - 0.81 / 3.25)),  # e = 1.5, a miss of 1, S = 4 + ¼(1 − 4)
        (2.5, 3.0, 1.5 + 0.2),  # 1 − 9/3.25 < 0: the least weight
        (2.5, 0.0, 2.5),
    ):
        constraints = standing(value, 3.0)._replace(se=jnp.asarray([se]))
        known = known._replace(memory=told._replace(noise=jnp.asarray([se**2])))
        state, _ = update(CPO(calibration=0.25), known, make_problem(), constraints)
        np.testing.assert_allclose(state.memory.value, believed)
        # A miss counts as far as it is believed.
        np.testing.assert_allclose(state.excess, 0.25 * (believed - 1.5))
        plain, _ = update(CPO(calibration=0.0), known, make_problem(), constraints)
        np.testing.assert_allclose(plain.memory.value, value)
    first, _ = update(CPO(calibration=0.25), known, make_problem(), constraints._replace(comparable=jnp.asarray(False)))
    np.testing.assert_allclose(first.memory.value, 2.5)


def test_steps_are_shorter_while_predicted_costs_are_wrong(update, float64):
    """By hand, with d = 3, an expected cost e = 2 and Ĵ < 3: tolerated is 0.2 · 3 + (3 − 2) = 1.6, its square 2.56.

    E ← E + ¼((J − e + ē)₊² − N − E) with N = se², a miss counts as at most three times what is tolerated; δ is multiplied
    by 2.56/E, but by no less than e^−0.3 and no more than e^0.1, and E with it. The share of δ stays within [1/16, 1]."""
    known, problem = CPO(memory=True).init(1), make_problem()

    def after(radius, miss, se=0.0, error=0.0, corrected=0.0, comparable=True):
        memory = known.memory._replace(
            value=jnp.asarray([2.0]),
            noise=jnp.asarray([se**2]),
            error=jnp.asarray([error]),
            radius=jnp.asarray(radius, jnp.float64),
            corrected=jnp.asarray([corrected]),
        )
        constraints = standing(2.0 + miss, 3.0, comparable=comparable)._replace(se=jnp.asarray([se]))
        state, step = update(CPO(calibration=0.25), known._replace(memory=memory), problem, constraints)
        assert step.kl <= float(state.memory.radius) * DELTA
        return float(state.memory.radius), float(state.memory.error[0])

    E = 0.75 * 3 + 0.25 * 0.8**2
    np.testing.assert_allclose(after(0.5, 0.8, error=3.0), (0.5 * 2.56 / E, 2.56))
    np.testing.assert_allclose(after(0.5, 0.3, error=3.0, corrected=0.5), (0.5 * 2.56 / E, 2.56))
    # Noise is no error, and a cost that comes below what was promised is none.
    np.testing.assert_allclose(after(0.5, 0.8, se=0.2, error=3.0)[0], 0.5 * 2.56 / (E - 0.25 * 0.2**2))
    np.testing.assert_allclose(after(0.5, -0.8, error=3.3)[0], 0.5 * 2.56 / (0.75 * 3.3))
    # Of J = 20 a fifth and the room of 1 are tolerated, 5, and a miss of 18 counts as three times that.
    np.testing.assert_allclose(after(0.5, 18.0), (0.5 * np.exp(-0.3), 0.25 * 15**2 * np.exp(-0.3)))
    np.testing.assert_allclose([after(0.5, -1.8, error=900.0)[0], after(0.5, 0.0)[0]], 0.5 * np.exp([-0.3, 0.1]))
    np.testing.assert_allclose([after(0.99, 0.0)[0], after(0.0626, -1.8, error=900.0)[0]], [1, 1 / 16])
    assert after(0.5, 8.0, comparable=False)[0] == 0.5  # nothing was expected yet


def test_a_cost_that_one_episode_in_fifty_has_is_not_believed_to_be_less(float64):
    """Of 10 episodes each costs 20, but one in 50 costs 1,020: the mean is 40. Four of five batches hold none of these, and
    say 20 with no error at all; the others say 120 ± 100. Weighted by their own errors the belief would be 20 to 25."""
    rare = np.random.default_rng(0).binomial(10, 0.02, 3000)
    costs = 20 + 100.0 * rare
    errors = 1000 * np.sqrt(rare / 10 * (1 - rare / 10) / 9)
    meet, known, believed = jax.jit(calibration.meet), calibration.begin(1, memory=True), []
    for k, (cost, error) in enumerate(zip(costs, errors, strict=True)):
        batch = standing(cost, 40.0, comparable=k > 0)._replace(se=jnp.asarray([error]))
        value, _, known = meet(known, batch, 0.1)
        believed.append(float(value[0]))
    assert abs(costs.mean() - 40) < 3
    np.testing.assert_allclose(np.mean(believed[100:]), costs[100:].mean(), rtol=0.05)
    # Noise is no error of what was predicted, and no credit for later errors either.
    assert float(known.memory.error[0]) > -((3 * 0.2 * 40 + 3 * 40) ** 2)


def test_what_a_batch_s_own_noise_explains_counts_in_full_in_the_calibration(float64):
    """After batches at 20 one costs 220 with d = 40: of the miss of 200 counts 20, or all that its error explains."""
    for error, counted in ((1.0, 20.0), (90.0, 90.0)):
        known = calibration.begin(1, memory=True)
        memory = known.memory._replace(value=jnp.asarray([20.0]), surprise=jnp.asarray([1e12]))
        batch = standing(220.0, 40.0)._replace(se=jnp.asarray([error]))
        found = calibration.meet(known._replace(memory=memory), batch, 0.1)
        np.testing.assert_allclose(found.known.excess, 0.1 * counted)


def test_an_absurd_promise_does_not_excuse_a_miss(update, float64):
    """d = 3. A fall from 20 to −30 was promised and 5 came: tolerated is 0.2 · 5 + 3 = 4, its square 16, not 0.2 · 5 + 33.

    The miss of 35 counts as 3 · 4: E = ¼ · 144 = 36, and δ shrinks by e^−0.3, as far as it may."""
    memory = CPO(memory=True).init(1).memory._replace(value=jnp.asarray([20.0]), surprise=jnp.asarray([1e9]))
    known = CPO(memory=True).init(1)._replace(aimed=jnp.asarray([-50.0]), memory=memory)
    state, _ = update(CPO(calibration=0.25), known, make_problem(), standing(5.0, 3.0))
    np.testing.assert_allclose(state.memory.radius, np.exp(-0.3))
    np.testing.assert_allclose(state.memory.error, 36 * np.exp(-0.3))


def test_where_nothing_may_be_paid_and_nothing_is_steps_grow_again(update, float64):
    known = CPO(memory=True).init(1)
    memory = known.memory._replace(error=jnp.asarray([4.0]), radius=jnp.asarray(0.5, jnp.float64))
    state, _ = update(CPO(calibration=0.25), known._replace(memory=memory), make_problem(), standing(0.0, 0.0))
    np.testing.assert_allclose(state.memory.radius, 0.5 * np.exp(0.1))
    state, _ = update(CPO(calibration=0.25), known._replace(memory=memory), make_problem(), standing(1.0, 0.0))
    np.testing.assert_allclose(state.memory.radius, 0.5 * np.exp(-0.3))


def test_with_a_memory_a_surprise_counts_in_the_calibration_as_half_of_the_limit_at_most(update, float64):
    """ē = ¼ · min(J − e, ½ · 3); the share s of a step is then expected to miss by s·ē."""
    known, config = CPO(memory=True).init(1), CPO(calibration=0.25)
    known = known._replace(memory=known.memory._replace(value=jnp.asarray([2.0])))
    for miss, counted in ((0.4, 0.4), (8.0, 1.5)):
        state, step = update(config, known, make_problem(), standing(2.0 + miss, 3.0))
        out_of_reach = step.case == Case.RECOVERY
        np.testing.assert_allclose(state.excess, 0 if out_of_reach else 0.25 * counted)
        np.testing.assert_allclose(step.effective_limit, 3 - 0.25 * counted)
        np.testing.assert_allclose(state.memory.corrected, step.search.scale * state.excess)


def test_a_margin_aims_standard_errors_below_the_limit(update, float64):
    constraints = standing([2.0], np.array([3.0]))._replace(se=jnp.asarray([0.25]))
    _, step = update(CPO(margin=2.0), CPO().init(1), make_problem(), constraints)
    np.testing.assert_allclose(step.effective_limit, 3 - 2 * 0.25)


def test_a_reserve_leaves_its_share_of_the_room_below_a_limit_unused(update, float64):
    """At J = 2.99, d = 3 and a reserve of 0.6 the step may add 0.004, as with d = 2.994; above its limit nothing changes."""
    none, problem = CPO().init(1), make_problem()
    _, kept = update(CPO(reserve=0.6), none, problem, standing(2.99, 3.0))
    _, lower = update(CPO(), none, problem, standing(2.99, 2.994))
    _, plain = update(CPO(), none, problem, standing(2.99, 3.0))
    assert plain.case == kept.case == Case.BOUNDARY
    np.testing.assert_allclose(kept.theta, lower.theta, rtol=1e-9)
    assert kept.promised[0] <= 0.004 < plain.promised[0]
    _, above = update(CPO(reserve=0.6), none, problem, standing(3.01, 3.0))
    _, same = update(CPO(), none, problem, standing(3.01, 3.0))
    np.testing.assert_array_equal(above.theta, same.theta)


def test_room_that_may_be_noise_is_not_reserved(update, float64):
    """At J = 2.98 ± 0.004, d = 3 the room is 0.02: two standard errors, 0.008, are free, and 0.6 of 0.012 is left unused,
    as with d = 3 − 0.0072. A room within two standard errors is all free.
    """
    none, problem = CPO().init(1), make_problem()
    noisy = lambda se: standing(2.98, 3.0)._replace(se=jnp.array([se]))  # noqa: E731
    _, kept = update(CPO(reserve=0.6), none, problem, noisy(0.004))
    _, lower = update(CPO(), none, problem, standing(2.98, 3.0 - 0.0072))
    np.testing.assert_allclose(kept.theta, lower.theta, rtol=1e-9)
    _, within = update(CPO(reserve=0.6), none, problem, noisy(0.011))
    _, plain = update(CPO(), none, problem, standing(2.98, 3.0))
    np.testing.assert_array_equal(within.theta, plain.theta)


def test_without_calibration_cpo_forgets_what_was_realised(update, float64):
    state, step = update(CPO(), CPO().init(1), make_problem(), standing(1.0, 3.0, 5.0))
    assert state.excess[0] == 0
    assert step.effective_limit[0] == 3


@pytest.mark.parametrize("kind", KINDS)
def test_an_active_constraint_is_met_by_the_step_of_the_closed_form(kind, update, float64):
    """x = (H⁻¹g − νH⁻¹b)/λ with λ² = (q − r²/s)/(2δ − c²/s) and ν = (r + λc)/s, scaled by what the search accepted."""
    problem = make_problem(kind)
    theta, g, B, H = explicit(*problem)
    b = B[:, 0]
    v, w = np.linalg.solve(H, g), np.linalg.solve(H, b)
    q, r, s = g @ v, b @ v, b @ w
    c = 0.2 * np.sqrt(2 * DELTA * s)
    lam = np.sqrt((q - r**2 / s) / (2 * DELTA - c**2 / s))
    nu = (r + lam * c) / s
    assert nu > 0
    state, step = update(CPO(), CPO().init(1), problem, standing(5 + c, 5.0))
    assert step.case == Case.FEASIBLE_RECOVERY
    np.testing.assert_allclose([step.lam, step.nu[0]], [lam, nu], rtol=1e-4)
    assert step.search.accepted
    np.testing.assert_allclose(step.theta - theta, float(step.search.scale) * (v - nu * w) / lam, rtol=1e-3, atol=1e-6)
    # From outside the limit no candidate may make the cost worse; here it gets better.
    assert step.promised[0] < 0
    # The step aims at the limit itself, bᵀx = −c; the search may have shortened it.
    np.testing.assert_allclose(state.aimed[0], -c * step.search.scale, rtol=1e-9)


def test_far_outside_the_limit_cpo_goes_straight_back_whatever_it_costs(update, float64):
    """Nothing in the trust region is feasible: −√(2δ/s) H⁻¹b, the paper's recovery."""
    problem = make_problem()
    theta, g, B, H = explicit(*problem)
    state, step = update(CPO(), CPO().init(1), problem, standing(1e3, 0.0))
    assert step.case == Case.RECOVERY
    x = boundary_step(-B[:, 0], H)
    np.testing.assert_allclose(step.theta - theta, float(step.search.scale) * x, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(state.aimed[0], step.search.scale * (B[:, 0] @ x), rtol=1e-6)
    assert g @ x < 0
    assert step.search.accepted


@pytest.mark.parametrize("value", [1e3, 0.0])
def test_where_nothing_is_accepted_the_policy_stays_as_it_is(value, update, float64):
    """A cost so large that its surrogate leaves the finite numbers, whether the limit is broken or kept."""
    policy, samples = make_problem()
    theta = networks.flatten(policy).theta
    wild = samples._replace(
        cost_advantage=samples.cost_advantage.at[0].set(1e308), cost_weight=samples.cost_weight * 1e5
    )
    state, step = update(CPO(), CPO().init(1), (policy, wild), standing(value, 0.0))
    assert not step.search.accepted
    assert state.aimed[0] == 0
    np.testing.assert_array_equal(step.theta, theta)
    np.testing.assert_array_equal(step.promised, 0)
    assert step.kl == 0


# -- TRPO and its relatives -------------------------------------------------------------------------------------------


@BOTH
def test_trpo_goes_along_the_natural_gradient_to_the_boundary(kind, m, update, float64):
    problem = make_problem(kind, m)
    theta, g, _, H = explicit(*problem)
    _, step = update(TRPO(), TRPO().init(m), problem, standing([1e6] * m, [0.0] * m))
    scale = float(step.search.scale)
    assert scale > 0
    np.testing.assert_allclose(step.theta - theta, scale * boundary_step(g, H), rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(step.nu, 0)
    assert step.case == Case.INSIDE


@BOTH
def test_cpo_with_limits_far_away_is_trpo(kind, m, update, float64):
    problem = make_problem(kind, m)
    far = standing([0.0] * m, [1e6] * m)
    _, constrained = update(CPO(), CPO().init(m), problem, far)
    _, free = update(TRPO(), TRPO().init(m), problem, far)
    assert constrained.case == Case.INSIDE
    np.testing.assert_allclose(constrained.theta, free.theta, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(constrained.promised, free.promised, rtol=1e-4)
    np.testing.assert_array_equal(constrained.nu, 0)


def test_without_constraints_trpo_takes_the_step_it_takes_beside_costs(update, float64):
    policy, samples = make_problem(m=2)
    none = samples._replace(cost_weight=samples.cost_weight[:, :0], cost_advantage=samples.cost_advantage[:, :0])
    nothing = ConstraintValues(*(jnp.zeros(0) for _ in range(3)), jnp.asarray(False))
    _, free = update(TRPO(), TRPO().init(0), (policy, none), nothing)
    _, beside = update(TRPO(), TRPO().init(2), (policy, samples), standing([9.0, 9.0], [0.0, 0.0]))
    np.testing.assert_allclose(free.theta, beside.theta, rtol=1e-9)
    assert free.promised.shape == free.nu.shape == free.effective_limit.shape == (0,)


def test_a_fixed_penalty_subtracts():
    """3 − 2·(1 + 0.5) = 0 and −1 − 2·(0 + 4) = −9."""
    reward, costs = jnp.asarray([3.0, -1.0]), jnp.asarray([[1.0, 0.5], [0.0, 4.0]])
    np.testing.assert_allclose(FPO(penalty=2.0).reward(reward, costs), [0, -9])


def test_every_constraint_may_have_a_penalty_of_its_own(update, float64):
    """3 − 2·1 − 4·0.5 = −1 and −1 − 2·0 − 4·4 = −17."""
    reward, costs = jnp.asarray([3.0, -1.0]), jnp.asarray([[1.0, 0.5], [0.0, 4.0]])
    config = FPO(penalty=(2.0, 4.0))
    np.testing.assert_allclose(config.reward(reward, costs), [-1, -17])
    _, step = update(config, config.init(2), make_problem(m=2), standing([9.0, 9.0], [0.0, 0.0]))
    np.testing.assert_array_equal(step.nu, [2, 4])


def test_on_the_same_samples_fixed_penalties_step_as_trpo_does(update, float64):
    """The penalty is in the samples: what the update sees of the reward already has it taken off."""
    problem, constraints = make_problem(m=2), standing([9.0, 9.0], [0.0, 0.0])
    _, penalised = update(FPO(7.0), FPO(7.0).init(2), problem, constraints)
    _, free = update(TRPO(), TRPO().init(2), problem, constraints)
    np.testing.assert_allclose(penalised.theta, free.theta, rtol=1e-9)
    np.testing.assert_array_equal(penalised.nu, 7)


# -- PDO --------------------------------------------------------------------------------------------------------------


@BOTH
def test_pdo_steps_along_the_lagrangian_s_natural_gradient_to_the_boundary(kind, m, update, float64):
    problem = make_problem(kind, m)
    theta, g, B, H = explicit(*problem)
    nu = np.array([0.3, 0.8], np.float32)[:m]
    _, step = update(PDO(), pdo.State(jnp.asarray(nu)), problem, standing([1.0] * m, [5.0] * m))
    d = g - B @ nu
    scale = float(step.search.scale)
    assert scale > 0
    np.testing.assert_allclose(step.theta - theta, scale * boundary_step(d, H), rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(step.nu, nu)
    # With this price the costs come down, though their limits are not asked for.
    assert (B @ nu) @ (step.theta - theta) < nu @ B.T @ boundary_step(g, H)


def test_the_multipliers_of_pdo_follow_the_violations_and_never_turn_negative(update, float64):
    """ν ← (ν + 0.1 (J_C − d))₊ from ν₀ = 1, d = (2, 5)."""
    problem = make_problem(m=2)
    config = PDO(nu=1.0, rate=0.1)
    state = config.init(2)
    by_hand = [
        # J_C, ν afterwards
        ([4.0, 0.0], [1.2, 0.5]),
        ([0.0, 1.0], [1.0, 0.1]),
        ([2.0, 0.0], [1.0, 0.0]),  # 0.1 − 0.5 is cut off at 0
        ([-30.0, 6.0], [0.0, 0.1]),
    ]
    before = np.ones(2)
    for value, after in by_hand:
        state, step = update(config, state, problem, standing(value, [2.0, 5.0]))
        np.testing.assert_allclose(step.nu, before, atol=1e-6)
        np.testing.assert_allclose(state.nu, after, atol=1e-6)
        before = np.asarray(state.nu)


def test_every_multiplier_of_pdo_may_start_elsewhere():
    np.testing.assert_array_equal(PDO(nu=(0.0, 1000.0)).init(2).nu, [0, 1000])

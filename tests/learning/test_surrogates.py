"""The local model against sums over episodes and time, finite differences and matrices written out in NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from corral.config import Networks, TrustRegion
from corral.envs.contract import Box, Discrete, EnvSpec
from corral.learning import networks, surrogates
from corral.learning.surrogates import Samples
from corral.trust_region import dual
from corral.trust_region.dual import Case

LENGTHS = (4, 7, 2, 5)
ROWS = 22  # four of them hold no data
KINDS = {"gaussian": Box(2), "categorical": Discrete(3)}


class Problem:
    """A small policy in double precision, and samples of four episodes and two costs."""

    def __init__(self, kind="gaussian", gamma=0.9, seed=0, **trust):
        rng = np.random.default_rng(seed)
        spec = EnvSpec("toy", 2, KINDS[kind], 10)
        policy = networks.make_policy(spec, Networks(hidden=(2,)), jax.random.key(seed))
        arrays, static = eqx.partition(policy, eqx.is_inexact_array)
        policy = eqx.combine(jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)) * 0.7, arrays), static)
        self.gamma, self.n = gamma, sum(LENGTHS)
        self.obs = rng.normal(size=(ROWS, 2))
        self.action = rng.normal(size=(ROWS, 2)) if kind == "gaussian" else rng.integers(0, 3, ROWS)
        self.advantage = rng.normal(size=ROWS)
        # What earns also costs, so that constraints are in the way.
        self.cost_advantage = self.advantage[:, None] * [1, 0.5] + 0.7 * rng.normal(size=(ROWS, 2)) + 0.3
        valid = np.arange(ROWS) < self.n
        t = np.concatenate([np.arange(k) for k in LENGTHS] + [np.zeros(ROWS - self.n)])
        self.samples = Samples(
            obs=jnp.asarray(self.obs),
            action=jnp.asarray(self.action),
            weight=jnp.asarray(valid / self.n),
            advantage=jnp.asarray(self.advantage),
            cost_weight=jnp.asarray(np.tile(np.where(valid, gamma**t, 0)[:, None], (1, 2)) / len(LENGTHS)),
            cost_advantage=jnp.asarray(self.cost_advantage),
        )
        self.trust = TrustRegion(**trust)
        self.local = surrogates.make(networks.flatten(policy), self.samples, self.trust)
        self.theta = np.asarray(self.local.flat.theta)

    def numbers(self, theta, rows=slice(None)):
        """Mean and log-deviation, or logits, by arithmetic of our own."""
        policy = self.local.flat.policy(jnp.asarray(theta))
        (W1, W2), (b1, b2) = (map(np.asarray, a) for a in (policy.net.weights, policy.net.biases))
        out = np.tanh(self.obs[rows] @ W1 + b1) @ W2 + b2
        return (out, None) if policy.log_std is None else (out, np.asarray(policy.log_std))

    def log_prob(self, theta):
        out, log_std = self.numbers(theta)
        if log_std is None:
            return (out - np.log(np.exp(out).sum(1, keepdims=True)))[np.arange(ROWS), self.action]
        e = (self.action - out) / np.exp(log_std)
        return -(e**2 / 2 + log_std + np.log(2 * np.pi) / 2).sum(1)

    def surrogates(self, theta):
        """(L, L_1, L_2) by a loop over episodes and time."""
        change = np.exp(self.log_prob(theta) - self.log_prob(self.theta)) - 1
        found, row = np.zeros(3), 0
        for length in LENGTHS:
            for t in range(length):
                found[0] += change[row] * self.advantage[row] / self.n
                found[1:] += self.gamma**t * change[row] * self.cost_advantage[row] / len(LENGTHS)
                row += 1
        return found

    def kl(self, theta):
        """Mean D(π_θ ‖ π_k): of softmaxes, or ln σ_k/σ + (σ² + (μ − μ_k)²)/2σ_k² − ½."""
        (new, s), (old, s_k) = self.numbers(theta), self.numbers(self.theta)
        if s is None:
            p, q = (np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (new, old))
            return np.mean((p * np.log(p / q)).sum(1)[: self.n])
        each = s_k - s + (np.exp(2 * s) + (new - old) ** 2) / (2 * np.exp(2 * s_k)) - 0.5
        return np.mean(each.sum(1)[: self.n])

    def fisher(self, every=1):
        """H = mean JᵀMJ over the valid rows, J by finite differences, M from its definition."""
        rows = [i * every + i % every for i in range(ROWS // every)]
        rows = [row for row in rows if row < self.n]
        p, h = len(self.theta), 1e-6
        out, log_std = self.numbers(self.theta, rows)

        def flat(theta):
            out, log_std = self.numbers(theta, rows)
            return out if log_std is None else np.concatenate([out, np.broadcast_to(log_std, out.shape)], 1)

        J = np.stack([(flat(self.theta + h * e) - flat(self.theta - h * e)) / (2 * h) for e in np.eye(p)], axis=-1)
        if log_std is None:
            q = np.exp(out) / np.exp(out).sum(1, keepdims=True)
            M = np.stack([np.diag(x) - np.outer(x, x) for x in q])
        else:
            M = np.diag(np.concatenate([np.exp(-2 * log_std), [2.0, 2.0]]))[None]
        return np.mean(np.swapaxes(J, 1, 2) @ M @ J, axis=0) + self.trust.damping * np.eye(p)


def nearby(problem, size=0.1, seed=1):
    return problem.theta + size * np.random.default_rng(seed).normal(size=len(problem.theta))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_surrogates_are_sums_over_episodes_and_time(kind, gamma, float64):
    problem = Problem(kind, gamma)
    theta = nearby(problem)
    found = np.asarray(problem.local.surrogates(jnp.asarray(theta)))
    np.testing.assert_allclose(found, problem.surrogates(theta), rtol=1e-9)
    np.testing.assert_array_equal(problem.local.surrogates(problem.local.flat.theta), 0)


def test_undiscounted_cost_surrogates_are_the_mean_over_steps_times_the_mean_length(float64):
    """18 steps in 4 episodes: 4.5 steps an episode. This is the unit in which c and d are written."""
    problem = Problem(gamma=1.0)
    theta = nearby(problem)
    change = np.exp(problem.log_prob(theta) - problem.log_prob(problem.theta)) - 1
    per_step = np.mean((change[:, None] * problem.cost_advantage)[:18], axis=0)
    np.testing.assert_allclose(problem.local.surrogates(jnp.asarray(theta))[1:], 4.5 * per_step, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences(kind, float64):
    problem = Problem(kind)
    g, B = problem.local.gradients()
    h = 1e-6
    columns = [
        (problem.surrogates(problem.theta + h * e) - problem.surrogates(problem.theta - h * e)) / (2 * h)
        for e in np.eye(len(problem.theta))
    ]
    expected = np.stack(columns)
    np.testing.assert_allclose(g, expected[:, 0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(B, expected[:, 1:], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_the_divergence_is_the_closed_form_of_new_against_old(kind, float64):
    problem = Problem(kind)
    theta = nearby(problem, 0.5)
    found = float(problem.local.kl(jnp.asarray(theta)))
    np.testing.assert_allclose(found, problem.kl(theta), rtol=1e-9)
    assert problem.local.kl(problem.local.flat.theta) == 0


def test_rows_without_data_have_no_say(float64):
    problem = Problem()
    spoiled = problem.samples._replace(
        obs=problem.samples.obs.at[problem.n :].set(1e3),
        action=problem.samples.action.at[problem.n :].set(-1e3),
        advantage=problem.samples.advantage.at[problem.n :].set(1e9),
        cost_advantage=problem.samples.cost_advantage.at[problem.n :].set(1e9),
    )
    other = surrogates.make(problem.local.flat, spoiled, problem.trust)
    theta = jnp.asarray(nearby(problem))
    for name in ("surrogates", "kl"):
        np.testing.assert_array_equal(getattr(other, name)(theta), getattr(problem.local, name)(theta))
    for a, b in zip(other.gradients(), problem.local.gradients(), strict=True):
        assert np.all(np.isfinite(a))
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


# -- the step ---------------------------------------------------------------------------------------------------------


def proposal(problem, c):
    """The step proposed for the first constraints, as many as c has; its case and CG's residual."""

    @jax.jit
    def propose(c):
        g, B = problem.local.gradients()
        restricted, residual = surrogates.restricted(problem.local, g, B[:, : len(c)])
        solution = dual.solve(restricted.q, restricted.r, restricted.S, c, problem.trust.delta)
        return restricted.step(solution), solution.case, residual

    x, case, residual = propose(jnp.asarray(c))
    return np.asarray(x), Case(int(case)), float(residual)


def test_the_linearised_constraints_hold_exactly_after_a_single_conjugate_gradient_iteration(float64):
    """H⁻¹g is then far from solved for, and yet Bᵀx = −c for the true B and ½xᵀHx = δ for the true H."""
    problem = Problem(cg_iterations=1)
    g, B = map(np.asarray, problem.local.gradients())
    H = problem.fisher()
    # Both limits are broken, by a small part of what a step towards each alone could repair.
    c = 0.1 * np.sqrt(2 * problem.trust.delta * np.diagonal(B.T @ np.linalg.solve(H, B))) * [0.5, 1]
    x, case, residual = proposal(problem, c)
    assert residual > 0.1
    assert case == Case.FEASIBLE_RECOVERY
    assert np.all(B.T @ x <= -c + 1e-12)
    np.testing.assert_allclose(np.min(np.abs(B.T @ x + c)), 0, atol=1e-12)
    np.testing.assert_allclose(x @ H @ x / 2, problem.trust.delta, rtol=1e-6)
    assert g @ x < np.sqrt(2 * problem.trust.delta * g @ np.linalg.solve(H, g))


@pytest.mark.parametrize(("kind", "fraction"), [("categorical", 1.0), ("gaussian", 0.5)])
def test_with_enough_iterations_the_step_is_that_of_the_fisher_matrix_written_out(kind, fraction, float64):
    """One constraint active: x = (H⁻¹g − νH⁻¹b)/λ, λ² = (q − r²/s)/(2δ − c²/s), ν = (r + λc)/s.

    Half of the rows for Fisher products: 0, 3, 4, 7, 8, …
    """
    problem = Problem(kind, cg_iterations=80, damping=1e-3, fisher_fraction=fraction)
    g, B = map(np.asarray, problem.local.gradients())
    H, b, delta = problem.fisher(round(1 / fraction)), B[:, 0], problem.trust.delta
    v, w = np.linalg.solve(H, g), np.linalg.solve(H, b)
    q, r, s = g @ v, b @ v, b @ w
    c = 0.3 * np.sqrt(2 * delta * s)
    lam = np.sqrt((q - r**2 / s) / (2 * delta - c**2 / s))
    nu = (r + lam * c) / s
    assert nu > 0
    x, case, residual = proposal(problem, [c])
    assert residual < 1e-6
    assert case == Case.FEASIBLE_RECOVERY
    np.testing.assert_allclose(x, (v - nu * w) / lam, rtol=1e-4, atol=1e-7)


def test_a_share_of_the_batch_is_a_row_of_every_k():
    assert [surrogates.stride(f) for f in (1.0, 0.5, 0.2, 0.1, 0.9)] == [1, 2, 5, 10, 1]
    np.testing.assert_array_equal(surrogates.some(jnp.arange(11.0), 0.34), [0, 4, 8])
    np.testing.assert_array_equal(surrogates.some(jnp.arange(10.0).reshape(5, 2), 0.5), [[0, 1], [6, 7]])


@pytest.mark.parametrize("length", [15, 65])
def test_a_fifth_of_episodes_of_one_length_holds_every_step_of_them_alike(length):
    """Every fifth row would hold steps 0, 5, 10, … alone. A fifth of 25 episodes are 5·length rows: each step 5 times."""
    t = jnp.tile(jnp.arange(float(length)), 25)
    found, counts = np.unique(surrogates.some(t, 0.2), return_counts=True)
    np.testing.assert_array_equal(found, np.arange(length))
    np.testing.assert_array_equal(counts, 5)


# -- the line search --------------------------------------------------------------------------------------------------


def search_by_loop(problem, step, objective, cost_limit, recovering):
    """(candidates tried, scale accepted or 0, how many broke each rule)."""
    failed = np.zeros(4, int)
    for j in range(problem.trust.candidates):
        theta = problem.theta + 0.8**j * step
        values = problem.surrogates(theta)
        broken = np.array(
            [
                problem.kl(theta) > problem.trust.delta,
                not recovering and not objective @ values > 0,
                *(values[1:] > cost_limit),
            ]
        )
        failed += broken
        if not broken.any():
            return j + 1, 0.8**j, failed
    return problem.trust.candidates, 0.0, failed


@pytest.fixture(scope="module")
def searching():
    """One problem, one compiled search, and directions: the reward's gradient, each cost's, a mix."""
    with jax.enable_x64(True):
        problem = Problem()
        run = jax.jit(lambda *a: surrogates.search(problem.local, *a))
        g, B = map(np.asarray, problem.local.gradients())
        H = problem.fisher()
        names = {"g": g, "-g": -g, "b": B[:, 0], "-b": -B[:, 0], "mix": g - B @ [0.5, 0.2]}
        longest = np.sqrt(2 * problem.trust.delta)
        return problem, run, {k: longest * d / np.sqrt(d @ H @ d) for k, d in names.items()}


LAGRANGIAN = (1.0, -0.5, -0.2)
REWARD = (1.0, 0.0, 0.0)
FAR = (np.inf, np.inf)


@pytest.mark.parametrize(
    ("direction", "length", "objective", "cost_limit", "recovering", "accepted"),
    [
        ("g", 3.0, REWARD, FAR, False, True),  # too far at first: the divergence decides
        ("-g", 1.0, REWARD, FAR, False, False),  # nothing to gain that way
        ("-g", 1.0, REWARD, FAR, True, True),  # but recovery may cost reward
        ("-g", 3.0, REWARD, FAR, True, True),  # as long as the policy stays near
        ("mix", 1.5, LAGRANGIAN, FAR, False, True),
        ("b", 1.0, REWARD, (0.5, np.inf), True, True),  # some room under the limit
        ("b", 1.0, REWARD, (0.0, np.inf), True, False),  # none: not even when recovering
        ("-b", 1.0, REWARD, (0.0, np.inf), True, True),
        ("b", 1.0, REWARD, (np.inf, -5.0), True, False),  # the second cost decides
    ],
)
def test_the_search_accepts_the_first_candidate_that_keeps_every_rule(
    searching, direction, length, objective, cost_limit, recovering, accepted, float64
):
    problem, run, directions = searching
    step = length * directions[direction]
    found = run(*map(jnp.asarray, (step, objective, cost_limit, recovering)))
    tried, scale, failed = search_by_loop(problem, step, np.asarray(objective), cost_limit, recovering)
    assert bool(found.accepted) is accepted
    assert int(found.tried) == tried
    np.testing.assert_allclose(found.scale, scale, rtol=1e-12)
    np.testing.assert_array_equal(found.failed, failed)
    if accepted:
        np.testing.assert_allclose(found.theta, problem.theta + scale * step, rtol=1e-12)
        assert problem.kl(np.asarray(found.theta)) <= problem.trust.delta
        assert np.all(problem.surrogates(np.asarray(found.theta))[1:] <= cost_limit)
    else:
        np.testing.assert_array_equal(found.theta, problem.theta)


def test_a_candidate_that_is_not_finite_is_refused_and_counted(searching, float64):
    problem, run, directions = searching
    step = directions["g"].copy()
    step[3] = np.nan
    found = run(*map(jnp.asarray, (step, REWARD, FAR, True)))
    assert not found.accepted
    assert int(found.not_finite) == problem.trust.candidates
    np.testing.assert_array_equal(found.theta, problem.theta)


def test_what_an_update_reports_is_what_the_search_found(searching, float64):
    """Promises are the costs' surrogates at the new policy, and nothing where nothing was accepted."""
    problem, run, directions = searching
    solution = dual.Solution(*map(jnp.asarray, (1.0, (0.0, 0.0), 1.0, (0.0, 0.0))), jnp.int32(Case.RECOVERY))
    two = jnp.zeros(2)
    for direction, moved in (("-b", True), ("b", False)):
        found = run(*map(jnp.asarray, (directions[direction], REWARD, (0.0, np.inf), True)))
        step = surrogates.finish(found, jnp.zeros(()), two, solution, two)
        theta = np.asarray(step.theta)
        np.testing.assert_allclose(step.promised, problem.surrogates(theta)[1:], rtol=1e-9)
        np.testing.assert_allclose(step.kl, problem.kl(theta), rtol=1e-9)
        assert (step.promised[0] < 0) == moved


@pytest.mark.parametrize(("near", "slower"), [(0.0, 1.0), (0.5, 2.0), (1.0, 3.0)])
def test_near_a_limit_deviations_move_more_slowly_and_nothing_else_changes(near, slower, float64):
    # Directions by dense matrices: H⁻¹[g, B], whose last two rows, the deviations of a Gaussian with curvature 2 each and
    # none with the network, are divided by 1 + k · near, here with k = 2. Lengths come from H alone.
    local = Problem(cg_iterations=200, hold_deviations=2.0).local._replace(near=near)
    g, B = local.gradients()
    H = Problem().fisher()
    np.testing.assert_allclose(H[-2:], np.eye(2, len(g), len(g) - 2) * 2, atol=1e-4)  # and the damping
    made, _ = surrogates.restricted(local, g, B)
    basis = np.asarray(made.basis)
    np.testing.assert_allclose(basis.T @ H @ basis, np.eye(3), atol=1e-6)
    directions = np.linalg.solve(H, np.column_stack([g, B]))
    directions[-2:] /= slower
    np.testing.assert_allclose(basis @ (basis.T @ H @ directions), directions, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("value", "limit", "near"),
    [
        ((), (), 0.0),
        ((0.0,), (25.0,), 0.0),
        ((10.0,), (25.0,), 0.4),  # 15 of 25 are left
        ((25.0,), (25.0,), 1.0),
        ((250.0,), (25.0,), 1.0),
        ((0.0,), (0.0,), 1.0),  # a limit of zero leaves no room
        ((-0.1,), (0.0,), 0.0),
        ((-15.0,), (-10.0,), 0.5),  # a limit below zero: 5 of 10 are left
        ((5.0, 24.0), (50.0, 25.0), 0.96),  # the nearest counts
    ],
)
def test_the_nearness_of_a_limit_is_the_share_of_it_that_is_spent(value, limit, near):
    np.testing.assert_allclose(
        surrogates.nearness(jnp.asarray(value, jnp.float32), jnp.asarray(limit)), near, atol=1e-6
    )

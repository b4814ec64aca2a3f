"""The dual against its optimality conditions, an independent conic solver, the paper's formula, and its own symmetry."""

import clarabel
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from problems import FAMILIES, Problems, draw, gram, residuals, solve_conic

from corral.trust_region import dual
from corral.trust_region.dual import Case

solve_all = jax.jit(jax.vmap(dual.solve))

# 9 sizes × 10 families × 1,200 problems = 108,000 for each precision. Other tests draw as many, which saves compilations.
PER_FAMILY = 1200
TOLERANCE = {np.float32: 1e-4, np.float64: 1e-8}


def solved(batch: Problems) -> dual.Solution:
    return solve_all(*(jnp.asarray(x) for x in batch[:5]))


def assert_certified(batch, solution, dtype):
    residual, name = residuals(batch, solution)
    bad = np.flatnonzero(residual > TOLERANCE[dtype])
    assert len(bad) == 0, [(int(i), str(name[i]), residual[i]) for i in bad[:5]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [0, 1, 2, 3, 5, *(pytest.param(m, marks=pytest.mark.slow) for m in (4, 6, 7, 8))])
def test_every_answer_carries_its_certificate_of_optimality(m, dtype):
    rng = np.random.default_rng([m, np.dtype(dtype).itemsize])
    seen = set()
    with jax.enable_x64(dtype is np.float64):
        for family in FAMILIES:
            batch = draw(family, rng, PER_FAMILY, m, dtype)
            solution = solved(batch)
            assert solution.alpha.dtype == solution.beta.dtype == dtype
            assert_certified(batch, solution, dtype)
            seen |= set(np.asarray(solution.case).tolist())
    # The families together visit every case that m allows.
    expected = {Case.INSIDE}
    expected |= {Case.BOUNDARY, Case.FEASIBLE_RECOVERY, Case.RECOVERY, Case.ZERO_GRADIENT} if m >= 1 else set()
    expected |= {Case.CONTRADICTORY} if m >= 2 else set()
    assert seen == expected


@pytest.mark.parametrize("m", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_many_constraints_meet_the_same_certificate(m, float64):
    rng = np.random.default_rng(m)
    for family in FAMILIES:
        batch = draw(family, rng, 100, m)
        assert_certified(batch, solved(batch), np.float64)


def test_a_wrong_answer_does_not_get_a_certificate(float64):
    batch = draw("spread", np.random.default_rng(0), PER_FAMILY, 2)
    solution = solved(batch)
    for field in ("alpha", "beta"):
        wrong = solution._replace(**{field: getattr(solution, field) * 1.001})
        changed = np.asarray(getattr(solution, field)).reshape(PER_FAMILY, -1).max(1) > 0
        residual, _ = residuals(batch, wrong)
        assert np.all(residual[changed] > 1e-5)
    # The fault of several public implementations: r with the sign of descent.
    flipped = solved(batch._replace(r=-batch.r))
    active = (np.asarray(flipped.beta).max(1) > 0) & (np.asarray(flipped.case) < Case.RECOVERY)
    residual, _ = residuals(batch, flipped)
    assert np.mean(residual[active] > 1e-3) > 0.9


def clarabel_optimum(g, B, c, delta):
    """maximise gᵀx s.t. c + Bx ≤ 0, ‖x‖ ≤ √(2δ), as a second-order cone program in x itself."""
    n = len(g)
    A = np.vstack([B, np.zeros((1, n)), -np.eye(n)])
    b = np.concatenate([-c, [np.sqrt(2 * delta)], np.zeros(n)])
    return solve_conic(-g, A, b, [clarabel.NonnegativeConeT(len(c)), clarabel.SecondOrderConeT(n + 1)])


@pytest.mark.parametrize("m", [1, 2, 4, 8])
def test_a_conic_solver_finds_the_same_optimum(m, float64):
    compared = 0
    for family in ("spread", "few_dimensions", "repeated", "parallel", "in_the_cone", "on_the_boundary"):
        batch = draw(family, np.random.default_rng(m), PER_FAMILY, m, scales=False)
        solution = jax.tree.map(np.asarray, solved(batch))
        for p in range(120):
            answer = clarabel_optimum(batch.g[p], batch.B[p], batch.c[p], batch.delta[p])
            outside = solution.case[p] >= Case.RECOVERY
            if answer.status == clarabel.SolverStatus.PrimalInfeasible:
                assert outside
            elif answer.status == clarabel.SolverStatus.Solved:
                x = solution.alpha[p] * batch.g[p] - solution.beta[p] @ batch.B[p]
                assert not outside
                np.testing.assert_allclose(batch.g[p] @ x, -answer.obj_val, atol=2e-7 * np.linalg.norm(batch.g[p]))
                compared += 1
    # Several thousand problems over the four sizes, at least a third of each feasible.
    assert compared > 240


def paper_closed_form(q, r, s, c, size):
    """(λ, ν) of the paper's Theorem 2: minimise gᵀx s.t. bᵀx + c ≤ 0, xᵀHx ≤ size, where the plane cuts the ball."""

    def f_a(lam):
        return (r**2 / s - q) / (2 * lam) + lam / 2 * (c**2 / s - size) - r * c / s

    def f_b(lam):
        return -(q / lam + lam * size) / 2

    # Λ_a = {λ ≥ 0 : λc − r > 0} and Λ_b its complement, either of which may be empty; r/c separates them.
    below, above = (0, r / c) if r / c > 0 else None, (max(r / c, 0), np.inf)
    in_a, in_b = (below, above) if c < 0 else (above, below)
    candidates = []
    if in_a is not None:
        candidates.append((f_a, np.clip(np.sqrt((q - r**2 / s) / (size - c**2 / s)), *in_a)))
    if in_b is not None:
        candidates.append((f_b, np.clip(np.sqrt(q / size), *in_b)))
    lam = max((f(lam), lam) for f, lam in candidates if lam > 0)[1]
    return lam, max((lam * c - r) / s, 0)


def test_the_paper_s_closed_form_is_reproduced(float64):
    """Theorem 2 minimises and has xᵀHx ≤ δ', so r → −r and δ' = 2δ here."""
    batch = draw("spread", np.random.default_rng(5), 2 * PER_FAMILY, 1, scales=False)
    solution = jax.tree.map(np.asarray, solved(batch))
    checked = 0
    for p in range(2 * PER_FAMILY):
        q, r, s, c, size = batch.q[p], -batch.r[p, 0], batch.S[p, 0, 0], batch.c[p, 0], 2 * batch.delta[p]
        if c**2 / s < size:
            lam, nu = paper_closed_form(q, r, s, c, size)
            np.testing.assert_allclose(solution.lam[p], lam, rtol=1e-9)
            np.testing.assert_allclose(solution.nu[p, 0], nu, rtol=1e-7, atol=1e-9)
            checked += 1
        elif c > 0:  # the plane misses the ball: the paper's recovery step (14), −√(2δ/s) H⁻¹b
            assert solution.alpha[p] == 0
            np.testing.assert_allclose(solution.beta[p, 0], np.sqrt(size / s), rtol=1e-12)
    assert checked > 1000


def test_one_constraint_by_hand(float64):
    """g = (3, 0), b = (0, 2), H = I, δ = ½: the unit disc, and the half-plane 2y ≤ −c.

    c = −4: y ≤ 2 does not cut the disc, x = (1, 0), λ = 3.
    c = 1:  y ≤ −½, x = (√¾, −½): α = √¾/3, β = ¼, λ = 3/√¾, ν = λβ = ½√3.
    c = 3:  y ≤ −1.5 is out of reach, x = (0, −1): α = 0, β = ½.
    """
    for c, alpha, beta, case in (
        (-4.0, 1 / 3, 0.0, Case.INSIDE),
        (1.0, np.sqrt(0.75) / 3, 0.25, Case.FEASIBLE_RECOVERY),
        (3.0, 0.0, 0.5, Case.RECOVERY),
    ):
        found = dual.solve(9.0, [0.0], [[4.0]], [c], 0.5)
        np.testing.assert_allclose([found.alpha, found.beta[0]], [alpha, beta], atol=1e-15)
        assert found.case == case
    assert dual.solve(9.0, [0.0], [[4.0]], [-1.0], 0.5).case == Case.BOUNDARY


def test_a_corner_of_two_constraints_by_hand(float64):
    """g = (1, 1), b₁ = (1, 0), b₂ = (0, 1), c = (−½, −¼), unit disc: the corner (½, ¼) lies inside, so λ = 0, ν = (1, 1)."""
    found = dual.solve(2.0, [1.0, 1.0], np.eye(2), [-0.5, -0.25], 0.5)
    step = found.alpha * np.ones(2) - np.asarray(found.beta)
    np.testing.assert_allclose(step, [0.5, 0.25], atol=1e-15)
    assert found.lam == 0
    np.testing.assert_allclose(found.nu, [1, 1], atol=1e-15)
    assert np.isfinite(found.alpha)


def test_contradicting_constraints_share_the_violation(float64):
    """x ≤ −5 and x ≥ 3, unit disc: at x = −1 the violations are 4 and 4; no point of the disc has a smaller maximum."""
    found = dual.solve(1.0, [0.0, 0.0], [[1.0, -1.0], [-1.0, 1.0]], [5.0, 3.0], 0.5)
    assert found.case == Case.CONTRADICTORY
    np.testing.assert_allclose(found.beta[0] - found.beta[1], 1, rtol=1e-12)


@pytest.mark.parametrize("m", [0, 1, 2, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rescaling_g_each_constraint_or_H_rescales_the_answer(m, dtype):
    """Factors over twelve orders of magnitude: gᵢ → a·g, (bᵢ, cᵢ) → eᵢ(bᵢ, cᵢ), H → h·H with x → x/√h."""
    rng = np.random.default_rng(m)
    batch = draw("spread", rng, PER_FAMILY, m, dtype, scales=False)
    with jax.enable_x64(dtype is np.float64):
        plain = jax.tree.map(lambda x: np.asarray(x, np.float64), solved(batch))
        for exponent in np.linspace(-6, 6, 7):
            a = 10.0**exponent
            e = 10.0 ** rng.uniform(-6, 6, size=(PER_FAMILY, m))
            h = 10.0 ** rng.uniform(-6, 6, size=PER_FAMILY)
            # H → hH divides every H⁻¹ by h; δ is kept, so c must shrink with the step it limits: x → x/√h.
            scaled = Problems(
                (batch.q * a**2 / h).astype(dtype),
                (batch.r * a * e / h[:, None]).astype(dtype),
                (batch.S * e[:, None, :] * e[:, :, None] / h[:, None, None]).astype(dtype),
                (batch.c * e / np.sqrt(h)[:, None]).astype(dtype),
                batch.delta,
                batch.g,
                batch.B,
            )
            found = jax.tree.map(lambda x: np.asarray(x, np.float64), solved(scaled))
            tolerance = dict(rtol=1e-9, atol=1e-9) if dtype is np.float64 else dict(rtol=2e-3, atol=2e-3)
            root = np.sqrt(h)
            np.testing.assert_allclose(found.alpha * a / root, plain.alpha, **tolerance)
            np.testing.assert_allclose(found.beta * e / root[:, None], plain.beta, **tolerance)
            agree = found.case == plain.case
            assert np.all(agree) if dtype is np.float64 else np.mean(agree) > 0.99


def test_every_input_gives_a_finite_step_and_a_status(float64):
    nan, inf = np.nan, np.inf
    for q, r, s, c in ((nan, 0, 1, 0), (1, inf, 1, 0), (1, 0, nan, 0), (1, 0, 1, -inf)):
        found = dual.solve(q, [float(r)], [[float(s)]], [float(c)], 0.1)
        assert found.case == Case.NOT_FINITE
        assert found.alpha == 0
        assert found.beta[0] == 0
    # Inconsistent q, r, s, as truncated conjugate gradients give them: r² > q s.
    for m in (1, 2, 3):
        found = dual.solve(1.0, np.full(m, 2.0), np.eye(m), np.full(m, -0.1), 0.1)
        assert all(np.all(np.isfinite(x)) for x in found)


def test_a_violated_constraint_without_gradient_is_reported_and_the_others_recover(float64):
    found = dual.solve(1.0, [0.0, 0.5], [[0.0, 0.0], [0.0, 1.0]], [1.0, 0.2], 0.5)
    assert found.case == Case.ZERO_GRADIENT
    assert found.alpha == 0
    np.testing.assert_allclose(found.beta, [0, 0.2])  # the nearest point with 0.2 + b₂ᵀx ≤ 0


def test_beside_a_dead_constraint_the_step_is_that_of_the_others_without_objective(float64):
    """The recovery of the live constraints alone: the same problem with g = 0 and the dead one left out."""
    batch = draw("few_dimensions", np.random.default_rng(3), PER_FAMILY, 2)
    alone = solved(batch._replace(q=0 * batch.q, r=0 * batch.r))
    with_dead = batch._replace(
        r=np.insert(batch.r, 1, 0.0, axis=1),
        S=np.insert(np.insert(batch.S, 1, 0.0, axis=1), 1, 0.0, axis=2),
        c=np.insert(batch.c, 1, 1.0, axis=1),
    )
    found = solved(with_dead)
    assert np.all(found.case == Case.ZERO_GRADIENT)
    assert np.all(found.alpha == 0)
    assert np.all(found.beta[:, 1] == 0)
    size = np.sqrt(2 * batch.delta[:, None] / np.einsum("pii->pi", batch.S))
    np.testing.assert_allclose(found.beta[:, [0, 2]] / size, alone.beta / size, rtol=1e-9, atol=1e-12)
    # The live constraints may be satisfied, repairable, out of reach or contradictory.
    assert {Case.INSIDE, Case.FEASIBLE_RECOVERY, Case.RECOVERY, Case.CONTRADICTORY} <= set(alone.case.tolist())


def test_one_rounding_of_S_can_move_the_least_violation_by_more_than_the_tolerance():
    """Why the certificate lets a Gram matrix be off by rounding where constraints contradict each other.

    Unit b₁, b₂ with b₁ᵀb₂ = −1 + ε and c = (1, 1): the best x goes along −(b₁ + b₂), of length √(2ε), and leaves both
    violated by 1 − ‖b₁ + b₂‖/2 = 1 − √(ε/2). The float32 after −1 is ε = 2⁻²⁴: 1.7e-4 less than ε = 0 gives.
    """
    epsilon = np.float64(np.nextafter(np.float32(-1), np.float32(0))) + 1
    assert epsilon == 2.0**-24
    for e in (0.0, epsilon):
        S, u = np.array([[1, e - 1], [e - 1, 1]]), np.array([0.5, 0.5])
        best = u @ [1, 1] - np.sqrt(u @ S @ u)  # what u proves, and x above attains
        np.testing.assert_allclose(best, 1 - np.sqrt(e / 2), rtol=1e-15)
    assert np.sqrt(epsilon / 2) > TOLERANCE[np.float32]


def test_a_satisfied_constraint_without_gradient_changes_nothing(float64):
    found = dual.solve(1.0, [0.0], [[0.0]], [-1.0], 0.5)
    assert found.case == Case.INSIDE
    np.testing.assert_allclose(found.alpha, 1)


def test_the_families_contain_what_they_promise():
    rng = np.random.default_rng(0)
    parallel = draw("parallel", rng, 50, 3, scales=False)
    np.testing.assert_allclose(parallel.q * parallel.S[:, 0, 0], parallel.r[:, 0] ** 2, rtol=1e-12)
    singular = draw("few_dimensions", rng, 50, 4, scales=False)
    assert np.all(np.linalg.eigvalsh(singular.S)[:, 0] < 1e-12)
    assert set(problems.FAMILIES) >= {"repeated", "opposite", "zero_gradient", "no_objective", "nearly"}
    assert gram(np.ones((1, 2)), np.zeros((1, 0, 2)), np.zeros((1, 0)), np.ones(1)).q[0] == 2

"""First-order algorithms against their published losses, written out in NumPy and differentiated by finite differences."""

import jax.numpy as jnp
import numpy as np
import pytest
from small_policies import BOTH, ROWS, make_problem, standing

from corral.algos import CPPOPID, CUP, FOCOPS, IPO, P3O, PPO, PPOLag
from corral.algos.ipo import barrier
from corral.errors import CorralError
from corral.learning import networks
from corral.learning.first_order import Rows

RATE, PASSES = 0.05, 3
# One minibatch holds all rows, so that a pass is one step of Adam on the whole loss; the steps are large, so that ratios
# leave [1 − ε, 1 + ε] and states leave FOCOPS's trust.
WHOLE = dict(learning_rate=RATE, epochs=PASSES, minibatch=ROWS, target_kl=1e3, gradient_norm=1e6)
VALUE, LIMIT = np.array([3.0, 1.0]), np.array([2.0, 4.0])


class Sampled:
    """What the losses are made of: ratios, divergences and advantages of a problem, in NumPy."""

    def __init__(self, problem):
        policy, self.samples = problem
        self.flat = networks.flatten(policy)
        self.theta = np.asarray(self.flat.theta)
        self.A, self.Ac = np.asarray(self.samples.advantage), np.asarray(self.samples.cost_advantage)
        weight = np.asarray(self.samples.cost_weight)
        self.length = weight.sum(0)
        # Per step: a row's discount, relative to the mean discount.
        self.Ac = self.Ac * weight / weight.mean(0)

    def parameters(self, theta):
        return [np.asarray(x) for x in self.flat.policy(jnp.asarray(theta))(self.samples.obs)]

    def log_prob(self, theta):
        z, action = self.parameters(theta), np.asarray(self.samples.action)
        if len(z) == 1:
            p = np.exp(z[0])
            return np.log((p / p.sum(1, keepdims=True))[np.arange(ROWS), action])
        mean, std = z[0], np.exp(z[1])
        return np.sum(-((action - mean) ** 2) / (2 * std**2) - np.log(std * np.sqrt(2 * np.pi)), axis=1)

    def ratio(self, theta):
        return np.exp(self.log_prob(theta) - self.log_prob(self.theta))

    def kl(self, theta, other):
        z, old = self.parameters(theta), self.parameters(other)
        if len(z) == 1:
            p, q = (np.exp(x[0]) / np.exp(x[0]).sum(1, keepdims=True) for x in (z, old))
            return np.sum(p * np.log(p / q), axis=1)
        std, was = np.exp(z[1]), np.exp(old[1])
        return np.sum(np.log(was / std) + (std**2 + (z[0] - old[0]) ** 2) / (2 * was**2) - 0.5, axis=1)

    def clipped(self, theta, A, sign=1):
        ratio = self.ratio(theta)
        return np.mean(sign * np.minimum(sign * ratio * A, sign * np.clip(ratio, 0.8, 1.2) * A))


def slope(loss, theta, h=1e-6):
    """∇loss by central differences."""
    return np.array([(loss(theta + h * e) - loss(theta - h * e)) / (2 * h) for e in np.eye(len(theta))])


def adam(loss, theta, moments=None):
    """Kingma and Ba's recursion, PASSES steps of it."""
    first, second, k = moments or (np.zeros_like(theta), np.zeros_like(theta), 0)
    for _ in range(PASSES):
        g, k = slope(loss, theta), k + 1
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        theta = theta - RATE * (first / (1 - 0.9**k)) / (np.sqrt(second / (1 - 0.999**k)) + 1e-8)
    return theta, (first, second, k)


def by_hand(name, s, m):
    """θ after the update, from the published loss; multipliers start at 0.001 and Adam's first step is the rate 0.035."""
    c, T = (VALUE - LIMIT)[:m], s.length
    nu = np.array([0.036, 0.0])[:m]  # 0.001 ± 0.035, cut off at 0
    if name == "focops":

        def focops(theta):
            kl = s.kl(theta, s.theta)
            return np.mean((kl - s.ratio(theta) * (s.A - s.Ac @ nu) / 1.5) * (kl <= 0.02))

        return adam(focops, s.theta)[0]
    if name == "cup":
        half, _ = adam(lambda theta: -s.clipped(theta, s.A), s.theta)
        back = lambda theta: np.mean(s.kl(theta, half) + 5.95 * s.ratio(theta) * (s.Ac @ nu))  # noqa: E731
        return adam(back, half)[0]  # the moments of another loss would carry it on
    if name == "cppo-pid":  # (2.5 + 0.25)·Δ, Δ = 1/2 and −3/4; no rise is known yet
        nu = np.array([1.375, 0.0])[:m]

    def loss(theta):
        A = (s.A - s.Ac @ nu) / (1 + nu.sum()) if name in ("ppo-lag", "cppo-pid") else s.A
        change = np.array([s.clipped(theta, s.Ac[:, i], sign=-1) - s.Ac[:, i].mean() for i in range(m)])
        z = change + c / T
        penalty = {"p3o": 20 * np.maximum(z, 0).sum(), "ipo": sum(map(extended_log, z))}.get(name, 0)
        return -s.clipped(theta, A) + penalty

    return adam(loss, s.theta)[0]


def extended_log(z, t=20.0):
    """As published; the limits here, above 0.5 per step, are large enough for its border of 1/t²."""
    return -np.log(-z) / t if z <= -1 / t**2 else t * z - np.log(1 / t**2) / t + 1 / t


def discounted(problem):
    """The problem with costs discounted by 0.9 per step, in six episodes of four steps."""
    policy, samples = problem
    weight = 0.9 ** (np.arange(ROWS) % 4) / 6
    return policy, samples._replace(
        cost_weight=jnp.asarray(np.broadcast_to(weight[:, None], samples.cost_weight.shape))
    )


@BOTH
@pytest.mark.parametrize("kind_of", [PPO, PPOLag, CPPOPID, FOCOPS, CUP, P3O, IPO], ids=lambda kind: kind.name)
def test_the_update_is_adam_on_the_published_loss(kind_of, kind, m, update, float64):
    problem = discounted(make_problem(kind, m))
    algo, s = kind_of(**WHOLE), Sampled(problem)
    state = algo.start(m, jnp.asarray(s.theta))
    _, step = update(algo, state, problem, standing(VALUE[:m], LIMIT[:m]))
    expected = by_hand(algo.name, s, m)
    assert np.max(np.abs(s.ratio(expected) - 1)) > 0.2
    np.testing.assert_allclose(step.theta, expected, rtol=1e-4, atol=1e-5)
    assert step.search.accepted
    assert step.search.tried == (2 if kind_of is CUP else 1) * PASSES
    np.testing.assert_allclose(step.kl, np.mean(s.kl(np.asarray(step.theta), s.theta)), rtol=1e-6)


def test_the_barrier_goes_on_as_a_line_with_the_same_slope(float64):
    z = np.array([-1.0, -0.1, -1 / 400, 0.0, 3.0])
    edge = jnp.full(5, 1 / 400)
    np.testing.assert_allclose(barrier(jnp.asarray(z), 20.0, edge), [extended_log(x) for x in z], rtol=1e-12)
    h = 1e-7
    left, right = (slope(lambda x: extended_log(x[0]), np.array([-1 / 400 + d]), h) for d in (-2 * h, 2 * h))
    np.testing.assert_allclose(left, right, rtol=1e-3)


def test_a_limit_that_is_small_per_step_still_has_a_barrier_in_front_of_it(update, float64):
    """T = 4 steps, d = 0.004: d/T = 0.001 < 1/t² = 0.0025. The price T/(t(d − J)) rises up to a tenth of d, then no more."""
    problem = make_problem()
    np.testing.assert_allclose(np.sum(problem[1].cost_weight), 4)
    algo = IPO(**WHOLE | dict(epochs=1))
    state = algo.start(1, networks.flatten(problem[0]).theta)
    prices = [
        float(update(algo, state, problem, standing(J, 0.004))[1].nu[0]) for J in (0.0, 0.002, 0.0036, 0.0038, 1.0)
    ]
    np.testing.assert_allclose(prices, [50.0, 100.0, 500.0, 500.0, 500.0], rtol=1e-6)


def test_a_cost_does_not_change_at_the_policy_that_sampled_it_whatever_its_mean(float64):
    """ρ = 1: the mean advantage of a minibatch, 2 here, is no change of the cost."""
    ones = jnp.ones(4)
    rows = Rows(ones / 4, ones, 0 * ones, ones, jnp.array([[1.0], [2.0], [3.0], [2.0]]))
    np.testing.assert_allclose(rows.clipped_costs(0.2), [0.0], atol=1e-12)
    # ρ = 1.1 and 1.5, the latter in two rows, one cheaper than usual: ¼(0.1·1 + 0.5·2 + 0.2·(−3) + 0).
    moved = rows._replace(
        ratio=jnp.array([1.1, 1.5, 1.5, 1.0]), cost_advantage=jnp.array([[1.0], [2.0], [-3.0], [2.0]])
    )
    np.testing.assert_allclose(moved.clipped_costs(0.2), [0.125], rtol=1e-12)


def test_where_nothing_has_a_price_cup_ends_where_ppo_does(update, float64):
    """ν = 0: the second part starts at its minimum, and no momentum of the first may carry it on."""
    problem = make_problem()
    found = []
    for algo in (CUP(**WHOLE, nu=0.0), PPO(**WHOLE)):
        state = algo.start(1, networks.flatten(problem[0]).theta)
        found.append(update(algo, state, problem, standing(0.0, 1.0))[1].theta)
    np.testing.assert_allclose(*found, rtol=1e-9)


def test_cup_may_go_back_further_than_its_reward_step_went(update, float64):
    """The reward's step ends at the divergence t from π_k, the projection at 2t from π_½."""
    problem, t = make_problem(), 0.004
    s = Sampled(problem)
    near = dict(WHOLE, epochs=99, learning_rate=0.001, target_kl=t)
    ends = [
        update(algo, algo.start(1, jnp.asarray(s.theta)), problem, standing(3.0, 2.0))[1].theta
        for algo in (PPO(**near), CUP(**near, nu=2.0, weight=50.0))
    ]
    half, end = (np.asarray(theta) for theta in ends)
    assert t < np.mean(s.kl(half, s.theta)) < 1.5 * t
    assert 2 * t < np.mean(s.kl(end, half)) < 1.5 * 2 * t


def test_multipliers_climb_by_adam_and_stay_in_their_range(update, float64):
    """ν ← clip(ν + ½ Adam(Δ), 0, 1) from ¼, Adam by its recursion; Δ = ½, ½, −½ and −¾ three times."""
    problem = make_problem(m=2)
    algo = FOCOPS(rate=0.5, nu=0.25, nu_max=1.0, epochs=1, minibatch=ROWS)
    state = algo.start(2, networks.flatten(problem[0]).theta)
    nu, first, second = np.full(2, 0.25), np.zeros(2), np.zeros(2)
    for k, value in enumerate(([3.0, 1.0], [3.0, 1.0], [1.0, 1.0]), 1):
        g = (np.array(value) - LIMIT) / LIMIT
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        nu = np.clip(nu + 0.5 * (first / (1 - 0.9**k)) / (np.sqrt(second / (1 - 0.999**k)) + 1e-8), 0, 1)
        state, step = update(algo, state, problem, standing(value, LIMIT))
        np.testing.assert_allclose(step.nu, nu, atol=1e-5)
    assert nu[0] == 1
    assert nu[1] == 0


def test_steps_end_once_the_policy_has_moved_too_far(update, float64):
    problem = make_problem()
    far = dict(WHOLE, epochs=50, learning_rate=0.01)
    s = Sampled(problem)

    def after(**changed):
        algo = PPO(**far | changed)
        return update(algo, algo.start(1, jnp.asarray(s.theta)), problem, standing(0.0, 1.0))[1]

    many = after(target_kl=0.05)
    assert many.kl > 0.05
    # The last pass only looks, the one before crossed the border: a pass is one step here.
    made = int(many.search.tried) - 1
    assert 1 < made < 49
    np.testing.assert_array_equal(many.theta, after(epochs=made).theta)
    assert after(epochs=made - 1).kl <= 0.05


def test_steps_end_in_the_middle_of_a_pass(update, float64):
    """Adam's first step moves a parameter by the learning rate, whatever its gradient is; a second one would move it on."""
    problem = make_problem()
    theta = networks.flatten(problem[0]).theta
    algo = PPO(**dict(WHOLE, epochs=1, minibatch=ROWS // 4, learning_rate=0.01, target_kl=1e-9))
    state, step = update(algo, algo.start(1, theta), problem, standing(0.0, 1.0))
    assert state.adam.count == 1
    moved = np.abs(step.theta - theta)
    np.testing.assert_allclose(moved[moved > 0.005], 0.01, rtol=1e-3)
    assert np.mean(moved > 0.005) > 0.9


def test_where_a_number_is_not_finite_policy_and_adam_stay_as_they_were(update, float64):
    policy, samples = make_problem()
    wild = samples._replace(advantage=samples.advantage.at[3].set(jnp.inf))
    algo = PPO(**WHOLE)
    state = algo.start(1, networks.flatten(policy).theta)
    after, step = update(algo, state, (policy, wild), standing(0.0, 1.0))
    assert not step.search.accepted
    assert step.search.not_finite == 1
    np.testing.assert_array_equal(step.theta, networks.flatten(policy).theta)
    np.testing.assert_array_equal(after.adam.mu, 0)


def test_a_long_gradient_is_shortened(update, float64):
    """Adam's first moment after one step is a tenth of the gradient."""
    problem = make_problem()
    s = Sampled(problem)
    g = slope(lambda theta: -s.clipped(theta, s.A), s.theta)
    for limit in (np.linalg.norm(g) / 4, 4 * np.linalg.norm(g)):
        algo = PPO(**WHOLE | {"epochs": 1, "gradient_norm": float(limit)})
        state, _ = update(algo, algo.start(1, jnp.asarray(s.theta)), problem, standing(0.0, 1.0))
        np.testing.assert_allclose(state.adam.mu, 0.1 * g * min(1, limit / np.linalg.norm(g)), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("algo", "message"),
    [
        (PPO(learning_rate=0.0), r"algo\.learning_rate must be positive, got 0\.0"),
        (PPO(epochs=0), r"algo\.epochs must be at least 1, got 0"),
        (PPO(clip=0.0), r"algo\.clip must lie in \(0, 1\], got 0\.0"),
        (PPOLag(rate=-1.0), r"algo\.rate must not be negative, got -1\.0"),
        (CPPOPID(kd=-1.0), r"algo\.kd must not be negative, got -1\.0"),
        (CPPOPID(clip=2.0), r"algo\.clip must lie in \(0, 1\], got 2\.0"),
        (FOCOPS(temperature=0.0), r"algo\.temperature must be positive, got 0\.0"),
        (CUP(nu_max=-1.0), r"algo\.nu_max must not be negative, got -1\.0"),
        (P3O(kappa=(1.0, -1.0)), r"algo\.kappa must not be negative"),
        (IPO(t=0.0), r"algo\.t must be positive, got 0\.0"),
    ],
    ids=lambda x: x.name if hasattr(x, "name") else "",
)
def test_a_parameter_out_of_its_range_is_refused(algo, message):
    with pytest.raises(CorralError, match=message):
        algo.check()

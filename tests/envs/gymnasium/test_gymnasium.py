"""To and from Gymnasium."""

import subprocess
import sys

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from corral import envs
from corral.envs import ConstraintSpec, from_gymnasium
from corral.envs.gymnasium.ids import IDS
from corral.envs.mjcf import find
from corral.errors import CorralError


def test_every_environment_is_registered():
    assert sorted(IDS.values()) == sorted(envs.names())
    assert "corral/AntCircle-v0" in gymnasium.registry


MAKES = {
    "after importing corral alone": """
import corral
assert "jax" not in sys.modules, "importing corral must not import JAX"
env = gymnasium.make("corral/AntCircle-v0")
""",
    "by a name that says what to import": 'env = gymnasium.make("corral:corral/AntCircle-v0")',
}


@pytest.mark.parametrize("how", MAKES)
def test_a_fresh_process_can_make_an_environment(how):
    code = f"import sys, gymnasium\n{MAKES[how]}\nprint(env.observation_space.shape)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "(32,)\n"), done.stderr


SOME = ("corral/AntCircle-v0", "corral/PointGather-v0")


# Gymnasium finds unbounded observations remarkable; its own MuJoCo environments have them too.
@pytest.mark.filterwarnings("ignore:.*A Box observation space m.*value is.*infinity")
@pytest.mark.parametrize("name", [name if name in SOME else pytest.param(name, marks=pytest.mark.slow) for name in IDS])
def test_gymnasium_accepts_the_environment(name):
    env = gymnasium.make(name)
    check_env(env.unwrapped)
    env.close()


def test_info_has_the_costs_by_name_and_their_sum():
    env = gymnasium.make("corral/PointCircle-v0", x_lim=1e-6, y_lim=1e-6)
    env.reset(seed=0)
    *_, info = env.step(np.array([1.0, 0.5], np.float32))
    assert info == {"cost": 2.0, "costs": {"x": 1.0, "y": 1.0}}


def test_many_robots_step_together_and_start_afresh_in_the_same_step():
    env = gymnasium.make_vec("corral/PointCircle-v0", num_envs=3, min_steps=2, max_steps=2)
    first, _ = env.reset(seed=1)
    again, _ = env.reset(seed=1)
    np.testing.assert_array_equal(first, again)
    assert env.observation_space.contains(first)
    actions = np.zeros((3, 2), np.float32)
    *_, info = env.step(actions)
    assert info["cost"].shape == (3,)
    assert "final_obs" not in info
    obs, _, terminated, truncated, info = env.step(actions)
    assert truncated.all()
    assert not terminated.any()
    assert info["_final_obs"].all()
    assert (info["final_obs"] != obs).any(axis=1).all()
    env.close()


class Walker(gymnasium.Env):
    """Walks along a line from a random place; six values a step if `six`; breaks where x > 5."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Box(np.array([-1.0]), np.array([3.0]), dtype=np.float64)

    def __init__(self, six=False, where="cost"):
        self.six, self.where = six, where

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(0, 1)
        return np.array([self.x]), {}

    def step(self, action):
        self.x += float(action[0])
        obs = np.array([self.x if self.x <= 5 else np.nan])
        cost = abs(self.x)
        info = {"cost": cost} if self.where == "cost" else {"costs": {"far": cost, "near": -cost}}
        if self.six:
            return obs, 1.0, cost, self.x < 0, False, {}
        return obs, 1.0, self.x < 0, False, info


ONE = (ConstraintSpec("far", 3.0),)


@pytest.mark.parametrize("six", [False, True])
def test_the_cost_is_read_from_info_or_from_the_third_of_six_values(six):
    env = from_gymnasium(lambda: Walker(six), 3, ONE, horizon=10)
    start = env.reset(0)
    # The action 0 is the middle of [-1, 3]: one forward.
    step = env.step(np.zeros((3, 1)))
    np.testing.assert_allclose(step.obs, start + 1, rtol=1e-6)
    np.testing.assert_allclose(step.costs, start + 1, rtol=1e-6)
    np.testing.assert_allclose(step.reward, 1)


def test_costs_come_by_name_or_from_the_users_functions():
    two = (ConstraintSpec("near", 1.0), ConstraintSpec("far", 1.0))
    named = from_gymnasium(lambda: Walker(where="costs"), 1, two, horizon=10)
    start = named.reset(0)
    np.testing.assert_allclose(named.step(np.zeros((1, 1))).costs, [[-start[0, 0] - 1, start[0, 0] + 1]], rtol=1e-6)
    functions = [lambda obs, action, next_obs, info: next_obs[0] - obs[0], lambda obs, action, *_: 10 * action[0]]
    priced = from_gymnasium(Walker, 1, two, functions, horizon=10)
    priced.reset(0)
    np.testing.assert_allclose(priced.step(np.array([[-0.5]])).costs, [[0, 0]], atol=1e-6)
    np.testing.assert_allclose(priced.step(np.array([[0.5]])).costs, [[2, 20]], rtol=1e-6)


class Misshapen(Walker):
    """One thing about it is not as it should be."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        return obs if self.what == "reset" else (obs, info)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        match self.what:
            case "observation":
                obs = np.zeros(3)
            case "reward":
                reward = "fast"
            case "cost":
                info = {"cost": [1, 2]}
            case "info":
                info = None
            case "step":
                return obs, reward, terminated, info
        return obs, reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("reset", "Misshapen: reset must return an observation and a dict, got ndarray"),
        ("observation", "Misshapen handed out an observation of 3 numbers, and its observation_space has 1"),
        ("reward", "Misshapen: the reward of a step must be a number, got 'fast'"),
        ("cost", r"Misshapen: the cost of far of a step must be a number, got \[1, 2\]"),
        ("info", "Misshapen: the last value of step must be a dict, got NoneType"),
        ("step", "Misshapen: step must return five values, or six with the cost third, got 4"),
    ],
)
def test_what_is_not_as_it_should_be_is_named_with_the_environment(what, message):
    env = from_gymnasium(lambda: Misshapen(what), 1, ONE, horizon=10)

    def play():
        env.reset(0)
        env.step(np.zeros((1, 1)))

    with pytest.raises(CorralError, match=message):
        play()


class InPlace(Walker):
    """Hands out one array for ever, and writes into it."""

    def reset(self, *, seed=None, options=None):
        self.handed_out, info = super().reset(seed=seed)
        return self.handed_out, info

    def step(self, action):
        self.handed_out[:], *rest = super().step(action)
        return self.handed_out, *rest


def test_costs_see_the_observation_before_also_of_an_environment_that_writes_over_it():
    moved = [lambda obs, action, next_obs, info: next_obs[0] - obs[0]]
    env = from_gymnasium(InPlace, 1, ONE, moved, horizon=10)
    env.reset(0)
    for _ in range(2):
        np.testing.assert_allclose(env.step(np.zeros((1, 1))).costs, [[1]], rtol=1e-6)


def test_a_slot_that_ends_starts_from_its_own_stream_and_others_go_on():
    env = from_gymnasium(Walker, 2, ONE, horizon=10)
    start = env.reset(0)
    step = env.step(np.array([[-9.0], [0.0]]))  # clipped to -1: 1 back from below 1
    assert step.terminated.tolist() == [True, False]
    assert step.final_obs[0, 0] == pytest.approx(start[0, 0] - 1)
    assert 0 <= step.obs[0, 0] < 1
    assert step.obs[0, 0] != start[0, 0]
    np.testing.assert_array_equal(env.reset(0), start)
    assert (env.reset(1) != start).all()


def test_the_horizon_truncates_and_inactive_slots_wait():
    env = from_gymnasium(Walker, 2, ONE, horizon=2)
    start = env.reset(0)
    active = np.array([True, False])
    still = np.full((2, 1), -0.5)  # the action that stays in place
    assert not env.step(still, active).truncated.any()
    step = env.step(still, active)
    assert step.truncated.tolist() == [True, False]
    assert step.obs[1] == start[1]


def test_what_is_not_finite_is_an_error_that_names_environment_field_and_step():
    env = from_gymnasium(Walker, 1, ONE, horizon=10)
    env.reset(0)
    env.step(np.ones((1, 1)))
    with pytest.raises(CorralError, match=r"^Walker handed out nan as observation after 2 steps of an episode$"):
        env.step(np.ones((1, 1)))
    costly = from_gymnasium(Walker, 1, ONE, [lambda *_: float("inf")], horizon=10)
    costly.reset(0)
    with pytest.raises(CorralError, match=r"^Walker handed out inf as costs after 1 steps of an episode$"):
        costly.step(np.zeros((1, 1)))


def test_copies_must_be_copies():
    single = Walker()
    with pytest.raises(CorralError, match="the function that makes Walker must make a new one each time"):
        from_gymnasium(lambda: single, 2, ONE, horizon=10)


def test_parameters_of_a_function_that_makes_one_are_refused():
    with pytest.raises(CorralError, match="parameters go with an id"):
        from_gymnasium(Walker, 1, ONE, horizon=10, parameters={"where": "costs"})


def test_a_specification_knows_the_actions_of_the_environment():
    box = from_gymnasium(Walker, 1, ONE, horizon=10).spec.action
    # -1 stands for -1, 1 for 3.
    np.testing.assert_array_equal(box.outside(np.array([[-1.0], [0.0], [1.0], [9.0]])), [[-1], [1], [3], [3]])
    assert envs.Discrete(2, start=5).outside(np.array([0, 1])).tolist() == [5, 6]
    assert envs.Box(4, shape=(2, 2)).outside(np.zeros((3, 4))).shape == (3, 2, 2)
    assert envs.Box(2).outside(np.array([7.0, -7.0])).tolist() == [7.0, -7.0]


class Mixed(Walker):
    """Of four numbers the first has both bounds, the second one below, the third one above, the last none."""

    action_space = gymnasium.spaces.Box(
        np.array([[10, 0], [-np.inf, -np.inf]], np.float32), np.array([[20, np.inf], [5, np.inf]], np.float32)
    )


def test_numbers_of_an_action_are_mapped_and_clipped_where_they_are_bounded():
    box = from_gymnasium(Mixed, 1, ONE, horizon=10).spec.action
    given = np.array([[0.5, 0.5, 0.5, 0.5], [9, 9, 9, 9], [-9, -9, -9, -9]], np.float32)
    expected = [[[17.5, 0.5], [0.5, 0.5]], [[20, 9], [5, 9]], [[10, 0], [-9, -9]]]
    np.testing.assert_array_equal(box.outside(given), expected)
    assert all(Mixed.action_space.contains(action) for action in box.outside(given))


def test_discrete_actions_and_no_constraints():
    env = from_gymnasium("CartPole-v1", 2)
    assert env.spec.action == envs.Discrete(2)
    assert (env.spec.horizon, env.spec.observation_size, env.spec.constraints) == (500, 4, ())
    env.reset(0)
    step = env.step(np.array([0, 1]))
    assert step.costs.shape == (2, 0)
    assert step.obs[0, 1] < 0 < step.obs[1, 1]  # pushed left and right
    env.close()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: from_gymnasium(Walker, 1), "horizon must be given"),
        (lambda: from_gymnasium(Walker, 1, ONE, [], horizon=3), "a function for each of the 1 constraints, got 0"),
        (lambda: from_gymnasium("CartPole-v1", 0), "num_envs must be at least 1"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(CorralError, match=message):
        call()


class Reporting(Walker):
    """Reports what it is told to."""

    def __init__(self, info):
        super().__init__()
        self.info = info

    def step(self, action):
        return *super().step(action)[:-1], self.info


@pytest.mark.parametrize(
    ("names", "info", "expected"),
    [
        (["torque"], {"torque": 2.0, "cost": 9.0}, [2]),
        (["torque"], {"costs": {"torque": 3.0}, "torque": 2.0, "cost": 9.0}, [3]),
        (["torque"], {"costs": {"other": 3.0}, "cost": 9.0}, [9]),
        (["torque", "bumps"], {"costs": {"bumps": 1.0}, "torque": 2.0, "cost": 9.0}, [2, 1]),
        (["cost", "torque"], {"torque": 2.0, "cost": 9.0}, [9, 2]),
        (["torque"], {"torque": np.float32(2)}, [2]),
        (["torque"], {"torque": True}, [1]),
        (["torque"], {"costs": 7.0, "torque": 2.0}, [2]),  # an environment may use the word for something else
    ],
)
def test_a_constraint_takes_the_cost_of_its_name(names, info, expected):
    env = from_gymnasium(lambda: Reporting(info), 1, [ConstraintSpec(name, 1.0) for name in names], horizon=10)
    env.reset(0)
    assert env.step(np.zeros((1, 1))).costs.tolist() == [expected]


@pytest.mark.parametrize(
    ("names", "info", "message"),
    [
        (["far"], {}, r"^Reporting reports no cost for \['far'\].*; info has nothing in it\. "),
        (
            ["torque", "bump"],
            {"torque": 1.0, "costs": {"bumps": 2.0}, "cost": 9.0},
            r"no cost for \['bump'\].*; info has info\[\"cost\"\], info\[\"costs\"\], "
            r"info\[\"costs\"\]\[\"bumps\"\], info\[\"torque\"\]\. Name one of these",
        ),
    ],
)
def test_a_cost_that_nobody_reports_is_named_with_what_is_reported(names, info, message):
    env = from_gymnasium(lambda: Reporting(info), 1, [ConstraintSpec(name, 1.0) for name in names], horizon=10)
    env.reset(0)
    with pytest.raises(CorralError, match=message):
        env.step(np.zeros((1, 1)))


class Odd(gymnasium.Env):
    """Returns what it is told to, from `step` or as its spaces."""

    def __init__(self, returns=None, obs=(1,), actions=(1,)):
        self.returns = returns
        self.observation_space = gymnasium.spaces.Box(-1, 1, obs, np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, actions, np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        if isinstance(self.returns, Exception):
            raise self.returns
        return self.returns


SEEN = np.zeros(1, np.float32)


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        ((SEEN, 0.0, False, False, {"costs": 5}), r'Odd reports no cost for .*; info has info\["costs"\]\.'),
        (
            (SEEN, 0.0, np.zeros(3, bool), False, {"cost": 0}),
            "Odd: terminated of a step must be true or false, got array",
        ),
        ((SEEN, 0.0, False, "no", {"cost": 0}), "Odd: truncated of a step must be true or false, got 'no'"),
        ((SEEN, 0.0, [[], [True]], False, {"cost": 0}), "Odd: terminated of a step must be true or false"),
        ((SEEN, 1e39, False, False, {"cost": 0}), r"Odd handed out 1e\+39 as reward after 1 steps"),
        ((SEEN, 0.0, False, False, {"cost": 1e39}), r"Odd handed out 1e\+39 as costs after 1 steps"),
        ((SEEN, 0.0, False, {}), "Odd: step must return five values, or six with the cost third, got 4"),
        ((), "Odd: step must return five values, or six with the cost third, got 0"),
        (None, "Odd: step must return five values, or six with the cost third, got NoneType"),
        ((SEEN, 10**400, False, False, {"cost": 0}), "Odd: the reward of a step must be a number, got 1000"),
    ],
)
def test_what_a_step_must_return_is_said(returns, message):
    env = from_gymnasium(lambda: Odd(returns), 1, ONE, horizon=3)
    env.reset(0)
    with pytest.raises(CorralError, match=message):
        env.step(np.zeros((1, 1)))


def test_an_error_of_the_environment_keeps_its_kind_and_says_where_it_was():
    env = from_gymnasium(lambda: Odd(KeyError("motor")), 1, ONE, horizon=3)
    env.reset(0)
    with pytest.raises(KeyError) as raised:
        env.step(np.zeros((1, 1)))
    assert raised.value.__notes__ == ["in the environment Odd, in its step"]


def test_spaces_of_size_zero_and_no_spaces_are_refused():
    with pytest.raises(CorralError, match="Odd has an observation_space of size 0"):
        from_gymnasium(lambda: Odd(obs=(0,)), 1, horizon=3)
    with pytest.raises(CorralError, match="Odd has an action_space of size 0"):
        from_gymnasium(lambda: Odd(actions=(0,)), 1, horizon=3)
    odd = Odd()
    odd.action_space = None
    with pytest.raises(CorralError, match="its action_space must be a space of Gymnasium's, got None"):
        from_gymnasium(lambda: odd, 1, horizon=3)
    with pytest.raises(CorralError, match="its max_episode_steps must be a whole number from 1 on, got 0"):
        from_gymnasium(Odd, 1, horizon=0)


class OfGymnasiumSFile(Walker):
    """Loads one of Gymnasium's robots, as Gymnasium's own environments do."""

    def __init__(self):
        super().__init__()
        mujoco.MjModel.from_xml_path(str(find("half_cheetah.xml")))


def test_gymnasium_s_robots_leave_no_litter(tmp_path, monkeypatch):
    """MuJoCo writes its warnings about them to MUJOCO_LOG.TXT in the current folder, unless somebody hears them."""
    monkeypatch.chdir(tmp_path)
    gymnasium.register("tests/OfFile-v0", entry_point=OfGymnasiumSFile, max_episode_steps=3)
    try:
        from_gymnasium("tests/OfFile-v0", 1, ONE).close()
    finally:
        del gymnasium.registry["tests/OfFile-v0"]
    assert list(tmp_path.iterdir()) == []

import pytest

from corral import envs
from corral.envs import registry
from corral.errors import CorralError

# The paper's tables: d, x_lim, limit and the longest episode; apples, bombs, limit and length.
CIRCLE = {"point": (15, 2.5, 5, 65), "ant": (10, 3, 10, 500), "humanoid": (10, 2.5, 10, 1000)}
GATHER = {"point": (2, 8, 0.1, 15), "ant": (8, 8, 0.2, 500), "humanoid": (8, 8, 0.2, 500)}


@pytest.mark.parametrize("robot", ["point", "ant", "humanoid"])
def test_the_defaults_are_the_papers(robot):
    circle, gather = envs.parameters(f"{robot}-circle"), envs.parameters(f"{robot}-gather")
    assert (circle.d, circle.x_lim, circle.limit, circle.max_steps) == CIRCLE[robot]
    assert (gather.apples, gather.bombs, gather.limit, gather.max_steps) == GATHER[robot]


def test_names_are_the_paper_s_robots_times_two_tasks_and_six_that_run():
    paper = {f"{r}-{t}" for r in ("point", "ant", "humanoid") for t in ("circle", "gather")}
    runners = {f"{r}-velocity" for r in ("ant", "halfcheetah", "hopper", "humanoid", "swimmer", "walker2d")}
    assert set(envs.names()) == paper | runners


def test_parameters_can_be_changed_and_show_in_the_spec():
    spec = envs.spec("ant-circle", y_lim=2.0, limit=3.0, max_steps=77)
    assert spec.horizon == 77
    assert [(c.name, c.limit) for c in spec.constraints] == [("x", 3), ("y", 3)]
    assert envs.spec("ant-gather", sensor_bins=4).observation_size == 32 + 8


def test_a_number_is_one_whichever_way_it_is_written():
    assert envs.scenario("point-circle", d=12, max_steps=70.0) == envs.scenario("point-circle", d=12.0, max_steps=70)
    assert envs.scenario("point-circle", min_steps=None, y_lim=3).task.y_lim == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: envs.make("ant-cirle"), "'ant-cirle'; did you mean ant-circle"),
        (lambda: envs.make_host("zebra", 3), "there are point-circle"),
        (lambda: envs.make("point-gather", aples=3), "'aples'; did you mean apples"),
        (lambda: envs.make("point-gather", apples=30, bombs=6), "apples \\+ bombs"),
        (lambda: envs.make("point-circle", x_lim=-1.0), r"x_lim must lie in \(0, inf\), got -1.0"),
        (lambda: envs.make("point-circle", max_steps=20), r"min_steps must lie in \[1, 20\], got 50"),
        (lambda: envs.make_host("point-circle", 0), "num_envs must be at least 1"),
        (lambda: envs.make_host("ant-circle", 2, threads=0), "threads must be at least 1"),
        (lambda: envs.make("ant-circle", impl="c"), 'impl must be "warp" or "jax"'),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(CorralError, match=message):
        call()


def test_a_count_must_be_whole_and_a_switch_0_or_1():
    with pytest.raises(CorralError, match=r"apples must be a whole number, got 0.5"):
        envs.spec("point-gather", apples=0.5)
    with pytest.raises(CorralError, match=r"min_steps must be a whole number, got 0.5"):
        envs.spec("point-circle", min_steps=0.5)
    with pytest.raises(CorralError, match=r"raw_actions must be 0 or 1, got 0.5"):
        envs.spec("point-gather", raw_actions=0.5)
    assert envs.scenario("point-gather", raw_actions=1.0).task.raw_actions is True


def test_the_module_of_an_id_is_what_stands_before_its_colon():
    assert registry.module_of("my.module:Thing-v0") == "my.module"
    assert registry.module_of("Pendulum-v1") is None
    assert registry.module_of("point-gather") is None

"""ONNX models: they act as the policy does, in onnx's own reference and in onnxruntime, and say what they are."""

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from policies import KINDS, made

import corral.policy
from corral.errors import CorralError
from corral.policy import onnx as export
from corral.running import standalone

onnx = pytest.importorskip("onnx")
RUNTIMES = ["reference", *(["onnxruntime"] if find_spec("onnxruntime") else [])]


@pytest.fixture
def load(tmp_path):
    def loaded(kind: str, activation: str = "tanh", normalised: bool = True) -> corral.policy.Policy:
        policy, sizes = made(KINDS[kind], activation, normalised)
        standalone.write(tmp_path / "p.npz", policy, KINDS[kind], sizes, None)
        return corral.policy.load(tmp_path / "p.npz")

    return loaded


@pytest.fixture(params=RUNTIMES)
def runtime(request, monkeypatch):
    """What runs the models."""
    if request.param == "reference":
        real = export.import_module

        def without(name):
            if name == "onnxruntime":
                raise ImportError
            return real(name)

        monkeypatch.setattr(export, "import_module", without)
    return request.param


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(("activation", "normalised"), [("tanh", True), ("relu", False), ("elu", True), ("silu", True)])
def test_the_model_acts_as_the_policy_does(load, kind, sampled, activation, normalised, runtime):
    policy = load(kind, activation, normalised)
    difference, name = export.check(export.model(policy, sampled), policy, sampled, count=200)
    assert 0 <= difference <= 1e-5
    assert ("onnxruntime" in name) == (runtime == "onnxruntime")


def test_a_model_of_another_policy_fails_the_check(load, runtime):
    policy, other = load("box"), load("box")
    other.weights = (policy.weights[0] + 1e-3, *policy.weights[1:])
    with pytest.raises(CorralError, match="differs from the policy by"):
        export.check(export.model(other), policy)
    choosy, later = load("discrete"), load("discrete")
    later.about = choosy.about | {"action": choosy.about["action"] | {"start": 3}}
    with pytest.raises(CorralError, match="chooses other actions"):
        export.check(export.model(later), choosy)


def test_a_model_with_numbers_that_are_none_fails_the_check_and_so_does_such_a_policy(load, runtime):
    """NaN differs from nothing by more than the tolerance."""
    policy, other = load("bounded box"), load("bounded box")
    other.biases = (*policy.biases[:-1], np.full(4, np.nan, np.float32))
    with pytest.raises(CorralError, match="the exported model's numbers are not finite"):
        export.check(export.model(other), policy)
    with pytest.raises(CorralError, match="leads to, NaN or infinity"):
        export.check(export.model(policy), other)


def test_bounds_further_apart_than_the_largest_number_become_a_model(load, runtime):
    policy = load("bounded box")
    wide = {"low": [-3e38, -3e38, None, None], "high": [3e38, 3.4e38, 3.0, None]}
    policy.about = policy.about | {"action": policy.about["action"] | wide}
    difference, _ = export.check(export.model(policy, sampled=True), policy, sampled=True)
    assert difference <= 1e-5


def test_one_observation_and_many_are_batches(load, runtime):
    policy = load("bounded box")
    run, _ = export.session(export.model(policy))
    one, _ = run({"observation": np.ones((1, 5), np.float32)})
    many, mean = run({"observation": np.ones((7, 5), np.float32)})
    assert one.shape == (1, 2, 2)
    assert many.shape == (7, 2, 2)
    assert mean.shape == (7, 4)
    np.testing.assert_allclose(one[0], policy(np.ones(5)), atol=1e-5)


def test_the_model_says_what_it_is(load):
    policy = load("box")
    data = export.model(policy, sampled=True, certificate='{"verdict": "certified"}')
    whole = onnx.load_from_string(data)
    told = {p.key: p.value for p in whole.metadata_props}
    assert told["corral.policy_sha256"] == policy.sha256
    assert json.loads(told["corral.limits"]) == {"speed": 25.0}
    assert json.loads(told["corral.env"])["name"] == "box"
    assert json.loads(told["corral.certificate"])["verdict"] == "certified"
    assert told["corral.actions"] == "sampled, noise is standard normal"
    assert [i.name for i in whole.graph.input] == ["observation", "noise"]
    assert [o.name for o in whole.graph.output] == ["action", "mean"]
    plain = onnx.load_from_string(export.model(policy))
    assert [i.name for i in plain.graph.input] == ["observation"]
    assert "corral.certificate" not in {p.key for p in plain.metadata_props}


def test_without_onnx_the_error_says_what_to_install(load, monkeypatch):
    def absent(name):
        raise ImportError

    policy = load("box")
    monkeypatch.setattr(export, "import_module", absent)
    with pytest.raises(CorralError, match=r"pip install 'corral\[onnx\]'"):
        export.model(policy)


def test_the_model_has_what_the_c_plus_plus_and_ros_programs_of_the_page_name(load, runtime):
    """Neither program runs here: their names, one row of float32 in and one action out are what can be tested."""
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    (cpp,), (ros,) = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("cpp", "py"))
    (given,), (taken,) = (re.findall(rf'{what}\[\] = {{"(\w+)"}}', cpp) for what in ("inputs", "outputs"))
    assert f'run(["{taken}"], {{"{given}": obs[None]}})' in ros
    policy = load("bounded box")
    data = export.model(policy)
    graph = onnx.load_from_string(data).graph
    assert [value.name for value in graph.input] == [given]
    place = [value.name for value in graph.output].index(taken)
    obs = np.full(policy.observation_size, 0.5, np.float32)
    action = export.session(data)[0]({given: obs[None]})[place]
    assert action.dtype == np.float32
    assert action.shape == (1, *policy(obs).shape)
    np.testing.assert_allclose(action[0], policy(obs), atol=1e-5)


def test_the_ros_node_of_the_page_publishes_the_policy_s_action_and_none_for_an_observation_that_is_none(
    load, runtime, monkeypatch
):
    """With stand-ins for ROS, which hand messages over, and for onnxruntime's session, which asks what is installed."""
    policy = load("box")
    run, _ = export.session(export.model(policy))
    nodes, published, errors = [], [], []

    class Node:
        def __init__(self, name):
            self.name = name

        def create_publisher(self, kind, topic, depth):
            return SimpleNamespace(publish=lambda message: published.append((topic, message.data)))

        def create_subscription(self, kind, topic, hear, depth):
            self.heard = {topic: hear}

        def get_logger(self):
            return SimpleNamespace(error=errors.append)

    class Session:
        def __init__(self, path, providers):
            self.path = path

        def get_inputs(self):
            return [SimpleNamespace(shape=["batch", policy.observation_size])]

        def run(self, names, inputs):
            assert names == ["action"]
            return run(inputs)[:1]

    parts = {
        "rclpy": {"init": lambda: None, "spin": nodes.append},
        "rclpy.node": {"Node": Node},
        "std_msgs": {},
        "std_msgs.msg": {"Float32MultiArray": lambda data: SimpleNamespace(data=data)},
        "onnxruntime": {"InferenceSession": Session},
    }
    for name, content in parts.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    exec(re.findall(r"```py\n(.*?)```", page, re.DOTALL)[0], {})
    hear = nodes[0].heard["observation"]
    for obs in ([0.5] * 5, [float("nan")] * 5, [0.5] * 4):
        hear(SimpleNamespace(data=obs))
    ((topic, action),) = published
    assert topic == "action"
    np.testing.assert_allclose(action, policy(np.full(5, 0.5)), atol=1e-5)
    assert len(errors) == 2

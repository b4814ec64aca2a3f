"""A policy as an ONNX model, for runtimes of any language, and the check that the model acts as the policy does.

Inputs: `observation` (batch, o), and for sampled actions `noise` (batch, outputs), N(0, 1) for a box and Gumbel,
−log(−log u), for choices: whoever runs the model owns its chance, so that a run can be repeated. Outputs:
`action`, as the environment's `step` takes it, and `mean` or `logits`, the network's own output. Scaling and clipping
of observations are inside. Needs the package onnx (`pip install corral[onnx]`).
"""

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from corral.errors import CorralError, require
from corral.policy.file import Policy

TOLERANCE = 1e-5
"""The model's numbers may differ by this from the policy's, relative to the largest of 1, their size and half the width of
their bounds."""

_OPSET = 17  # onnxruntime knows it since 1.12
_IR = 8


def model(policy: Policy, sampled: bool = False, certificate: str | None = None) -> bytes:
    """The bytes of an ONNX file; `certificate` is the text of one for this policy."""
    onnx = _onnx()
    made = _Graph(onnx)
    output = _network(made, policy)
    name = "mean" if policy.choices is None else "logits"
    made.node("Identity", [output], name)
    noisy = output
    if sampled:
        chance = "noise" if policy.sigma is None else made.node("Mul", ["noise", made.constant("sigma", policy.sigma)])
        noisy = made.node("Add", [output, chance])
    shape = _box(made, policy, noisy) if policy.choices is None else _choices(made, policy, policy.choices, noisy)

    def value(name: str, dtype: int, shape: list[Any]) -> Any:
        return onnx.helper.make_tensor_value_info(name, dtype, ["batch", *shape])

    real, whole = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    size = policy.output_size
    inputs = [value("observation", real, [policy.observation_size])] + (
        [value("noise", real, [size])] if sampled else []
    )
    outputs = [value("action", real if policy.choices is None else whole, shape), value(name, real, [size])]
    graph = onnx.helper.make_graph(made.nodes, "policy", inputs, outputs, made.constants)
    whole_model = onnx.helper.make_model(
        graph, producer_name="corral", opset_imports=[onnx.helper.make_opsetid("", _OPSET)], ir_version=_IR
    )
    onnx.helper.set_model_props(whole_model, _metadata(policy, sampled, certificate))
    onnx.checker.check_model(whole_model, full_check=True)
    data: bytes = whole_model.SerializeToString()
    return data


class _Graph:
    """Nodes and constants of a graph, with names."""

    def __init__(self, onnx: Any) -> None:
        self.onnx, self.nodes, self.constants = onnx, [], []  # type: tuple[Any, list[Any], list[Any]]

    def constant(self, name: str, array: Any, dtype: Any = np.float32) -> str:
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def node(self, kind: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        output = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [output], **attributes))
        return output


def _network(made: _Graph, policy: Policy) -> str:
    """The nodes from the observation to the network's output."""
    x = "observation"
    if policy.mean is not None and policy.deviation is not None:
        clip = float(policy.about["normalizer"]["clip"])
        x = made.node("Sub", [x, made.constant("observation_mean", policy.mean)])
        x = made.node("Div", [x, made.constant("observation_deviation", policy.deviation)])
        x = made.node("Clip", [x, made.constant("clip_low", -clip), made.constant("clip_high", clip)])
    last = len(policy.weights) - 1
    for k, (W, b) in enumerate(zip(policy.weights, policy.biases, strict=True)):
        x = made.node("Gemm", [x, made.constant(f"weight_{k}", W), made.constant(f"bias_{k}", b)])
        if k < last:
            x = _activation(made, policy.about["network"]["activation"], x)
    return x


def _activation(made: _Graph, name: str, x: str) -> str:
    if name == "silu":
        return made.node("Mul", [x, made.node("Sigmoid", [x])])
    return made.node({"tanh": "Tanh", "relu": "Relu", "elu": "Elu"}[name], [x])


def _choices(made: _Graph, policy: Policy, sizes: tuple[int, ...], x: str) -> list[Any]:
    """The largest of each part of the output, as the environment counts them, and the shape of an action."""
    how = policy.about["action"]
    if how["kind"] == "discrete":
        chosen = made.node("ArgMax", [x], axis=-1, keepdims=0)
        made.node("Add", [chosen, made.constant("start", how["start"], np.int64)], "action")
        return []
    ends, places = np.cumsum(sizes), []
    last = made.constant("last_axis", [-1], np.int64)
    for k, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        span = [
            made.constant(f"part_{k}_{name}", [int(n)], np.int64) for name, n in (("from", end - size), ("to", end))
        ]
        places.append(made.node("ArgMax", [made.node("Slice", [x, *span, last])], axis=-1, keepdims=1))
    chosen = made.node("Concat", places, axis=-1)
    chosen = made.node("Add", [chosen, made.constant("start", how["start"] or [0] * len(sizes), np.int64)])
    shape = [len(sizes)] if how["shape"] is None else list(how["shape"])
    made.node("Reshape", [chosen, made.constant("action_shape", [-1, *shape], np.int64)], "action")
    return shape


def _box(made: _Graph, policy: Policy, x: str) -> list[Any]:
    """The map onto the environment's bounds, and its shape; see `Policy`."""
    how = policy.about["action"]
    if how["low"] is not None:
        low, high = policy.bounds()
        both = np.isfinite(low) & np.isfinite(high)
        half_start = np.where(both, low, 0) / 2  # as in `acting`: no width is too large for single precision
        quarter = np.subtract(high / 2, low / 2, where=both, out=np.zeros_like(low)) / 2
        unit = made.node("Clip", [x, made.constant("minus_one", -1.0), made.constant("one", 1.0)])
        mapped = made.node("Mul", [made.node("Add", [unit, "one"]), made.constant("quarter_width", quarter)])
        mapped = made.node("Add", [mapped, made.constant("half_start", half_start)])
        mapped = made.node("Mul", [mapped, made.constant("two", 2.0)])
        clipped = made.node("Max", [x, made.constant("action_low", low)])
        clipped = made.node("Min", [clipped, made.constant("action_high", high)])
        x = made.node("Where", [made.constant("bounded", both, bool), mapped, clipped])
    shape = [how["size"]] if how["shape"] is None else list(how["shape"])
    made.node("Reshape", [x, made.constant("action_shape", [-1, *shape], np.int64)], "action")
    return shape


def _metadata(policy: Policy, sampled: bool, certificate: str | None) -> dict[str, str]:
    """What the file says of itself: plain words and JSON."""
    about = policy.about
    noise = "standard normal" if policy.choices is None else "Gumbel: -log(-log(u))"
    found = {
        "corral.policy_sha256": policy.sha256,
        "corral.actions": f"sampled, noise is {noise}" if sampled else "most likely",
        "corral.limits": json.dumps({c["name"]: c["limit"] for c in about["constraints"]}),
    }
    parts = ("env", "observation", "normalizer", "action", "constraints", "versions")
    found |= {f"corral.{name}": json.dumps(about[name]) for name in parts}
    return found | ({"corral.certificate": certificate} if certificate else {})


# -- the check
# ------------------------------------------------------------------------------------------------------------

Session = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]
"""Runs a model: from inputs by name to its outputs in their order."""


def session(data: bytes) -> tuple[Session, str]:
    """What runs a model here, and its name: onnxruntime where it is installed, else the reference in NumPy of onnx
    itself."""
    try:
        runtime: Any = import_module("onnxruntime")
    except ImportError:
        evaluator = import_module("onnx.reference").ReferenceEvaluator(_onnx().load_from_string(data))

        # Its sigmoid computes eˣ / (1 + eˣ), ∞ / ∞ for large x, also where it takes the other form.
        def reference(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
            with np.errstate(over="ignore", invalid="ignore"):
                found: list[np.ndarray] = evaluator.run(None, dict(inputs))
            return found

        return reference, "onnx's reference evaluator"
    made = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return lambda inputs: made.run(None, dict(inputs)), f"onnxruntime {runtime.__version__}"


def check(data: bytes, policy: Policy, sampled: bool = False, count: int = 1000, seed: int = 0) -> tuple[float, str]:
    """The largest difference between model and policy over random and extreme observations, and what ran the model.

    CorralError where it is over `TOLERANCE`, or a number of the model is not finite.
    """
    run, name = session(data)
    obs, noise = _questions(policy, count, seed)
    action, output = run({"observation": obs} | ({"noise": noise} if sampled else {}))
    expected, own = policy.output(obs), policy(obs, noise=noise if sampled else None)
    for whose, numbers in (("the policy's", (expected, own)), ("the exported model's", (output, action))):
        finite = all(np.isfinite(array).all() for array in numbers)
        require(finite, f"{whose} numbers are not finite everywhere, by {name}")
    scale = np.maximum(1, np.abs(expected))
    worst = float(np.max(np.abs(output - expected) / scale))
    require(action.shape == own.shape, f"the exported model's actions are {action.shape}, the policy's {own.shape}")
    if policy.choices is None:
        worst = max(worst, float(np.max(np.abs(action - own) / _action_scale(policy, own))))
    else:
        clear = _clear(expected + noise if sampled else expected, policy.choices, scale.max(axis=-1))
        same = (action == own).reshape(clear.shape)
        require(bool(np.all(same[clear])), "the exported model chooses other actions than the policy")
    require(worst <= TOLERANCE, f"the exported model differs from the policy by {worst:.2g}, by {name}")
    return worst, name


def _action_scale(policy: Policy, own: np.ndarray) -> np.ndarray:
    """What a difference between continuous actions is relative to."""
    low, high = policy.bounds()
    both = np.isfinite(low) & np.isfinite(high)
    half = np.subtract(high / 2, low / 2, where=both, out=np.zeros_like(low))
    # Actions between far bounds are rounded as their bounds are, also those near 0.
    found: np.ndarray = np.maximum(np.maximum(1, np.abs(own)), half.reshape(own.shape[1:]))
    return found


def _clear(output: np.ndarray, sizes: tuple[int, ...], scale: np.ndarray) -> np.ndarray:
    """(n, places): whether the best choice is better than the next by more than rounding; else either is right."""
    # A choice among one is always clear: −∞ is what it is better than.
    none = np.full((len(output), 1), -np.inf)
    parts = np.split(output, np.cumsum(sizes)[:-1], axis=-1)
    ranked = [np.sort(np.concatenate([none, part], axis=-1), axis=-1) for part in parts]
    return np.stack([part[:, -1] - part[:, -2] > 10 * TOLERANCE * scale for part in ranked], axis=-1)


def _questions(policy: Policy, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Observations (n, o) around those seen in training, far from them and extreme, and noise (n, actions)."""
    random, size = np.random.default_rng(seed), policy.observation_size
    mean = np.zeros(size) if policy.mean is None else policy.mean
    deviation = np.ones(size) if policy.deviation is None else policy.deviation
    usual = mean + deviation * random.standard_normal((count, size)) * 10 ** random.uniform(-3, 2, (count, 1))
    # Without scaling, huge inputs make huge outputs, whose rounding is no matter of the export.
    far = 1e4 if policy.mean is None else 1e30
    extreme = np.stack([np.zeros(size), np.full(size, far), np.full(size, -far), far * (-1.0) ** np.arange(size)])
    obs = np.concatenate([usual, extreme]).astype(np.float32)
    shape = (len(obs), policy.output_size)
    noise = random.standard_normal(shape) if policy.choices is None else random.gumbel(size=shape)
    return obs, noise.astype(np.float32)


def _onnx() -> Any:
    try:
        return import_module("onnx")
    except ImportError:
        raise CorralError("ONNX files need the package onnx: pip install 'corral[onnx]'") from None

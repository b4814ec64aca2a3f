"""Policy files that stand alone: a policy's arrays, and beside them all that a reader without Corral's code must know."""

import platform
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from corral import __version__
from corral.config import Config, Networks
from corral.envs.contract import Action, Box, ConstraintSpec, Discrete, EnvSpec, MultiDiscrete
from corral.errors import CorralError, brief
from corral.learning import update
from corral.learning.networks import CLIP, DEAD_BAND, MLP, Adopted, Policy, make_policy
from corral.policy import file
from corral.running import checkpoint, config_file

_ACTIONS: dict[str, Callable[..., Action]] = {kind.__name__: kind for kind in (Box, Discrete, MultiDiscrete)}
_MEAN, _DEVIATION, _SIGMA = "observation.mean", "observation.deviation", "action.deviation"


def write(path: Path, policy: Policy, spec: EnvSpec, networks: Networks, config: Config | None, **more: Any) -> None:
    """Write a policy file; `more` goes into its meta. The configuration tells the task's parameters and the limits."""
    meta, arrays = described(policy, spec, networks, config)
    checkpoint.write(path, policy, meta | more, arrays)


def described(
    policy: Policy, spec: EnvSpec, networks: Networks, config: Config | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The meta of a policy file, and the arrays beside those of the policy itself: (meta, arrays)."""
    arrays: dict[str, np.ndarray] = {}
    scale = None
    if policy.normalizer is not None:
        # The statistics are running sums; what acts is a mean and a deviation.
        mean, deviation = (np.asarray(x) for x in policy.normalizer.scale())
        arrays |= {_MEAN: mean, _DEVIATION: deviation}
        numbers = {"clip": CLIP, "dead_band": DEAD_BAND, "least_deviation": networks.least_deviation}
        scale = {"mean": _MEAN, "deviation": _DEVIATION} | numbers
    if policy.log_std is not None:
        arrays[_SIGMA] = np.exp(np.asarray(policy.log_std))
    network, own = _network(policy)
    arrays |= own
    about = {
        "format": file.FORMAT,
        "env": {"name": spec.name, "task": dict(config.task) if config else {}, "horizon": spec.horizon},
        "observation": {"size": spec.observation_size, "space": spec.observation},
        "normalizer": scale,
        "network": network,
        "action": _action(spec.action),
        "constraints": _constraints(spec, config),
        "seed": config.seed if config else 0,
        "versions": versions(),
    }
    said = {"env": spec.name, "spec": asdict(spec), "action": type(spec.action).__name__}
    said |= {"config": config_file.as_dict(config)} if config else {}
    return said | {"networks": asdict(networks), "policy": about}, arrays


class Standalone(NamedTuple):
    """What a policy file holds."""

    policy: Policy
    spec: EnvSpec
    networks: Networks
    config: Config | None
    """How it was trained; None where the file does not say, or its algorithm is not installed here."""
    meta: dict[str, Any]
    metrics: dict[str, np.ndarray] | None
    """The rows of its training by column; None where the file has none."""


def read(path: Path, net: Any | None = None, content: bytes | None = None) -> Standalone | None:
    """What a policy file holds, or its `content`, read before; None where it does not say what its arrays mean."""
    meta = checkpoint.read_meta(path, content)
    if "spec" not in meta:
        return None
    try:
        spec, config = _spec(meta), _config(meta)
        networks = Networks(**(meta["networks"] | {"hidden": tuple(meta["networks"]["hidden"])}))
        like = make_policy(spec, networks, jax.random.key(0), net)
        metrics = {name: np.asarray(values) for name, values in meta.get("metrics", {}).items()}
    except (AttributeError, KeyError, TypeError, OverflowError, ValueError) as error:
        if isinstance(error, CorralError):
            raise
        raise CorralError(f"{path} holds no policy of Corral's: {brief(error)}") from error
    policy, _ = checkpoint.load(path, like, content)
    return Standalone(policy, spec, networks, config, meta, metrics if "metrics" in meta else None)


def _spec(meta: dict[str, Any]) -> EnvSpec:
    said = meta["spec"]
    action: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in said["action"].items()}
    # Version 0.1.0 wrote whether the actions are discrete.
    kind = _ACTIONS[meta["action"] if "action" in meta else "Discrete" if meta["discrete"] else "Box"]
    constraints = tuple(ConstraintSpec(**c) for c in said["constraints"])
    return EnvSpec(**(said | {"action": kind(**action), "constraints": constraints}))


def _config(meta: dict[str, Any]) -> Config | None:
    try:
        return config_file.fill(Config(meta["env"]), meta["config"]) if "config" in meta else None
    except CorralError:
        return None


def versions() -> dict[str, str]:
    """What made a file."""
    return {"corral": __version__, "jax": jax.__version__, "numpy": np.__version__, "python": platform.python_version()}


def _network(policy: Policy) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """How the network makes its output, and the arrays for it that are not among those of the policy."""
    net = policy.net
    if not isinstance(net, MLP):
        theirs = eqx.combine(net.arrays, net.rest) if isinstance(net, Adopted) else net
        connected = fully_connected(theirs) if isinstance(net, Adopted) and net.by_row and net.shape is None else None
        if connected is None:
            return {"kind": "own", "name": type(theirs).__name__}, {}
        activation, parts = connected
        called = [{kind: f"network.{kind}.{k}" for kind in ("weight", "bias")} for k in range(len(parts))]
        arrays = {c[kind]: part[kind] for c, part in zip(called, parts, strict=True) for kind in ("weight", "bias")}
        return {"kind": "mlp", "activation": activation, "layers": called}, arrays
    where = eqx.tree_at(lambda p: p.normalizer, policy, None, is_leaf=lambda x: x is None)
    names = [checkpoint.name_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(where)]
    weights, biases = ([n for n in names if f".{kind}[" in n] for kind in ("weights", "biases"))
    layers = [{"weight": w, "bias": b} for w, b in zip(weights, biases, strict=True)]
    return {"kind": "mlp", "activation": net.activation, "layers": layers}, {}


_KNOWN = {
    "tanh": (jnp.tanh, jax.nn.tanh, jax.lax.tanh),
    "relu": (jax.nn.relu,),
    "elu": (jax.nn.elu,),
    "silu": (jax.nn.silu, jax.nn.swish),
}
"""The functions that readers of policy files know by name."""


def fully_connected(net: Any) -> tuple[str, list[dict[str, np.ndarray]]] | None:
    """Activation and layers of Equinox's MLP, or of its Sequential of Linear and Lambda, as readers of files know them.

    None for any other network: what it does is in its code only.
    """
    parts: list[Any]
    if type(net) is eqx.nn.MLP:
        parts = [part for layer in net.layers for part in (layer, net.activation)][:-1]
        blank = eqx.nn.MLP(1, 1, 1, 1, key=jax.random.key(0))
        if net.final_activation is not blank.final_activation:
            return None
    elif type(net) is eqx.nn.Sequential:
        parts = [part.fn if type(part) is eqx.nn.Lambda else part for part in net.layers]
    else:
        return None
    linear: list[Any] = parts[::2]
    between: list[Any] = parts[1::2]
    if len(linear) != len(between) + 1 or not all(type(part) is eqx.nn.Linear for part in linear):
        return None
    # A single layer has no activation: any name serves.
    named = {next((name for name, known in _KNOWN.items() if f in known), "") for f in between} or {"tanh"}
    if len(named) != 1 or "" in named:
        return None
    layers = []
    for part in linear:
        weight = np.ascontiguousarray(np.asarray(part.weight, np.float32).T)
        bias = np.zeros(weight.shape[1], np.float32) if part.bias is None else np.asarray(part.bias, np.float32)
        layers.append({"weight": weight, "bias": bias})
    return named.pop(), layers


def _action(action: Action) -> dict[str, Any]:
    """How the network's output becomes an action; a bound that is not there is null."""
    if isinstance(action, Discrete):
        return {"kind": "discrete", "size": action.size, "start": action.start}
    if isinstance(action, MultiDiscrete):
        return {"kind": "multi_discrete"} | asdict(action)
    ends = {name: _finite(getattr(action, name)) for name in ("low", "high")}
    return {"kind": "box", "size": action.size, "deviation": _SIGMA, "shape": action.shape} | ends


def _finite(bounds: tuple[float, ...] | None) -> list[float | None] | None:
    return None if bounds is None else [x if np.isfinite(x) else None for x in bounds]


def _constraints(spec: EnvSpec, config: Config | None) -> list[dict[str, Any]]:
    """Every constraint with the limit and the discount that were in force."""
    limits = update.limits(config, spec) if config else tuple(c.limit for c in spec.constraints)
    gammas = update.cost_discounts(config, spec) if config else tuple(c.discount or 1.0 for c in spec.constraints)
    return [
        asdict(c) | {"limit": float(limit), "discount": float(gamma)}
        for c, limit, gamma in zip(spec.constraints, limits, gammas, strict=True)
    ]

"""Policies in NumPy, for host environments: for a few rows and a small network, that is faster than a compiled call."""

from typing import Any

import jax
import numpy as np

from corral.envs.contract import Action
from corral.learning.networks import CLIP, MLP, Policy
from corral.policy.acting import Actor


def plain(policy: Policy, action: Action) -> Actor | None:
    """The policy in NumPy, for an environment with such actions; None where its network is not one of Corral's own.

    Its actions differ from those of the compiled policy by rounding.
    """
    net = policy.net
    if not isinstance(net, MLP):
        return None
    arrays: dict[str, Any] = {f"weights_{k}": W for k, W in enumerate(net.weights)}
    arrays |= {f"biases_{k}": b for k, b in enumerate(net.biases)}
    if policy.normalizer is not None:
        arrays["mean"], arrays["deviation"] = policy.normalizer.scale()
    host = {name: np.asarray(array) for name, array in jax.device_get(arrays).items()}
    if policy.log_std is not None:
        host["sigma"] = np.exp(np.asarray(policy.log_std))
    how = {name: getattr(action, name, None) for name in ("low", "high", "shape", "start")}
    return Actor(how | {"activation": net.activation, "sizes": policy.sizes, "clip": CLIP}, host)

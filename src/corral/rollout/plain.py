"""Policies in NumPy, for host environments: for a few rows and a small network, that is faster than a compiled call."""

from collections.abc import Callable

import numpy as np

from corral.learning.networks import CLIP, MLP, Policy
from corral.policy.file import layers

Answer = Callable[..., np.ndarray]
"""Actions for observations (n, o): the most likely ones, or those drawn with the noise that is the second argument."""


def plain(policy: Policy) -> Answer | None:
    """The actions of a policy, computed in NumPy; None where its network is not one of Corral's own.

    They differ from those of the compiled policy by rounding. One observation's actions depend on nothing but the policy,
    its noise and the number of rows, so a run is the same with any number of workers.
    """
    net = policy.net
    if not isinstance(net, MLP):
        return None
    weights, biases = ([np.asarray(array) for array in arrays] for arrays in (net.weights, net.biases))
    scale = None if policy.normalizer is None else tuple(np.asarray(part) for part in policy.normalizer.scale())
    sigma = None if policy.log_std is None else np.exp(np.asarray(policy.log_std))
    ends = None if policy.sizes is None else np.cumsum(policy.sizes)[:-1]

    def answer(obs: np.ndarray, noise: np.ndarray | None = None) -> np.ndarray:
        with np.errstate(all="ignore"):  # as in compiled code; what is not finite is found where actions are used
            x = obs
            if scale is not None:
                x = np.minimum(np.maximum((obs - scale[0]) / scale[1], -CLIP), CLIP)
            out = layers(x, weights, biases, net.activation)
            if sigma is not None:
                return out if noise is None else out + sigma * noise
            out = out if noise is None else out + noise
        if ends is None:
            return np.argmax(out, axis=-1).astype(np.int32)
        return np.stack([np.argmax(part, axis=-1) for part in np.split(out, ends, axis=-1)], axis=-1).astype(np.int32)

    return answer

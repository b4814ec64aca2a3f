"""Observation spaces of Gymnasium as text, so that a policy from a file can flatten what its environment hands out."""

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from corral.envs.gymnasium import worker
from corral.errors import CorralError

to_text = worker.space_to_text


def from_text(text: str) -> Space[Any]:
    """The space that `to_text` wrote; its boxes have no bounds."""
    return _made(json.loads(text))


def _made(described: Any) -> Space[Any]:
    match described:
        case ["box", shape, name]:
            dtype: Any = np.dtype(name)
            whole = dtype.kind in "iu"
            low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if whole else (-np.inf, np.inf)
            return Box(low, high, tuple(shape), dtype)
        case ["discrete", n, start]:
            return Discrete(n, start=start)
        case ["binary", shape]:
            return MultiBinary(shape)
        case ["several", choices, start]:
            return MultiDiscrete(choices, start=start)
        case ["tuple", parts]:
            return Tuple(list(map(_made, parts)))
        case ["dict", parts]:
            return Dict(OrderedDict((name, _made(part)) for name, part in parts))
    raise CorralError(f"no space of observations is written like this: {described}")


def looks_like(space: Space[Any], obs: Any) -> bool:
    """Whether this is one observation of the space rather than numbers that are flat already."""
    if isinstance(space, Dict | Tuple):
        return isinstance(obs, Mapping | tuple)
    return np.shape(obs) == space.shape


def flat(name: str, space: Space[Any], obs: Any, size: int) -> np.ndarray:
    """An observation as (size,) numbers; `name` is that of the environment it came from."""
    try:
        return worker.flat(name, space, obs, size)
    except worker.Trouble as trouble:
        raise CorralError(str(trouble)) from trouble

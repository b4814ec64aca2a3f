"""Observation spaces of Gymnasium as text, so that a policy from a file can flatten what its environment hands out."""

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, flatten

from corral.errors import CorralError, require


def to_text(space: Space[Any]) -> str | None:
    """What `flatten` has to know of a space, as JSON; None for plain vectors and for kinds that are not among those here."""
    if isinstance(space, Box) and len(space.shape) == 1:
        return None
    try:
        return json.dumps(_described(space))
    except TypeError:
        return None


def from_text(text: str) -> Space[Any]:
    """The space that `to_text` wrote; its boxes have no bounds."""
    return _made(json.loads(text))


def _described(space: Space[Any]) -> list[Any]:
    """The name of a kind of space, and what it takes to make one."""
    match space:
        case Box():
            return ["box", space.shape, space.dtype.name]
        case Discrete():
            return ["discrete", int(space.n), int(space.start)]
        case MultiBinary():
            return ["binary", space.shape]
        case MultiDiscrete():
            return ["several", space.nvec.tolist(), space.start.tolist()]
        case Tuple():
            return ["tuple", [_described(part) for part in space.spaces]]
        case Dict():
            return ["dict", [(name, _described(part)) for name, part in space.spaces.items()]]
    raise TypeError(type(space).__name__)


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
        found = np.asarray(flatten(space, obs), np.float32)
    except (AttributeError, AssertionError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise CorralError(f"{name} handed out an observation that is not of {space}: {error}") from error
    require(
        found.shape == (size,),
        f"{name} handed out an observation of {found.size} numbers, and its observation_space has {size}",
    )
    return found

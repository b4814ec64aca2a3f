"""Checks of array arguments by shape and type alone, so that they also work on traced arrays."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from corral.errors import CorralError, require, require_shape


def require_floats(name: str, value: Any, shape: Sequence[int | None], meaning: str = "") -> None:
    """Require an array of floating-point numbers of `shape` (None matches any size)."""
    found = getattr(value, "dtype", type(value).__name__)
    floats = hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating)
    require(floats, f"{name} must be an array of floating-point numbers, got {found}")
    require_shape(name, value, shape, meaning)


def as_real(name: str, value: Any) -> Any:
    """Require a number, an array or nested lists of real numbers; the lists become an array."""
    try:
        array = np.asarray(value) if isinstance(value, Sequence) else value
        dtype = jnp.result_type(array)
    except (TypeError, ValueError):
        raise CorralError(f"{name} must hold real numbers, got {type(value).__name__}") from None
    real = jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    require(real, f"{name} must hold real numbers, got {dtype}")
    return array

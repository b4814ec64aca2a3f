"""The one kind of error a user is meant to read: what was wrong, where, and what to do, in one line."""

import importlib
import math
from collections.abc import Iterable, Sequence
from typing import Any


class CorralError(ValueError):
    """Bad input. The command line prints its message without a traceback and exits with status 2."""


def require(condition: bool, message: str) -> None:
    """Raise `CorralError(message)` unless `condition` holds."""
    if not condition:
        raise CorralError(message)


def package(name: str) -> Any:
    """The module of a package that only some need; where it is not installed, the error says which extra has it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        extra = {"submitit": "slurm"}.get(name, name)
        raise CorralError(f"{name} is not installed: pip install 'corral[{extra}]'") from None


def brief(value: object, most: int = 80) -> str:
    """`repr(value)` for a message, in one line: the start of a long one."""
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # Python writes no whole number of more than 4,300 digits
        text = f"a {type(value).__name__} too large to write"
    return text if len(text) <= most else f"{text[:most]}…"


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name that this misspelt one probably stands for, or None."""
    import difflib  # here: a program that only acts starts without it

    return next(iter(difflib.get_close_matches(str(name)[:100], list(known), n=1)), None)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """A hint for a name that is not among the known ones: the nearest of them, or all where none is near."""
    names = list(known)
    near = nearest(name, names)
    return f"did you mean {near}?" if near else f"there are {', '.join(names)}"


def require_shape(name: str, value: Any, shape: Sequence[int | None], meaning: str = "") -> None:
    """Require `value.shape` to be `shape` (None matches any size); works on traced arrays as well.

    `meaning` explains the shape to the reader, such as "(states, actions)".
    """
    import numpy as np  # here: a program that only acts starts without it

    found = tuple(np.shape(value))
    fits = len(found) == len(shape) and all(
        want is None or want == have for want, have in zip(shape, found, strict=True)
    )
    wanted = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ("," if len(shape) == 1 else "") + ")"
    require(fits, f"{name} must have shape {wanted}{f' = {meaning}' if meaning else ''}, got {found}")


def require_finite(name: str, value: Any) -> None:
    """Require every entry of a concrete `value` to be a finite number, naming the first that is not."""
    import numpy as np

    array = np.asarray(value)
    require(np.issubdtype(array.dtype, np.number), f"{name} must hold numbers, got dtype {array.dtype}")
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        at = f" at index {where}" if where else ""
        raise CorralError(f"{name} must be finite, got {array[where]}{at} ({len(bad)} such entries)")


def require_in(name: str, value: float | int, low: float | int, high: float | int, *, closed: str = "[]") -> None:
    """Require a scalar inside an interval; `closed` is one of "[]", "[)", "(]", "()"."""
    above = value >= low if closed[0] == "[" else value > low
    below = value <= high if closed[1] == "]" else value < high
    interval = f"{closed[0]}{low:g}, {high:g}{closed[1]}"
    require(not math.isnan(value) and above and below, f"{name} must lie in {interval}, got {brief(value)}")

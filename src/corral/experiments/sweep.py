"""Sweeps: in a table [[runs]], a list of values where one is expected stands for one run per value.

docs/experiments.md, "Sweeps", has examples and the rule for settings that are lists themselves.
"""

import types
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import is_dataclass
from itertools import product
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from corral.config import Config, algorithms
from corral.errors import require


class _Axis(NamedTuple):
    """A swept key and its values."""

    path: tuple[str, ...]
    values: list[Any]


def swept(table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The tables that a table [[runs]] stands for: one for each combination of the values of its lists."""
    algo, settings = table.get("algo", {}), table.get("settings", {})
    axes = list(_axes(settings, Config, ("settings",)))
    if isinstance(algo, Mapping):
        axes += _axes(algo, algorithms().get(str(algo.get("name", "cpo"))), ("algo",))
    several = [axis for axis in axes if len(axis.values) > 1]
    for values in product(*(axis.values for axis in axes)):
        own = deepcopy(dict(table))
        for axis, value in zip(axes, values, strict=True):
            inside = own
            for part in axis.path[:-1]:
                inside = inside[part]
            inside[axis.path[-1]] = value
            if axis in several and isinstance(own.get("label"), str):
                own["label"] += f", {_name(axis, several)} {_text(value)}"
        yield own


def _axes(content: Mapping[str, Any], kind: Any, path: tuple[str, ...]) -> Iterator[_Axis]:
    """The swept keys of a table whose fields have the types of a dataclass."""
    hints = get_type_hints(kind) if is_dataclass(kind) else {}
    for key, value in content.items():
        hint, here = hints.get(key), (*path, key)
        if isinstance(value, Mapping) and is_dataclass(hint):
            yield from _axes(value, hint, here)
        elif isinstance(value, Mapping) and dict in _origins(hint):
            yield from (_Axis((*here, name), v) for name, v in value.items() if _is_sweep(v, float, here))
        elif hint is not None and _is_sweep(value, hint, here):
            yield _Axis(here, value)


def _is_sweep(value: Any, hint: Any, path: tuple[str, ...]) -> bool:
    """Whether a value is a list of values for a field of this type."""
    if not isinstance(value, list) or tuple in _origins(hint):
        return isinstance(value, list) and any(isinstance(part, list) for part in value)
    require(len(value) > 0, f"{'.'.join(path)} must name at least one value, got []")
    return True


def _origins(hint: Any) -> set[Any]:
    """tuple, dict: the kinds of collection that a field of this type holds; none if it may hold a single number as well."""
    kinds = {get_origin(part) for part in get_args(hint)} if isinstance(hint, types.UnionType) else {get_origin(hint)}
    return kinds if None not in kinds else set()


def _name(axis: _Axis, axes: list[_Axis]) -> str:
    """The key without its table, or with it where two swept keys have the same name."""
    alike = [other for other in axes if other.path[-1] == axis.path[-1]]
    return axis.path[-1] if len(alike) == 1 else ".".join(axis.path[1:])


def _text(value: Any) -> str:
    """A value in a label."""
    if isinstance(value, list):
        return _text(value[0]) if len(value) == 1 else f"[{', '.join(map(_text, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, int | float) else str(value)

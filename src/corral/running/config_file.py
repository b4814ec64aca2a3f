"""Configurations as nested dicts and as TOML.

Flags, files and keywords all become one nested dict, {"gamma": 0.99, "trust": {"delta": 0.02}}, and `fill` puts it into
the dataclasses of `corral.config`, with types checked. `lines` writes a dataclass as TOML, every field under its docstring.
"""

import ast
import functools
import inspect
import itertools
import json
import textwrap
import tomllib
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from corral.config import Algorithm, Config, RunOptions, algorithms
from corral.errors import CorralError, brief, did_you_mean, require
from corral.running import files
from corral.running.files import write_atomically


def read(path: Path) -> dict[str, Any]:
    """What a TOML file says."""
    require(path.is_file(), f"there is no file {path}")
    try:
        return tomllib.loads(files.read(path).decode("utf-8"))
    except RecursionError as error:
        raise CorralError(f"{path} is not a TOML file of settings: it is nested too deeply") from error
    except ValueError as error:  # TOML's and UTF-8's errors, and a number with thousands of digits
        raise CorralError(f"{path} is not a TOML file: {error}") from error


def load(path: Path) -> Config:
    """The configuration in a TOML file; a field that it leaves out has the default of `Config`, in every environment."""
    content = read(path)
    content.pop("run", None)
    require(isinstance(content.get("env"), str), f"{path}: env must name the environment")
    return fill(Config(content["env"]), content)


def load_options(path: Path) -> RunOptions:
    """The options of the run in the table [run] of a TOML file."""
    return fill(RunOptions(), read(path).get("run", {}), "run")


def save(config: Config, path: Path, options: RunOptions | None = None) -> None:
    """Write every field to a TOML file that `load` and `--config` read; `options` go into its table [run]."""
    written = [*lines(config)]
    if options is not None:
        written += lines(options, "run", leave_out=("out", "overwrite", "json"))
    write_atomically(path, ("\n".join(written) + "\n").encode())


# -- from a nested dict ------------------------------------------------------------------------------------------------


def fill(default: Any, content: Any, where: str = "") -> Any:
    """The dataclass `default` with the fields that the nested dict `content` names, each checked against its type.

    `default` may be a class, whose fields without default `content` must then name. `where` is the dotted name of the
    dataclass itself, for messages.
    """
    require(isinstance(content, Mapping), f"{where} must be a table of settings, got {brief(content)}")
    if isinstance(default, Algorithm) and "name" in content:
        content = dict(content)
        default = chosen_algorithm(default, content.pop("name"), f"{where}.name")
    kind = default if isinstance(default, type) else type(default)
    hints = {f.name: get_type_hints(kind)[f.name] for f in fields(kind)}
    changed = {}
    for key, value in content.items():
        dotted = f"{where}.{key}" if where else key
        require(key in hints, f"there is no setting {brief(dotted)[1:-1]}; {did_you_mean(key, hints)}")
        current = getattr(default, key, None)
        if is_dataclass(current):
            ready = is_dataclass(value) and not isinstance(value, type)
            changed[key] = value if ready else fill(current, value, dotted)
        else:
            changed[key] = _typed(value, hints[key], dotted)
    if not isinstance(default, type):
        return replace(default, **changed)
    for f in fields(kind):
        needed = f.default is MISSING and f.default_factory is MISSING
        require(f.name in changed or not needed, f"{where}.{f.name}".lstrip(".") + " is missing")
    return kind(**changed)


def chosen_algorithm(default: Algorithm, name: Any, where: str) -> Algorithm:
    """`default` if that is its name, else the algorithm of that name with its own defaults."""
    known = algorithms()
    require(isinstance(name, str) and name in known, f"{where} must be one of {', '.join(known)}, got {brief(name)}")
    return default if default.name == name else known[name]()


def describe(wanted: Any) -> str:
    """The type of a field in words."""
    parts = get_args(wanted)
    if get_origin(wanted) is Literal:
        return f"one of {', '.join(map(str, parts))}" if len(parts) > 1 else str(parts[0])
    if get_origin(wanted) in (Union, types.UnionType):
        return ", or ".join(describe(part) for part in parts if part is not types.NoneType)
    if get_origin(wanted) is tuple:
        if get_origin(parts[0]) is Literal:
            return f"any of {', '.join(map(str, get_args(parts[0])))}"
        return {int: "a list of whole numbers", float: "a list of numbers"}.get(parts[0], "a list")
    if get_origin(wanted) is dict:
        return "pairs of a name and a number"
    return {bool: "true or false", int: "a whole number", float: "a number", Path: "a path"}.get(wanted, "a string")


def _typed(value: Any, wanted: Any, name: str) -> Any:
    """`value` as the type `wanted`, if it is of that kind."""
    origin, parts = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in parts:
            return None
        kinds = [part for part in parts if part is not types.NoneType]
        words = [word for part in kinds if get_origin(part) is Literal for word in get_args(part)]
        if words and isinstance(value, str):
            require(value in words, f"{name} must be {describe(wanted)}, got {brief(value)}")
            return value
        origin = tuple if isinstance(value, list | tuple) else dict if isinstance(value, Mapping) else None
        alike = (part for part in kinds if get_origin(part) is origin)
        return _typed(value, next(alike, kinds[0]), name)
    if origin is Literal:
        require(value in parts, f"{name} must be {describe(wanted)}, got {brief(value)}")
        return value
    if origin is tuple:
        require(isinstance(value, list | tuple), f"{name} must be {describe(wanted)}, got {brief(value)}")
        return tuple(_typed(part, parts[0], f"{name}[{k}]") for k, part in enumerate(value))
    if origin is dict:
        require(isinstance(value, Mapping), f"{name} must be {describe(wanted)}, got {brief(value)}")
        return {key: _typed(part, parts[1], f"{name}.{key}") for key, part in value.items()}
    accepted: Any = {int: Integral, float: Real, Path: (str, Path)}.get(wanted, wanted)
    fits = isinstance(value, accepted) and (wanted is bool or not isinstance(value, bool))
    require(fits, f"{name} must be {describe(wanted)}, got {brief(value)}")
    require(
        wanted is not Path or (str(value) != "" and "\0" not in str(value)),
        f"{name} must be a path, got {brief(value)}",
    )
    try:
        return wanted(value)
    except OverflowError:
        raise CorralError(f"{name} is too large: {brief(value)}") from None


# -- to nested dicts and TOML ------------------------------------------------------------------------------------------


def as_dict(value: Any) -> dict[str, Any]:
    """The nested dict of a dataclass: what `fill` would need to make it from scratch."""
    found: dict[str, Any] = {"name": value.name} if isinstance(value, Algorithm) else {}
    for f in fields(value):
        part = _saved(f, getattr(value, f.name))
        found[f.name] = as_dict(part) if is_dataclass(part) else part
    return found


def _saved(field: Field[Any], now: Any) -> Any:
    """The value of a field in a file, which leaves nothing to a preset: `saved_as` stands for "the preset decides"."""
    return field.metadata.get("saved_as") if now is None else now


def lines(value: Any, table: str = "", leave_out: tuple[str, ...] = ()) -> Iterator[str]:
    """The TOML of a dataclass: its plain fields, each under its docstring, then a table for each of its parts."""
    parts = [f.name for f in fields(value) if is_dataclass(getattr(value, f.name))]
    docs = field_docs(value.__class__)
    if table:
        yield from ("", f"[{table}]")
    if isinstance(value, Algorithm):
        yield f"name = {_toml_value(value.name)}"
    for f in fields(value):
        now = _saved(f, getattr(value, f.name))
        if f.name not in (*parts, *leave_out) and now is not None:  # TOML has no word for nothing
            yield from (f"# {line}" for line in textwrap.wrap(docs.get(f.name, ""), 110))
            yield f"{f.name} = {_toml_value(now)}"
    for name in parts:
        yield from lines(getattr(value, name), f"{table}.{name}" if table else name)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Path):
        return _toml_value(str(value))
    if isinstance(value, str):
        # JSON's strings are TOML's, but for one character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_toml_value(key)} = {_toml_value(part)}" for key, part in value.items())
        return f"{{{', '.join(pairs)}}}"
    raise TypeError(f"no TOML for {brief(value)}")


@functools.cache  # parsing the source takes milliseconds, and a run with many seeds writes many files
def field_docs(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, inherited ones included; Python itself does not keep them."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__[:-1]):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0].body  # type: ignore[attr-defined]
        except (OSError, TypeError):  # installed without its source, or built in
            continue
        found |= {
            ast.unparse(node.target): " ".join(str(after.value.value).split())
            for node, after in itertools.pairwise(body)
            if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        }
    return found

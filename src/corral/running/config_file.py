"""Dataclasses as TOML: every field under its docstring, a table for each part, and back with types checked."""

import ast
import difflib
import inspect
import itertools
import json
import textwrap
import tomllib
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from corral.config import ALGOS, Config, RunOptions
from corral.errors import CorralError, require
from corral.running.files import write_atomically


def read(path: Path) -> dict[str, Any]:
    """What a TOML file says."""
    require(path.is_file(), f"there is no file {path}")
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CorralError(f"{path} is not a TOML file: {error}") from error


def fill(default: Any, content: Any, where: str = "") -> Any:
    """The dataclass `default` with the fields that `content` has; `where` is its own dotted name."""
    require(isinstance(content, dict), f"{where} must be a table of settings, got {content!r}")
    if where == "algo" and "name" in content:
        name = content["name"]
        require(name in ALGOS, f"algo.name must be one of {', '.join(ALGOS)}, got {name!r}")
        default = default if default.name == name else ALGOS[name]()
    hints = get_type_hints(type(default))
    changed = {}
    for key, value in content.items():
        dotted = f"{where}.{key}" if where else key
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(hints)}"
            raise CorralError(f"there is no setting {dotted}; {hint}")
        current = getattr(default, key)
        changed[key] = (
            fill(current, value, dotted) if is_dataclass(current) else _typed(value, hints[key], dotted)
        )
    return replace(default, **changed)


def describe(wanted: Any) -> str:
    """The type of a field in words."""
    parts = get_args(wanted)
    if get_origin(wanted) is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if get_origin(wanted) in (Union, types.UnionType):
        return ", or ".join(describe(part) for part in parts if part is not types.NoneType)
    if get_origin(wanted) is tuple:
        return "a list of whole numbers" if parts[0] is int else "a list of numbers"
    if get_origin(wanted) is dict:
        return "pairs of a name and a number"
    return {bool: "true or false", int: "a whole number", float: "a number", Path: "a path"}.get(
        wanted, "a string"
    )


def _typed(value: Any, wanted: Any, name: str) -> Any:
    """`value` from a TOML file as the type `wanted`, if it is of that kind."""
    origin, parts = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        kinds = [part for part in parts if part is not types.NoneType]
        alike = (part for part in kinds if (get_origin(part) is tuple) == isinstance(value, list))
        return _typed(value, next(alike, kinds[0]), name)
    if origin is Literal:
        require(value in parts, f"{name} must be {describe(wanted)}, got {value!r}")
        return value
    if origin is tuple:
        require(isinstance(value, list), f"{name} must be {describe(wanted)}, got {value!r}")
        return tuple(_typed(part, parts[0], f"{name}[{k}]") for k, part in enumerate(value))
    if origin is dict:
        require(isinstance(value, dict), f"{name} must be {describe(wanted)}, got {value!r}")
        return {key: _typed(part, parts[1], f"{name}.{key}") for key, part in value.items()}
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = number if wanted is float else isinstance(value, str) if wanted is Path else type(value) is wanted
    require(fits, f"{name} must be {describe(wanted)}, got {value!r}")
    return wanted(value)


def lines(value: Any, table: str = "", leave_out: tuple[str, ...] = ()) -> Iterator[str]:
    """The lines of a dataclass: its plain fields, each under its docstring, then a table for each of its parts."""
    parts = [f.name for f in fields(value) if is_dataclass(getattr(value, f.name))]
    docs = field_docs(type(value))
    if table:
        yield from ("", f"[{table}]")
    for f in fields(value):
        now = getattr(value, f.name)
        # In a file nothing is left to a preset.
        now = f.metadata.get("saved_as") if now is None else now
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
    if isinstance(value, str):
        # JSON's strings are TOML's, but for one character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_toml_value(key)} = {_toml_value(part)}" for key, part in value.items())
        return f"{{{', '.join(pairs)}}}"
    raise TypeError(f"no TOML for {value!r}")


def field_docs(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, which Python itself does not keep."""
    try:
        source = inspect.getsource(cls)
    except OSError:  # installed without its source
        return {}
    body = ast.parse(textwrap.dedent(source)).body[0].body  # type: ignore[attr-defined]
    return {
        ast.unparse(node.target): " ".join(str(after.value.value).split())
        for node, after in itertools.pairwise(body)
        if isinstance(node, ast.AnnAssign)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    }


def save(config: Config, path: Path, options: RunOptions | None = None) -> None:
    """Write every field to a TOML file that `load` and `--config` read; `options` go into its table [run]."""
    written = [*lines(config)]
    if options is not None:
        written += lines(options, "run", leave_out=("out", "overwrite", "json"))
    write_atomically(path, ("\n".join(written) + "\n").encode())


def load(path: Path) -> Config:
    """The configuration in a TOML file; what it leaves out has the general default, whatever the environment."""
    content = read(path)
    content.pop("run", None)
    require(isinstance(content.get("env"), str), f"{path}: env must name the environment")
    return fill(Config(content["env"]), content)


def load_options(path: Path) -> RunOptions:
    """The options of the run in the table [run] of a TOML file."""
    return fill(RunOptions(), read(path).get("run", {}), "run")

"""Command lines from dataclasses: every field is a flag, its docstring the help, and the words become a nested dict.

`parse` serves the commands with a dataclass of their own; `train_options` serves `corral train`, whose defaults follow from
the environment, the preset and a file. Later ones win: the preset of the environment, the file, the flags.
"""

import argparse
import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from corral.config import Config, RunOptions, algorithms
from corral.errors import CorralError, nearest, require
from corral.presets import Preset, preset
from corral.running import config_file
from corral.running.config_file import describe, field_docs, fill

T = TypeVar("T")

COMMON = (
    *("algo", "preset", "config", "iterations", "batch_size", "limit", "task", "seed", "seeds", "out"),
    *("overwrite", "checkpoint_every", "threads", "json"),
)
"""The options that `corral train --help` shows first."""


@dataclass(frozen=True)
class Option:
    """One flag or one positional argument."""

    name: str
    """The dotted name of its field, such as trust.delta."""
    hint: Any
    """The type of its field."""
    default: Any
    """Shown in the help; MISSING where the argument is required."""
    doc: str
    positional: bool = False
    spelled: str = ""
    """The flag, where it differs from the field's name."""

    @property
    def flag(self) -> str:
        """As it is written: --trust.delta."""
        return f"--{self.spelled or self.name.replace('_', '-')}"

    @property
    def many(self) -> bool:
        """Whether it takes any number of words."""
        return any(get_origin(kind) in (tuple, dict) for kind in _kinds(self.hint))

    @property
    def off(self) -> str:
        """The flag that switches a yes-or-no option off: --trust.no-thing."""
        head, dot, last = self.flag[2:].rpartition(".")
        return f"--{head}{dot}no-{last}"


def options_of(value: Any, prefix: str = "") -> list[Option]:
    """The options of a dataclass, or of an instance whose fields are then the defaults; parts of it under dotted names."""
    kind = value if isinstance(value, type) else type(value)
    hints, docs, found = get_type_hints(kind), field_docs(kind), []
    for f in fields(kind):
        made = f.default_factory() if f.default_factory is not MISSING else f.default
        now = made if isinstance(value, type) else getattr(value, f.name)
        if is_dataclass(now) and not isinstance(now, type):
            found += options_of(now, f"{prefix}{f.name}.")
        else:
            said = f.metadata
            place, spelled = bool(said.get("positional")), said.get("flag", "")
            found.append(Option(prefix + f.name, hints[f.name], now, docs.get(f.name, ""), place, spelled))
    return found


def parse(kind: type[T], argv: list[str], command: str) -> T:
    """An instance of the dataclass `kind` from the arguments of `corral COMMAND`."""
    options = options_of(kind)
    if wants_help(argv):
        _print_help(f"corral {command}", inspect.getdoc(kind) or "", {"options": options})
    return fill(kind, read_words(argv, options, f"corral {command}"))


def wants_help(argv: Iterable[str]) -> bool:
    """Whether the arguments ask for the help text."""
    return bool({"-h", "--help"} & set(argv))


# -- words -------------------------------------------------------------------------------------------------------------


def read_words(argv: list[str], options: list[Option], command: str) -> dict[str, Any]:
    """The nested dict of what the arguments say; the last of two equal flags wins."""
    flags = {o.flag: o for o in options if not o.positional}
    switches = {o.off: o for o in flags.values() if o.hint is bool}
    places = [o for o in options if o.positional]
    found: dict[str, Any] = {}
    loose: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            loose.append(word)
            continue
        head, equals, tail = word.partition("=")
        head = head.replace("_", "-")
        if head in switches:
            _put(found, switches[head].name, False)
            continue
        require(head in flags, _unknown(word, flags, command))
        option = flags[head]
        if option.hint is bool:
            _put(found, option.name, True)
            continue
        given = [tail] if equals else []
        while words and not words[0].startswith("--") and (option.many or not given):
            given.append(words.pop(0))
        _put(found, option.name, value_of(option, given))
    for place in places:
        taken, loose = (loose, []) if place.many else (loose[:1], loose[1:])
        require(
            bool(taken) or place.default is not MISSING, f"{_place(place)} is missing: `{command} --help` explains it"
        )
        if taken:
            _put(found, place.name, value_of(place, taken))
    require(not loose, f"what is {(loose or [''])[0]!r} for? It follows no option that takes it")
    return found


def _put(found: dict[str, Any], dotted: str, value: Any) -> None:
    *parts, last = dotted.split(".")
    for part in parts:
        found = found.setdefault(part, {})
    found[last] = value


def value_of(option: Option, given: list[str]) -> Any:
    """The words given to an option as the values of its type."""
    named = _place(option) if option.positional else option.flag
    problem = f"{named} must be {describe(option.hint)}, got {' '.join(given) or 'nothing'}"
    # One word may be a number or a list of one: the number comes first.
    for kind in sorted(_kinds(option.hint), key=lambda kind: bool(get_args(kind))):
        try:
            return _converted(kind, given)
        except ValueError:
            continue
    raise CorralError(problem)


def _kinds(hint: Any) -> list[Any]:
    """The alternatives of a union, without None."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return [part for part in parts if part is not types.NoneType]


def _converted(kind: Any, given: list[str]) -> Any:
    """Words as a value of one type; ValueError if they are none."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is tuple:
        return tuple(_converted(parts[0], [word]) for word in given)
    if origin is dict:
        if not given or len(given) % 2:
            raise ValueError
        return {name: float(number) for name, number in zip(given[::2], given[1::2], strict=True)}
    (word,) = given
    if origin is Literal:
        if word not in map(str, parts):
            raise ValueError
        return next(part for part in parts if str(part) == word)
    make: Callable[[str], Any] = kind
    return make(word)


def _unknown(word: str, flags: Mapping[str, Option], command: str) -> str:
    """The message about a flag that does not exist."""
    name = word.split("=")[0].lstrip("-").replace("-", "_")
    for algo, cls in algorithms().items():
        if name.startswith("algo.") and name[5:] in {f.name for f in fields(cls)}:
            return f"{word} is an option of --algo {algo}, which is not the algorithm of this run"
    last = {flag.lstrip("-").split(".")[-1]: flag for flag in reversed(list(flags))}  # --delta means --trust.delta
    near = nearest(word.split("=")[0].replace("_", "-"), flags)
    near = near or last.get(nearest(name.replace("_", "-"), last) or "")
    hint = f"did you mean {near}?" if near else f"`{command} --help` lists them"
    return f"there is no option {word}; {hint}"


# -- help --------------------------------------------------------------------------------------------------------------


def _print_help(command: str, purpose: str, groups: Mapping[str, list[Option]]) -> NoReturn:
    """Print the help text and leave with status 0."""
    places = " ".join(_place(o) for group in groups.values() for o in group if o.positional)
    parser = argparse.ArgumentParser(
        prog=command,
        usage=f"{command}{' ' if places else ''}{places} [options]",
        description=" ".join(purpose.split()),
        add_help=False,
    )
    for title, group in groups.items():
        shown = parser.add_argument_group(title)
        for option in group:
            _show(shown, option)
    print(parser.format_help(), end="", flush=True)
    raise SystemExit(0)


def _show(group: Any, option: Option) -> None:
    """Add an option to a group of the help text."""
    now = option.default
    plain = " ".join(map(str, now)) if isinstance(now, tuple) else str(now)
    shown = f" (default: {plain})" if now not in (MISSING, None, (), {}) else ""
    text = (option.doc + shown).replace("%", "%%")
    if option.positional:
        group.add_argument(option.name, metavar=_place(option), help=text)
    elif option.hint is bool:
        flag = option.off if now is True else option.flag
        group.add_argument(flag, action="store_true", help=option.doc.replace("%", "%%"))
    else:
        group.add_argument(option.flag, metavar=_metavar(option.hint), help=text)


def _place(option: Option) -> str:
    """A positional argument as the usage line names it: ENV, DIR…"""
    return f"{option.name.upper()}{'…' if option.many else ''}"


def _metavar(hint: Any) -> str:
    kind = _kinds(hint)[-1]
    if get_origin(kind) is Literal:
        return f"{{{','.join(map(str, get_args(kind)))}}}"
    if get_origin(kind) is tuple:
        one = _metavar(get_args(kind)[0])
        return f"{one} [{one} ...]"
    if get_origin(kind) is dict:
        return "NAME NUMBER ..."
    return {int: "INT", float: "FLOAT", Path: "PATH"}.get(kind, "TEXT")


# -- corral train ------------------------------------------------------------------------------------------------------

_PURPOSE = (
    "Train a policy that keeps its costs under their limits in ENV, a name from `corral envs`, or a Gymnasium id whose "
    'info["cost"] has the limit given by --limit; --task then holds arguments of gymnasium.make.'
)


@dataclass(frozen=True)
class _Source:
    """What the defaults of a run follow from."""

    algo: str | None = None
    """The algorithm."""
    preset: Preset | None = None
    """`paper`: plainly the paper's algorithm. `corral`: with calibrated limits and critics that see the time."""
    config: Path | None = None
    """A file with the same fields, such as the config.toml of an earlier run; flags win over it."""


def train_options(argv: list[str]) -> tuple[Config, RunOptions]:
    """The run asked for by `corral train ENV [--algo A] [--preset P] [--config FILE] [any field as a flag]`."""
    args = list(argv)
    source_options = options_of(_Source)
    said = {o.name: _take(args, o) for o in source_options}
    known = algorithms()
    algo, chosen, file = said["algo"], said["preset"], said["config"]
    require(algo is None or algo in known, f"--algo must be one of {', '.join(known)}, got {algo}")
    label = chosen or (file.stem if file else "corral")
    content = config_file.read(file) if file else {}
    env = _take_env(args) or content.get("env")
    if env is None and not wants_help(args):
        raise CorralError("name an environment first, such as `corral train point-circle`")
    written = content.get("algo")
    if algo is not None and isinstance(written, dict) and written.get("name") != algo:
        del content["algo"]  # parameters of another algorithm than the one asked for
    how = fill(RunOptions(), content.pop("run", {}), "run")
    default = preset(env or "point-circle", chosen or "corral", known[algo]() if algo else None)
    config: Config = fill(default, content | {"env": default.env})
    if wants_help(args):
        now = _Source(config.algo.name, chosen or "corral", file)
        _train_help(config, [*options_of(now), *_run_fields(config, how)])
    words = read_words(args, _run_fields(config, how), "corral train")
    names = {f.name for f in fields(RunOptions)}
    config = fill(config, {key: value for key, value in words.items() if key not in names})
    how = fill(how, {key: value for key, value in words.items() if key in names})
    if how.out is None:
        out = Path("runs") / re.sub("[/:]", "-", f"{env}-{config.algo.name}-{label}-s{config.seed}")
        how = replace(how, out=out)
    return config, how


def _run_fields(config: Config, how: RunOptions) -> list[Option]:
    return [o for o in (*options_of(config), *options_of(how)) if o.name != "env"]


def _train_help(config: Config, options: list[Option]) -> NoReturn:
    """The common options first, then the others part by part."""
    known = ",".join(algorithms())
    options = [replace(o, hint=Literal[*algorithms()]) if o.name == "algo" and known else o for o in options]
    by_name = {o.name: o for o in options}
    groups = {"common options": [by_name[name] for name in COMMON]}
    for option in options:
        part = option.name.rpartition(".")[0]
        title = {"": "estimates", "algo": f"--algo {config.algo.name}"}.get(part, part)
        if option.name not in COMMON:
            groups.setdefault(title, []).append(option)
    defaults = f"The defaults below are those of {config.env} with {config.algo.name}."
    _print_help("corral train ENV", f"{_PURPOSE} {defaults}", groups)


def _take(args: list[str], option: Option) -> Any:
    """Remove `--flag VALUE` or `--flag=VALUE` from the arguments; the value of the last."""
    found = None
    for k in reversed(range(len(args))):
        if args[k].startswith(f"{option.flag}="):
            value = args.pop(k).split("=", 1)[1]
        elif args[k] == option.flag:
            require(k + 1 < len(args) and not args[k + 1].startswith("--"), f"{option.flag} needs a value")
            value = args.pop(k + 1)
            args.pop(k)
        else:
            continue
        found = value_of(option, [value]) if found is None else found
    return found


def _take_env(args: list[str]) -> str | None:
    """Remove the environment from the arguments: the first, if it is no flag, else any that is the name of one."""
    if args and not args[0].startswith("-"):
        return args.pop(0)
    if (env := _take(args, Option("env", str, None, ""))) is not None:
        return str(env)
    if not any(not arg.startswith("-") for arg in args):
        return None
    from corral.envs.registry import names

    for k, arg in enumerate(args):
        if arg in names():
            return args.pop(k)
    return None

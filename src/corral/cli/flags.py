"""Command lines from dataclasses: every field is a flag, its docstring the help, and the words become a nested dict.

`parse` serves the commands with a dataclass of their own; `train_options` serves `corral train`, whose defaults follow from
the environment, the preset and a file. Later ones win: the preset of the environment, the file, the flags.
"""

import argparse
import inspect
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from corral.config import Config, RunOptions, algorithms
from corral.display.progress import say_what_is_imported
from corral.errors import CorralError, brief, nearest, require
from corral.presets import Preset, preset
from corral.running import config_file
from corral.running.config_file import describe, field_docs, fill

T = TypeVar("T")

COMMON = (
    *("algo.name", "preset", "config", "iterations", "batch_size", "limit", "task", "seed", "seeds", "out"),
    *("overwrite", "checkpoint_every", "threads", "workers", "env_python", "log", "json"),
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

    def __str__(self) -> str:
        """As it is written: --trust.delta, or DIR for a positional argument."""
        if self.positional:
            return f"{self.name.upper()}{'…' if self.many else ''}"
        return f"--{self.spelled or self.name.replace('_', '-')}"

    @property
    def many(self) -> bool:
        """Whether it takes any number of words."""
        return any(get_origin(kind) in (tuple, dict) for kind in _kinds(self.hint))

    @property
    def off(self) -> str:
        """The flag that switches a yes-or-no option off: --trust.no-thing."""
        head, dot, last = str(self)[2:].rpartition(".")
        return f"--{head}{dot}no-{last}"


def options_of(value: Any, prefix: str = "") -> list[Option]:
    """The options of a dataclass, or of an instance whose fields are then the defaults; parts of it under dotted names."""
    kind = value if isinstance(value, type) else type(value)
    hints, docs, found = get_type_hints(kind), field_docs(kind), []
    for f in fields(kind):
        made = f.default_factory() if f.default_factory is not MISSING else f.default
        now = made if isinstance(value, type) else getattr(value, f.name)
        if f.metadata.get("hidden"):
            continue
        if is_dataclass(now) and not isinstance(now, type):
            found += options_of(now, f"{prefix}{f.name}.")
        else:
            place, spelled = bool(f.metadata.get("positional")), f.metadata.get("flag", "")
            found.append(Option(prefix + f.name, hints[f.name], now, docs.get(f.name, ""), place, spelled))
    return found


def parse(kind: type[T], argv: list[str], command: str) -> T:
    """An instance of the dataclass `kind` from the arguments of `corral COMMAND`."""
    options = sorted(options_of(kind), key=lambda option: not option.positional)
    if {"-h", "--help"} & set(argv):
        _print_help(f"corral {command}", inspect.getdoc(kind) or "", {"options": options})
    return fill(kind, read_words(argv, options, f"corral {command}"))


# -- words -------------------------------------------------------------------------------------------------------------


def read_words(argv: list[str], options: list[Option], command: str) -> dict[str, Any]:
    """The nested dict of what the arguments say; the last of two equal flags wins."""
    flags = {str(o): o for o in options if not o.positional}
    switches = {o.off: o for o in flags.values() if o.hint is bool}
    found: dict[str, Any] = {}
    loose, words = [], list(argv)
    while words:
        word = words.pop(0)
        head, equals, tail = word.partition("=")
        head = head.replace("_", "-")
        if not word.startswith("--"):
            loose.append(word)
        elif head in switches:
            _put(found, switches[head], False)
        else:
            require(head in flags, _unknown(word, flags, command))
            given = [tail] if equals else []
            while words and not equals and _takes(flags[head], given, words[0]):
                given.append(words.pop(0))
            _put(found, flags[head], flags[head].hint is bool or _value(flags[head], given))
    for place in (o for o in options if o.positional):
        taken, loose = (loose, []) if place.many else (loose[:1], loose[1:])
        needed = place.default is MISSING
        require(bool(taken) or not needed, f"{place} is missing: `{command} --help` explains it")
        if taken:
            _put(found, place, _value(place, taken))
    require(not loose, f"what is {brief((loose or [''])[0])} for? It follows no option that takes it")
    return found


def _takes(option: Option, given: list[str], word: str) -> bool:
    """Whether this is one more word of an option: one of any kind, or any number that make a list."""
    if word.startswith("--") or option.hint is bool:
        return False
    if not given or not option.many:
        return not given
    numbers = any(get_origin(kind) is tuple and get_args(kind)[0] in (int, float) for kind in _kinds(option.hint))
    if numbers and _fails(float, given[0]):  # the first was no number: NAME=NUMBER …, or NAME NUMBER …
        return "=" in word or "=" not in given[0]
    return not (numbers and _fails(float, word))


def _fails(kind: type, word: str) -> bool:
    try:
        kind(word)
    except ValueError:
        return True
    return False


def _put(found: dict[str, Any], option: Option, value: Any) -> None:
    *parts, last = option.name.split(".")
    for part in parts:
        found = found.setdefault(part, {})
    found[last] = value


def _value(option: Option, given: list[str]) -> Any:
    """The words given to an option as a value of its type."""
    # One word may be a number or a list of one: the number comes first.
    for kind in sorted(_kinds(option.hint), key=lambda kind: bool(get_args(kind))):
        try:
            return _converted(kind, given)
        except ValueError:
            continue
    words = " ".join(given)
    said = words if words.isprintable() and len(words) <= 80 else brief(words)
    raise CorralError(f"{option} must be {describe(option.hint)}, got {said or 'nothing'}")


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
        words = [part for word in given for part in word.split("=", 1)]
        names, numbers = words[::2], words[1::2]
        if len(names) != len(numbers) or not given:
            raise ValueError
        return {name: float(number) for name, number in zip(names, numbers, strict=True)}
    (word,) = given
    if origin is Literal:
        if word not in map(str, parts):
            raise ValueError
        return next(part for part in parts if str(part) == word)
    if kind is Path and (not word or "\0" in word):
        raise ValueError
    return kind(word)


def _unknown(word: str, flags: Mapping[str, Option], command: str) -> str:
    """The message about a flag that does not exist."""
    flag = word.split("=")[0].replace("_", "-")
    last = {known.lstrip("-").split(".")[-1]: known for known in reversed(list(flags))}  # --delta means --trust.delta
    near = nearest(flag, flags) or last.get(nearest(flag.lstrip("-"), last) or "")
    hint = f"did you mean {near}?" if near else f"`{command} --help` lists them"
    return f"there is no option {word if word.isprintable() and len(word) <= 80 else brief(word)}; {hint}"


# -- help --------------------------------------------------------------------------------------------------------------


def _print_help(command: str, purpose: str, groups: Mapping[str, list[Option]]) -> NoReturn:
    """Print the help text and leave with status 0."""
    places = [str(o) for group in groups.values() for o in group if o.positional]
    usage = " ".join([command, *places, "[options]"])
    parser = argparse.ArgumentParser(usage=usage, description=" ".join(purpose.split()), add_help=False)
    for title, group in groups.items():
        shown = parser.add_argument_group(title)
        for option in group:
            _show(shown, option)
    print(parser.format_help(), end="", flush=True)
    raise SystemExit(0)


def _show(group: Any, option: Option) -> None:
    """Add an option to a group of the help text."""
    now, doc = option.default, option.doc.replace("%", "%%")
    plain = " ".join(map(str, now)) if isinstance(now, tuple) else str(now)
    text = doc if now in (MISSING, None, (), {}) else f"{doc} (default: {plain})"
    if option.positional:
        group.add_argument(option.name, metavar=str(option), help=text)
    elif option.hint is bool:
        group.add_argument(option.off if now is True else str(option), action="store_true", help=doc)
    else:
        group.add_argument(str(option), metavar=_metavar(option.hint), help=text)


def _metavar(hint: Any) -> str:
    kind = _kinds(hint)[-1]
    if get_origin(kind) is Literal:
        return f"{{{','.join(map(str, get_args(kind)))}}}"
    if get_origin(kind) is tuple:
        return "{0} [{0} ...]".format(_metavar(get_args(kind)[0]))
    if get_origin(kind) is dict:
        return "NAME=NUMBER ..."
    return {int: "INT", float: "FLOAT", Path: "PATH"}.get(kind, "TEXT")


# -- corral train ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """What the defaults of a run follow from."""

    preset: Preset | None = None
    """`paper`: plainly the paper's algorithm. `corral`: with calibrated limits and critics that see the time."""
    config: Path | None = None
    """A file with the same fields, such as the config.toml of an earlier run; flags win over it."""


def train_options(argv: list[str]) -> tuple[Config, RunOptions]:
    """The run asked for by `corral train ENV [--algo A] [--preset P] [--config FILE] [any field as a flag]`."""
    known = algorithms()
    own = {o.name: o for algo in known.values() for o in options_of(algo(), "algo.")}
    options = [*_options(Config("point-circle"), RunOptions(), _Source()), *own.values(), Option("env", str, None, "")]
    asked_for_help = bool({"-h", "--help"} & set(argv))
    words = read_words([word for word in argv if word not in ("-h", "--help")], options, "corral train")
    file, chosen = words.pop("config", None), words.pop("preset", None)
    content = config_file.read(file) if file else {}
    env = words.get("env") or content.get("env")
    require(bool(env) or asked_for_help, "name an environment first, such as `corral train point-circle`")
    require(env is None or isinstance(env, str), f"{file}: env must name the environment, got {brief(env)}")
    if env and not asked_for_help:
        say_what_is_imported(env, "the command" if words.get("env") else str(file))
    algo, written = words.get("algo", {}).get("name"), content.get("algo")
    if algo is not None and isinstance(written, dict) and written.get("name") != algo:
        del content["algo"]  # parameters of another algorithm than the one asked for
    how = fill(RunOptions(), content.pop("run", {}), "run")
    default = preset(env or "point-circle", chosen or "corral", known[algo]() if algo else None)
    config: Config = fill(default, content | {"env": default.env})
    if asked_for_help:
        _train_help(config, how, _Source(chosen or "corral", file))
    for name in words.get("algo", {}):
        its = [n for n, kind in known.items() if name in {"name", *(f.name for f in fields(kind))}]
        owners = " or ".join(filter(None, [", ".join(its[:-1]), its[-1]]))
        message = f"--algo.{name} is an option of --algo {owners}, and this run is trained by {config.algo.name}"
        require(config.algo.name in its, message.replace("_", "-"))
    names = {f.name for f in fields(RunOptions)}
    config = fill(config, {key: value for key, value in words.items() if key not in names})
    how = fill(how, {key: value for key, value in words.items() if key in names})
    if how.out is None:
        label = chosen or (file.stem if file else "corral")
        out = Path("runs") / re.sub("[/:]", "-", f"{env}-{config.algo.name}-{label}-s{config.seed}")
        how = replace(how, out=out)
    return config, how


def _options(config: Config, how: RunOptions, source: _Source) -> list[Option]:
    """The options of `corral train` with these defaults; ENV is one of them."""
    found = [*options_of(source), *options_of(config), *options_of(how)]
    algo = Option("algo.name", Literal[*algorithms()], config.algo.name, "The algorithm.", spelled="algo")
    env = Option("env", str, None, next(o.doc for o in found if o.name == "env"), positional=True)
    return [env, algo, *(o for o in found if o.name != "env")]


def _train_help(config: Config, how: RunOptions, source: _Source) -> NoReturn:
    """The common options first, then the others part by part."""
    by_name = {o.name: o for o in _options(config, how, source)}
    groups = {"environment": [by_name.pop("env")], "common options": [by_name.pop(name) for name in COMMON]}
    for name, option in by_name.items():
        part = name.rpartition(".")[0]
        groups.setdefault({"": "estimates", "algo": f"--algo {config.algo.name}"}.get(part, part), []).append(option)
    _print_help(
        "corral train",
        "Train a policy that keeps its costs under their limits. A Gymnasium environment has the limit given by --limit on "
        f'the cost in its info["cost"]. The defaults below are those of {config.env} with {config.algo.name}.',
        groups,
    )

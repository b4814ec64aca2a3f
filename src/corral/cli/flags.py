"""A run's `Config` from the command line and from a TOML file, and back to the file.

Later ones win: the preset of the environment, the file, the flags.
"""

import contextlib
import difflib
import io
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from corral.config import ALGOS, Config, PerConstraint, RunOptions
from corral.errors import CorralError, require
from corral.presets import Preset, preset
from corral.running import config_file


def from_argv(argv: list[str]) -> tuple[Config, RunOptions]:
    """The run asked for by `corral train ENV [--algo A] [--preset P] [--config FILE] [any field as a flag]`."""
    args = list(argv)
    algo, chosen, file = (_take(args, flag) for flag in ("--algo", "--preset", "--config"))
    _require_one_of("--algo", algo, ALGOS)
    _require_one_of("--preset", chosen, get_args(Preset))
    label = chosen or (Path(file).stem if file else "corral")
    content = config_file.read(Path(file)) if file else {}
    env = _take_env(args) or content.get("env")
    if env is None and not {"-h", "--help"} & set(args):
        raise CorralError("name an environment first, such as `corral train point-circle`")
    written = content.get("algo")
    if algo is not None and isinstance(written, dict) and written.get("name") != algo:
        del content["algo"]  # parameters of another algorithm than the one asked for
    options = config_file.fill(RunOptions(), content.pop("run", {}), "run")
    default = preset(env or "point-circle", chosen or "corral", ALGOS[algo]() if algo else None)  # type: ignore[arg-type]
    config = config_file.fill(default, content | {"env": default.env})
    config, options = _flags(config, options, args)
    if options.out is None:
        out = Path("runs") / re.sub("[/:]", "-", f"{env}-{config.algo.name}-{label}-s{config.seed}")
        options = replace(options, out=out)
    return config, options


# The command line


def _require_one_of(flag: str, value: str | None, known: Iterable[str]) -> None:
    require(value is None or value in known, f"{flag} must be one of {', '.join(known)}, got {value}")


def _take(args: list[str], flag: str) -> str | None:
    """Remove `flag VALUE` or `flag=VALUE` from the arguments; the value of the last."""
    found = None
    for k in reversed(range(len(args))):
        if args[k].startswith(f"{flag}="):
            value = args.pop(k).split("=", 1)[1]
        elif args[k] == flag:
            require(k + 1 < len(args) and not args[k + 1].startswith("--"), f"{flag} needs a value")
            value = args.pop(k + 1)
            args.pop(k)
        else:
            continue
        found = value if found is None else found
    return found


def _take_env(args: list[str]) -> str | None:
    """Remove the environment from the arguments: the first, if it is no flag, else any that is the name of one."""
    if args and not args[0].startswith("-"):
        return args.pop(0)
    if (env := _take(args, "--env")) is not None:
        return env
    if not any(not arg.startswith("-") for arg in args):
        return None
    from corral.envs.registry import names

    for k, arg in enumerate(args):
        if arg in names():
            return args.pop(k)
    return None


def _flags(config: Config, options: RunOptions, args: list[str]) -> tuple[Config, RunOptions]:
    """Both with the fields changed that the remaining arguments name."""
    import tyro

    @dataclass(frozen=True)
    class Everything:
        # Taken from the arguments before, and here for --help.
        algo: Annotated[Literal["cpo", "pdo", "trpo", "fpo"], tyro.conf.arg(help="The algorithm.")]
        preset: Annotated[Preset, tyro.conf.arg(help=_PRESETS)]
        config: Annotated[Path | None, tyro.conf.arg(help=_FILE, metavar="FILE.toml")]
        what: Annotated[Config, tyro.conf.arg(name="")]
        how: Annotated[RunOptions, tyro.conf.arg(name="")]

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed, unknown = tyro.cli(
                Everything,
                prog="corral train ENV",
                description=f"{_PURPOSE} The defaults below are those of {config.env} with {config.algo.name}.",
                args=args,
                default=Everything(config.algo.name, "corral", None, config, options),
                registry=_registry(),
                return_unknown_args=True,
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise CorralError(_wrong_value(said.getvalue(), config, options, args)) from None
    if unknown:
        raise CorralError(_unknown(unknown[0], config))
    return parsed.what, parsed.how


_PURPOSE = (
    "Train a policy that keeps its costs under their limits in ENV, a name from `corral envs`, or a Gymnasium id whose "
    'info["cost"] has the limit given by --limit; --task then holds arguments of gymnasium.make.'
)
_PRESETS = "Plainly the paper's algorithm, or with calibrated limits and critics that see the time."
_FILE = "A file with the same fields, such as the config.toml of an earlier run; flags win over it."


def _registry() -> Any:
    """How tyro reads our dataclasses: as they are, except for what ENV and --algo have already said."""
    from tyro.conf import arg
    from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

    registry = ConstructorRegistry()
    some_numbers = Annotated[PerConstraint, arg(metavar="FLOAT [FLOAT ...]")]

    @registry.struct_rule
    def ours(info: StructTypeInfo) -> StructConstructorSpec | None:
        if info.type is not Config and info.type not in ALGOS.values():
            return None
        hints, docs = get_type_hints(info.type), config_file.field_docs(info.type)
        now = {
            f.name: getattr(info.default, f.name) for f in fields(info.type) if f.name not in ("env", "name")
        }
        # Of a union, only what --algo has chosen.
        kind = {name: type(value) if is_dataclass(value) else hints[name] for name, value in now.items()}
        kind = {name: some_numbers if hint == PerConstraint else hint for name, hint in kind.items()}
        if info.type is Config:
            docs["algo"] = str(type(now["algo"]).__doc__)
        shown = tuple(StructFieldSpec(name, kind[name], now[name], docs.get(name)) for name in now)
        return StructConstructorSpec(lambda **changed: replace(info.default, **changed), shown)

    return registry


def _wrong_value(said: str, config: Config, options: RunOptions, args: list[str]) -> str:
    """One line in place of tyro's box of text about a value that does not fit its option."""
    hints = _hints(config) | _hints(options)
    named = [name for name in re.findall(r"--([a-z_.-]+)", said) if name.replace("-", "_") in hints]
    if not named:
        return " ".join(re.sub("[─│╭╮╰╯]", " ", said).split())
    wanted = config_file.describe(hints[named[0].replace("-", "_")])
    given = _following(args, f"--{named[0]}")
    return f"--{named[0]} must be {wanted}, got {' '.join(given) or 'nothing'}"


def _following(args: list[str], flag: str) -> list[str]:
    """The values given to a flag."""
    split = [part for arg in args for part in (arg.split("=", 1) if arg.startswith("--") else [arg])]
    at = [part.replace("_", "-") for part in split].index(flag) + 1
    return list(itertools.takewhile(lambda part: not part.startswith("--"), split[at:]))


def _unknown(arg: str, config: Config) -> str:
    """What to say about an argument nobody knows."""
    if not arg.startswith("-"):
        return f"what is {arg!r} for? It follows no option that takes it"
    name = arg.split("=")[0].lstrip("-").replace("-", "_")
    for algo, cls in ALGOS.items():
        if name.startswith("algo.") and name[5:] in {f.name for f in fields(cls)}:
            return f"{arg} is an option of --algo {algo}, not of {config.algo.name}"
    options = [*_hints(config), *_hints(RunOptions()), "algo", "preset", "config"]
    last = {option.split(".")[-1]: option for option in reversed(options)}  # --delta means --trust.delta
    near = difflib.get_close_matches(name, options, n=1) or [
        last[part] for part in difflib.get_close_matches(name, last, n=1)
    ]
    hint = f"did you mean --{near[0].replace('_', '-')}?" if near else "`corral train --help` lists them"
    return f"there is no option {arg}; {hint}"


def _hints(value: Any, prefix: str = "") -> dict[str, Any]:
    """The types of all fields by dotted name."""
    hints = get_type_hints(type(value))
    found: dict[str, Any] = {}
    for name in hints:
        part = getattr(value, name)
        found |= _hints(part, f"{prefix}{name}.") if is_dataclass(part) else {prefix + name: hints[name]}
    return found

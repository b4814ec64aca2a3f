"""Bad configuration files: a good one with odd values, odd keys, odd tables or odd bytes."""

import json
import math
import random
from pathlib import Path
from typing import Any

from attack import odd
from attack.judge import Attack, Wrong
from corral import envs
from corral.cli import flags
from corral.config import algorithms
from corral.presets import preset
from corral.running import config_file

ENVS = ("point-gather", "point-circle", "ant-circle", "hopper-velocity", "CartPole-v1", "no.module:Thing-v0")


def generate(rng: random.Random) -> Attack:
    """A file for `corral train --config`; what is accepted must come back from its own file."""
    env, algo = rng.choice(ENVS), rng.choice(sorted(algorithms()))
    lines = [*config_file.lines(preset(env, "corral", algorithms()[algo]())), "", "[run]", "seeds = 1"]
    lines = [line for line in lines if not line.startswith("#")]
    changes = [rng.choice(CHANGES) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    for change in changes:
        lines = change(lines, rng)
    content = "\n".join(lines).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        at = rng.randrange(len(content) + 1)
        content = content[:at] + rng.randbytes(rng.randint(1, 5)) + content[at:]

    def act(folder: Path) -> None:
        file = folder / "c.toml"
        file.write_bytes(content)
        config, options = flags.train_options(["--config", str(file)])
        if config.env in envs.names():
            envs.spec(config.env, **config.task)
        config_file.save(config, folder / "again.toml", options)
        if config_file.load(folder / "again.toml") != config:
            raise Wrong(f"{config} is read back as {config_file.load(folder / 'again.toml')}")
        require_sane(config)

    return Attack(f"{env} {algo}: " + ", ".join(change.__name__ for change in changes), act)


def require_sane(value: Any, where: str = "") -> None:
    """Raise `Wrong` where an accepted configuration holds a number that nothing can be computed with."""
    for name, part in vars(value).items():
        if hasattr(part, "__dataclass_fields__"):
            require_sane(part, f"{where}{name}.")
        for x in part if isinstance(part, tuple) else [part]:
            if isinstance(x, int | float) and not (math.isfinite(x) and abs(x) <= 1e38):
                raise Wrong(f"{where}{name} = {x} was accepted")


# -- changes -----------------------------------------------------------------------------------------------------------


def toml(value: Any) -> str:
    """A value as TOML would write it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)


def odd_value(lines: list[str], rng: random.Random) -> list[str]:
    settings = [k for k, line in enumerate(lines) if " = " in line] or [0]
    at = rng.choice(settings)
    found = rng.choice([toml(odd.value(rng)), "9" * rng.choice([30, 400, 4500]), f"0x{'f' * rng.choice([5, 9000])}"])
    return [*lines[:at], lines[at].split(" = ")[0] + f" = {found}", *lines[at + 1 :]]


def slightly_wrong_value(lines: list[str], rng: random.Random) -> list[str]:
    settings = [k for k, line in enumerate(lines) if " = " in line] or [0]
    at = rng.choice(settings)
    found = rng.choice(["-1", "0", "1", "1.5", "true", '""', "[]", "[1, 2]", "2024-01-01", "nan", '"cpo"', "1e6"])
    return [*lines[:at], lines[at].split(" = ")[0] + f" = {found}", *lines[at + 1 :]]


def another_number(lines: list[str], rng: random.Random) -> list[str]:
    values = [line.split(" = ")[-1] for line in lines]
    numbers = [k for k, found in enumerate(values) if found.replace(".", "").isdigit() and len(found) < 20]
    if not numbers:
        return lines
    at = rng.choice(numbers)
    key, found = lines[at].split(" = ")
    changed = float(found) * rng.choice([0.5, 2, 3, -1, 100, 1e6, 1e-9])
    return [*lines[:at], f"{key} = {int(changed) if '.' not in found else changed!r}", *lines[at + 1 :]]


def odd_key(lines: list[str], rng: random.Random) -> list[str]:
    key = rng.choice([json.dumps(odd.text(rng)), "trust.delta", "a.b.c", "env", "name", "__class__", "seed.x"])
    at = rng.randint(0, len(lines))
    return [*lines[:at], f"{key} = {toml(odd.value(rng))}", *lines[at:]]


def odd_table(lines: list[str], rng: random.Random) -> list[str]:
    name = rng.choice(["run", "algo", "trust", "task", "trust.x", "env", "[run]", json.dumps(odd.text(rng))])
    return [*lines, f"[{name}]", f"x = {toml(odd.value(rng))}"]


def deep_nesting(lines: list[str], rng: random.Random) -> list[str]:
    depth = rng.choice([10, 200, 5000])
    return [f"x = {'[' * depth}{']' * depth}", *lines]


def lost_lines(lines: list[str], rng: random.Random) -> list[str]:
    return [line for line in lines if rng.random() < 0.8]


def mixed_lines(lines: list[str], rng: random.Random) -> list[str]:
    return rng.sample(lines, len(lines))


CHANGES = (
    *(odd_value, odd_value, slightly_wrong_value, slightly_wrong_value, another_number, another_number),
    *(odd_key, odd_table, deep_nesting, lost_lines, mixed_lines),
)

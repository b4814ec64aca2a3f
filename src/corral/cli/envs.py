"""`corral envs`: the environments, their sizes, horizons and constraints."""

import json
from dataclasses import asdict, dataclass

from rich.table import Table

from corral import envs
from corral.cli.flags import parse
from corral.display.progress import Console


@dataclass(frozen=True)
class Config:
    """List the environments."""

    json: bool = False
    """Print JSON for a program to read: one object per environment, task parameters included."""


def main(argv: list[str]) -> int:
    """Print a table, or JSON."""
    config = parse(Config, argv, "envs")
    if config.json:
        print(json.dumps([_describe(name) for name in envs.names()], indent=2))
        return 0
    table = Table("environment", "observation", "actions", "steps", "constraint", "limit", box=None)
    for spec in map(envs.spec, envs.names()):
        constraints = [(f"{c.name}: {c.description}", f"{c.limit:g}") for c in spec.constraints]
        what, limit = ("\n".join(column) for column in zip(*constraints, strict=True))
        sizes = str(spec.observation_size), str(spec.action.size), str(spec.horizon)
        table.add_row(spec.name, *sizes, what, limit)
    Console().print(table)
    return 0


def _describe(name: str) -> dict[str, object]:
    spec = asdict(envs.spec(name))
    action = {"kind": "continuous", "size": spec.pop("action")["size"]}
    return spec | {"action": action, "parameters": asdict(envs.parameters(name))}

"""Attacks on Corral: generators that make bad input and kills from a seed, and a judge of what came of each.

`make attack` makes 10,000 and prints a table; `make test` makes 100 of each kind. An attack is known by its kind and its
number, so that one of them can be made again: `make attack ARGS="--only files --first 4711 --count 1 --show"`.
`make attack ARGS="--only real-kills --count 40"` kills about a hundred processes that really train.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """A kind of attack."""

    module: str
    share: int
    """Of a hundred attacks of `make attack`."""

    @property
    def generate(self) -> Callable[..., Any]:
        """From a source of random numbers to an attack."""
        generator: Callable[..., Any] = import_module(f"attack.{self.module}").generate
        return generator


KINDS = {
    "files": Kind("files", 25),
    "configurations": Kind("configurations", 25),
    "flags": Kind("flags", 20),
    "environments": Kind("environments", 20),
    "kills": Kind("kills", 10),
}
REAL_KILLS = {"real-kills": Kind("real_kills", 100)}
"""Of real training, in processes: minutes instead of milliseconds, so only where they are asked for."""

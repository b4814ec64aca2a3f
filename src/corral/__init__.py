"""Corral: constrained policy optimization, policies that learn inside their limits.

Importing `corral` is cheap: it registers Corral's environments with Gymnasium, and the names below load their modules, and
JAX, on first use.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.algos import CPO, FPO, PDO, TRPO
    from corral.api import Constraint, Result, train
    from corral.config import Algorithm, Config, Critic, Networks, Shaping, TrustRegion
    from corral.errors import CorralError
    from corral.evaluation import evaluate

__version__ = "0.1.0"

__all__ = [
    "CPO",
    "FPO",
    "PDO",
    "TRPO",
    "Algorithm",
    "Config",
    "Constraint",
    "CorralError",
    "Critic",
    "Networks",
    "Result",
    "Shaping",
    "TrustRegion",
    "__version__",
    "evaluate",
    "train",
]

_ELSEWHERE = {
    **dict.fromkeys(("CPO", "FPO", "PDO", "TRPO"), "algos"),
    **dict.fromkeys(("Constraint", "Result", "train"), "api"),
    "CorralError": "errors",
    "evaluate": "evaluation",
}
"""The module that defines a name; the others are in `config`."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"corral.{_ELSEWHERE.get(name, 'config')}"), name)
    raise AttributeError(f"module 'corral' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


try:
    import_module("corral.envs.gymnasium.ids").register()  # strings only: no JAX is imported
except KeyboardInterrupt:
    # Ctrl-C while the command itself is being loaded: no module of ours can catch it later.
    if Path(sys.argv[0]).name == "corral" or sys.orig_argv[1:3] == ["-m", "corral"]:
        raise SystemExit(130) from None
    raise

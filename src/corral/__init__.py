"""Corral: constrained policy optimization, policies that learn inside their limits.

Importing `corral` is cheap: it registers Corral's environments with Gymnasium as soon as that is imported, and the names
below load their modules, and JAX, on first use.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.algos import (
        CPO,
        CPPOPID,
        CRPO,
        CTRPO,
        CUP,
        FOCOPS,
        FPO,
        IPO,
        P3O,
        PCPO,
        PDO,
        PPO,
        TRPO,
        PPOLag,
        TRPOLag,
    )
    from corral.api import Iteration, Result, resume, train
    from corral.certification.certify import certify
    from corral.config import Algorithm, Config, Critic, Networks, Shaping, TrustRegion
    from corral.errors import CorralError
    from corral.evaluation import evaluate
    from corral.running.given import Constraint
    from corral.running.loggers import LoggedRun, Logger

__version__ = "0.1.0"

__all__ = [
    "CPO",
    "CPPOPID",
    "CRPO",
    "CTRPO",
    "CUP",
    "FOCOPS",
    "FPO",
    "IPO",
    "P3O",
    "PCPO",
    "PDO",
    "PPO",
    "TRPO",
    "Algorithm",
    "Config",
    "Constraint",
    "CorralError",
    "Critic",
    "Iteration",
    "LoggedRun",
    "Logger",
    "Networks",
    "PPOLag",
    "Result",
    "Shaping",
    "TRPOLag",
    "TrustRegion",
    "__version__",
    "certify",
    "evaluate",
    "resume",
    "train",
]

_ELSEWHERE = {
    **dict.fromkeys(("Iteration", "Result", "resume", "train"), "api"),
    **dict.fromkeys(("LoggedRun", "Logger"), "running.loggers"),
    "Constraint": "running.given",
    **dict.fromkeys(("Algorithm", "Config", "Critic", "Networks", "Shaping", "TrustRegion"), "config"),
    "CorralError": "errors",
    "certify": "certification.certify",
    "evaluate": "evaluation",
}
"""The module that defines a name; the others are in `algos`."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"corral.{_ELSEWHERE.get(name, 'algos')}"), name)
    raise AttributeError(f"module 'corral' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


try:
    import_module("corral.envs.gymnasium.ids").register_with_gymnasium()  # imports neither JAX nor Gymnasium
except KeyboardInterrupt:
    # Ctrl-C while the command itself is being loaded: no module of ours can catch it later.
    if os.path.basename(sys.argv[0]) == "corral" or sys.orig_argv[1:3] == ["-m", "corral"]:
        raise SystemExit(130) from None
    raise

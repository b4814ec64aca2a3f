"""Corral: constrained policy optimization, policies that learn inside their limits.

Importing `corral` is cheap: the names below load their modules, and JAX, on first use.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# name -> module that defines it
_EXPORTS: dict[str, str] = {
    "CPO": "corral.config",
    "Config": "corral.config",
    "Constraint": "corral.api",
    "CorralError": "corral.errors",
    "Critic": "corral.config",
    "FPO": "corral.config",
    "Networks": "corral.config",
    "PDO": "corral.config",
    "Result": "corral.api",
    "Shaping": "corral.config",
    "TRPO": "corral.config",
    "TrustRegion": "corral.config",
    "train": "corral.api",
}

__all__ = [
    "CPO",
    "FPO",
    "PDO",
    "TRPO",
    "Config",
    "Constraint",
    "CorralError",
    "Critic",
    "Networks",
    "Result",
    "Shaping",
    "TrustRegion",
    "__version__",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'corral' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


import_module("corral.envs.gymnasium.ids").register()  # strings only: no JAX is imported

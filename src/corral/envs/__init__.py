"""Environments: robots and tasks, the engines that run them, the registry, the way to and from Gymnasium.

Importing this package registers the environments with Gymnasium; the names below load JAX on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from corral.envs.gymnasium import ids as gym_ids

if TYPE_CHECKING:
    from corral.envs.contract import (
        Autoreset,
        Box,
        ConstraintSpec,
        Discrete,
        Env,
        EnvSpec,
        Fleet,
        HostEnv,
        HostStep,
        Timestep,
    )
    from corral.envs.engines.vector import VectorEnv
    from corral.envs.gymnasium.wrap import from_gymnasium
    from corral.envs.registry import is_gymnasium, make, make_host, names, parameters, scenario, spec

__all__ = [
    "Autoreset",
    "Box",
    "ConstraintSpec",
    "Discrete",
    "Env",
    "EnvSpec",
    "Fleet",
    "HostEnv",
    "HostStep",
    "Timestep",
    "VectorEnv",
    "from_gymnasium",
    "is_gymnasium",
    "make",
    "make_host",
    "names",
    "parameters",
    "scenario",
    "spec",
]

_ELSEWHERE = {"from_gymnasium": "gym_in", "VectorEnv": "vector"} | dict.fromkeys(
    ("is_gymnasium", "make", "make_host", "names", "parameters", "scenario", "spec"), "registry"
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"corral.envs.{_ELSEWHERE.get(name, 'base')}"), name)
    raise AttributeError(f"module 'corral.envs' has no attribute {name!r}")


gym_ids.register()

"""Environments: robots and tasks, the engines that run them, the registry, the way to and from Gymnasium."""

from corral.envs.base import (
    Box,
    ConstraintSpec,
    Discrete,
    Env,
    EnvSpec,
    HostEnv,
    HostStep,
    Timestep,
    autoreset,
)
from corral.envs.registry import make, make_host, names, parameters, scenario, spec

__all__ = [
    "Box",
    "ConstraintSpec",
    "Discrete",
    "Env",
    "EnvSpec",
    "HostEnv",
    "HostStep",
    "Timestep",
    "autoreset",
    "make",
    "make_host",
    "names",
    "parameters",
    "scenario",
    "spec",
]

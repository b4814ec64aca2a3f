"""Environments: robots and tasks, the engines that run them, the registry, the way to and from Gymnasium."""

from corral.envs.base import (
    Autoreset,
    Box,
    ConstraintSpec,
    Discrete,
    Env,
    EnvSpec,
    HostEnv,
    HostStep,
    Timestep,
)
from corral.envs.registry import make, make_host, names, parameters, scenario, spec

__all__ = [
    "Autoreset",
    "Box",
    "ConstraintSpec",
    "Discrete",
    "Env",
    "EnvSpec",
    "HostEnv",
    "HostStep",
    "Timestep",
    "make",
    "make_host",
    "names",
    "parameters",
    "scenario",
    "spec",
]

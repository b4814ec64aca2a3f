"""Environments: robots and tasks, the engines that run them, the registry, the way to and from Gymnasium.

The names below load their modules, and JAX, on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.envs.budgets import saute
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
        MultiDiscrete,
        Timestep,
    )
    from corral.envs.engines.mjx import MjxEnv
    from corral.envs.engines.mujoco import ThreadedEnv
    from corral.envs.engines.vector import VectorEnv
    from corral.envs.gymnasium.wrap import from_gymnasium
    from corral.envs.mjcf import MjcfRobot
    from corral.envs.registry import is_gymnasium, make, make_host, names, parameters, scenario, spec
    from corral.envs.robots import RobotState
    from corral.envs.scenarios import Scenario
    from corral.envs.tasks import Score, Task
    from corral.envs.velocity import Velocity

__all__ = ["Autoreset", "Box", "ConstraintSpec", "Discrete", "Env", "EnvSpec", "Fleet", "HostEnv", "HostStep"]
__all__ += ["MultiDiscrete", "Timestep", "VectorEnv", "from_gymnasium", "saute"]
# A robot of one's own: docs/your-own-robot.md
__all__ += ["MjcfRobot", "MjxEnv", "RobotState", "Scenario", "Score", "Task", "ThreadedEnv", "Velocity"]
__all__ += ["is_gymnasium", "make", "make_host", "names", "parameters", "scenario", "spec"]

# name -> module that defines it; `contract` defines all other classes, `registry` all other functions
_MODULES = {
    **{"VectorEnv": "engines.vector", "ThreadedEnv": "engines.mujoco", "MjxEnv": "engines.mjx"},
    **{"MjcfRobot": "mjcf", "RobotState": "robots", "Scenario": "scenarios", "Score": "tasks", "Task": "tasks"},
    **{"Velocity": "velocity", "from_gymnasium": "gymnasium.wrap", "saute": "budgets"},
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = _MODULES.get(name, "contract" if name[0].isupper() else "registry")
        return getattr(import_module(f"corral.envs.{module}"), name)
    raise AttributeError(f"module 'corral.envs' has no attribute {name!r}")

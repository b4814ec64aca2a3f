"""The names of Corral's environments in Gymnasium's registry.

Gymnasium finds no environment of an installed package by itself, so `import corral` registers them: at once where Gymnasium
is imported already, else as soon as it is. Only strings are registered: JAX is not imported before an environment is made.
"""

import sys
from importlib.machinery import ModuleSpec
from typing import Any

# The name in Gymnasium -> the name in Corral's own registry
_PAPER = {"Point": "point", "Ant": "ant", "Humanoid": "humanoid"}
_RUNNERS = {name: name.lower() for name in ("Ant", "HalfCheetah", "Hopper", "Humanoid", "Swimmer", "Walker2d")}
IDS = {
    f"corral/{robot}{task}-v0": f"{name}-{task.lower()}"
    for task, robots in (("Circle", _PAPER), ("Gather", _PAPER), ("Velocity", _RUNNERS))
    for robot, name in robots.items()
}


def register() -> None:
    """Make `gymnasium.make("corral/AntCircle-v0")` work; harmless when done twice."""
    import gymnasium

    for gymnasium_id, name in IDS.items():
        if gymnasium_id not in gymnasium.registry:
            gymnasium.register(
                gymnasium_id,
                entry_point="corral.envs.gymnasium.export:make_env",
                vector_entry_point="corral.envs.gymnasium.export:make_vec_env",
                kwargs={"name": name},
            )


def register_with_gymnasium() -> None:
    """Register now if Gymnasium is there, else when it is imported: a program that only acts never needs it."""
    if "gymnasium" in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _WhenImported())


class _WhenImported:
    """An entry of `sys.meta_path` that finds Gymnasium as usual, once, and registers as soon as its module has run."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """As Python's import asks it."""
        if fullname != "gymnasium":
            return None
        from importlib.util import find_spec  # here: a program that only acts starts without it

        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: Any) -> None:
                run(module)
                register()

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec

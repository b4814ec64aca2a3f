"""The names of Corral's environments in Gymnasium's registry.

Gymnasium finds no environment of an installed package by itself, so `import corral` registers them. Only strings are
registered: JAX is not imported before an environment is made.
"""

import gymnasium

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
    for gymnasium_id, name in IDS.items():
        if gymnasium_id not in gymnasium.registry:
            gymnasium.register(
                gymnasium_id,
                entry_point="corral.envs.gymnasium.export:make_env",
                vector_entry_point="corral.envs.gymnasium.export:make_vec_env",
                kwargs={"name": name},
            )

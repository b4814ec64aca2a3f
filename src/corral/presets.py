"""The paper's parameters for each environment, and the two presets of `corral train`.

`paper` is the paper's algorithm, plainly. `corral` adds what is ours: calibrated limits, and critics that see the elapsed
time and are fitted with early stopping on held-out episodes (in the Point tasks with a λ to go with them).
"""

from dataclasses import replace
from typing import Literal, get_args

from corral.algos import CPO
from corral.config import Algorithm, Config, Critic, Shaping, TrustRegion
from corral.errors import require

Preset = Literal["paper", "corral"]

# The authors' release takes a fifth of the batch for Fisher products.
_FIFTH = TrustRegion(fisher_fraction=0.2)

_CRITIC = Critic(method="adam", epochs=20, held_out=0.1, sees_time=True)
# Chosen on Point-Circle, harmless in Point-Gather: docs/learning.md has the comparisons.
_POINT_CRITIC, _POINT_GAE = replace(_CRITIC, epochs=1, minibatch=16384), 0.98

# Batch, cost λ, iterations to run by default, and the failure predictor (horizon T, steps, coefficient α) or none.
_PAPER: dict[str, Config] = {
    "point-circle": Config(
        "point-circle",
        iterations=200,
        batch_size=50_000,
        shape_costs=True,
        shaping=Shaping(5, 1.0, 25),
        trust=_FIFTH,
    ),
    "ant-circle": Config(
        "ant-circle",
        iterations=500,
        batch_size=100_000,
        cost_gae=0.5,
        shape_costs=True,
        shaping=Shaping(20, 1.0, 25),
        trust=_FIFTH,
    ),
    "humanoid-circle": Config(
        "humanoid-circle",
        iterations=1000,
        batch_size=50_000,
        cost_gae=0.5,
        shape_costs=True,
        shaping=Shaping(20, 1.0, 25),
        trust=_FIFTH,
    ),
    "point-gather": Config("point-gather", iterations=100, batch_size=50_000, trust=_FIFTH),
    "ant-gather": Config(
        "ant-gather",
        iterations=500,
        batch_size=100_000,
        cost_gae=0.5,
        shape_costs=True,
        shaping=Shaping(20, 0.01, 10),
        trust=_FIFTH,
    ),
    "humanoid-gather": Config("humanoid-gather"),
}


def preset(env: str, name: Preset = "corral", algo: Algorithm | None = None) -> Config:
    """The defaults for an environment under a preset.

    Environments that are not the paper's get the paper's general parameters, but for time limits, which are truncations
    there: the episode could have gone on.
    """
    require(name in get_args(Preset), f"preset must be one of {', '.join(get_args(Preset))}, got {name!r}")
    config = _PAPER.get(env, Config(env, time_limit_ends=False))
    if algo is not None:
        config = replace(config, algo=algo)
    if name == "corral":
        if env.startswith("point-"):
            config = replace(config, critic=_POINT_CRITIC, gae=_POINT_GAE)
        else:
            config = replace(config, critic=_CRITIC)
        if isinstance(config.algo, CPO) and config.algo.calibration is None:
            config = replace(config, algo=replace(config.algo, calibration=0.1))
    return config

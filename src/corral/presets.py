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

_CRITIC = Critic(method="adam", epochs=20, held_out=0.1, sees_time=True)
# Chosen on Point-Circle, harmless in Point-Gather: docs/learning.md has the comparisons.
_POINT_CRITIC, _POINT_GAE = replace(_CRITIC, epochs=1, minibatch=16384), 0.98

# Iterations to run by default, batch, λ of costs, and the failure predictor (horizon T, coefficient α, steps) or none.
_TABLE: dict[str, tuple[int, int, float, Shaping | None]] = {
    "point-circle": (200, 50_000, 1.0, Shaping(5, 1.0, 25)),
    "ant-circle": (500, 100_000, 0.5, Shaping(20, 1.0, 25)),
    "humanoid-circle": (1000, 50_000, 0.5, Shaping(20, 1.0, 25)),
    "point-gather": (100, 50_000, 1.0, None),
    "ant-gather": (500, 100_000, 0.5, Shaping(20, 0.01, 10)),
}


def _paper(env: str) -> Config:
    """The paper's parameters for one of its tasks; its general ones for Humanoid-Gather and for environments of others."""
    if env not in _TABLE:
        return Config(env, time_limit_ends=env == "humanoid-gather")
    iterations, batch_size, cost_gae, shaping = _TABLE[env]
    config = Config(env, iterations=iterations, batch_size=batch_size, cost_gae=cost_gae)
    # The authors' release takes a fifth of the batch for Fisher products.
    config = replace(config, trust=TrustRegion(fisher_fraction=0.2))
    return config if shaping is None else replace(config, shape_costs=True, shaping=shaping)


def preset(env: str, name: Preset = "corral", algo: Algorithm | None = None) -> Config:
    """The defaults for an environment under a preset.

    Environments that are not the paper's get the paper's general parameters, but for time limits, which are truncations
    there: the episode could have gone on.
    """
    require(name in get_args(Preset), f"preset must be one of {', '.join(get_args(Preset))}, got {name!r}")
    config = _paper(env)
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

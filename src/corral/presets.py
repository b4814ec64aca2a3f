"""The presets of `corral train`: the paper's parameters for each of its tasks, and ours for any environment.

`paper` is the paper's algorithm, plainly. `corral` asks nothing about an environment but how long its episodes are and how
many steps make a batch (`_ours` has the rules; docs/presets.md says what each was chosen on and judged by). `corral-0.1` is
what `corral` was in version 0.1, in which the figures of docs/results.md and docs/learning.md were made.
"""

from dataclasses import replace
from typing import Literal, get_args

from corral.algos import CPO
from corral.config import Algorithm, Config, Critic, Networks, Shaping, TrustRegion
from corral.envs import registry
from corral.errors import require

Preset = Literal["paper", "corral", "corral-0.1"]

# Iterations to run by default, batch, λ of costs, and the failure predictor (horizon T, coefficient α, steps) or none.
_TABLE: dict[str, tuple[int, int, float, Shaping | None]] = {
    "point-circle": (200, 50_000, 1.0, Shaping(5, 1.0, 25)),
    "ant-circle": (500, 100_000, 0.5, Shaping(20, 1.0, 25)),
    "humanoid-circle": (1000, 50_000, 0.5, Shaping(20, 1.0, 25)),
    "point-gather": (100, 50_000, 1.0, None),
    "ant-gather": (500, 100_000, 0.5, Shaping(20, 0.01, 10)),
}

_SHORT = 100
"""Steps. The returns of shorter episodes vary little, so that nearly all of an episode may be looked ahead."""


def preset(env: str, name: Preset = "corral", algo: Algorithm | None = None, horizon: int | None = None) -> Config:
    """The defaults for an environment under a preset; `horizon` is the length of its episodes, None: as far as it is known.

    The paper's tasks have its batches and numbers of iterations under every preset, and its cost shaping under `paper` and
    `corral-0.1`.
    """
    require(name in get_args(Preset), f"preset must be one of {', '.join(get_args(Preset))}, got {name!r}")
    config = _paper(env)
    if algo is not None:
        config = replace(config, algo=algo)
    if name == "corral":
        config = _ours(config, registry.horizon(env) if horizon is None else horizon)
    elif name == "corral-0.1":
        config = _first(config)
    if name != "paper" and isinstance(config.algo, CPO):
        given, ours = config.algo, name == "corral"
        calibration = 0.1 if given.calibration is None else given.calibration
        memory = calibration > 0 if given.memory is None and ours else given.memory
        margin = 0.2 if given.margin is None and ours else given.margin
        reserve = 0.5 if given.reserve is None and ours else given.reserve
        algo = replace(given, calibration=calibration, memory=memory, margin=margin, reserve=reserve)
        config = replace(config, algo=algo)
    return config


def _paper(env: str) -> Config:
    """The paper's parameters for one of its tasks; its general ones for Humanoid-Gather and for environments of others.

    There a time limit is a truncation: the episode could have gone on.
    """
    if env not in _TABLE:
        return Config(env, time_limit_ends=env == "humanoid-gather")
    iterations, batch_size, cost_gae, shaping = _TABLE[env]
    config = Config(env, iterations=iterations, batch_size=batch_size, cost_gae=cost_gae)
    # The authors' release takes a fifth of the batch for Fisher products.
    config = replace(config, trust=TrustRegion(fisher_fraction=0.2))
    return config if shaping is None else replace(config, shape_costs=True, shaping=shaping)


def _ours(config: Config, horizon: int | None) -> Config:
    """What we take for every environment.

    Two things follow from the length of its episodes. A time limit of less than three times the reach of the discount,
    1/(1 − γ) steps, is part of the task; a later one is where somebody stopped watching. In episodes of up to `_SHORT`
    steps advantages look ahead over all of them, in longer ones as far as the signal lets them.
    """
    short = horizon is not None and horizon <= _SHORT
    return replace(
        config,
        gae=0.98 if short else 0.95,
        cost_gae=1.0 if short else 0.95,
        choose_gae=not short,
        largest_advantage=5.0,
        time_limit_ends=horizon is not None and horizon * (1 - config.gamma) < 3,
        shape_costs=False,
        trust=TrustRegion(
            delta=0.02, damping=0.1, hold_deviations=2.0, fisher_fraction=0.2, shrink=0.9, candidates=30, honest=True
        ),
        networks=Networks(hidden=(64, 64), log_std=-0.7, normalize_observations=True, least_deviation=0.01),
        critic=Critic(method="adam", epochs=10, held_out=0.1, minibatch=0, bootstrap=True, sees_time=True),
    )


def _first(config: Config) -> Config:
    """What `corral` was in version 0.1: critics chosen on Point-Circle for the Point, others for the rest."""
    critic = Critic(method="adam", epochs=20, held_out=0.1, sees_time=True)
    if config.env.startswith("point-"):
        return replace(config, critic=replace(critic, epochs=1, minibatch=16384), gae=0.98)
    return replace(config, critic=critic)

"""Everything a training run depends on, as frozen dataclasses; the command line and the saved file have the same
fields.

The defaults of a field are the paper's where the paper has one; `presets.py` holds what differs between environments.
"""

import abc
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import import_module
from importlib.metadata import entry_points
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Literal

from corral.errors import brief, did_you_mean, require, require_in

PerConstraint = float | tuple[float, ...]
"""One number for all constraints, or one for each, in their order."""


def as_tuple(value: PerConstraint) -> tuple[float, ...]:
    """The numbers that were given, one or several."""
    return value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True)
class Networks:
    """Sizes of the policy, the value functions and the failure predictor."""

    hidden: tuple[int, ...] = (64, 32)
    """Widths of the hidden layers of the policy and of each value function."""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Their activation function."""
    log_std: float = 0.0
    """Where the log standard deviation of a Gaussian policy starts, for every action."""
    normalize_observations: bool = False
    """Scale observations by their running mean and deviation (part of the policy and of its checkpoint)."""
    least_deviation: float = 0.0
    """Divide observations by this where their deviation is smaller: loud rare inputs would drown the others in
    noise."""


@dataclass(frozen=True)
class Critic:
    """How value functions are fitted to each batch, after it has been used."""

    method: Literal["natural", "adam"] = "natural"
    """A pass is one natural-gradient step (the authors' release makes one per iteration), or Adam once over the
    batch."""
    step: float = 0.01
    """Natural: KL divergence of the step, as of a Gaussian around the prediction with the residual's deviation."""
    epochs: int = 1
    """Passes at most."""
    held_out: float = 0.0
    """Share of the episodes kept out of the fit: they choose each network's best pass, and end the fit when none
    helps."""
    minibatch: int = 4096
    """Adam: samples per step; 0: a 160th of batch_size, as many steps in a pass whatever its size."""
    learning_rate: float = 1e-3
    """Adam: its learning rate."""
    bootstrap: bool = False
    """Fit to λ-returns, the advantage estimates plus the old values, instead of the returns that were seen."""
    sees_time: bool = False
    """Give the critics (never the policy) the elapsed fraction of the episode as one more input."""


@dataclass(frozen=True)
class Shaping:
    """Cost shaping C⁺ = C + coefficient · P(unsafe within `horizon` steps), by a learned failure predictor."""

    horizon: int = 20
    """Look-ahead T in steps."""
    coefficient: float = 1.0
    """Weight α of the predicted probability."""
    steps: int = 25
    """Full-batch Adam steps on the predictor per iteration."""
    hidden: int = 32
    """Width of the predictor's one hidden layer."""
    learning_rate: float = 1e-2
    """Adam's learning rate."""
    start: int = 2
    """No bonus in the first iterations, while the predictor is untrained."""


@dataclass(frozen=True)
class TrustRegion:
    """The step every algorithm shares."""

    delta: float = 0.01
    """Mean KL divergence allowed per update."""
    cg_iterations: int = 10
    """Conjugate-gradient iterations for H⁻¹g and H⁻¹B."""
    damping: float = 1e-5
    """Multiple of the identity added to the Fisher matrix."""
    hold_deviations: float = 0.0
    """k: while a cost is at its limit or above, the deviations of a Gaussian policy move 1 + k times as slowly as the
    natural gradient says; further below, less so."""
    fisher_fraction: float = 1.0
    """Share of the batch used in Fisher products (the authors' release: 0.2): one row of every k, with 1/k nearest to
    it."""
    shrink: float = 0.8
    """Factor between candidates of the line search."""
    candidates: int = 15
    """Candidates of the line search."""
    honest: bool = False
    """Judge a step by episodes that it was not computed from: two halves of the batch judge each other's steps."""


@dataclass(frozen=True)
class Algorithm(abc.ABC):
    """An algorithm: a frozen dataclass of its parameters that says how a policy is improved.

    A subclass with a `name` is known to the command line, to configuration files and to reports from the moment it is
    defined; docs/your-own-algorithm.md has an example. A parameter of type float (or `PerConstraint`) is an input of
    the compiled program, so runs that differ in it only share one; any other parameter is a part of the program.
    """

    name: ClassVar[str]
    """Its name after --algo and in files."""
    constrained: ClassVar[bool] = False
    """Whether it solves a subproblem with constraints: it then needs at least one, and its cases are worth a
    picture."""

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            _ALGORITHMS[cls.name] = cls

    @abc.abstractmethod
    def init(self, m: int) -> Any:
        """What the algorithm remembers before the first update, for m constraints: a pytree of arrays."""

    def start(self, m: int, theta: Any) -> Any:
        """The same for an algorithm whose memory has the size of the policy: it begins with parameters θ (p,)."""
        return self.init(m)

    @abc.abstractmethod
    def update(self, state: Any, local: Any, constraints: Any) -> tuple[Any, Any]:
        """One step: the new memory and a `surrogates.Step`.

        `local` (`surrogates.Local`) holds the surrogates around the current policy, `constraints`
        (`surrogates.ConstraintValues`) where the costs stand. A pure function of arrays: it is compiled.
        """

    def reward(self, reward: Any, costs: Any) -> Any:
        """The reward (n,) to maximise, from the environment's reward (n,) and the costs (n, m) of each step."""
        return reward

    def check(self) -> None:
        """Raise `CorralError` if a parameter is out of its range."""
        return None


_ALGORITHMS: dict[str, type[Algorithm]] = {}


def algorithms() -> dict[str, type[Algorithm]]:
    """Every known algorithm by name: Corral's, those of installed plug-ins, and classes that the program defined
    itself.

    A plug-in is a package with an entry point in the group `corral.algorithms`.
    """
    import_module("corral.algos")  # they enter themselves when they are defined
    for plug_in in entry_points(group="corral.algorithms"):
        plug_in.load()
    return _ALGORITHMS


@dataclass(frozen=True)
class Config:
    """One training run."""

    env: str
    """Environment: a name from `corral envs`, or a Gymnasium id."""
    algo: Algorithm = field(default_factory=lambda: algorithms()["cpo"]())
    """The algorithm and its own parameters."""
    iterations: int = 100
    """Policy updates."""
    batch_size: int = 50_000
    """Environment steps sampled for each update, in whole episodes: the count varies a little around this."""
    limit: tuple[float, ...] | dict[str, float] = ()
    """Limits of the constraints, in units of the cost's return: by name, such as torque=10 collision=2 (those left out keep
    the environment's), or as numbers in their order; empty keeps the environment's. A Gymnasium id has the constraints
    named here, on costs of these names in its `info`; a plain number is on `info["cost"]`."""
    gamma: float = 0.995
    """Discount of rewards; 1 only with `time_limit_ends`."""
    cost_gamma: float = 1.0
    """Discount of costs, in the limit and in their values: 1 constrains the plain sum over an episode."""
    discount: dict[str, float] = field(default_factory=dict)
    """Discounts of single constraints by name; the others have `cost_gamma`."""
    largest_step: dict[str, float] = field(default_factory=dict)
    """The most that a step can cost, by the name of a constraint of a Gymnasium environment: certificates rest on it."""
    gae: float = 0.95
    """λ of generalised advantage estimation, for rewards."""
    cost_gae: float = 1.0
    """The same for costs."""
    choose_gae: bool = False
    """Let the shares of signal choose λ of the reward and of each cost, from `gae` and `cost_gae` on (`trust.honest`)."""
    largest_advantage: float = 0.0
    """Advantages of the reward count up to this multiple of their mean size, so that a single fall does not outweigh all
    other steps of a batch; 0: as they are, as always where the algorithm takes costs off the reward (`fpo`)."""
    time_limit_ends: bool = True
    """Treat a time limit as the end of the episode (the paper). Otherwise the returns of the reward go on with the
    value of the last observation; those of costs never do, since a limit is on the sum over one episode."""
    trust: TrustRegion = field(default_factory=TrustRegion)
    """The trust-region step."""
    networks: Networks = field(default_factory=Networks)
    """Function approximators."""
    critic: Critic = field(default_factory=Critic)
    """Fit of the value functions."""
    shape_costs: bool = False
    """Constrain the shaped costs C⁺ instead of C."""
    shaping: Shaping = field(default_factory=Shaping)
    """Cost shaping, where `shape_costs` is on."""
    task: dict[str, float] = field(default_factory=dict)
    """Parameters of the task that differ from its defaults, such as y_lim 3; for a Gymnasium id: arguments of its
    `make`."""
    certainty: float = 0.0
    """Bound each J_C of the policy that made the batch from above, with this confidence, such as 0.95, in every
    iteration (columns cost_at_most, and the display); 0: no bound. Training itself stays the same."""
    horizon: int | None = None
    """The most steps of an episode, for a Gymnasium environment that states none; a longer episode is cut there."""
    seed: int = 0
    """Every random number of the run follows from it."""
    from_python: tuple[str, ...] = field(default=(), metadata={"hidden": True})
    """What Python gave and no file can hold, of env, costs, net: `corral.resume` and `corral.evaluate` ask for it again."""

    @property
    def minibatch(self) -> int:
        """The samples of a step of Adam on the critics."""
        return self.critic.minibatch or -(-self.batch_size // 160)

    def __post_init__(self) -> None:
        for name in ("iterations", "batch_size", "seed"):
            value = getattr(self, name)
            require(isinstance(value, Integral), f"{name} must be a whole number, got {brief(value)}")
        require(self.iterations >= 1, f"iterations must be at least 1, got {brief(self.iterations)}")
        require(self.batch_size >= 1, f"batch_size must be at least 1, got {brief(self.batch_size)}")
        require(
            isinstance(self.limit, tuple | dict),
            "limit must be a dict with a number for each name, or a tuple with a number for each constraint, such as "
            f"(25.0,), got {self.limit!r}",
        )
        for name, value in self.discount.items():
            require_in(f"discount.{name}", value, 0, 1)
        require(self.horizon is None or self.horizon >= 1, f"horizon must be at least 1, got {self.horizon}")
        for name in ("gamma", "cost_gamma", "gae", "cost_gae"):
            require_in(name, getattr(self, name), 0, 1)
        require(
            self.gamma < 1 or self.time_limit_ends,
            "gamma must be below 1 where time_limit_ends is False: returns then go on beyond the time limit with the "
            "critic's value, and without a discount each fit adds an episode to it, without end. Choose a gamma such as "
            "0.995, or time_limit_ends True",
        )
        for name, value in _floats(self):
            require(math.isfinite(value), f"{name} must be a finite number, got {value}")
            require(abs(value) <= _LARGEST, f"{name} must be a number that float32 can hold, got {value}")
        require(
            self.trust.honest or not self.choose_gae,
            "choose_gae needs trust.honest, which measures the signal: turn on both or neither",
        )
        require_in("trust.fisher_fraction", self.trust.fisher_fraction, 0, 1, closed="(]")
        require_in("trust.shrink", self.trust.shrink, 0, 1, closed="()")
        for name in _POSITIVE:
            require(get(self, name) > 0, f"{name} must be positive, got {get(self, name)}")
        for name in _COUNTS:
            require(get(self, name) >= 1, f"{name} must be at least 1, got {brief(get(self, name))}")
        for name in _NOT_NEGATIVE:
            require(get(self, name) >= 0, f"{name} must not be negative, got {brief(get(self, name))}")
        for name, most in _AT_MOST.items():
            require(get(self, name) <= most, f"{name} must be at most {most:,}, got {brief(get(self, name))}")
        require(len(self.networks.hidden) >= 1, "networks.hidden must name at least one layer")
        require(
            all(1 <= n <= 2**20 for n in self.networks.hidden) and len(self.networks.hidden) <= 100,
            f"networks.hidden must be up to 100 widths from 1 to {2**20:,}, got {brief(self.networks.hidden)}",
        )
        require_in("certainty", self.certainty, 0, 1, closed="[)")
        require_in("critic.held_out", self.critic.held_out, 0, 0.9)
        require(0 <= self.seed < 2**32, f"seed must lie in [0, 2^32), got {brief(self.seed)}")
        require(
            isinstance(self.algo, Algorithm),
            f"algo must be an algorithm with its settings, such as corral.CPO(), got {self.algo!r}",
        )
        self.algo.check()


def require_not_negative(name: str, value: PerConstraint) -> None:
    """Require one number or a tuple of at least one, none of them negative."""
    require(isinstance(value, tuple | int | float), f"{name} must be a number or a tuple of numbers, got {value!r}")
    given = as_tuple(value)
    require(len(given) > 0, f"{name} must name at least one number")
    require(all(x >= 0 for x in given), f"{name} must not be negative, got {value}")


_POSITIVE = ("trust.delta", "critic.step", "critic.learning_rate", "shaping.learning_rate")
_COUNTS = ("trust.cg_iterations", "trust.candidates", "critic.epochs", "shaping.horizon", "shaping.hidden")
_NOT_NEGATIVE = (
    "largest_advantage",
    "networks.least_deviation",
    "critic.minibatch",
    "trust.damping",
    "trust.hold_deviations",
    "shaping.coefficient",
    "shaping.steps",
    "shaping.start",
)

_LARGEST = 1e38
"""Everything is computed in float32, whose largest number is a little more."""

_AT_MOST = {
    "iterations": 10**9,
    "batch_size": 10**9,
    "trust.delta": 100.0,
    "trust.cg_iterations": 10_000,
    "trust.candidates": 10_000,
    "critic.epochs": 10**6,
    "critic.minibatch": 10**9,
    "shaping.horizon": 10**6,
    "shaping.steps": 10**6,
    "shaping.hidden": 2**20,
    "shaping.start": 10**9,
}
"""Far beyond any use: a larger number is a slip, and would end in an overflow or a wait without end."""


def _floats(config: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every field that holds floats, by its dotted name."""
    for f in fields(config):
        name, value = f"{prefix}{f.name}", getattr(config, f.name)
        if is_dataclass(value):
            yield from _floats(value, f"{name}.")
        elif isinstance(value, tuple):
            yield from ((f"{name}[{i}]", x) for i, x in enumerate(value) if isinstance(x, float))
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", x) for key, x in value.items() if isinstance(x, float))
        elif isinstance(value, float):
            yield name, value


def require_one_each(config: Config, env: str, constraints: Sequence[str]) -> None:
    """Require that numbers given one per constraint are given for all of them, and names only of constraints there are."""
    for setting, named in (("limit", config.limit), ("discount", config.discount)):
        for name in named if isinstance(named, dict) else ():
            require(
                name in constraints,
                f"{setting} names {name}, and {env} has no such constraint; "
                + (did_you_mean(name, constraints) if constraints else "it has none"),
            )
    given = {"limit": config.limit} | {f"algo.{name}": value for name, value in vars(config.algo).items()}
    m = len(constraints)
    for name, value in given.items():
        count = len(value) if isinstance(value, tuple) else m
        require(
            count == m or (name == "limit" and count == 0),
            f"{name} must have one number for each of the {m} constraints of {env} ({', '.join(constraints)}), got {count}",
        )


def get(config: Config, name: str) -> Any:
    """The value of a field by its dotted name, such as trust.delta."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


MOST_SEEDS = 10_000
"""That can be trained side by side."""


@dataclass(frozen=True)
class RunOptions:
    """How a run is carried out, as against what it computes."""

    out: Path | None = None
    """Folder of the run; by default runs/ENV-ALGO-PRESET-sSEED."""
    seeds: int = 1
    """Train this many seeds, `seed` and those after it, side by side."""
    checkpoint_every: int = 10
    """Iterations between checkpoints; one is also written at the end and on Ctrl-C."""
    threads: int | None = None
    """Threads that simulate robots on the CPU, but not Gymnasium's; None: one per core. Results do not depend on it."""
    workers: int | Literal["ray"] | None = None
    """Processes that step a Gymnasium environment's copies; 0: this one; None: one per core, each with two copies or more;
    ray: on a Ray cluster, one per free processor. Results do not depend on it."""
    env_python: Path | None = None
    """Another Python whose Gymnasium, or Safety-Gymnasium, has the environment; None: this one."""
    overwrite: bool = False
    """Delete what an earlier run left in the folder, instead of refusing to start."""
    json: bool = False
    """Print the results as JSON at the end, and nothing else on stdout."""
    log: tuple[Literal["wandb", "trackio"], ...] = ()
    """Services that get the metrics too, beside TensorBoard's file: wandb, trackio, or both."""

    def __post_init__(self) -> None:
        most = {"seeds": MOST_SEEDS, "checkpoint_every": 10**9, "threads": 4096, "workers": 4096}
        for name, limit in most.items():
            value, least = getattr(self, name), 0 if name == "workers" else 1
            if name == "workers" and isinstance(value, str):
                require(value == "ray", f"workers must be a whole number, or ray, got {brief(value)}")
                continue
            require(value is None or value >= least, f"{name} must be at least {least}, got {brief(value)}")
            require(value is None or value <= limit, f"{name} must be at most {limit:,}, got {brief(value)}")
        if (
            self.env_python is not None
        ):  # a run may be resumed from another folder; a link stays: it makes the environment
            object.__setattr__(self, "env_python", Path(os.path.abspath(self.env_python.expanduser())))

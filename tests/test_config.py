"""Configurations that cannot be are refused in one line."""

from dataclasses import replace

import pytest
from toys import TOY as BASE

from corral import CorralError
from corral.algos import CPO, FPO, PDO
from corral.config import Critic, Networks, RunOptions, Shaping, TrustRegion

# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"gamma": -0.1}, r"gamma must lie in \[0, 1\], got -0.1"),
        ({"cost_gamma": 1.01}, r"cost_gamma must lie in \[0, 1\], got 1.01"),
        ({"gae": float("nan")}, r"gae must lie in \[0, 1\], got nan"),
        ({"cost_gae": 2.0}, r"cost_gae must lie in \[0, 1\], got 2.0"),
        ({"limit": (1.0, float("nan"))}, r"limit\[1\] must be a finite number, got nan"),
        ({"trust": TrustRegion(delta=0.0)}, "trust.delta must be positive, got 0.0"),
        ({"limit": (float("inf"),)}, r"limit\[0\] must be a finite number, got inf"),
        ({"trust": TrustRegion(delta=float("nan"))}, "trust.delta must be a finite number, got nan"),
        ({"trust": TrustRegion(cg_iterations=0)}, "trust.cg_iterations must be at least 1"),
        ({"trust": TrustRegion(candidates=0)}, "trust.candidates must be at least 1, got 0"),
        ({"trust": TrustRegion(shrink=1.0)}, r"trust.shrink must lie in \(0, 1\), got 1.0"),
        ({"trust": TrustRegion(damping=-1.0)}, "trust.damping must not be negative, got -1.0"),
        ({"critic": Critic(learning_rate=0.0)}, "critic.learning_rate must be positive, got 0.0"),
        ({"choose_gae": True}, "choose_gae needs trust.honest, which measures the signal: turn on both or neither"),
        ({"trust": TrustRegion(hold_deviations=-1.0)}, "trust.hold_deviations must not be negative, got -1.0"),
        ({"critic": Critic(minibatch=-1)}, "critic.minibatch must not be negative, got -1"),
        ({"networks": Networks(log_std=float("inf"))}, "networks.log_std must be a finite number, got inf"),
        ({"algo": PDO(nu=float("nan"))}, "algo.nu must be a finite number, got nan"),
        ({"algo": PDO(rate=-0.1)}, "algo.rate must not be negative, got -0.1"),
        ({"algo": FPO(penalty=-1.0)}, "algo.penalty must not be negative, got -1.0"),
        ({"algo": FPO(penalty=(1.0, -1.0))}, r"algo.penalty must not be negative, got \(1.0, -1.0\)"),
        ({"algo": FPO(penalty=())}, "algo.penalty must name at least one number"),
        ({"task": {"y_lim": float("nan")}}, "task.y_lim must be a finite number, got nan"),
        ({"algo": PDO(nu=(1.0, float("inf")))}, r"algo.nu\[1\] must be a finite number, got inf"),
        ({"trust": TrustRegion(fisher_fraction=0.0)}, r"trust.fisher_fraction must lie in \(0, 1\], got 0.0"),
        ({"networks": Networks(hidden=())}, "networks.hidden must name at least one layer"),
        ({"networks": Networks(hidden=(8, 0))}, r"networks.hidden must be up to 100 widths .*, got \(8, 0\)"),
        ({"critic": Critic(epochs=0)}, "critic.epochs must be at least 1, got 0"),
        ({"critic": Critic(held_out=0.95)}, r"critic.held_out must lie in \[0, 0.9\], got 0.95"),
        ({"shaping": Shaping(horizon=0)}, "shaping.horizon must be at least 1, got 0"),
        ({"seed": -1}, r"seed must lie in \[0, 2\^32\), got -1"),
        ({"seed": 2**32}, r"seed must lie in \[0, 2\^32\), got 4294967296"),
        (
            {"gamma": 1.0, "time_limit_ends": False},
            "gamma must be below 1 where time_limit_ends is False: .*such as 0.995",
        ),
        ({"limit": (1e308,)}, r"limit\[0\] must be a number that float32 can hold, got 1e\+308"),
        ({"trust": TrustRegion(delta=1e30)}, "trust.delta must be at most 100.0, got 1e"),
        ({"batch_size": 10**20}, "batch_size must be at most 1,000,000,000, got 1000"),
        ({"iterations": 10**5000}, "iterations must be at most 1,000,000,000, got a int too large to write"),
        ({"trust": TrustRegion(cg_iterations=10**20)}, "trust.cg_iterations must be at most 10,000"),
        ({"trust": TrustRegion(candidates=10**20)}, "trust.candidates must be at most 10,000"),
        ({"critic": Critic(epochs=10**20)}, "critic.epochs must be at most 1,000,000"),
        ({"networks": Networks(hidden=(10**20,))}, "networks.hidden must be up to 100 widths"),
        ({"algo": CPO(calibration=1.5)}, r"algo.calibration must lie in \[0, 1\], got 1.5"),
    ],
)
def test_what_cannot_work_is_refused_by_name(changes, message):
    with pytest.raises(CorralError, match=message):
        replace(BASE, **changes)


def test_the_ends_of_every_interval_are_allowed():
    config = replace(
        BASE,
        gamma=1.0,
        cost_gamma=0.0,
        gae=0.0,
        limit=(-1e9,),
        trust=TrustRegion(fisher_fraction=1.0, cg_iterations=1),
        critic=Critic(held_out=0.9),
        seed=2**32 - 1,
        algo=CPO(calibration=1.0),
    )
    assert (config.gamma, config.critic.held_out, config.algo.calibration) == (1.0, 0.9, 1.0)


def test_options_of_a_run_have_ends_too():
    for name in ("seeds", "checkpoint_every", "threads"):
        with pytest.raises(CorralError, match=f"{name} must be at least 1, got -5"):
            RunOptions(**{name: -5})
        with pytest.raises(CorralError, match=f"{name} must be at most .*, got 99999999999"):
            RunOptions(**{name: 99999999999})

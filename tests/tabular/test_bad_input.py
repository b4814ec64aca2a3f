"""Every public function of the package answers bad input with one line that names the argument."""

import importlib
import inspect
import pkgutil

import jaxtyping
import numpy as np
import pytest

from corral import CorralError, tabular
from corral.tabular.cmdp import CMDP, evaluate
from corral.tabular.gridworld import gridworld
from corral.tabular.update import Run

MADE_BY_THE_LIBRARY = {
    "bounds.Bound",
    "cmdp.Evaluation",
    "gridworld.Gridworld",
    "measures.Promise",
    "optimum.InfeasibleCMDP",
    "optimum.Optimum",
    "optimum.Safest",
    "sampled.Means",
    "sampled.Steps",
    "survey.Survey",
    "survey.Tally",
    "update.Run",
    "update.Update",
}

SHARED_BETWEEN_MODULES = {
    # for other modules of the package, which have checked what they pass
    "bounds": {"change_bound", "surrogate_terms"},
    "cmdp": {"as_distribution", "as_floats", "as_policy", "require_count", "require_kind", "signals_of"},
    "measures": {"kl_rows", "largest", "promise_of", "require_pair", "require_signal"},
    "optimum": {"policy_of"},
    "sampled": {"take_steps"},
    "update": {"bounded", "gradients", "natural_gradients", "propose", "sizes", "start_logits"},
}

GOOD = {
    "P": np.full((2, 3, 2), 0.5),
    "R": np.arange(12.0).reshape(2, 3, 2),
    "C": np.ones((1, 2, 3, 2)),
    "mu": [0.5, 0.5],
    "gamma": 0.5,
    "limits": [1.9],
}
cmdp, twin = CMDP(**GOOD), CMDP(**GOOD)
free = CMDP(**GOOD | {"C": np.zeros((0, 2, 3, 2)), "limits": []})
uniform = np.full((2, 3), 1 / 3)
old, new, foreign = evaluate(cmdp, uniform), evaluate(cmdp, [[1, 0, 0]] * 2), evaluate(twin, uniform)
rng = np.random.default_rng(0)
world = gridworld("S F W G")
run = Run(evaluate(world.cmdp, np.full((4, 5), 0.2)), (), False)

OTHER = "new must be evaluated on the same CMDP as old"
RAW = "old must be an instance of Evaluation, got ndarray"
PAIR = [((old, foreign), {}, OTHER), ((uniform, new), {}, RAW)]
SIGNAL = [*PAIR, ((old, new), {"signal": 2}, "signal must be 0 (the reward) or a cost 1..1, got 2")]
ANY_F = [
    ((old, foreign, [0, 0]), {}, OTHER),
    ((old, new, [0, 0, 0]), {}, "f must have shape (2,), got (3,)"),
    ((old, new, [0, np.inf]), {}, "f must be finite, got inf at index (1,)"),
    ((old, new, [0, 0]), {"signal": -1}, "signal must be 0 (the reward) or a cost 1..1, got -1"),
]
COST = [
    ((old, foreign, 1), {}, OTHER),
    ((old, new, 0), {}, "cost must be one of 1..1, got 0"),
    ((old, new, 1.5), {}, "cost must be one of 1..1, got 1.5"),
]
DELTA = [
    ((old, foreign, 0.1), {}, OTHER),
    ((old, new, 0.0), {}, "delta must lie in (0, inf), got 0.0"),
    ((old, new, np.nan), {}, "delta must lie in (0, inf), got nan"),
]
DELTA_COST = [
    ((old, new, -1.0, 1), {}, "delta must lie in (0, inf), got -1.0"),
    ((old, new, 0.1, 2), {}, "cost must be one of 1..1, got 2"),
]
RNG = "rng must be an instance of Generator, got int"
NO_CMDP = "cmdp must be an instance of CMDP, got ndarray"
START = [
    ((uniform, uniform), {}, NO_CMDP),
    ((cmdp, [[1, 0, 0]] * 2), {}, "start must give every action a probability"),
    ((cmdp, uniform.T), {}, "start must have shape (2, 3) = (states, actions), got (3, 2)"),
    ((cmdp, uniform), {"iterations": -1}, "iterations must be at least 0, got -1"),
    ((cmdp, uniform), {"iterations": 2.5}, "iterations must be a whole number, got 2.5"),
]

BAD = {
    "sampled.sample": [
        ((uniform, rng, 2), {}, "policy must be an instance of Evaluation, got ndarray"),
        ((old, rng, 0), {}, "groups must be at least 1, got 0"),
        ((old, rng, 2), {"size": 1.5}, "size must be a whole number, got 1.5"),
        ((old, rng, 2), {"lam": 2.0}, "lam must lie in [0, 1], got 2.0"),
    ],
    "sampled.compare": [
        ((old, rng, 3, 10), {}, "size must be even, for two halves, got 3"),
        ((old, rng, 4, 1), {}, "batches must be at least 2, got 1"),
        ((old, rng, 4, 10), {"delta": 0.0}, "delta must lie in (0, 1], got 0.0"),
    ],
    "sampled.slope": [((np.ones((3, 1)), np.ones((3, 1))), {}, "predicted must vary from batch to batch")],
    "bounds.flow_lemma": [
        ((uniform, [0, 0]), {}, "policy must be an instance of Evaluation, got ndarray"),
        ((old, [[0, 0]]), {}, "f must have shape (2,), got (1, 2)"),
    ],
    "bounds.performance_difference": SIGNAL,
    "bounds.occupation_lemma": ANY_F,
    "bounds.divergence_lemma": PAIR,
    "bounds.theorem_1": ANY_F,
    "bounds.remark_equality": SIGNAL,
    "bounds.corollary_1": PAIR,
    "bounds.corollary_2": COST,
    "bounds.pinsker_jensen": PAIR,
    "bounds.corollary_3_theorem": ANY_F,
    "bounds.corollary_3_reward": PAIR,
    "bounds.corollary_3_cost": COST,
    "bounds.proposition_1": DELTA,
    "bounds.proposition_2": DELTA_COST,
    "bounds.is_trust_region_update": DELTA,
    "bounds.is_constrained_update": DELTA_COST,
    "cmdp.CMDP": [
        ((), GOOD | {"P": np.ones((2, 3))}, "P must have shape (any, any, any) = (states, actions, states)"),
        ((), GOOD | {"P": np.ones((2, 3, 2))}, "P[0, 0] must sum to 1, got 2 (6 such rows)"),
        ((), GOOD | {"R": [[1.0], [2.0, 3.0]]}, "R must be a rectangular array of numbers"),
        ((), GOOD | {"C": np.ones((2, 2, 3, 2))}, "C must have shape (1, 2, 3, 2)"),
        ((), GOOD | {"mu": [1.5, -0.5]}, "mu must hold probabilities, got -0.5 at index (1,)"),
        ((), GOOD | {"gamma": 1.0}, "gamma must lie in [0, 1), got 1.0"),
        ((), GOOD | {"limits": [np.nan]}, "limits must be finite, got nan at index (0,)"),
    ],
    "cmdp.CMDP.with_limits": [((cmdp, [1.0, 2.0]), {}, "C must have shape (2, 2, 3, 2)")],
    "cmdp.evaluate": [
        ((uniform, uniform), {}, NO_CMDP),
        ((cmdp, uniform[:1]), {}, "policy must have shape (2, 3) = (states, actions), got (1, 3)"),
    ],
    "cpo.exact_cpo": [*START, ((cmdp, uniform, 0.0), {}, "delta must lie in (0, inf), got 0.0")],
    "examples.random_cmdp": [
        ((0, 3, 2), {}, RNG),
        ((rng, 0, 2), {}, "states must be at least 1, got 0"),
        ((rng, 3, 2.5), {}, "actions must be a whole number, got 2.5"),
        ((rng, 3, 2, -1), {}, "constraints must be at least 0, got -1"),
        ((rng, 3, 2, 1, np.nan), {}, "gamma must lie in [0, 1), got nan"),
    ],
    "examples.random_policy": [((0, cmdp), {}, RNG), ((rng, uniform), {}, NO_CMDP)],
    "examples.random_deterministic_policy": [((0, cmdp), {}, RNG), ((rng, uniform), {}, NO_CMDP)],
    "examples.nearby_policy": [
        ((0, uniform, 0.1), {}, RNG),
        ((rng, uniform[0], 0.1), {}, "policy must have shape (any, any) = (states, actions), got (3,)"),
        ((rng, 2 * uniform, 0.1), {}, "policy[0] must sum to 1, got 2 (2 such rows)"),
        ((rng, uniform, np.nan), {}, "distance must lie in [0, 100], got nan"),
    ],
    "examples.fork": [((1.0,), {}, "gamma must lie in [0, 1), got 1.0")],
    "examples.fork_policies": [
        ((0.6, 0.1), {}, "shift must lie in [0, 0.5], got 0.6"),
        ((0.1, -0.1), {}, "tremble must lie in [0, 0.5], got -0.1"),
    ],
    "gridworld.gridworld": [
        ((), {"grid": "S G\n."}, "grid must have rows of one length"),
        ((), {"grid": "S X G"}, "grid may hold S, G, #, F, W and '.', got ['X']"),
        ((), {"grid": "S ."}, "grid must have exactly one G"),
        ((), {"slip": 2.0}, "slip must lie in [0, 1], got 2.0"),
        ((), {"gamma": 1.0}, "gamma must lie in [0, 1), got 1.0"),
        ((), {"limits": [1.0]}, "limits must have shape (3,) = fire, water, energy, got (1,)"),
    ],
    "guaranteed.guaranteed_updates": [
        *START,
        ((cmdp.with_limits([1.0]), uniform), {}, "start must satisfy the limits, it exceeds one by 1"),
    ],
    "measures.promise": [
        ((uniform, uniform), {}, RAW),
        ((old, uniform[0]), {}, "policies must have shape (.., states, actions) = (.., 2, 3), got (3,)"),
        ((old, [uniform, 2 * uniform]), {}, "policies[1, 0] must sum to 1, got 2 (2 such rows)"),
        ((old, np.nan * uniform), {}, "policies must be finite, got nan at index (0, 0)"),
    ],
    "measures.surrogate": SIGNAL,
    "measures.epsilon": SIGNAL,
    "measures.tv": PAIR,
    "measures.mean_tv": PAIR,
    "measures.kl": PAIR,
    "measures.mean_kl": PAIR,
    "measures.mean_tv_from_kl": PAIR,
    "older_bounds.divergence_lemma_max_tv": PAIR,
    "older_bounds.schulman_2015": SIGNAL,
    "older_bounds.schulman_2015_kl": SIGNAL,
    "older_bounds.kakade_langford_2002": [
        ((old, old, foreign, 0.1), {}, OTHER),
        ((old, new, new, 0.1), {}, "new must be the mixture"),
        ((old, new, new, 1.1), {}, "share must lie in [0, 1], got 1.1"),
        ((old, new, new, 1.0), {"signal": 2}, "signal must be 0 (the reward) or a cost 1..1, got 2"),
    ],
    "optimum.optimum": [
        ((uniform,), {}, NO_CMDP),
        ((cmdp.with_limits([1.0]),), {}, "cmdp is infeasible: no policy satisfies all limits"),
    ],
    "optimum.safest": [((uniform,), {}, NO_CMDP), ((free,), {}, "cmdp must have a constraint")],
    "optimum.interior_policy": [
        ((uniform,), {}, NO_CMDP),
        ((cmdp.with_limits([2.0]),), {}, "cmdp has no policy strictly inside its limits"),
    ],
    "survey.survey": [
        ((0, 3, 2, 0), {}, "cmdps must be at least 1, got 0"),
        ((1, 1, 2, 0), {}, "states must be at least 2, got 1"),
        ((1, 3, 1, 0), {}, "actions must be at least 2, got 1"),
        ((1, 3, 2, -1), {}, "seed must be at least 0, got -1"),
    ],
    "update.softmax": [
        (([1.0, 2.0],), {}, "logits must have shape (states, actions), got (2,)"),
        (([[np.inf]],), {}, "logits must be finite, got inf at index (0, 0)"),
    ],
    "update.Run.gap_closed": [
        ((run, np.nan), {}, "best must be finite, got nan"),
        ((run, 1.0, np.inf), {}, "reference must be finite, got inf"),
        ((run, 1.0, 1.0), {}, "best must differ from the reference, both are 1"),
    ],
}


def modules():
    names = [m.name for m in pkgutil.iter_modules(tabular.__path__) if not m.name.startswith("_")]
    return {name: importlib.import_module(f"corral.tabular.{name}") for name in names}


def test_every_public_name_is_in_the_table():
    defined = {
        f"{name}.{key}"
        for name, module in modules().items()
        for key, value in vars(module).items()
        if inspect.isfunction(value) or inspect.isclass(value)
        if not key.startswith("_") and value.__module__ == module.__name__
    }
    shared = {f"{name}.{key}" for name, keys in SHARED_BETWEEN_MODULES.items() for key in keys}
    assert shared <= defined
    assert defined - shared == {key for key in BAD if key.count(".") == 1} | MADE_BY_THE_LIBRARY


@pytest.mark.parametrize(
    ("name", "arguments", "options", "message"),
    [pytest.param(name, *case, id=f"{name}-{case[2]}") for name, cases in BAD.items() for case in cases],
)
def test_bad_input_is_named_in_one_line(name, arguments, options, message, no_type_checks):
    module, *path = name.split(".")
    function = modules()[module]
    for part in path:
        function = getattr(function, part)
    with pytest.raises(CorralError) as caught:
        function(*arguments, **options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.fixture
def no_type_checks():
    """Turn off the run-time type checks of the tests, which a user does not have."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)

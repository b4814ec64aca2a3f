"""Certified training: the bound of each iteration follows from its batch, and training itself stays the same."""

import csv
from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy.stats import binomtest
from toys import BASE, Walk

from corral.certificates import bounds
from corral.envs.contract import ConstraintSpec
from corral.errors import CorralError
from corral.evaluation import totals
from corral.running import certain
from corral.running.directory import RunDirectory
from corral.running.loop import OnDisk, Watcher, loop
from corral.running.trainer import Trainer


class Priced(Walk):
    """The walk, which says that a step costs at most 1."""

    @property
    def spec(self):
        told = tuple(replace(c, largest_step=1.0) for c in super().spec.constraints)
        return replace(super().spec, name="priced", constraints=told)


CONFIG = replace(BASE, iterations=1, batch_size=160, certainty=0.9, shape_costs=False)


def test_the_bound_of_an_iteration_is_that_of_its_batch_and_a_column_of_its_own(tmp_path):
    trainer, run = Trainer([CONFIG], Priced()), RunDirectory(tmp_path / "run")
    run.begin(CONFIG)
    loop(trainer, OnDisk([run], resume=False), Watcher())
    with open(tmp_path / "run" / "metrics.csv") as file:
        (row,) = csv.DictReader(file)
    state = trainer.initial()
    batch = jax.tree.map(lambda x: x[0], jax.device_get(trainer.sample(state, trainer.plan(state, None), 0)))
    costs = totals(batch, np.ones(2))[:, 1:]
    for k, name in enumerate(("near", "far")):
        found = float(row[f"cost_at_most_{name}"])
        assert costs[:, k].mean() < found <= 8  # eight steps at most
        # The order is random, so the bound differs a little from that of any other order; 5% are shared by two constraints.
        orders = [np.random.default_rng(i).permutation(costs[:, k]) for i in range(50)]
        others = [bounds.upper_mean(own, 8.0, 0.05) for own in orders]
        assert min(others) - 0.3 < found < max(others) + 0.3


def test_without_certainty_there_is_no_such_column(tmp_path):
    from corral.running import log

    assert not [name for name in log.patterns(replace(CONFIG, certainty=0.0)) if "at_most" in name]
    assert log.patterns(CONFIG)[-1] == "cost_at_most_{}"


def test_an_environment_that_does_not_state_its_costs_is_refused_before_any_work():
    with pytest.raises(
        CorralError, match="certainty needs the largest cost of a step, which walk does not state for near, far"
    ):
        Trainer([CONFIG], Walk())
    Trainer([replace(CONFIG, certainty=0.0)], Walk())


def test_the_bound_of_each_iteration_holds_as_often_as_it_says():
    """300 batches of 100 episodes whose costs are 8 in one of forty, else 0: means of 0.2; two constraints share 20%."""
    generator, spec = np.random.default_rng(0), Priced().spec
    failed = 0
    for iteration in range(300):
        costs = 8.0 * (generator.random((100, 2)) < 1 / 40)
        found = certain.at_most(replace(CONFIG, certainty=0.8), spec, costs, 0, iteration)
        failed += min(found.values()) < 0.2
    assert binomtest(failed, 300, 0.2, alternative="greater").pvalue > 1e-4


def test_absent_episodes_do_not_count_and_broken_ones_count_as_the_costliest():
    costs = np.zeros((50, 2))
    padded = np.concatenate([costs, np.full((30, 2), np.nan)])
    plain, same = (certain.at_most(CONFIG, Priced().spec, own, 0, 0) for own in (costs, padded))
    assert plain == same
    assert certain.at_most(CONFIG, Priced().spec, costs, 5, 0)["cost_at_most_near"] > plain["cost_at_most_near"]
    with pytest.raises(CorralError, match="the costs of near in priced are not what it states"):
        certain.at_most(CONFIG, Priced().spec, costs - 1, 0, 0)
    with pytest.raises(CorralError, match="lies above the range"):
        certain.at_most(CONFIG, Priced().spec, costs + 9, 0, 0)


def test_a_constraint_of_a_gymnasium_environment_can_state_its_largest_cost():
    assert bounds.largest_sum(None, None, 1.0, 10) is None
    assert bounds.largest_sum(2.0, None, 1.0, 10) == 20
    assert bounds.largest_sum(2.0, 8.0, 1.0, 10) == 8
    assert bounds.largest_sum(1.0, None, 0.5, 3) == pytest.approx(1.75)
    assert ConstraintSpec("c", 1.0).largest_step is None

"""The grid runner on the real training loop, with a trainer that only counts in place of learning."""

import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from corral import envs
from corral.algos import CPO
from corral.display.progress import GridProgress
from corral.experiments import plan, provenance, runner
from corral.learning.update import LearnerState
from corral.rollout.shapes import Plan
from corral.running import lock
from corral.running.programs import numbers, program
from corral.running.trainer import Trainer

from .conftest import policy, row


class Counter(Trainer):
    """A trainer whose states are the number of iterations made; `breaks` names runs that cannot be trained."""

    breaks: tuple[str, ...] = ()
    made: tuple = ()
    after = staticmethod(lambda iteration: None)

    def __init__(self, configs, sampler):
        type(self).made += ([(c.env, c.algo.name, c.seed) for c in configs],)
        self.configs, self.config = configs, configs[0]
        self.name = {"point-circle": "x", "point-gather": "bombs"}[self.config.env]
        self.names, self.spec = [self.name], envs.spec(self.config.env)

    def initial(self):
        return tuple(state(0) for _ in self.configs)

    def state_of(self, state, i):
        return state[i]

    def stacked(self, runs):
        return tuple(runs)

    def plan(self, state, before):
        return Plan(2, 10, 2)

    def plan_after(self, plan, rows):
        return plan

    def iterate(self, states, plan):
        k = int(states[0].iteration)
        for config in self.configs:
            if f"{config.algo.name}-{config.seed}" in self.breaks and k == 1:
                raise RuntimeError(f"seed {config.seed} broke\nand more")
        type(self).after(k)
        rows = [row(self.name, k, float(c.seed + k)) for c in self.configs]
        return tuple(state(k + 1) for _ in self.configs), rows


def state(iteration):
    """Enough of a state for a checkpoint."""
    unused = dict.fromkeys(LearnerState._fields, ())
    return LearnerState(**(unused | {"iteration": np.int64(iteration), "policy": policy()}))


@pytest.fixture
def counter(monkeypatch):
    """Puts a fresh `Counter` in the place of the trainer."""

    class Fresh(Counter):
        made = ()

    monkeypatch.setattr(runner, "Trainer", Fresh)
    monkeypatch.setattr(runner.make, "from_config", lambda config, threads: nullcontext())
    monkeypatch.setattr(runner.jax, "clear_caches", lambda: None)  # other tests would compile again
    return Fresh


@pytest.fixture
def jobs(small, tmp_path):
    return plan.jobs(small, "tiny", tmp_path / "out")


def carry_out(jobs, **how):
    console = Console(record=True, width=200, force_terminal=False, file=open(os.devnull, "w"))  # noqa: SIM115
    try:
        outcome = runner.run(jobs, GridProgress(console), runner.How(**how))
    finally:
        console.file.close()
    return outcome, console.export_text()


@pytest.mark.slow
def test_every_run_is_made_side_by_side_with_those_of_its_shape(counter, jobs):
    outcome, said = carry_out(jobs)
    assert outcome == runner.Outcome()
    circle = [("point-circle", "cpo", 0), ("point-circle", "cpo", 1)]
    gather = [("point-gather", algo, seed) for algo in ("cpo", "pdo") for seed in (0, 1)]
    assert counter.made == (circle, gather)
    for job in jobs:
        np.testing.assert_array_equal(job.directory.metrics()["return"], job.config.seed + np.arange(3.0))
        saved = job.directory.config()  # where nothing is left to a preset
        asked = job.config.algo
        if isinstance(asked, CPO):
            asked = replace(asked, memory=bool(asked.memory))
        asked = replace(job.config, algo=asked)
        assert (program(saved), numbers(saved)) == (program(asked), numbers(asked))
        assert saved.seed == job.config.seed
    assert "point-gather, 4 runs side by side: CPO; PDO, ν₀ = 7" in said


@pytest.mark.slow
def test_what_is_done_is_skipped_and_more_iterations_continue_it(counter, jobs):
    carry_out(jobs)
    outcome, said = carry_out(jobs)
    assert (len(counter.made), outcome.unfinished) == (2, 0)
    assert "6 runs, 6 of them finished" in said
    longer = [replace(job, config=replace(job.config, iterations=5)) for job in jobs[:2]]
    _, said = carry_out(longer)
    assert "from iteration 3" in said
    np.testing.assert_array_equal(jobs[1].directory.metrics()["return"], 1 + np.arange(5.0))
    sessions = jobs[1].directory.provenance()["sessions"]
    assert [(s["first_iteration"], s["iterations"]) for s in sessions] == [(0, 3), (3, 2)]


@pytest.mark.slow
def test_a_run_that_fails_ends_up_alone_and_the_others_are_finished(counter, jobs):
    counter.breaks = ("pdo-0",)
    outcome, said = carry_out(jobs)
    assert outcome.failures == {"point-gather, PDO, ν₀ = 7, seed 0": "RuntimeError: seed 0 broke"}
    assert outcome.unfinished == 1
    assert "trying these 4 runs again in two halves" in said
    failed = next(job for job in jobs if job.config.algo.name == "pdo" and job.config.seed == 0)
    assert "RuntimeError: seed 0 broke" in (failed.folder / "error.txt").read_text()
    assert [job.done for job in jobs if job is not failed] == [3] * 5
    counter.breaks = ()
    assert carry_out(jobs)[0] == runner.Outcome()
    assert not (failed.folder / "error.txt").exists()


def test_ctrl_c_saves_stops_and_a_second_call_goes_on(counter, jobs):
    counter.after = staticmethod(lambda k: os.kill(os.getpid(), signal.SIGINT) if k == 1 else None)
    outcome, said = carry_out(jobs)
    assert outcome.stopped == "asked"
    assert outcome.unfinished == 6
    assert "stopping when this iteration is done and saved" in said
    assert [job.done for job in jobs] == [2, 2, 0, 0, 0, 0]
    counter.after = staticmethod(lambda k: None)
    assert carry_out(jobs)[0] == runner.Outcome()
    np.testing.assert_array_equal(jobs[0].directory.metrics()["iteration"], [0, 1, 2])


@pytest.mark.slow
def test_the_time_given_is_kept_and_what_was_made_is_saved(counter, jobs, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: now[0]))
    counter.after = staticmethod(lambda k: now.__setitem__(0, now[0] + 40))
    # 40 s an iteration: after two of them a third would end at 120 s, past the 110 s given.
    outcome, _ = carry_out(jobs, minutes=110 / 60)
    assert outcome.stopped == "time"
    assert [job.done for job in jobs] == [2, 2, 0, 0, 0, 0]
    # The last iteration of the first program fits; the second program is not begun when the time is over.
    outcome, _ = carry_out(jobs, minutes=30 / 60)
    assert outcome.stopped == "time"
    assert [job.done for job in jobs] == [3, 3, 0, 0, 0, 0]


@pytest.mark.slow
def test_a_kill_loses_no_more_than_the_iterations_since_the_checkpoint(counter, jobs):
    class Killed(BaseException):
        pass

    def kill(k):
        if k == 2:
            raise Killed

    counter.after = staticmethod(kill)
    with pytest.raises(Killed):
        carry_out(jobs, checkpoint_every=2)
    assert jobs[0].done == 2
    counter.after = staticmethod(lambda k: None)
    assert carry_out(jobs)[0] == runner.Outcome()
    np.testing.assert_array_equal(jobs[0].directory.metrics()["iteration"], [0, 1, 2])


def test_a_run_that_another_process_works_on_fails_and_the_others_are_trained(counter, jobs):
    with lock.owned(jobs[0].folder):
        outcome, _ = carry_out(jobs)
    assert list(outcome.failures) == [jobs[0].name]
    assert "is in use by process" in outcome.failures[jobs[0].name]
    assert [job.done for job in jobs] == [0, 3, 3, 3, 3, 3]


def test_what_killed_writes_left_in_a_finished_run_is_swept_once_nobody_else_writes_there(counter, jobs):
    carry_out(jobs)
    left, theirs = (jobs[0].folder / name for name in (".provenance.json.tmp", ".of-mine.tmp"))
    for path in (left, theirs):
        path.touch()
    with lock.owned(jobs[0].folder):
        carry_out(jobs)
    assert left.exists()
    carry_out(jobs)
    assert (left.exists(), theirs.exists()) == (False, True)
    assert len(counter.made) == 2  # nothing was trained again


def test_a_program_writes_down_its_runs_before_it_trains(counter, jobs):
    seen = []
    counter.after = staticmethod(lambda k: seen.append([job.program for job in jobs[:2]]))
    carry_out(jobs[:2])
    assert seen[0] == [(jobs[0].key, jobs[1].key)] * 2


def test_provenance_tells_code_machine_and_time(counter, jobs):
    carry_out(jobs)
    content = jobs[0].directory.provenance()
    assert content["config_sha256"] == plan.config_hash(jobs[0].config)
    session = content["sessions"][0]
    assert session["packages"]["jax"] == __import__("jax").__version__
    assert session["runs_side_by_side"] == 2
    assert session["cores"] >= 1
    assert set(session) >= {"commit", "dirty", "python", "platform", "cpu", "gpu", "date", "seconds"}
    found = provenance.summary([job.directory for job in jobs])
    assert found["runs"] == 6
    assert sum(part["iterations"] for part in found["work"]) == 18

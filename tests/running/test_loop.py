"""The loop: resuming changes nothing, several seeds are several runs, and what was learned is kept."""

import os
import shutil
import signal
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from toys import BASE, SLIDE, TINY, Slide, Stub, Walk, stubbed

import corral
import corral.policy
from corral import CorralError, envs
from corral.algos import CPO, FPO, PDO, TRPO
from corral.config import Config, Critic, TrustRegion
from corral.envs.contract import ConstraintSpec
from corral.evaluation import evaluate
from corral.rollout.shapes import Plan
from corral.running import checkpoint, config_file, lock, log, loop
from corral.running.directory import RunDirectory
from corral.running.trainer import Trainer

ALGOS = {"cpo": CPO(0.1), "trpo": TRPO(), "pdo": PDO(1.0), "fpo": FPO(0.5)}


def train(trainer, folders, watcher=None, checkpoint_every=10, resume=False):
    runs = [RunDirectory(path) for path in folders]
    for run, config in zip(runs, trainer.configs, strict=True):
        run.begin(config)
    recorder = loop.OnDisk(runs, resume)
    return loop.loop(trainer, recorder, watcher or loop.Watcher(), checkpoint_every=checkpoint_every)


def columns_that_repeat(directory):
    metrics = log.read(str(directory))
    timed = ("seconds_sampling", "seconds_updating", "steps_per_second")
    return {name: metrics[name] for name in metrics.columns if name not in timed}


def assert_same_run(a, b):
    left, right = columns_that_repeat(a), columns_that_repeat(b)
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)
    assert (a / "policy.npz").read_bytes() == (b / "policy.npz").read_bytes()
    assert corral.policy.load(a / "policy.npz").about["network"]["kind"] == "mlp"  # the file stands alone


@pytest.mark.parametrize("name", ["cpo", *(pytest.param(n, marks=pytest.mark.slow) for n in ("trpo", "pdo", "fpo"))])
def test_a_resumed_run_repeats_the_uninterrupted_one_bit_for_bit(name, tmp_path):
    critic = Critic("adam", epochs=2, held_out=0.1, minibatch=200, sees_time=True) if name == "cpo" else Critic()
    config = replace(BASE, algo=ALGOS[name], critic=critic)
    trainer = Trainer([replace(config, seed=3)], Walk())
    whole = tmp_path / "whole"
    train(trainer, [whole], checkpoint_every=1)
    # A copy as a kill would leave it: two checkpoints, three rows and a torn fourth.
    cut = tmp_path / "cut"
    shutil.copytree(whole, cut)
    (cut / "policy.npz").unlink()
    for k, path in checkpoint.checkpoints(cut / "checkpoints").items():
        if k > 2:
            path.unlink()
    text = (cut / "metrics.csv").read_text().splitlines(keepends=True)
    (cut / "metrics.csv").write_text("".join(text[:4]) + text[4][:20])
    train(trainer, [cut], checkpoint_every=1, resume=True)
    assert_same_run(whole, cut)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path):
    trainer = Trainer([replace(BASE, algo=TRPO(), seed=3)], Walk())
    whole = tmp_path / "whole"
    train(trainer, [whole], checkpoint_every=1)
    cut = tmp_path / "cut"
    shutil.copytree(whole, cut)
    newest = list(checkpoint.checkpoints(cut / "checkpoints").values())[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    notes = []
    watcher = loop.Watcher()
    watcher.note = notes.append
    train(trainer, [cut], watcher, checkpoint_every=1, resume=True)
    assert_same_run(whole, cut)
    assert "damaged" in notes[0]


@pytest.mark.slow
def test_seeds_side_by_side_are_the_runs_they_would_be_alone(tmp_path):
    config = replace(BASE, algo=CPO(), iterations=3, shape_costs=False)
    together = Trainer([config, replace(config, seed=1)], Walk())
    folders = [tmp_path / f"seed-{s}" for s in (0, 1)]
    train(together, folders)
    alone = tmp_path / "alone"
    train(Trainer([replace(config, seed=1)], Walk()), [alone])
    # Not bit for bit: a vmapped program may add in another order.
    for name in ("return", "cost_near", "cost_far", "kl"):
        np.testing.assert_allclose(log.read(folders[1])[name], log.read(alone)[name], rtol=2e-2, atol=2e-3)
    assert not np.allclose(log.read(folders[0])["return"], log.read(folders[1])["return"])


@pytest.mark.slow
def test_algorithms_and_numbers_side_by_side_are_the_runs_they_would_be_alone(tmp_path):
    """Two programs: TRPO between two penalties, which differ in a number only and so share theirs."""
    # Few conjugate-gradient steps, since late ones magnify rounding until another candidate is accepted.
    trust = TrustRegion(cg_iterations=3)
    small = replace(BASE, iterations=3, shape_costs=False, critic=Critic(), trust=trust)
    configs = [replace(small, algo=a, seed=s) for s, a in enumerate((FPO(0.1), TRPO(), FPO(5.0)))]
    together = Trainer(configs, Walk())
    folders = [(tmp_path / str(i)) for i in range(3)]
    train(together, folders, checkpoint_every=1)
    for i, config in enumerate(configs):
        alone = tmp_path / f"alone-{i}"
        train(Trainer([config], Walk()), [alone])
        for name in ("return", "cost_near", "cost_far", "kl"):
            np.testing.assert_allclose(log.read(folders[i])[name], log.read(alone)[name], rtol=2e-2, atol=2e-3)
        assert log.read(folders[i])["nu_near"][0] == pytest.approx([0.1, 0.0, 5.0][i])
    # And all of them go on from their checkpoints, each from its own.
    again = [tmp_path / f"again-{i}" for i in range(3)]
    for one, two in zip(folders, again, strict=True):
        shutil.copytree(one, two)
        (two / "policy.npz").unlink()
        list(checkpoint.checkpoints(two / "checkpoints").values())[-1].unlink()
    train(together, again, checkpoint_every=1, resume=True)
    for one, two in zip(folders, again, strict=True):
        assert_same_run(one, two)


def test_what_an_environment_breaks_is_named_and_what_was_learned_is_kept(tmp_path):
    where = tmp_path / "run"
    trainer = Trainer([replace(BASE, algo=TRPO())], Walk(poison=1.0))
    with pytest.raises(CorralError, match=r"walk handed out nan as reward at step 4 of an episode, in iteration 0"):
        train(trainer, [where])
    assert list(checkpoint.checkpoints(where / "checkpoints")) == []  # nothing was learned before it


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_run_whose_updates_are_all_refused_stops_with_its_work_saved_and_says_why(seeds, tmp_path, monkeypatch):
    """The second seed is refused from iteration 3 on, because of its cost `far`; every other update was accepted."""
    trainer = Trainer([replace(BASE, algo=TRPO(), iterations=150, seed=s) for s in (7, 8)[-seeds:]], Walk())
    counts = {"tried": 15, "rejected_kl": 4, "rejected_objective": 0, "rejected_cost_near": 5, "rejected_cost_far": 9}

    def iterate(now, plan):
        (part,) = now
        k = int(np.asarray(part.iteration)[0])
        row = dict.fromkeys(log.columns(trainer.names), 0) | counts | {"iteration": k, "case": "inside"}
        rows = [row | {"accepted": np.bool_(s == 7 or k < 3)} for s in (7, 8)[-seeds:]]
        return (part._replace(iteration=part.iteration + 1),), rows

    monkeypatch.setattr(trainer, "iterate", iterate)
    monkeypatch.setattr(trainer, "plan", lambda state, before: Plan(1, 1, 1))
    monkeypatch.setattr(trainer, "plan_after", lambda plan, rows: plan)
    folders = [tmp_path / str(s) for s in range(seeds)]
    message = (
        "TRPO with seed 8: the last 50 updates were all refused, so the policy is still that of iteration 3; it is saved. "
        r"Most often \(rejected_cost_far: 450 of 750 candidates\) the steps broke the constraint .* a larger batch_size"
    )
    with pytest.raises(CorralError, match=message):
        train(trainer, folders, checkpoint_every=1000)
    for folder in folders:
        assert list(checkpoint.checkpoints(folder / "checkpoints")) == [53]
        assert len(log.read(str(folder))) == 53
    with pytest.raises(CorralError, match="the last 50 updates were all refused"):  # counted anew: not at the 54th
        train(trainer, folders, checkpoint_every=1000, resume=True)
    assert len(log.read(str(folders[0]))) == 100 + 3


@pytest.mark.slow
def test_what_was_learned_before_the_environment_itself_failed_is_kept(tmp_path):
    limit = [corral.Constraint("time", 7.0)]
    with pytest.raises(RuntimeError, match="motor driver lost") as stopped:
        corral.train(Slide(fails=23), corral.CPO(), limit, **SLIDE)
    assert len(stopped.value.result.metrics) == 1
    config = Config("slide", batch_size=40, iterations=2, networks=TINY)
    env = envs.from_gymnasium(lambda: Slide(fails=23), 1, [ConstraintSpec("time", 7.0)], horizon=5)
    where = tmp_path / "run"
    with pytest.raises(RuntimeError, match="motor driver lost"):
        train(Trainer([config], env), [where])
    assert list(checkpoint.checkpoints(where / "checkpoints")) == [1]


def test_a_checkpoint_with_the_plan_of_another_version_is_resumed_with_a_new_plan():
    assert loop.known_plan({"episodes": 100, "rows": 1000}) is None
    assert loop.known_plan(None) is None
    assert loop.known_plan(Plan(1, 2, 3)._asdict()) == Plan(1, 2, 3)


def test_an_existing_run_is_not_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CorralError, match="exists and is not empty"):
        loop.run(Config("point-gather"), tmp_path)


@pytest.fixture
def slide_id():
    gymnasium.register("tests/Slide-v0", entry_point=Slide, max_episode_steps=5)
    yield "tests/Slide-v0"
    del gymnasium.registry["tests/Slide-v0"]


@pytest.mark.slow
def test_a_gymnasium_id_is_trained_evaluated_and_resumed_from_its_folder_alone(slide_id, tmp_path):
    """It costs 1 a step; `task` goes to gymnasium.make, so an episode is 3 steps here."""
    config = Config(slide_id, iterations=2, batch_size=40, limit=(7.0,), networks=TINY)
    config = replace(config, task={"max_episode_steps": 3.0})
    loop.run(config, tmp_path)
    np.testing.assert_array_equal(log.read(tmp_path)["cost_cost"], [3, 3])
    (found,) = evaluate(tmp_path, episodes=4)
    assert found.verdict == "open"  # always 3, but Gymnasium does not say that it is never more
    assert found.constraints[0].cost.mean == 3
    config_file.save(replace(config, iterations=3), tmp_path / "config.toml")
    assert loop.resume(tmp_path).iterations == 3
    assert log.read(tmp_path)["iteration"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("env", "limit", "message"),
    [
        ("tests/Slide-v0", (1.0, 2.0), "limit may be one number for tests/Slide-v0, that of the cost in its info"),
        ("tests/Slide-v0", (), r"brings no constraint, and CPO needs one.*--limit"),
        ("corral/PointCircle-v0", (1.0,), "states no max_episode_steps .*--task max_episode_steps N"),
        ("Slyde-v0", (1.0,), "Gymnasium cannot make Slyde-v0: .*doesn't exist"),
        ("no_such_module:Slide-v0", (1.0,), "Gymnasium cannot make no_such_module:Slide-v0: No module named"),
        ("point-circel", (1.0,), "no environment is called 'point-circel'; did you mean point-circle"),
    ],
)
@pytest.mark.usefixtures("slide_id")
def test_what_cannot_be_trained_by_its_id_is_said_in_a_line(env, limit, message, tmp_path):
    with pytest.raises(CorralError, match=message):
        loop.run(Config(env, limit=limit), tmp_path)


# -- whatever ends the loop --------------------------------------------------------------------------------------------


class Ends(loop.Watcher):
    """Does something when so many iterations are done."""

    def __init__(self, after, what):
        self.after, self.what, self.notes = after, what, []

    def update(self, row):
        if row["iteration"] + 1 == self.after:
            self.what()

    def note(self, text):
        self.notes.append(text)


def raises(error):
    def act():
        raise error

    return act


@pytest.mark.parametrize(
    "error",
    [BrokenPipeError(), KeyboardInterrupt(), RuntimeError("boom"), GeneratorExit(), SystemExit(3)],
    ids=lambda e: type(e).__name__,
)
def test_whatever_ends_the_loop_what_was_learned_is_saved(error, tmp_path):
    config = replace(BASE, iterations=9)
    with stubbed(), pytest.raises(type(error)):
        loop.run(config, tmp_path / "run", checkpoint_every=50, watcher=Ends(5, raises(error)))
    run = RunDirectory(tmp_path / "run")
    assert list(run.checkpoints()) == [5]
    with stubbed():
        loop.resume(tmp_path / "run")
        loop.run(config, tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_signals_end_the_run_after_the_iteration_with_everything_saved(number, tmp_path):
    watcher = Ends(3, lambda: os.kill(os.getpid(), number))
    with stubbed():
        ended = loop.run(replace(BASE, iterations=9), tmp_path / "run", checkpoint_every=50, watcher=watcher)
    assert (ended.iterations, ended.interrupted, ended.signal) == (3, True, number)
    assert list(RunDirectory(tmp_path / "run").checkpoints()) == [3]
    assert "stopping when this iteration is done and saved" in watcher.notes[0]


def test_rows_of_some_seeds_only_make_no_checkpoint_that_cannot_be_resumed(tmp_path, monkeypatch):
    """The disk is full when the second of two seeds writes its third row."""
    config, written = replace(BASE, iterations=4), []
    true_append = log.RunLog.append

    def append(self, row):
        written.append(row["iteration"])
        if len(written) == 6:
            raise CorralError("no room on the disk")
        true_append(self, row)

    with stubbed():
        loop.run(config, tmp_path / "whole", seeds=2)
        with monkeypatch.context() as patched:
            patched.setattr(log.RunLog, "append", append)
            with pytest.raises(CorralError, match="no room"):
                loop.run(config, tmp_path / "run", seeds=2, checkpoint_every=50)
        assert list(RunDirectory(tmp_path / "run" / "seed-0").checkpoints()) == [2]
        assert loop.resume(tmp_path / "run").iterations == 4
    for seed in ("seed-0", "seed-1"):
        assert_same_run(tmp_path / "whole" / seed, tmp_path / "run" / seed)


# -- one owner ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [1, 3])
def test_nobody_else_writes_to_a_run_that_is_still_going(seeds, tmp_path):
    config, refused = replace(BASE, iterations=3), []

    def meddle():
        for attempt in (
            lambda: loop.resume(tmp_path / "run"),
            lambda: loop.run(config, tmp_path / "run", overwrite=True),
            lambda: loop.resume(RunDirectory.find(tmp_path / "run")[-1].path),
        ):
            with pytest.raises(CorralError, match=rf"is in use by process {os.getpid()} on") as error:
                attempt()
            refused.append(error)

    with stubbed():
        loop.run(config, tmp_path / "run", seeds=seeds, watcher=Ends(2, meddle))
    assert len(refused) == 3
    assert all(len(run.metrics()) == 3 for run in RunDirectory.find(tmp_path / "run"))
    assert not list(tmp_path.rglob(f"{lock.FILE}*"))


def test_of_two_runs_that_begin_in_one_folder_the_second_leaves_it_to_the_first(tmp_path, monkeypatch):
    """The first takes the folder after the second has seen that it is free."""
    first, second, true_owning = replace(BASE, seed=1), replace(BASE, seed=2), loop._owning

    def owning(paths, note):
        monkeypatch.setattr(loop, "_owning", true_owning)
        loop.run(first, tmp_path / "run")
        return true_owning(paths, note)

    monkeypatch.setattr(loop, "_owning", owning)
    with stubbed(), pytest.raises(CorralError, match="run exists and is not empty"):
        loop.run(second, tmp_path / "run")
    with stubbed():
        loop.run(first, tmp_path / "whole")
    assert RunDirectory(tmp_path / "run").config().seed == 1
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_seed_that_somebody_resumes_is_not_overwritten_with_its_run(tmp_path):
    with stubbed():
        loop.run(BASE, tmp_path / "run", seeds=2)
        with lock.owned(tmp_path / "run" / "seed-1"):
            with pytest.raises(CorralError, match="seed-1 is in use"):
                loop.run(BASE, tmp_path / "run", overwrite=True)
            with pytest.raises(CorralError, match="seed-1 is in use"):
                loop.resume(tmp_path / "run")
    assert RunDirectory(tmp_path / "run" / "seed-1").finished


def test_a_folder_deleted_during_a_run_is_noticed_at_the_next_row(tmp_path):
    watcher = Ends(2, lambda: shutil.rmtree(tmp_path / "run"))
    with stubbed(), pytest.raises(CorralError, match="run was deleted or moved while this process was writing to it"):
        loop.run(replace(BASE, iterations=400), tmp_path / "run", checkpoint_every=50, watcher=watcher)
    assert not (tmp_path / "run").exists()


def test_a_run_with_several_seeds_that_was_killed_while_it_began_is_resumed_with_all_of_them(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    begun = []

    def begin(self, config, options=None):
        begun.append(self)
        if len(begun) == 2:
            raise Killed
        true_begin(self, config, options)

    true_begin = RunDirectory.begin
    with stubbed():
        loop.run(BASE, tmp_path / "whole", seeds=3, checkpoint_every=2)
        with monkeypatch.context() as patched:  # what a kill leaves: nothing is tidied up
            patched.setattr(RunDirectory, "begin", begin)
            patched.setattr(RunDirectory, "discard_start", lambda self: None)
            patched.setattr("pathlib.Path.unlink", lambda self, missing_ok=False: None)
            with pytest.raises(Killed):
                loop.run(BASE, tmp_path / "run", seeds=3, checkpoint_every=2)
        for left in tmp_path.rglob(f"{lock.FILE}*"):
            left.unlink()
        assert [run.path.name for run in RunDirectory.find(tmp_path / "run")] == ["seed-0"]
        assert loop.resume(tmp_path / "run").iterations == 4
    for seed in ("seed-0", "seed-1", "seed-2"):
        assert_same_run(tmp_path / "whole" / seed, tmp_path / "run" / seed)


def test_seeds_whose_iterations_were_raised_by_halves_are_all_raised(tmp_path):
    with stubbed():
        loop.run(BASE, tmp_path / "run", seeds=2)
        first = RunDirectory(tmp_path / "run" / "seed-0")
        first.begin(replace(first.config(), iterations=6), first.options())
        assert loop.resume(tmp_path / "run").iterations == 6
    assert [len(run.metrics()) for run in RunDirectory.find(tmp_path / "run")] == [6, 6]


# -- the record --------------------------------------------------------------------------------------------------------


def edited(path, old, new):
    content = path.read_bytes()
    assert content.count(old) >= 1
    path.write_bytes(content.replace(old, new, 1))


def interrupted(folder, after=6):
    """A run of 9 iterations with a checkpoint after every second one, stopped after some, as a kill would leave it."""
    with stubbed(), pytest.raises(RuntimeError):
        loop.run(replace(BASE, iterations=9), folder, checkpoint_every=2, watcher=Ends(after, raises(RuntimeError())))
    return RunDirectory(folder)


def test_changed_rows_are_made_again_or_refused(tmp_path):
    with stubbed():
        loop.run(replace(BASE, iterations=9), tmp_path / "whole", checkpoint_every=2)
    run = interrupted(tmp_path / "run", 7)  # checkpoints 4, 6 and 7
    rows = (run.path / "metrics.csv").read_bytes().splitlines(keepends=True)
    # A digit of row 5 is changed: the rows before the checkpoint after 4 iterations are whole.
    (run.path / "metrics.csv").write_bytes(
        b"".join(rows[:6]) + rows[6].replace(b",0.0", b",0.1", 1) + b"".join(rows[7:])
    )
    notes = Ends(0, None)
    with stubbed():
        assert loop.resume(run.path, watcher=notes).iterations == 9
    assert [("7 are not" in n or "6 are not" in n) and "metrics.csv was changed" in n for n in notes.notes] == [
        True,
        True,
    ]
    assert_same_run(tmp_path / "whole", run.path)
    # A digit of the first row is changed: nothing can be trusted.
    run = interrupted(tmp_path / "again")
    edited(run.path / "metrics.csv", b"\n0,0.0,", b"\n0,1.0,")
    with (
        stubbed(),
        pytest.raises(CorralError, match=r"none of the .* can be used .*metrics.csv was changed: its rows before"),
    ):
        loop.resume(run.path)


@pytest.mark.parametrize("damage", [b"\xff", b"x", b"", b"-1", b"1e3"])
def test_a_first_cell_that_is_no_number_is_refused_in_a_line(damage, tmp_path):
    run = interrupted(tmp_path / "run")
    edited(run.path / "metrics.csv", b"\n0,", b"\n" + damage + b",")
    with stubbed(), pytest.raises(CorralError, match=r"metrics.csv lacks rows, or has damaged ones"):
        loop.resume(run.path)


def test_a_renamed_checkpoint_is_passed_over(tmp_path):
    run = interrupted(tmp_path / "run")
    newest = run.checkpoints()[6]
    newest.rename(newest.with_name("checkpoint-000005.npz"))
    notes = Ends(0, None)
    with stubbed():
        assert loop.resume(run.path, watcher=notes).iterations == 9
        loop.run(replace(BASE, iterations=9), tmp_path / "whole")
    assert "checkpoint-000005.npz was renamed: it holds the state after 6 iterations" in notes.notes[0]
    assert_same_run(tmp_path / "whole", run.path)


def test_a_finished_run_that_goes_on_has_no_final_policy_until_its_new_end(tmp_path):
    """Otherwise a kill after the last checkpoint would leave the policy of the first end as that of the second."""
    with stubbed():
        loop.run(BASE, tmp_path / "run")
        run = RunDirectory(tmp_path / "run")
        assert run.finished
        with pytest.raises(RuntimeError):
            loop.resume(tmp_path / "run", iterations=6, watcher=Ends(5, raises(RuntimeError())))
        assert (run.finished, max(run.checkpoints())) == (False, 5)
        loop.resume(tmp_path / "run")
        loop.run(replace(BASE, iterations=6), tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_what_killed_writes_left_is_swept_when_the_run_goes_on(tmp_path):
    run = interrupted(tmp_path / "run")
    for name in ("config.toml", "error.txt", "provenance.json", "mine"):
        (run.path / f".{name}.tmp").touch()
    with stubbed():
        loop.resume(run.path)
    assert [path.name for path in run.path.rglob(".*")] == [".mine.tmp"]  # what no run has written stays


def test_the_stub_depends_on_its_plan_and_state_and_on_the_runs_beside_it():
    """Otherwise no test with it could notice a run that was resumed wrongly."""
    stub = Stub([BASE])
    state = stub.initial()
    one, other = (stub.iterate(state, Plan(1, 1, room))[0][0].x for room in (1, 2))
    assert one != other
    assert stub.iterate(stub.iterate(state, Plan(1, 1, 1))[0], Plan(1, 1, 1))[0][0].x != one
    beside = Stub([BASE, replace(BASE, seed=1)])
    assert beside.iterate(beside.initial(), Plan(1, 1, 1))[0][0].x != one


def test_python_s_train_and_resume_leave_a_folder_alone_that_somebody_owns(tmp_path):
    with stubbed():
        loop.run(BASE, tmp_path / "there")
    (tmp_path / "new").mkdir()
    with lock.owned(tmp_path / "there", tmp_path / "new"):
        with pytest.raises(CorralError, match="there is in use by process"):
            corral.resume(tmp_path / "there", env=Walk())
        with pytest.raises(CorralError, match="new is in use by process"):
            corral.train(Walk(), iterations=1, batch_size=40, networks=TINY, out=tmp_path / "new")
    assert list((tmp_path / "there").glob(".lock")) == []

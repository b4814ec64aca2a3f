"""Runs of `corral.train` that have a folder, seeds, loggers and callbacks: the same as those of the command line."""

import os
import re
from pathlib import Path

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from toys import SLIDE, TINY, Slide, Walk

import corral
from corral import CorralError
from corral.cli import main
from corral.config import Config, Critic
from corral.running import log, loop
from corral.running.directory import RunDirectory

WALK = dict(iterations=3, batch_size=80, networks=TINY, critic=Critic(), preset="paper")


def same(a: log.Metrics, b: log.Metrics) -> bool:
    """Whether all is equal to the bit but what the clock says; a file has the shortest decimals of a float32."""
    clocks = ("seconds_sampling", "seconds_updating", "steps_per_second")

    def plain(metrics, name):
        values = metrics[name]
        return values.astype(np.float32) if values.dtype.kind in "bif" else values

    names = [name for name in a.columns if name not in clocks]
    return a.columns == b.columns and all(str(plain(a, n).tolist()) == str(plain(b, n).tolist()) for n in names)


def files(folder: Path) -> set[str]:
    return {re.sub(r"\d{8,}.*", "…", str(p.relative_to(folder))) for p in folder.rglob("*") if p.is_file()}


def test_a_run_from_python_leaves_what_the_command_line_leaves(tmp_path, capsys):
    small = dict(iterations=2, batch_size=300, networks=TINY)
    result = corral.train("point-gather", preset="paper", out=tmp_path / "python", progress=True, **small)
    said = capsys.readouterr()
    assert said.out == ""
    words = "--preset paper --iterations 2 --batch-size 300 --networks.hidden 8 --out"
    assert main(["train", "point-gather", *words.split(), str(tmp_path / "cli")]) == 0
    assert files(tmp_path / "python") == files(tmp_path / "cli")
    assert (tmp_path / "python/config.toml").read_text() == (tmp_path / "cli/config.toml").read_text()
    assert same(log.read(tmp_path / "python"), log.read(tmp_path / "cli"))
    assert same(result.metrics, log.read(tmp_path / "cli"))
    assert result.folder == tmp_path / "python"
    # And it showed what the command line shows, but for speed and time left; compiling says so.
    printed = [re.sub(r"  [\d,.]+ steps/s.*", "", line) for line in said.err.splitlines()]
    shown = [re.sub(r"  [\d,.]+ steps/s.*", "", line) for line in capsys.readouterr().out.splitlines()]
    assert printed == shown[: len(printed)]
    assert printed[1].startswith("compiling")


@pytest.mark.slow
def test_seeds_give_a_list_of_results_and_a_folder_each(tmp_path):
    found = corral.train(Walk(), seeds=2, seed=5, out=tmp_path / "two", **WALK)
    assert [r.folder for r in found] == [tmp_path / "two" / "seed-5", tmp_path / "two" / "seed-6"]
    assert (tmp_path / "two" / "figure.png").is_file()
    in_memory = corral.train(Walk(), seeds=2, seed=5, **WALK)
    for kept, written in zip(in_memory, found, strict=True):
        assert same(kept.metrics, written.metrics)
        assert same(written.metrics, log.read(written.folder))
        obs = np.linspace(-2, 2, 9)[:, None]
        np.testing.assert_array_equal(kept.policy(obs), written.policy(obs))
        np.testing.assert_array_equal(kept.policy(obs), corral.Result.load(written.folder, env=Walk()).policy(obs))
    assert not np.array_equal(found[0].policy(obs), found[1].policy(obs))
    assert len(corral.train(Walk(), seeds=1, **WALK)) == 1


def fast(obs, action, next_obs, info):
    return float(action[0] > 15)


def test_an_environment_and_costs_of_one_s_own_are_resumed_bit_for_bit_when_they_are_given_again(tmp_path):
    wanted = corral.Constraint("fast", 2.0, cost=fast)
    whole = corral.train(Slide, corral.CPO(), wanted, out=tmp_path / "whole", **SLIDE | {"iterations": 4})

    def stop(iteration):
        return iteration.number == 1

    corral.train(Slide, corral.CPO(), wanted, out=tmp_path / "part", callback=stop, **SLIDE | {"iterations": 4})
    part = RunDirectory(tmp_path / "part")
    assert len(part.metrics()) == 2
    assert not part.finished
    assert part.config().from_python == ("env", "costs")
    (again,) = corral.resume(tmp_path / "part", env=Slide, constraints=wanted)
    assert same(again.metrics, whole.metrics)
    for a, b in zip(jax.tree.leaves(again.module), jax.tree.leaves(whole.module), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_run_with_things_from_python_is_evaluated_with_them_and_says_what_it_lacks(tmp_path, capsys):
    wanted = corral.Constraint("fast", 2.0, cost=fast)
    corral.train(Slide, corral.CPO(), wanted, out=tmp_path / "run", **SLIDE)
    (found,) = corral.evaluate(tmp_path / "run", episodes=6, env=Slide, constraints=[wanted])
    assert [c.name for c in found.constraints] == ["fast"]
    assert main(["evaluate", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "env and costs of this run of Slide came from Python" in said
    assert "corral.evaluate(FOLDER, …)" in said
    assert main(["resume", str(tmp_path / "run")]) == 2
    with pytest.raises(CorralError, match=r"^costs of this run of Slide came from Python.*constraints=…"):
        corral.resume(tmp_path / "run", env=Slide)
    with pytest.raises(CorralError, match=r"this run has the limits {'fast': 2.0}: it cannot go on with fast = 3"):
        corral.resume(tmp_path / "run", env=Slide, constraints=corral.Constraint("fast", 3.0, cost=fast))
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]) == 0
    assert "Slide" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
def test_a_network_of_one_s_own_is_asked_for_again(tmp_path):
    net = eqx.nn.MLP(1, 1, 4, 1, key=jax.random.key(0))
    result = corral.train(Walk(), net=net, out=tmp_path, **WALK)
    with pytest.raises(CorralError, match=r"net of this run of walk came from Python.*net=…"):
        corral.Result.load(tmp_path, env=Walk())
    again = corral.Result.load(tmp_path, net, env=Walk())
    np.testing.assert_array_equal(again.policy(np.ones(1)), result.policy(np.ones(1)))


@pytest.mark.slow
def test_limits_by_name_are_saved_and_those_left_out_stay(tmp_path):
    result = corral.train(Walk(), constraints=corral.Constraint("far", 0.5), out=tmp_path, **WALK)
    assert result.metrics["limit_near"].tolist() == [2.0] * 3
    assert result.metrics["limit_far"].tolist() == [0.5] * 3
    assert RunDirectory(tmp_path).config().limit == {"far": 0.5}
    with pytest.raises(CorralError, match=r"limit names fear, and walk has no such constraint; did you mean far"):
        corral.train(Walk(), constraints=corral.Constraint("fear", 0.5), **WALK)


@pytest.mark.slow
def test_a_discount_of_one_constraint_is_saved_and_used(tmp_path):
    """Walk costs 1 where |x| > 1; with a discount of 0 only the first step counts, which costs nothing from near 0."""
    none = corral.Constraint("near", 2.0, discount=0.0)
    result = corral.train(Walk(), constraints=none, out=tmp_path, **WALK)
    plain = corral.train(Walk(), **WALK)
    assert RunDirectory(tmp_path).config().discount == {"near": 0.0}
    assert np.all(plain.metrics["cost_near"] > 0.5)
    assert np.all(result.metrics["cost_near"] < plain.metrics["cost_near"])


@pytest.mark.slow
def test_ctrl_c_ends_a_run_in_a_folder_with_everything_saved_and_its_results(tmp_path):
    class Press(loop.Watcher):
        def update(self, row):
            if row["iteration"] == 1:
                os.kill(os.getpid(), 2)

    with pytest.raises(KeyboardInterrupt, match=r"go on with corral.resume\(") as stopped:
        corral.train(Walk(), out=tmp_path, watcher=Press(), **WALK)
    assert len(stopped.value.result.metrics) == 2
    assert list(RunDirectory(tmp_path).checkpoints()) == [2]
    (whole,) = corral.resume(tmp_path, env=Walk())
    assert same(whole.metrics, corral.train(Walk(), **WALK).metrics)


def test_a_folder_in_use_is_refused_before_the_environment_is_made(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(CorralError, match="exists and is not empty"):
        corral.train(lambda: 1 / 0, out=tmp_path, **SLIDE)


@pytest.mark.slow
def test_compiled_programs_of_python_are_kept_too(monkeypatch):
    made = []
    monkeypatch.setattr("corral.devices.prepare", lambda: made.append(1))
    corral.train(Walk(), **WALK | {"iterations": 1})
    assert made == [1]


# -- loggers and callbacks ---------------------------------------------------------------------------------------------


class Listing(corral.Logger):
    """Keeps what it hears in a list of the class."""

    heard: list = []  # noqa: RUF012, shared on purpose

    def __init__(self, run):
        self.run = run
        self.heard.append(("made", run.name, run.done))

    def log(self, iteration, values):
        self.heard.append((self.run.config["seed"], iteration, values["run/return"], values["near/cost"]))

    def close(self):
        self.heard.append(("closed", self.run.name))


@pytest.fixture
def heard():
    Listing.heard.clear()
    return Listing.heard


def test_a_logger_of_one_s_own_hears_every_seed_and_is_closed(heard, tmp_path):
    found = corral.train(Walk(), seeds=2, loggers=[Listing], **WALK)
    assert heard[:2] == [("made", "walk-cpo-s0", 0), ("made", "walk-cpo-s1", 0)]
    assert set(heard[-2:]) == {("closed", "walk-cpo-s0"), ("closed", "walk-cpo-s1")}
    numbers = {(seed, k): (earned, cost) for seed, k, earned, cost in heard[2:-2]}
    for seed, result in enumerate(found):
        for k in range(3):
            expected = (result.metrics["return"][k], result.metrics["cost_near"][k])
            assert numbers[seed, k] == pytest.approx(expected)


@pytest.mark.slow
def test_a_resumed_run_tells_loggers_how_far_it_had_got_and_by_the_same_id(tmp_path):
    ids = []

    class Known(Listing):
        def __init__(self, run):
            ids.append((run.id, run.done, run.folder))

        def log(self, iteration, values):
            pass

        def close(self):
            pass

    corral.train(Walk(), out=tmp_path, loggers=[Known], callback=lambda i: i.number == 0, **WALK)
    corral.resume(tmp_path, env=Walk(), loggers=[Known])
    (first, second) = ids
    assert first == (second[0], 0, tmp_path)
    assert second[1] == 1


@pytest.mark.slow
def test_a_logger_that_fails_ends_the_training_with_everything_saved(tmp_path):
    class Broken(corral.Logger):
        def __init__(self, run):
            pass

        def log(self, iteration, values):
            if iteration == 1:
                raise RuntimeError("the server has gone")

    with pytest.raises(RuntimeError, match="the server has gone") as stopped:
        corral.train(Walk(), out=tmp_path, loggers=[Broken], **WALK)
    assert len(stopped.value.result.metrics) == 2
    assert list(RunDirectory(tmp_path).checkpoints()) == [2]


def test_a_callback_sees_rows_and_policies_and_may_end_the_training():
    seen = []

    def watch(iteration):
        (result,) = iteration.results()
        seen.append((iteration.row["return"], result.policy(np.ones(1)), len(result.metrics)))
        return len(seen) == 2

    result = corral.train(Walk(), callback=watch, **WALK)
    assert [earned for earned, _, _ in seen] == result.metrics["return"].tolist()
    assert [rows for _, _, rows in seen] == [1, 2]
    np.testing.assert_array_equal(seen[1][1], result.policy(np.ones(1)))


def test_a_service_that_is_not_installed_or_known_is_said_before_anything_is_trained(monkeypatch):
    with pytest.raises(
        CorralError, match=r"loggers must be among wandb, trackio, or classes of your own, got 'mlflow'"
    ):
        corral.train(Walk(), loggers=["mlflow"], **WALK)
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(CorralError, match=r"wandb is not installed: pip install 'corral\[wandb\]'"):
        corral.train(Walk(), loggers=["wandb"], **WALK)


def test_a_service_that_fails_midway_is_left_out_with_a_warning():
    from corral.running.loggers import LoggedRun, WandB

    class Gone:
        def init(self, **how):
            return self

        def log(self, values, step):
            raise ConnectionError("no route")

    logger = WandB(Gone(), LoggedRun("a", "b", {}, (), None, 0))
    with pytest.warns(UserWarning, match="wandb gets no more numbers of this run: no route"):
        logger.log(0, {})
    logger.log(1, {})
    logger.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_gets_every_seed_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    found = corral.train(Walk(), seeds=2, out=tmp_path / "run", loggers=["wandb"], **WALK)
    for result in found:
        (stored,) = (result.folder / "wandb").glob("offline-run-*/run-*.wandb")
        assert RunDirectory(result.folder).id() in stored.name
        assert read_wandb(stored) == pytest.approx(result.metrics["return"].tolist())
    # What it left there is of the run, so that the run may be replaced.
    corral.train(Walk(), seeds=2, out=tmp_path / "run", overwrite=True, **WALK)


def read_wandb(path: Path) -> list[float]:
    """The returns in a file of Weights & Biases: protocol buffers, in which a key is followed by its number as JSON."""
    pairs = re.findall(rb"run/return\x82\x01.(-?[\d.]+(?:e-?\d+)?)", path.read_bytes())
    return [float(number) for number in dict.fromkeys(pairs)]  # each stands in the history and in the summary


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trackio_gets_the_numbers_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("TRACKIO_PROJECT", "tests")
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    result = corral.train(Walk(), out=tmp_path / "run", loggers=["trackio"], **WALK)
    (name,) = SQLiteStorage.get_runs("tests")
    assert name == f"walk-cpo-s0-{RunDirectory(tmp_path / 'run').id()}"
    rows = SQLiteStorage.get_logs("tests", name)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert [row["run/return"] for row in rows] == pytest.approx(result.metrics["return"].tolist())


# -- Gymnasium's own -----------------------------------------------------------------------------------------------------


def test_costs_of_a_gymnasium_id_are_named_on_the_command_line_and_known_to_all_that_follows(tmp_path):
    class Two(Slide):
        """Both places where an environment may report a cost by its name."""

        def step(self, action):
            obs, reward, ended, cut, _ = super().step(action)
            return obs, reward, ended, cut, {"costs": {"torque": 2.0}, "collision": 0.5}

    gymnasium.register("tests/Two-v0", entry_point=Two, max_episode_steps=5)
    try:
        small = "--iterations 2 --batch-size 40 --networks.hidden 8 --preset paper --checkpoint-every 1 --out"
        named = ["tests/Two-v0", "--limit", "torque=11", "collision=3"]
        assert main(["train", *named, *small.split(), str(tmp_path)]) == 0
        # Five steps an episode.
        assert log.read(tmp_path)["cost_torque"].tolist() == [10.0, 10.0]
        assert log.read(tmp_path)["cost_collision"].tolist() == [2.5, 2.5]
        assert log.read(tmp_path)["limit_torque"].tolist() == [11.0, 11.0]
        assert main(["resume", str(tmp_path), "--iterations", "3"]) == 0
        (found,) = corral.evaluate(tmp_path, episodes=4)
        assert [(c.name, c.limit, c.cost.mean) for c in found.constraints] == [
            ("torque", 11.0, 10.0),
            ("collision", 3.0, 2.5),
        ]
    finally:
        del gymnasium.registry["tests/Two-v0"]


@pytest.mark.slow
def test_a_horizon_is_a_setting_of_the_run(tmp_path):
    config = dict(SLIDE) | {"horizon": 3}
    corral.train(Slide, corral.CPO(), corral.Constraint("cost", 4.0), out=tmp_path, **config)
    assert RunDirectory(tmp_path).config().horizon == 3
    np.testing.assert_array_equal(log.read(tmp_path)["length"], 3)
    (found,) = corral.evaluate(tmp_path, episodes=4, env=Slide)
    assert found.constraints[0].cost.mean == 3
    with pytest.raises(CorralError, match="horizon must be at least 1, got 0"):
        Config("x", horizon=0)


# -- spaces ------------------------------------------------------------------------------------------------------------

SEVERAL = {
    "multi-discrete": spaces.MultiDiscrete([3, 2]),
    "a table of them": spaces.MultiDiscrete([[3, 2], [2, 4]]),
    "multi-binary": spaces.MultiBinary(3),
}


class Sum(gymnasium.Env):
    """The reward is the sum of the action; one that is not of the space is refused."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, space):
        self.action_space = space

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.t += 1
        return np.zeros(2, np.float32), float(np.sum(action)), False, self.t == 5, {"cost": float(np.ravel(action)[0])}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow if k != "multi-discrete" else ()) for k in SEVERAL]
)
def test_several_choices_at_once_are_learned_saved_and_loaded(kind, tmp_path):
    space = SEVERAL[kind]
    config = dict(iterations=8, batch_size=200, horizon=5, networks=TINY, critic=Critic(), preset="paper", workers=0)
    result = corral.train(lambda: Sum(space), corral.TRPO(), **config, trust={"delta": 0.05})
    # Each step of the uniform policy earns the mean of the choices; eight trust-region steps must have gone up from there.
    assert result.metrics["return"][-1] > result.metrics["return"][0] + 0.5
    assert space.contains(result.policy(np.zeros(2)))
    assert result.policy(np.zeros((4, 2))).shape == (4, *space.shape)
    result.save(tmp_path / "policy.npz")
    again = corral.Result.load(tmp_path / "policy.npz")
    assert again.spec == result.spec
    np.testing.assert_array_equal(again.policy(np.zeros(2)), result.policy(np.zeros(2)))


def test_actions_that_no_policy_draws_get_a_clear_word():
    space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1, 1, (1,)))
    with pytest.raises(CorralError, match=r"Sum has actions of Dict.*put a gymnasium.ActionWrapper around it"):
        corral.train(lambda: Sum(space), corral.TRPO(), horizon=5, workers=0)


class Glance(gymnasium.Env):
    """A tiny image whose bright half says which of two actions is right."""

    observation_space = spaces.Box(0, 255, (4, 6, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def _look(self):
        self.bright = int(self.np_random.integers(2))
        image = np.zeros((4, 6, 1), np.uint8)
        image[:, 3 * self.bright : 3 * self.bright + 3] = 255
        return image

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._look(), {}

    def step(self, action):
        reward = float(action == self.bright)
        self.t += 1
        return self._look(), reward, False, self.t == 10, {}


class Eye(eqx.Module):
    """An image (4, 6, 1) to two logits."""

    conv: eqx.nn.Conv2d
    head: eqx.nn.Linear

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.conv = eqx.nn.Conv2d(1, 3, 3, padding=1, key=a)
        self.head = eqx.nn.Linear(3 * 4 * 6, 2, key=b)

    def __call__(self, image):
        seen = jax.nn.relu(self.conv(jnp.moveaxis(image, -1, 0) / 255))
        return self.head(seen.ravel())


def test_an_encoder_of_one_s_own_sees_images_as_the_environment_hands_them_out(tmp_path):
    plain = dict(networks=TINY, critic=Critic(), preset="paper", workers=0, horizon=10)
    eye = Eye(jax.random.key(0))
    trained = dict(iterations=8, batch_size=400, trust={"delta": 0.05})
    result = corral.train(Glance, corral.TRPO(), net=eye, **plain, **trained)
    # Guessing earns 5 of 10.
    assert result.metrics["return"][-1] > 7
    env = Glance()
    images = [env.reset(seed=k)[0] for k in range(6)]
    flat = np.stack([image.ravel() for image in images])
    np.testing.assert_array_equal([result.policy(image) for image in images], result.policy(flat))
    np.testing.assert_array_equal(result.policy(np.stack(images)), result.policy(flat))
    result.save(tmp_path / "eye.npz")
    again = corral.Result.load(tmp_path / "eye.npz", net=eye)
    np.testing.assert_array_equal(again.policy(flat), result.policy(flat))


def test_an_encoder_that_does_not_fit_is_told_the_shape_of_the_images():
    wrong = eqx.nn.Conv2d(3, 2, 3, key=jax.random.key(0))
    with pytest.raises(
        CorralError, match=r"net must map observations \(n, 24\) to \(n, 2\).*or one \(4, 6, 1\) to \(2,\)"
    ):
        corral.train(Glance, corral.TRPO(), net=wrong, horizon=10, workers=0)

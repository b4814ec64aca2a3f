import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from corral import cli
from corral.algos import TRPO
from corral.config import Config, Networks
from corral.envs import registry
from corral.errors import CorralError
from corral.learning import networks
from corral.report.render import gl as render_gl
from corral.report.render import video as render_video
from corral.running.directory import RunDirectory


@pytest.fixture(autouse=True)
def the_command(monkeypatch):
    """`corral render` is in the table, and MUJOCO_GL is afterwards what it was before."""
    monkeypatch.setitem(cli.COMMANDS, "render", "")
    monkeypatch.setenv("MUJOCO_GL", "")


@pytest.fixture
def no_gl(monkeypatch):
    """A machine on which no OpenGL works."""
    monkeypatch.setattr(render_gl, "_works", lambda backend: False)
    render_gl._find.cache_clear()
    yield
    render_gl._find.cache_clear()


@pytest.fixture
def gl():
    try:
        render_gl.gl_backend()
    except CorralError as missing:
        pytest.skip(str(missing))


def size(path):
    with Image.open(path) as picture:
        return picture.format, picture.size


def test_without_opengl_there_is_a_picture_from_above_and_advice(no_gl, tmp_path, capsys):
    out = tmp_path / "new" / "walk.gif"
    arguments = ["ant-gather", "--steps", "2", "--episodes", "1", "--out", str(out), "--json"]
    assert cli.main(["render", *arguments]) == 1
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert (report["scene"], report["top_down"]) == (None, str(tmp_path / "new" / "walk-top.png"))
    assert report["steps"] == [2]
    assert [path.name for path in out.parent.iterdir()] == ["walk-top.png"]
    assert size(out.parent / "walk-top.png")[0] == "PNG"
    last = printed.err.strip().splitlines()[-1]
    assert last.startswith("corral render: no OpenGL for drawing off-screen works here")
    assert "apt-get install libegl1" in last
    assert last.endswith("only the picture from above was made")


@pytest.mark.slow
def test_a_film_becomes_a_gif_where_there_is_no_ffmpeg_and_that_is_said(gl, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(render_video, "find_ffmpeg", lambda: None)
    out = tmp_path / "walk.mp4"
    arguments = ["point-gather", "--steps", "2", "--episodes", "2", "--out", str(out)]
    assert cli.main(["render", *arguments]) == 0
    printed = capsys.readouterr()
    assert "no ffmpeg here, so the film is a GIF" in printed.err
    assert f"film: {tmp_path / 'walk.gif'}" in printed.out
    assert f"from above: {tmp_path / 'walk-top.png'}" in printed.out
    # 2 steps at 5 a second and 12½ frames: 5 + 1, and 6 at the end; of each of two episodes.
    assert "24 of 24 frames" in printed.err
    with Image.open(tmp_path / "walk.gif") as film:
        assert (film.format, film.size, film.info["duration"]) == ("GIF", (480, 360), 80)
        first = np.asarray(film.convert("RGB")).astype(int)
    green, red = ((first[..., c] > first[..., other] + 60).sum() for c, other in ((1, 0), (0, 1)))
    assert green > 100  # 2 apples and 8 bombs, each some 25 pixels wide
    assert red > 4 * 0.8 * green / 2


@pytest.mark.slow
def test_the_film_of_an_episode_that_is_too_long_is_cut_off(gl, tmp_path, monkeypatch):
    monkeypatch.setattr("corral.cli.render._FILM_SECONDS", 1)
    out = tmp_path / "swim.gif"
    # 50 steps of 0.04 s are two seconds.
    arguments = ["swimmer-velocity", "--steps", "50", "--episodes", "2", "--out", str(out)]
    assert cli.main(["render", *arguments]) == 0
    with Image.open(out) as film:
        assert film.n_frames == 12  # 12½ a second


def straight_ahead(folder, **changed):
    """The folder of a run whose policy goes ahead at full speed: zero weights, a bias of 1, hardly any noise."""
    config = Config("point-circle", networks=Networks(hidden=(4,), log_std=-20.0), **changed)
    run = RunDirectory(folder)
    run.begin(config)
    policy = networks.make_policy(registry.spec("point-circle", **config.task), config.networks, jax.random.key(0))
    still = jax.tree.map(jnp.zeros_like, policy.net)
    still.biases[-1] = jnp.array([1.0, 0.0])
    run.save_policy(networks.Policy(still, policy.log_std, policy.normalizer), {})
    return folder


@pytest.mark.slow
def test_the_policy_of_a_run_acts_in_the_environment_of_the_run(gl, tmp_path, capsys):
    run = straight_ahead(tmp_path / "run", task={"x_lim": 4.5}, limit=(3.0,))
    out = tmp_path / "end.png"
    arguments = ["point-circle", "--policy", str(run), "--episodes", "2", "--out", str(out), "--json"]
    assert cli.main(["render", *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    # A metre a step along x: |x| > 4.5 from the fifth step on.
    assert report["costs"] == [[steps - 4.0] for steps in report["steps"]]
    assert all(50 <= steps <= 65 for steps in report["steps"])
    assert size(out) == ("PNG", (640, 480))
    assert report["scene"] == str(out)


@pytest.mark.slow
def test_two_policies_are_shown_side_by_side_from_the_same_starts(gl, tmp_path, capsys):
    trpo = straight_ahead(tmp_path / "free", algo=TRPO(), limit=(3.0,))
    cpo = straight_ahead(tmp_path / "safe", limit=(3.0,))
    out = tmp_path / "both.gif"
    arguments = ["point-circle", "--policy", str(trpo), str(cpo), "--episodes", "1", "--out", str(out)]
    assert cli.main(["render", *arguments, "--steps", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["TRPO, one episode", "CPO, one episode", "film", "from above"]
    with Image.open(out) as film:
        assert film.size == (960, 360)
        film.seek(film.n_frames - 1)
        pixels = np.asarray(film.convert("RGB")).astype(int)
    # Both go ahead alike, and only their names, in the upper right corners, differ.
    different = np.abs(pixels[:, :480] - pixels[:, 480:]).max(axis=-1) > 30
    assert different[:60, 320:].any()
    different[:60, 320:] = False
    assert not different.any()
    assert size(tmp_path / "both-top.png") == ("PNG", (2 * 726, 517))


@pytest.mark.slow
def test_runs_of_one_algorithm_are_told_apart_by_their_folders(no_gl, tmp_path, capsys):
    runs = [straight_ahead(tmp_path / name) for name in ("one", "two")]
    arguments = ["point-circle", "--policy", *map(str, runs), "--episodes", "2", "--steps", "3"]
    assert cli.main(["render", *arguments, "--out", str(tmp_path / "film.gif")]) == 1
    assert capsys.readouterr().out.splitlines()[0].startswith("one, 2 episodes: mean return")
    assert cli.main(["render", *arguments, "--out", str(tmp_path / "film.gif"), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [result["policy"] for result in report["policies"]] == list(map(str, runs))
    first, second = ({**result, "policy": ""} for result in report["policies"])
    assert first == second
    assert first["steps"] == [3, 3]


def test_a_policy_that_does_not_fit_is_refused_in_one_line(tmp_path, capsys):
    run = straight_ahead(tmp_path / "several" / "seed-0")
    shutil.copytree(run, run.with_name("seed-1"))
    cases = {
        "nowhere": "policy must be `random` or the folder of a run, and nowhere is neither",
        str(tmp_path): f"{tmp_path} is not the folder of a run: it holds no config.toml",
        str(run.parent): f"{run.parent} holds 2 seeds: choose one of {run}, {run.with_name('seed-1')}",
        str(run): f"the policy in {run} was trained in point-circle: it cannot act in ant-circle",
    }
    for policy, message in cases.items():
        assert cli.main(["render", "ant-circle", "--policy", policy]) == 2
        assert capsys.readouterr().err.strip() == f"corral render: {message}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ant-circl"], "no environment is called 'ant-circl'; did you mean ant-circle?"),
        (["ant-circle", "--out", "film.avi"], "out must end in .mp4, .gif, .png, got film.avi"),
        (["ant-circle", "--policy"], "policy must be `random` or the folder of a run, got nothing"),
        (["ant-circle", "--episodes", "0"], "episodes must be at least 1, got 0"),
        (["ant-circle", "--steps", "-1"], "steps must not be negative, got -1"),
        (["ant-circle", "--seed", "-1"], "seed must lie in [0, 2^32), got -1"),
    ],
)
def test_bad_arguments_get_one_line_and_status_two(capsys, arguments, message):
    assert cli.main(["render", *arguments]) == 2
    assert capsys.readouterr().err.strip() == f"corral render: {message}"


def test_help_explains_every_option(capsys):
    with pytest.raises(SystemExit):
        cli.main(["render", "--help"])
    printed = capsys.readouterr().out
    for option in ("ENV", "--policy", "--out", "--episodes", "--steps", "--seed", "--json"):
        assert option in printed

import tomllib
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest

from corral.algos import CPO, FPO, PDO, TRPO
from corral.cli import main
from corral.cli.flags import parse, train_options
from corral.config import Config, Critic, Networks, RunOptions, Shaping, TrustRegion
from corral.errors import CorralError
from corral.presets import preset
from corral.running.config_file import fill, load, load_options, save

KNOWN = "cpo, cppo-pid, crpo, c-trpo, cup, focops, fpo, ipo, p3o, pcpo, pdo, ppo, ppo-lag, trpo, trpo-lag"

ODD = Config(
    'an "odd"\n\\ name é\x7f𝄞',
    algo=PDO(nu=1e3, rate=1e-30),
    iterations=7,
    limit=(0.1, -3.0, 1e30),
    gamma=1 / 3,
    trust=TrustRegion(delta=5e-324),
    networks=Networks((1, 2, 3), "silu", -0.5, True),
    critic=Critic("adam", sees_time=True),
    shape_costs=True,
    shaping=Shaping(horizon=9),
    task={"y_lim": 3.0, "a b": -1.5},
    horizon=9,
    seed=2**32 - 1,
)


@pytest.mark.parametrize(
    "config",
    [
        ODD,
        Config("x", algo=CPO(0.0, memory=False, margin=0.0, reserve=0.0)),
        *(
            Config("x", algo=algo)
            for algo in (CPO(0.25, memory=True, margin=1.0, reserve=0.5), TRPO(), FPO(penalty=50.0))
        ),
    ],
)
def test_a_configuration_survives_the_file_exactly(tmp_path, config):
    save(config, tmp_path / "config.toml")
    assert load(tmp_path / "config.toml") == config


def test_the_file_holds_every_field_with_its_explanation(tmp_path):
    save(
        ODD,
        tmp_path / "config.toml",
        RunOptions(Path("x"), seeds=3, threads=2, env_python=Path("/p"), overwrite=True, json=True),
    )
    text = (tmp_path / "config.toml").read_text()
    content = tomllib.loads(text)

    def check(value, table):
        for f in fields(value):
            part = getattr(value, f.name)
            if is_dataclass(part):
                check(part, table[f.name])
            else:
                assert table[f.name] == (list(part) if isinstance(part, tuple) else part)

    check(ODD, content)
    assert content["run"] == {"seeds": 3, "checkpoint_every": 10, "threads": 2, "env_python": "/p", "log": []}
    assert "# Mean KL divergence allowed per update.\ndelta = 5e-324\n" in text
    assert load_options(tmp_path / "config.toml") == RunOptions(seeds=3, threads=2, env_python=Path("/p"))


def test_the_environment_alone_gives_its_preset():
    config, options = train_options(["point-circle"])
    assert config == preset("point-circle", "corral")
    assert options == RunOptions(out=Path("runs/point-circle-cpo-corral-s0"))
    assert train_options(["ant-gather", "--preset", "paper"])[0] == preset("ant-gather", "paper")
    assert train_options(["--algo=trpo", "--preset=paper", "point-gather"])[0] == preset(
        "point-gather", "paper", TRPO()
    )


@pytest.mark.parametrize(
    "argv",
    [
        ["point-gather", "--seed", "3", "--limit", "1", "2"],
        ["--seed", "3", "--limit", "1", "2", "point-gather"],
        ["--env", "point-gather", "--seed=3", "--limit", "1", "2"],
    ],
)
def test_the_environment_may_stand_anywhere(argv):
    config, _ = train_options(argv)
    assert config == replace(preset("point-gather", "corral"), seed=3, limit=(1.0, 2.0))


def test_every_field_is_a_flag():
    argv = (
        "point-gather --algo pdo --preset paper --iterations 9 --batch-size 100 --limit 0.5 --gamma 0.9 --cost-gamma 0.8 "
        "--gae 0.7 --cost-gae 0.6 --no-time-limit-ends --shape-costs --task y_lim 3 bombs 2 --seed 5 --algo.nu 1000 "
        "--algo.rate 0.5 --trust.delta 0.02 --trust.cg-iterations 5 --trust.fisher-fraction 0.5 --networks.hidden 8 "
        "--networks.activation relu --networks.normalize-observations --critic.method adam --critic.sees-time "
        "--shaping.horizon 3 --out here --seeds 4 --checkpoint-every 2 --threads 1 --workers 3 "
        "--env-python other/python --json"
    )
    config, options = train_options(argv.split())
    assert config == Config(
        "point-gather",
        algo=PDO(nu=1000.0, rate=0.5),
        iterations=9,
        batch_size=100,
        limit=(0.5,),
        gamma=0.9,
        cost_gamma=0.8,
        gae=0.7,
        cost_gae=0.6,
        time_limit_ends=False,
        trust=TrustRegion(0.02, 5, fisher_fraction=0.5),
        networks=Networks((8,), "relu", normalize_observations=True),
        critic=Critic("adam", sees_time=True),
        shape_costs=True,
        shaping=Shaping(3),
        task={"y_lim": 3.0, "bombs": 2.0},
        seed=5,
    )
    assert options == RunOptions(Path("here"), 4, 2, 1, 3, Path("other/python").absolute(), json=True)


def test_flags_win_over_the_file_and_the_file_over_the_preset(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('env = "point-gather"\ngamma = 0.5\nseed = 8\n[algo]\nname = "pdo"\nnu = 3\n[run]\nseeds = 2\n')
    config, options = train_options(["--config", str(file), "--seed", "9"])
    expected = replace(preset("point-gather", "corral"), gamma=0.5, seed=9, algo=PDO(nu=3.0))
    assert config == expected
    assert options == RunOptions(Path("runs/point-gather-pdo-mine-s9"), seeds=2)
    # Another algorithm than the file's starts from its own defaults.
    config, _ = train_options(["point-circle", "--config", str(file), "--algo", "fpo"])
    assert config == replace(preset("point-circle", "corral"), gamma=0.5, seed=8, algo=FPO())


def test_a_saved_file_leaves_nothing_to_a_preset(tmp_path):
    save(preset("point-circle", "paper"), tmp_path / "config.toml")
    config, _ = train_options(["--config", str(tmp_path / "config.toml")])  # whose own preset would be `corral`
    assert config == preset("point-circle", "paper", CPO(0.0, memory=False, margin=0.0, reserve=0.0))


def test_the_saved_file_of_a_run_repeats_it(tmp_path):
    config, options = train_options(["ant-circle", "--algo", "fpo", "--algo.penalty", "5", "--seeds", "3"])
    save(config, tmp_path / "config.toml", options)
    again, how = train_options(["--config", str(tmp_path / "config.toml")])
    assert again == config
    assert how.seeds == 3


def test_a_gymnasium_id_gets_the_general_parameters_and_a_folder_without_slashes():
    config, options = train_options(["module:some/Thing-v0", "--limit", "25"])
    assert config.limit == (25.0,)
    assert not config.time_limit_ends
    assert preset("humanoid-gather").time_limit_ends
    assert options.out == Path("runs/module-some-Thing-v0-cpo-corral-s0")


def test_a_number_per_constraint_comes_through_flags_and_files(tmp_path):
    one, _ = train_options(["point-circle", "--algo", "fpo", "--algo.penalty", "5"])
    each, _ = train_options(["point-circle", "--algo", "fpo", "--algo.penalty", "5", "50"])
    assert (one.algo, each.algo) == (FPO(5.0), FPO((5.0, 50.0)))
    for config in (one, each):
        save(config, tmp_path / "config.toml")
        assert load(tmp_path / "config.toml") == config


@pytest.mark.parametrize("words", ["torque=10 collision=2.5", "torque 10 collision 2.5"])
def test_limits_come_by_name_through_flags_and_files_in_their_order(words, tmp_path):
    config, _ = train_options(["Pendulum-v1", "--limit", *words.split(), "--seed", "3"])
    assert config.limit == {"torque": 10.0, "collision": 2.5}
    assert config.seed == 3
    save(config, tmp_path / "config.toml")
    again = load(tmp_path / "config.toml")
    assert again == config
    assert list(again.limit) == ["torque", "collision"]


def test_numbers_after_limit_are_plain_and_the_environment_may_follow_them():
    config, _ = train_options(["--limit", "10", "2", "Pendulum-v1"])
    assert (config.env, config.limit) == ("Pendulum-v1", (10.0, 2.0))
    named, _ = train_options(["--limit", "a=1", "Pendulum-v1"])
    assert (named.env, named.limit) == ("Pendulum-v1", {"a": 1.0})


def test_services_are_named_on_the_command_line():
    assert train_options(["x", "--log", "wandb", "trackio"])[1].log == ("wandb", "trackio")
    with pytest.raises(CorralError, match="--log must be any of wandb, trackio, got mlflow"):
        train_options(["x", "--log", "mlflow"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("", "name an environment first, such as `corral train point-circle`"),
        ("x --algo sac", f"--algo must be one of {KNOWN}, got sac"),
        ("x --algo", f"--algo must be one of {KNOWN}, got nothing"),
        ("x --preset mine", "--preset must be one of paper, corral, corral-0.1, got mine"),
        ("x --iterations many", "--iterations must be a whole number, got many"),
        ("x --batch_size=1.5", "--batch-size must be a whole number, got 1.5"),
        ("x --gamma", "--gamma must be a number, got nothing"),
        ("x --networks.hidden 3 wide --seed 1", "what is 'wide' for? It follows no option that takes it"),
        ("x --networks.activation selu", "--networks.activation must be one of tanh, relu, elu, silu, got selu"),
        ("x --task y_lim", "--task must be pairs of a name and a number, got y_lim"),
        ("x --algo pdo --algo.nu much", "--algo.nu must be a number, or a list of numbers, got much"),
        ("x --gamma 2", "gamma must lie in [0, 1], got 2.0"),
        ("x --seeds 0", "seeds must be at least 1, got 0"),
        ("x --delta 0.1", "there is no option --delta; did you mean --trust.delta?"),
        ("x --itertions 5", "there is no option --itertions; did you mean --iterations?"),
        ("x --xyzzy", "there is no option --xyzzy; `corral train --help` lists them"),
        (
            "x --algo.nu 3",
            "--algo.nu is an option of --algo cup, focops, pdo or ppo-lag, and this run is trained by cpo",
        ),
        ("x extra", "what is 'extra' for? It follows no option that takes it"),
        ("x --config nowhere.toml", "there is no file nowhere.toml"),
    ],
)
def test_a_mistake_in_the_arguments_gets_one_clear_line(argv, message, capsys):
    with pytest.raises(CorralError) as caught:
        train_options(argv.split())
    assert str(caught.value) == message
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gamma = 0.5", "env must name the environment"),
        ('env = "x"\ngama = 0.5', "there is no setting gama; did you mean gamma?"),
        ('env = "x"\n[trust]\nzz = 1', "there is no setting trust.zz; there are delta, cg_iterations"),
        ('env = "x"\n[trust]\ndelta = "small"', "trust.delta must be a number, got 'small'"),
        ('env = "x"\ntrust = 3', "trust must be a table of settings, got 3"),
        ('env = "x"\niterations = 2.5', "iterations must be a whole number, got 2.5"),
        ('env = "x"\niterations = true', "iterations must be a whole number, got True"),
        ('env = "x"\nlimit = 5', "limit must be a list of numbers, got 5"),
        ('env = "x"\nlimit = [1, "a"]', r"limit[1] must be a number, got 'a'"),
        ('env = "x"\n[algo]\nname = "pdo"\nnu = "a"', "algo.nu must be a number, got 'a'"),
        ('env = "x"\nshape_costs = 1', "shape_costs must be true or false, got 1"),
        ('env = "x"\ntask = {a = "b"}', "task.a must be a number, got 'b'"),
        ('env = "x"\n[algo]\nname = "sac"', f"algo.name must be one of {KNOWN}, got 'sac'"),
        ('env = "x"\n[algo]\nname = "trpo"\nnu = 1', "there is no setting algo.nu"),
        ('env = "x"\n[networks]\nactivation = "selu"', "networks.activation must be one of tanh"),
        ('env = "x"\ngamma = 7', "gamma must lie in [0, 1], got 7"),
        ("env = ", "is not a TOML file"),
    ],
)
def test_a_mistake_in_the_file_gets_one_clear_line(tmp_path, text, message):
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(CorralError) as caught:
        load(tmp_path / "config.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_help_shows_the_defaults_of_the_environment_and_the_options_of_the_algorithm(capsys):
    with pytest.raises(SystemExit) as stop:
        train_options(["ant-circle", "--algo", "pdo", "--help"])
    assert stop.value.code == 0
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for part in (
        "--batch-size INT Environment steps sampled for each update",
        "(default: 100000)",
        "--algo {cpo,cppo-pid,",
        "--algo.nu FLOAT [FLOAT ...] Where the multipliers start, ν₀: one number for all, or one for each",
        "--shaping.horizon INT Look-ahead T in steps. (default: 20)",
        "--seeds INT",
        "ant-circle with pdo",
    ):
        assert part in printed
    assert "--algo.name" not in printed
    assert "--env " not in printed
    with pytest.raises(SystemExit):
        train_options(["--help"])
    assert "point-circle with cpo" in " ".join(capsys.readouterr().out.split())


def test_every_field_has_a_docstring_to_show():
    from corral.running.config_file import field_docs

    for part in (Config, TrustRegion, Networks, Critic, Shaping, CPO, PDO, FPO, RunOptions):
        docs = field_docs(part)
        assert all(docs.get(f.name) for f in fields(part) if f.name != "name")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        (f"env = 'point-gather'\nseed = {'9' * 4500}", "is not a TOML file: Exceeds the limit"),
        (f"env = 'point-gather'\nseed = 0x{'f' * 9000}", "seed must lie in .*, got a int too large to write"),
        (f"env = 'point-gather'\ngamma = {'9' * 400}", "gamma is too large: 9999"),
        ("env = 'point-gather'\n[algo]\nname = []", "algo.name must be one of cpo, .*, got \\[\\]"),
        ("env = 5", "env must name the environment, got 5"),
        ("env = []", "name an environment first|env must name the environment"),
        ("\xe9", "is not a TOML file"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_in_a_line(content, message, tmp_path):
    file = tmp_path / "c.toml"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(CorralError, match=message):
        train_options(["--config", str(file)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "a\0b"], r"--out must be a path, got 'a\\x00b'"),
        (["--out", ""], "--out must be a path, got nothing"),
        (["--config", ""], "--config must be a path, got nothing"),
        (["--seed", "9" * 5000], r"--seed must be a whole number, got '9{79}…"),
        (["--seeds", "99999999999"], "seeds must be at most 10,000"),
        (["--checkpoint-every", "-5"], "checkpoint_every must be at least 1, got -5"),
        (["--trust.delta", "1e308"], "trust.delta must be a number that float32 can hold"),
        (["--limit", "1e308"], "limit.0. must be a number that float32 can hold"),
        (["--" + "x" * 5000], "there is no option '--x"),
    ],
)
def test_words_that_make_no_sense_are_refused_in_a_line(words, message):
    with pytest.raises(CorralError, match=message) as refused:
        train_options(["point-gather", *words])
    assert len(str(refused.value)) < 400


def test_resume_refuses_what_it_cannot_do(tmp_path, capsys):
    for flag in ("--threads", "--checkpoint-every", "--iterations"):
        assert main(["resume", str(tmp_path), flag, "-5"]) == 2
        assert f"{flag[2:]} must be at least 1, got -5" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["resume", "evaluate", "certify"])
def test_the_module_that_a_folder_names_is_said_before_it_is_imported(command, tmp_path, capsys):
    save(Config("no_such_module:Thing-v0", limit=(1.0,)), tmp_path / "config.toml")
    assert main([command, str(tmp_path)]) == 2
    said, failed = capsys.readouterr().err.splitlines()
    assert said.startswith("importing the Python module no_such_module, which ")
    assert "No module named 'no_such_module'" in failed


def test_the_module_that_a_name_imports_is_said_before_it_is_imported(capsys):
    train_options(["no_such_module:Thing-v0", "--limit", "1"])
    said = capsys.readouterr().err
    assert (
        "importing the Python module no_such_module, which the command names: its code will run on this machine" in said
    )


def test_workers_are_a_number_or_ray():
    read = lambda *words: parse(RunOptions, list(words), "x").workers  # noqa: E731
    assert [read("--workers", word) for word in ("0", "3", "ray")] == [0, 3, "ray"]
    with pytest.raises(CorralError, match="--workers must be a whole number, or ray, got rae"):
        read("--workers", "rae")
    assert fill(RunOptions(), {"workers": "ray"}).workers == "ray"
    with pytest.raises(CorralError, match="workers must be a whole number, or ray, got 'rae'"):
        fill(RunOptions(), {"workers": "rae"})

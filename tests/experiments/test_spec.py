"""Experiment files: what they may say, and that the paper's say what the paper says."""

import pytest

from corral import CorralError
from corral.algos import CPO, FPO, PDO, TRPO
from corral.experiments import spec
from corral.presets import preset

from .conftest import SMALL


def refused(tmp_path, old, new):
    path = tmp_path / "bad.toml"
    assert old in SMALL
    path.write_text(SMALL.replace(old, new, 1))
    with pytest.raises(CorralError) as error:
        spec.load(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_a_file_says_what_is_run(small):
    assert small.name == "small"
    assert [run.label for run in small.runs] == ["CPO", "PDO, ν₀ = 7"]
    assert small.runs[1].algo == PDO(7.0)
    assert small.column("point-circle") == "shaped_cost"
    assert small.column("point-gather") == "cost"
    assert small.scales["tiny"]["point-circle"] == spec.Size(seeds=2, iterations=3, batch_size=100)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('title = "Small"', 'titel = "Small"', "there is no key titel; did you mean title?"),
        ('title = "Small"', "title = 3", "title must be a string, got 3"),
        (
            '"point-circle", ',
            '"point-cirle", ',
            "environments: no environment is called 'point-cirle'; did you mean point-circle?",
        ),
        ('"point-circle", ', '"point-gather", ', "environments must differ, 'point-gather' comes twice"),
        ("[plot]", "[plott]", "there is no key plott; did you mean plot?"),
        (
            'constraint = "shaped_cost"',
            'constraint = "shaped"',
            "plot: constraint must be one of cost, shaped_cost, got 'shaped'",
        ),
        ('constraint = "shaped_cost"', "smoothing = 0", "plot: smoothing must be at least 1, got 0"),
        ('constraint = "shaped_cost"', "smoothing = 1.5", "plot: smoothing must be a whole number, got 1.5"),
        ('constraint = "shaped_cost"', "times_limit = 1", "plot: times_limit must be above 1, got 1"),
        (
            'constraint = "shaped_cost"',
            "smoothing_in = { point-gather = 0 }",
            "plot: smoothing_in.point-gather must be at least 1, got 0",
        ),
        (
            'constraint = "shaped_cost"',
            "smoothing_in = { point-gater = 5 }",
            "there is no key plot.smoothing_in.point-gater; did you mean point-gather?",
        ),
        ('label = "CPO"', 'lable = "CPO"', "runs[0]: there is no setting lable; did you mean label?"),
        ('label = "CPO"\n', "", "runs[0]: label is missing"),
        ('title = "Small"', "", "title is missing"),
        ('label = "CPO"', 'label = " "', "runs[0]: label must not be empty"),
        ('label = "CPO"', 'label = "PDO, ν₀ = 7"', "the labels of runs must differ"),
        ('name = "pdo"', 'name = "pod"', "runs[1]: algo.name must be one of cpo, cppo-pid, crpo"),
        ("nu = 7", "nuu = 7", "runs[1]: there is no setting algo.nuu; did you mean nu?"),
        ("nu = 7", 'nu = "7"', "runs[1]: algo.nu must be a number, got '7'"),
        (
            "nu = 7",
            "nu = [[7, 8]]",
            "run 'PDO, ν₀ = 7' in point-gather: algo.nu must have one number for each of the 1 constraints",
        ),
        ("nu = 7", "nu = []", "runs[1]: algo.nu must name at least one value, got []"),
        ('preset = "paper"', 'preset = "ours"', "runs[0]: preset must be one of paper, corral, corral-0.1, got 'ours'"),
        (
            'environments = ["point-gather"]',
            'environments = ["point-gatter"]',
            "there is no environment of 'PDO, ν₀ = 7' called point-gatter; did you mean point-gather?",
        ),
        ('label = "CPO"', 'label = "CPO"\nsettings = { seed = 3 }', "runs[0].settings.seed is not for here"),
        (
            'label = "CPO"',
            'label = "CPO"\nsettings = { trust = { delat = 1 } }',
            "run 'CPO' in point-circle: there is no setting settings.trust.delat; did you mean delta?",
        ),
        (
            'algo = { name = "pdo", nu = 7 }',
            'algo = { name = "cpo" }',
            "runs 'CPO' and 'PDO, ν₀ = 7' are the same run in point-gather",
        ),
        ("seeds = 2", "seed = 2", "there is no key scale.tiny.seed; did you mean seeds?"),
        ("seeds = 2", "seeds = 0", "scale.tiny: seeds must be at least 1, got 0"),
        ("seeds = 2", "first_seed = -1", "scale.tiny: first_seed must be within 0 and 10⁹, got -1"),
        (
            "seeds = 2",
            "task = { max_step = 9 }",
            "run 'CPO' in point-circle: no parameter of point-circle is called 'max_step'; did you mean max_steps?",
        ),
        ("[scale.tiny]", "[scale]", "scale.seeds must be a table, got 2"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_file_and_key(tmp_path, old, new, said):
    assert refused(tmp_path, old, new).startswith(said)


def test_a_scale_may_change_the_task(tmp_path):
    path = tmp_path / "short.toml"
    path.write_text(SMALL + "task = { max_steps = 60 }\n")
    short = spec.load(path)
    assert short.config(short.runs[0], "point-circle", "tiny").task == {"max_steps": 60}


def test_a_file_that_is_not_there_or_not_toml_is_named(tmp_path):
    with pytest.raises(CorralError, match=r"there is no file .*none\.toml"):
        spec.load(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("title = ")
    with pytest.raises(CorralError, match=r"broken\.toml is not a TOML file"):
        spec.load(tmp_path / "broken.toml")


def test_a_scale_is_needed_only_where_there_are_several(small):
    assert spec.scale_of(small, None) == "tiny"
    with pytest.raises(CorralError, match="no scale 'tinny'; did you mean tiny"):
        spec.scale_of(small, "tinny")
    with pytest.raises(CorralError, match="several scales"):
        spec.scale_of(spec.paper("fig1"), None)


def test_only_keeps_the_environments_named(small):
    assert spec.choose(small, ["point-gather"]).environments == ("point-gather",)
    assert spec.choose(small, ["ant-circle"]).environments == ()
    with pytest.raises(CorralError, match="did you mean point-gather"):
        spec.choose(small, ["point-gathr"])


def test_a_run_has_the_preset_of_corral_train_and_the_figure_shows_what_it_constrains(tmp_path):
    path = tmp_path / "plain.toml"
    plot = '[plot]\nconstraint = "shaped_cost"\nconstraint_in = { point-gather = "cost" }\n'
    assert plot in SMALL
    path.write_text(SMALL.replace(plot, "").replace('preset = "paper"\n', ""))
    plain = spec.load(path)
    assert plain.runs[0].preset == "corral"
    config = plain.config(plain.runs[0], "point-gather", "tiny")
    assert (config.critic, config.algo) == (preset("point-gather").critic, preset("point-gather").algo)
    assert [plain.column(env) for env in plain.environments] == ["cost", "cost"]
    path.write_text(SMALL.replace(plot, ""))
    shaped = spec.load(path)
    assert [shaped.column(env) for env in shaped.environments] == ["shaped_cost", "cost"]
    path.write_text(path.read_text().replace('"CPO"', '"CPO"\nsettings = { shape_costs = false }'))
    assert spec.load(path).column("point-circle") == "cost"


# The appendix's table: batch size, limit d (of the environments), predictor (T, steps, α), λ_C; and seeds, figure 1.
PAPER = {
    "point-circle": (50_000, (5, 25, 1.0), 1.0, 5, 200),
    "ant-circle": (100_000, (20, 25, 1.0), 0.5, 10, 500),
    "humanoid-circle": (50_000, (20, 25, 1.0), 0.5, 10, 1000),
    "point-gather": (50_000, None, 1.0, 5, 100),
    "ant-gather": (100_000, (20, 10, 0.01), 0.5, 10, 500),
}


def test_figure_one_has_the_papers_parameters():
    fig1 = spec.paper("fig1")
    assert fig1.environments == tuple(PAPER)
    for env, (batch, predictor, cost_gae, seeds, iterations) in PAPER.items():
        assert fig1.scales["paper"][env].seeds == seeds
        for entry in fig1.runs:
            config = fig1.config(entry, env, "paper")
            assert (config.batch_size, config.cost_gae, config.iterations) == (batch, cost_gae, iterations)
            lam = 0.95 if entry.preset == "paper" else preset(env, entry.preset).gae
            assert (config.gamma, config.gae, config.trust.delta) == (0.995, lam, 0.01)
            shaping = config.shaping
            shaped = (shaping.horizon, shaping.steps, shaping.coefficient) if config.shape_costs else None
            assert shaped == predictor
    algos = {entry.label: entry.algo for entry in fig1.runs}
    assert algos["PDO"] == PDO(nu=0.0, rate=0.01)
    assert algos["PDO, ν₀ = 1000"] == PDO(nu=1000.0, rate=0.01)
    assert algos["TRPO"] == TRPO()
    assert [e.environments for e in fig1.runs if e.label.endswith("1000")] == [("point-circle", "point-gather")]


def test_figures_three_and_four_have_the_papers_runs():
    fig3, fig4 = spec.paper("fig3"), spec.paper("fig4")
    assert fig3.environments == ("ant-circle", "ant-gather")
    assert fig3.column("ant-circle") == "cost"
    shaped = [fig3.config(entry, "ant-circle", "paper").shape_costs for entry in fig3.runs]
    assert shaped == [True, True, False, False]
    assert all(isinstance(entry.algo, CPO) for entry in fig3.runs)
    assert fig4.environments == ("ant-circle",)
    assert [e.algo.penalty for e in fig4.runs if isinstance(e.algo, FPO)] == [1, 5, 50]


def test_the_ablations_lead_from_one_preset_to_the_other():
    ablations = spec.paper("ablations")
    configs = {e.label: ablations.config(e, "point-gather", "paper") for e in ablations.runs}
    seen = {
        label: (c.algo.calibration or 0.0, c.critic.method, c.critic.sees_time, c.gae, c.limit)
        for label, c in configs.items()
        if "limit 4.6" not in label
    }
    assert sorted(seen.values()) == [
        (0.0, "adam", False, 0.95, ()),
        (0.0, "adam", True, 0.95, ()),
        (0.0, "natural", False, 0.95, ()),
        (0.0, "natural", False, 0.95, (0.091,)),
        (0.0, "natural", False, 0.98, ()),
        (0.0, "natural", True, 0.95, ()),
        (0.1, "adam", True, 0.98, ()),
        (0.1, "natural", False, 0.95, ()),
    ]
    assert seen["paper"] == (0.0, "natural", False, 0.95, ())

"""Which runs there are, which of them are done, and which go side by side."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from corral.algos import CPO, FPO, PDO, TRPO
from corral.config import Config, Critic, Networks
from corral.experiments import plan, provenance, spec

BASE = Config("point-circle")


def test_the_slug_is_of_the_content_without_seed_and_iterations():
    assert plan.slug(replace(BASE, seed=7, iterations=3)) == plan.slug(BASE)
    others = [
        replace(BASE, batch_size=7),
        replace(BASE, env="point-gather"),
        replace(BASE, algo=CPO(0.1)),
        replace(BASE, algo=PDO()),
        replace(BASE, critic=Critic("adam")),
        replace(BASE, task={"y_lim": 3.0}),
        replace(BASE, limit=(4.0,)),
    ]
    assert len({plan.slug(config) for config in [BASE, *others]}) == 8


def test_the_slug_tells_the_algorithm_and_its_numbers():
    assert plan.slug(replace(BASE, algo=PDO(nu=1000.0))).startswith("pdo-nu1000-")
    assert plan.slug(replace(BASE, algo=PDO(nu=(0.0, 1000.0)))).startswith("pdo-nu0,1000-")
    assert plan.slug(replace(BASE, algo=CPO(0.1))).startswith("cpo-calibration0.1-")


def test_the_hash_covers_what_differs_from_the_defaults_only():
    # A field added with a default must not change it, or the runs of old folders would be lost.
    said = '{"algo": "pdo", "algo.nu": 1000.0, "batch_size": 1234, "env": "point-circle"}'
    config = replace(BASE, algo=PDO(nu=1000.0), batch_size=1234, seed=5)
    assert plan.config_hash(config) == hashlib.sha256(said.encode()).hexdigest()


# Computed by Corral 0.1.0.
SLUGS = [
    (BASE, "cpo-8453a5cf"),
    (replace(BASE, algo=CPO(0.1)), "cpo-calibration0.1-90a7461e"),
    (replace(BASE, algo=PDO(nu=(0.0, 1000.0), rate=0.5)), "pdo-nu0,1000-rate0.5-1a1ec6e7"),
    (replace(BASE, algo=TRPO()), "trpo-3aa5fdc5"),
    (replace(BASE, algo=FPO(5.0)), "fpo-penalty5-1556eefd"),
    (replace(BASE, limit=(4.0,), task={"y_lim": 3.0}, batch_size=7), "cpo-37e1e4ae"),
    (Config("CartPole-v1", critic=Critic("adam"), networks=Networks(hidden=(32,))), "cpo-d6f24d0f"),
]
FIGURE_ONE = {
    ("point-circle", "CPO"): "cpo-4a69c88b",
    ("point-circle", "CPO, corral preset"): "cpo-calibration0.1-e8566032",
    ("point-circle", "PDO, ν₀ = 1000"): "pdo-nu1000-0b285de2",
    ("ant-gather", "CPO, corral preset"): "cpo-calibration0.1-00d96b7a",
    ("humanoid-circle", "TRPO"): "trpo-d2a5570f",
}


def test_runs_have_the_names_that_corral_0_1_0_gave_them():
    assert [plan.slug(config) for config, _ in SLUGS] == [slug for _, slug in SLUGS]
    fig1 = spec.paper("fig1")
    found = {(j.config.env, j.label): j.folder.parent.name for j in plan.jobs(fig1, "paper", Path("out"))}
    assert {key: found[key] for key in FIGURE_ONE} == FIGURE_ONE


@pytest.mark.slow
def test_the_figures_share_their_runs():
    out = Path("out")
    jobs = {name: plan.jobs(spec.paper(name), "paper", out) for name in spec.PAPER}
    folders = {name: {job.folder for job in found} for name, found in jobs.items()}
    # Ant-Circle and Ant-Gather with both presets, 10 seeds each; the two presets in two Point environments, 5 seeds each.
    assert len(folders["fig1"] & folders["fig3"]) == 2 * 2 * 10
    assert len(folders["fig1"] & folders["fig4"]) == 2 * 10
    assert len(folders["fig1"] & folders["ablations"]) == 2 * 2 * 5
    total = len(set.union(*folders.values()))
    assert len(plan.merge(jobs.values())) == total
    # fig1: 5·5·2 + 10·4·3 runs, fig3: 10·2·2 more, fig4: 10·3 more, ablations: 5·6·2 more, velocity: (6 + 4)·5
    assert total == 50 + 120 + 40 + 30 + 60 + 50


def test_seeds_are_counted_from_the_first_of_a_scale(tmp_path):
    path = tmp_path / "later.toml"
    path.write_text(
        'title = "Later seeds"\nenvironments = ["point-gather"]\n[[runs]]\nlabel = "CPO"\n'
        "[scale.tiny]\nseeds = 2\nfirst_seed = 10\n"
    )
    later = spec.load(path)
    seeds_of = lambda **options: [job.config.seed for job in plan.jobs(later, "tiny", tmp_path, **options)]  # noqa: E731
    assert seeds_of() == [10, 11]
    assert seeds_of(seeds=3) == [10, 11, 12]


def test_velocity_and_benchmark_share_the_runs_of_cpo_on_seeds_that_nothing_was_chosen_on():
    velocity, benchmark = (
        {job.folder: job.config.seed for job in plan.jobs(spec.paper(name), "paper", Path("out"))}
        for name in ("velocity", "benchmark")
    )
    assert set(velocity.values()) == set(range(40, 45))
    assert len(velocity.keys() & benchmark.keys()) == 6 * 3  # six robots, the first three of five seeds


def test_merging_keeps_the_longest_of_the_same_run(job_of):
    short, long = job_of(iterations=2), job_of(iterations=9)
    assert [job.config.iterations for job in plan.merge([[short], [long]])] == [9]
    assert [job.config.iterations for job in plan.merge([[long], [short]])] == [9]


def test_a_run_is_done_when_log_checkpoint_and_policy_say_so(job_of, make_run):
    job = job_of()
    assert job.done == 0
    make_run(job, 3)
    assert job.done == 3
    assert job_of(iterations=5).done == 3  # asked for more
    (job.folder / "policy.npz").unlink()
    assert job.done == 2  # killed before the policy was written: the last checkpoint is still to be used
    assert job_of(iterations=2).done == 2  # asked for fewer than it has


def test_results_without_checkpoints_count_as_done(job_of, make_run):
    job = make_run(job_of(), 3)
    for path in (job.folder / "checkpoints").iterdir():
        path.unlink()
    assert job.done == 3
    assert job_of(iterations=5).done == 0


@pytest.mark.slow
def test_runs_of_equal_shape_are_one_program_on_an_accelerator():
    jobs = plan.jobs(spec.paper("fig1"), "paper", Path("out"))
    programs = plan.programs(jobs, on_host=False)
    assert [len(program) for program in programs] == [25, 40, 40, 25, 40]
    assert {len({job.config.env for job in program}) for program in programs} == {1}
    capped = plan.programs(jobs, on_host=False, together=16)
    assert [len(program) for program in capped] == [16, 9, 16, 16, 8, 16, 16, 8, 16, 9, 16, 16, 8]


@pytest.mark.slow
def test_on_the_cpus_engine_large_runs_go_alone_and_small_ones_together():
    fig1 = spec.paper("fig1")
    sizes = {
        scale: [
            len(program)
            for program in plan.programs(plan.jobs(fig1, scale, Path("out")), on_host=True)
            if program[0].config.env == "ant-circle"
        ]
        for scale in ("paper", "laptop", "smoke")
    }
    # 100,000 steps hold one batch of 100,000, five of 20,000, or all eight of 2,000.
    assert sizes == {"paper": [1] * 40, "laptop": [5, 5, 2], "smoke": [8]}


@pytest.fixture
def begun(job_of):
    """Jobs of so many seeds; `programs` are the seeds that each remembers to have been trained with, `saved` checkpoints."""

    def make(seeds, programs, saved):
        jobs = [job_of(seed=seed, iterations=9) for seed in range(seeds)]
        for seed, program in programs.items():
            jobs[seed].directory.save_provenance({plan.PROGRAM: [jobs[k].key for k in program]})
        for seed, checkpoints in saved.items():
            for k in checkpoints:
                jobs[seed].directory.save_checkpoint(k, {"iteration": k}, {})
        return jobs

    return make


def seeds_of(programs):
    return [[job.config.seed for job in program] for program in programs]


BOTH, FOUR = {0: (0, 1), 1: (0, 1)}, (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("programs", "saved", "left", "expected"),
    [
        pytest.param(BOTH, {0: [2]}, FOUR, [[0, 1], [2, 3]], id="killed while the first checkpoints were written"),
        pytest.param({0: (0, 1)}, {}, FOUR, [[0, 1], [2, 3]], id="killed while the program was written down"),
        pytest.param(BOTH, {0: [2, 4], 1: [2]}, FOUR, [[0, 1], [2, 3]], id="killed between later checkpoints"),
        pytest.param(
            {1: (1, 2), 2: (1, 2)}, {1: [2], 2: [2]}, FOUR, [[1, 2], [0, 3]], id="a seed was added before the first"
        ),
        pytest.param({0: (1, 0), 1: (1, 0)}, {}, (0, 1), [[1, 0]], id="the order is that of the program"),
        pytest.param(BOTH, {1: [2]}, (1, 2, 3), [[1], [2, 3]], id="one is finished"),
        pytest.param(
            {0: (0, 1), **dict.fromkeys((1, 2, 3), FOUR)},
            {0: [2, 4], 1: [2], 2: [2], 3: [2]},
            FOUR,
            [[0, 1], [2, 3]],
            id="killed after a program had failed and been split",
        ),
        pytest.param(
            dict.fromkeys(FOUR, FOUR), dict.fromkeys(FOUR, (2,)), FOUR, [[0, 1], [2, 3]], id="fewer are allowed now"
        ),
        pytest.param({0: (0,), 1: (1,)}, {0: [2], 1: [2]}, (0, 1), [[0], [1]], id="more are allowed now"),
        pytest.param(BOTH, {0: [2, 4]}, (0, 1), [[0], [1]], id="one has lost its checkpoints: the other goes on"),
    ],
)
def test_runs_that_were_begun_together_go_on_together(begun, programs, saved, left, expected):
    """Where at most two may go side by side."""
    jobs = begun(4, programs, saved)
    assert seeds_of(plan.programs([jobs[k] for k in left], on_host=False, together=2)) == expected


@pytest.mark.parametrize("said", [5, [5], ["another/seed-0"], {}, None])
def test_a_program_that_cannot_be_read_is_passed_over(job_of, said):
    job = job_of()
    job.directory.save_provenance({plan.PROGRAM: said})
    assert job.program == ()
    assert plan.programs([job], on_host=False) == [[job]]


def test_a_kill_between_final_policies_leaves_the_program_whole(begun, make_run):
    jobs = [make_run(job, 9, finished=k != 1) for k, job in enumerate(begun(4, {0: (0, 1), 1: (0, 1), 2: (2, 3)}, {}))]
    for job, program in zip(jobs, [(0, 1), (0, 1), (2, 3), (2, 3)], strict=True):
        job.directory.save_provenance({plan.PROGRAM: [jobs[k].key for k in program]})
    assert [job.done for job in jobs] == [9, 8, 9, 9]
    assert plan.unfinished(jobs, [job.done for job in jobs]) == jobs[:2]
    # A finished run goes back for nobody: here the other one has lost its last checkpoint.
    jobs[1].directory.checkpoints()[9].unlink()
    assert plan.unfinished(jobs, [job.done for job in jobs]) == [jobs[1]]


def test_runs_that_have_no_checkpoint_in_common_are_not_put_together(job_of, make_run):
    fresh = [job_of(seed=0), job_of(seed=1)]
    begun = [make_run(job_of(seed=2, iterations=9), 2), make_run(job_of(seed=3, iterations=9), 2)]
    other = [make_run(job_of(seed=4, iterations=9), 4)]
    jobs = [replace(j, config=replace(j.config, iterations=9)) for j in [*fresh, *begun, *other]]
    programs = plan.programs([jobs[2], jobs[0], jobs[4], jobs[1], jobs[3]], on_host=False)
    assert sorted(sorted(job.config.seed for job in program) for program in programs) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("damaged", [5, "none", {"a": 1}, None])
def test_a_damaged_record_of_sessions_counts_as_none(job_of, damaged):
    job = job_of(seed=0, iterations=9)
    job.directory.save_provenance({"sessions": damaged})
    provenance.Session([job], 3).write(1)
    (session,) = job.directory.provenance()["sessions"]
    assert (session["first_iteration"], session["iterations"]) == (3, 1)

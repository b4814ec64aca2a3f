"""Certifying a policy: fresh episodes that training never used, verdicts, exit codes, and what is refused."""

import hashlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binomtest
from toys import BASE, TINY, Chain, ChainState, Walk

import corral
from corral import envs
from corral.certificates import bounds, certificate
from corral.certification import episodes
from corral.certification.certify import save
from corral.certification.check import check
from corral.certification.episodes import STREAM, Seen, stream_key
from corral.certification.subject import Subject, load_subject, open_sampler, ranges_of
from corral.cli import main
from corral.config import Config
from corral.envs.contract import Box, ConstraintSpec, Env, EnvSpec, Timestep
from corral.envs.engines.vector import VectorEnv
from corral.errors import CorralError
from corral.learning import networks
from corral.rollout import make
from corral.rollout.sampler import keys
from corral.running import standalone
from corral.running.directory import RunDirectory
from corral.running.trainer import Trainer


class Priced(Env):
    """A chain whose every step costs 1 and is the last with probability ½, at the latest the 20th.

    It says that a step costs `most` at most; `sign` −1 makes its costs negative. Its reward is its number times `earns`.
    """

    most: float = eqx.field(static=True, default=1.0)
    sign: float = eqx.field(static=True, default=1.0)
    earns: float = eqx.field(static=True, default=1.0)

    @property
    def spec(self):
        return EnvSpec("priced", 1, Box(1), 20, (ConstraintSpec("c", 1.0, largest_step=self.most),))

    def reset(self, key):
        return ChainState(key, jnp.zeros((), jnp.int32)), jnp.zeros(1)

    def step(self, state, action):
        key, draw = jax.random.split(state.key)
        t, ends = state.t + 1, jax.random.bernoulli(draw)
        return ChainState(key, t), Timestep(
            jnp.ones(1) * t, self.earns * t, self.sign * jnp.ones(1), ends, ~ends & (t == 20)
        )


def policy_file(folder: Path, env=None, limit: float = 3.0, seed: int = 3) -> Path:
    """The file of an untrained policy for the chain, whose episodes cost 2 − 2⁻¹⁹ on average and 20 at most."""
    spec = (env or Priced()).spec
    config = Config("priced", limit=(limit,), networks=TINY, seed=seed)
    policy = networks.make_policy(spec, TINY, jax.random.key(0))
    standalone.write(folder / "p.npz", policy, spec, TINY, config)
    return folder / "p.npz"


# -- verdicts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "verdict"), [(3.0, "certified"), (1.5, "refuted"), (2.0, "not yet")])
@pytest.mark.parametrize("until_certain", [False, True])
def test_the_verdict_is_the_truth_about_a_chain_that_costs_2(limit, verdict, until_certain, tmp_path):
    path = policy_file(tmp_path, limit=limit)
    found = corral.certify(path, env=Priced(), episodes=1000, until_certain=until_certain)
    (c,) = found.constraints
    assert (found.verdict, c.verdict) == (verdict, verdict)
    assert c.low < 2 - 2**-19 < c.high
    assert c.largest == pytest.approx(20)
    assert found.episodes["form"] == ("anytime" if until_certain else "fixed")
    assert c.mean == pytest.approx(np.mean(found.costs["c"]))


def test_until_certain_stops_when_the_verdict_is_clear(tmp_path, monkeypatch):
    monkeypatch.setattr(episodes, "_AT_ONCE", 20 * 100)  # 100 episodes at a time
    heard = []
    found = corral.certify(
        policy_file(tmp_path),
        env=Priced(),
        until_certain=True,
        episodes=5000,
        progress=lambda *told: heard.append(told),
    )
    assert found.verdict == "certified"
    assert found.episodes["count"] < 1000
    assert [done for done, _, _ in heard] == list(range(100, found.episodes["count"] + 1, 100))
    assert all(statements[0].verdict == "not yet" for _, _, statements in heard[:-1])


def test_ctrl_c_leaves_an_anytime_certificate_and_no_fixed_one(tmp_path, monkeypatch):
    monkeypatch.setattr(episodes, "_AT_ONCE", 20 * 100)

    def stop(done, most, statements):
        if done == 200:
            raise KeyboardInterrupt

    path = policy_file(tmp_path, limit=2.0)
    found = corral.certify(path, env=Priced(), until_certain=True, progress=stop)
    assert (found.verdict, found.episodes["count"]) == ("not yet", 200)
    with pytest.raises(KeyboardInterrupt):
        corral.certify(path, env=Priced(), episodes=300, progress=stop)


def test_the_same_stream_gives_the_same_episodes_and_another_stream_others(tmp_path):
    path = policy_file(tmp_path)
    first, second, other = (corral.certify(path, env=Priced(), episodes=1000, stream=s) for s in (0, 0, 1))
    assert first.costs == second.costs != other.costs


def test_a_certificate_names_the_versions_of_the_simulators_too(tmp_path):
    import mujoco

    versions = corral.certify(policy_file(tmp_path), env=Priced(), episodes=10).versions
    assert set(versions) == {"corral", "jax", "numpy", "python", "gymnasium", "mujoco"}
    assert versions["mujoco"] == mujoco.__version__


def test_a_simulator_that_no_package_says_the_version_of_does_not_lose_the_episodes(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", ModuleType("mujoco"))
    assert corral.certify(policy_file(tmp_path), env=Priced(), episodes=10).versions["mujoco"] == "unknown"


def test_the_best_of_k_has_a_wider_bound(tmp_path):
    path = policy_file(tmp_path)
    one, best = (corral.certify(path, env=Priced(), episodes=1000, best_of=k).constraints[0].high for k in (1, 10))
    assert best > one


def test_the_return_of_the_best_of_k_has_a_lower_bound_too(tmp_path):
    path = policy_file(tmp_path)
    one, best = (
        corral.certify(path, env=Priced(), episodes=1000, best_of=k, return_range=(0.0, 210.0)).earned["low"]
        for k in (1, 10)
    )
    assert best < one


def test_the_return_has_a_bound_where_its_range_is_known(tmp_path):
    """The chain's reward is the number of the step, so a return lies in [1, 1 + … + 20 = 210]; its mean is ≈ 4."""
    path = policy_file(tmp_path)
    told = corral.certify(path, env=Priced(), episodes=1000, return_range=(0.0, 210.0)).earned
    assert told["low"] < 4 < told["mean"] + 0.5
    assert told["half_reach"] == 1  # half of the episodes end after the first step, with a return of 1
    assert corral.certify(path, env=Priced(), episodes=1000).earned["low"] is None


# -- what is refused ----------------------------------------------------------------------------------------------------


def test_a_step_that_costs_more_than_stated_is_an_error_and_never_clipped(tmp_path):
    lie = Priced(most=0.5)
    with pytest.raises(CorralError, match=r"a step of c in priced cost 1, more than the stated maximum of 0\.5"):
        corral.certify(policy_file(tmp_path, lie), env=lie, episodes=100)
    assert (
        corral.certify(policy_file(tmp_path, lie), env=lie, episodes=100, max_step_cost=1.0).constraints[0].largest > 19
    )


@pytest.mark.parametrize("gone", [False, True])
def test_a_file_that_is_replaced_or_removed_while_its_episodes_are_played_gets_no_certificate(
    gone, tmp_path, monkeypatch
):
    """The certificate would name a policy that was never played."""
    monkeypatch.setattr(episodes, "_AT_ONCE", 20 * 100)
    path, heard = policy_file(tmp_path), []

    def change(done, most, statements):
        heard.append(done)
        path.unlink(missing_ok=True)
        if not gone:
            policy_file(tmp_path, seed=9)

    said = "is gone since its episodes began" if gone else "was replaced while its episodes were played"
    with pytest.raises(CorralError, match=said):
        corral.certify(path, env=Priced(), episodes=500, progress=change)
    assert heard == [100]  # at once, not after all episodes


OTHERS = {
    "horizon": {"horizon": 5},
    "the list of constraints": {"constraints": (ConstraintSpec("d", 1.0, largest_step=1.0),)},
    "discount of c": {"constraints": (ConstraintSpec("c", 1.0, discount=0.5, largest_step=1.0),)},
    "largest_step of c": {"constraints": (ConstraintSpec("c", 1.0, largest_step=0.1),)},
    "largest of c": {"constraints": (ConstraintSpec("c", 1.0, largest_step=1.0, largest=2.0),)},
    "action": {"action": Box(1, (-1.0,), (2.0,))},
    "name": {"name": "free"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_environment_than_that_of_training_is_refused(name, tmp_path):
    """In a shorter one a policy costs less, and the certificate would name the longer one."""
    given = replace(Priced().spec, **OTHERS[name])
    with pytest.raises(CorralError, match=f"cannot be certified in {given.name}: {name} is"):
        load_subject(policy_file(tmp_path), given)


def test_a_gymnasium_environment_is_made_as_in_training(tmp_path):
    """Its horizon, discounts and largest costs come from the configuration, which the file holds."""
    given = {"limit": {"cost": 1.0}, "discount": {"cost": 0.9}, "largest_step": {"cost": 2.0}, "horizon": 50}
    config = Config("Pendulum-v1", networks=TINY, **given)
    with make.from_config(config) as sampler:
        spec = sampler.spec
    policy = networks.make_policy(spec, TINY, jax.random.key(0))
    standalone.write(tmp_path / "p.npz", policy, spec, TINY, config)
    with open_sampler(tmp_path / "p.npz", None) as sampler:
        assert load_subject(tmp_path / "p.npz", sampler.spec).spec == spec


def test_another_limit_or_description_is_the_same_environment(tmp_path):
    same = replace(Priced().spec, constraints=(ConstraintSpec("c", 9.0, "words", largest_step=1.0),))
    assert load_subject(policy_file(tmp_path), same).limits == (3.0,)


def test_a_largest_cost_under_what_the_environment_states_is_refused(tmp_path):
    with pytest.raises(
        CorralError, match=r"max_step_cost 0\.5 is too small for c: priced itself states that a step can cost 1"
    ):
        corral.certify(policy_file(tmp_path), env=Priced(), episodes=10, max_step_cost=0.5)
    of_episodes = replace(Priced().spec, constraints=(ConstraintSpec("c", 1.0, largest=30.0),))
    subject = replace(subject_with(1.0), spec=of_episodes)
    with pytest.raises(CorralError, match=r"states that an episode can cost 30\.0, and its 20 steps could not"):
        ranges_of(subject, 1.0)
    assert ranges_of(subject, 1.5)[0].episode == pytest.approx(30)


def test_a_negative_cost_is_an_error(tmp_path):
    with pytest.raises(CorralError, match="costs must not be negative"):
        corral.certify(policy_file(tmp_path), env=Priced(sign=-1.0), episodes=100)


def test_an_environment_that_does_not_state_its_largest_cost_must_be_told(tmp_path):
    config = Config("chain", limit=(3.0,), networks=TINY)
    policy = networks.make_policy(Chain().spec, TINY, jax.random.key(0))
    standalone.write(tmp_path / "p.npz", policy, Chain().spec, TINY, config)
    with pytest.raises(CorralError, match="--max-step-cost NUMBER"):
        corral.certify(tmp_path / "p.npz", env=Chain(), episodes=100)


def subject_with(gamma: float) -> Subject:
    spec = Priced().spec
    policy = networks.make_policy(spec, TINY, jax.random.key(0))
    return Subject(policy, Path(), spec, {}, (1.0,), (gamma,), 0, "")


def test_discounted_costs_have_a_smaller_range():
    for gamma, most in ((1.0, 20.0), (0.5, 2 - 2**-19)):
        subject = subject_with(gamma)
        assert ranges_of(subject, None)[0].episode == pytest.approx(most)


def test_a_broken_episode_counts_as_the_costliest():
    subject = subject_with(1.0)
    seen = Seen(subject, ranges_of(subject, None), 0.05, False)
    seen.add(np.array([[5.0, 1.0], [9.0, 3.0], [7.0, 0.0]]), broken=1)
    np.testing.assert_allclose(np.sort(seen.costs[:, 0]), [1, 3, 20])  # the cheapest counts as 20
    np.testing.assert_allclose(np.sort(seen.returns), [5, 5, 7])  # the best as the worst


def test_a_bound_over_broken_episodes_fails_as_seldom_as_it_says():
    """An episode costs nothing, or breaks with probability 0.001 and then counts 20: 0.02 on average.

    Among equal costs the first stand for the broken ones. Left in front, where bets are small, they would make the bound
    of 10,000 episodes fail in 9 of 10 cases.
    """
    subject, generator = subject_with(1.0), np.random.default_rng(0)
    failed = 0
    for k in range(100):
        seen = Seen(subject, ranges_of(subject, None), 0.05, False, stream=k)
        seen.add(np.zeros((10_000, 2)), broken=int(generator.binomial(10_000, 0.001)))
        failed += bounds.upper_mean(seen.costs[:, 0], 20.0, 0.05) < 0.02
    assert binomtest(failed, 100, 0.05, alternative="greater").pvalue > 1e-4, failed


def test_a_broken_episode_has_the_least_return_there_can_be_where_that_is_known():
    subject = subject_with(1.0)
    seen = Seen(subject, ranges_of(subject, None), 0.05, False, worst=-3.0)
    seen.add(np.array([[5.0, 1.0], [9.0, 3.0], [7.0, 0.0]]), broken=1)
    np.testing.assert_allclose(np.sort(seen.returns), [-3, 5, 7])


def test_a_step_that_costs_what_is_stated_passes_though_single_precision_rounds_it_up(tmp_path):
    """0.1 in single precision is 0.10000000149."""
    env = Priced(most=0.1, sign=0.1)
    (found,) = corral.certify(policy_file(tmp_path, env), env=env, episodes=100).constraints
    assert found.largest == pytest.approx(2.0, rel=1e-6)
    assert found.largest >= 20 * float(np.float32(0.1))


def test_a_cost_that_is_not_a_number_is_an_error(tmp_path):
    with pytest.raises(CorralError, match="priced handed out nan as costs at step 0 of an episode"):
        corral.certify(policy_file(tmp_path), env=Priced(sign=float("nan")), episodes=100)


class Lost(Priced):
    """The same, whose state is no number after two steps, which its cost does not show: NaN is over no threshold."""

    def step(self, state, action):
        state, out = super().step(state, action)
        lost = state.t > 1
        return state, out._replace(obs=jnp.where(lost, jnp.nan, out.obs), costs=jnp.where(lost, 0.0, out.costs))


@pytest.mark.parametrize("on_host", [False, True])
def test_a_state_that_is_no_number_is_an_error_where_its_costs_look_small(on_host, tmp_path):
    env = VectorEnv(Lost(), 4) if on_host else Lost()
    with pytest.raises(CorralError, match="priced handed out nan as observation at step 2 of an episode"):
        corral.certify(policy_file(tmp_path), env=env, episodes=40)


def test_a_return_outside_of_its_range_is_named(tmp_path):
    with pytest.raises(CorralError, match=r"an episode had a return of 1, outside of the return_range 2 210"):
        corral.certify(policy_file(tmp_path), env=Priced(), episodes=100, return_range=(2.0, 210.0))


def test_a_return_that_single_precision_rounds_over_its_range_is_within_it(tmp_path):
    """0.1 is 0.10000000149 in single precision; the first step earns it, and half of the episodes have no other."""
    env = Priced(earns=-0.1)
    found = corral.certify(policy_file(tmp_path), env=env, episodes=100, return_range=(-21.0, -0.1))
    assert found.earned["low"] < found.earned["mean"]
    env = Priced(earns=0.1)
    assert (
        corral.certify(policy_file(tmp_path), env=env, episodes=100, return_range=(0.0, 21.0)).earned["low"] is not None
    )
    assert bounds.rounded_range(-2.0, 1.0) == (pytest.approx(-2 - 2e-7, abs=1e-12), pytest.approx(1 + 2e-7, abs=1e-12))


def test_the_best_of_less_than_one_policy_is_refused(tmp_path):
    with pytest.raises(CorralError, match="best_of must be at least 1, got 0"):
        corral.certify(tmp_path / "never opened.npz", best_of=0)


@pytest.mark.parametrize("ends", [(5.0, 1.0), (1.0, 1.0), (0.0, float("inf")), (float("nan"), 1.0)])
def test_a_range_of_returns_that_is_none_is_refused_before_any_episode(ends, tmp_path):
    with pytest.raises(CorralError, match="return_range must be two finite numbers, the smaller one first"):
        corral.certify(tmp_path / "never opened.npz", return_range=ends)


# -- fresh episodes -----------------------------------------------------------------------------------------------------


def test_no_key_of_a_certificate_is_one_of_training_evaluation_or_another_portion():
    """Every key under seeds 0..4: of 3,000 iterations (sampling and update), of the first networks, of evaluation, of the
    first look, and 3 streams of 200 portions each, as their 64 bits."""
    seeds = np.arange(5, dtype=np.uint32)

    def bits(made) -> np.ndarray:
        data = np.asarray(jax.random.key_data(made), np.uint64).reshape(-1, 2)
        return data[:, 0] << np.uint64(32) | data[:, 1]

    pairs = jax.jit(jax.vmap(lambda k: keys(seeds, k)))(np.arange(3000, dtype=np.uint32))
    roots = jax.vmap(jax.random.key)(seeds)
    folds = jax.vmap(lambda k: jax.vmap(lambda n: jax.random.fold_in(k, n))(jnp.array([2**31 - 1, 2**31 - 2])))(roots)
    training = np.concatenate([bits(pairs[0]), bits(pairs[1]), bits(roots), bits(folds)])
    each = jax.vmap(
        lambda s: jax.vmap(lambda m: jax.vmap(lambda p: stream_key(s, m, p))(jnp.arange(200)))(jnp.arange(3))
    )
    fresh = bits(jax.jit(each)(seeds))
    assert len(np.unique(fresh)) == 5 * 3 * 200
    assert not set(fresh.tolist()) & set(training.tolist())


def test_a_fold_is_one_to_one_so_no_iteration_of_a_run_shares_the_certificate_s_root():
    """Iterations 0..20,000 and the numbers around 2³¹: as many different keys as numbers."""
    numbers = np.concatenate([np.arange(20_000), [STREAM, 2**31 - 2, 2**31 - 1]]).astype(np.uint32)
    folded = jax.vmap(lambda n: jax.random.fold_in(jax.random.key(7), n))(numbers)
    assert len(np.unique(np.asarray(jax.random.key_data(folded)), axis=0)) == len(numbers)


def test_host_engines_start_a_certificate_s_episodes_from_seeds_that_training_did_not_use():
    """As `rollout.host` draws them: a number of 31 bits for each of two lanes; 2,000 iterations against 200 portions."""

    def lanes(key):
        return jax.vmap(
            lambda i: jax.random.randint(jax.random.fold_in(jax.random.fold_in(key, i), 0), (), 0, 2**31 - 1)
        )(jnp.arange(2))

    seed = np.zeros(1, np.uint32)
    training = np.asarray(jax.jit(jax.vmap(lambda k: lanes(keys(seed, k)[0][0])))(np.arange(2000, dtype=np.uint32)))
    fresh = np.asarray(jax.jit(jax.vmap(lambda p: lanes(stream_key(0, 0, p))))(np.arange(200)))
    assert not set(training.ravel().tolist()) & set(fresh.ravel().tolist())


def test_the_order_of_a_portion_is_random_and_its_episodes_are_all_there(tmp_path):
    """Slots on the host play short episodes more often, one after the other: their order tells about their lengths."""
    path = policy_file(tmp_path)
    host = make.sampler(VectorEnv(Priced(), 4))
    found = corral.certify(path, env=host, episodes=64)
    batch = host.episodes(standalone.read(path).policy, stream_key(3, 0, 0), 64)
    plain = np.bincount(np.asarray(batch.episode)[np.asarray(batch.valid)], minlength=64)
    assert sorted(found.costs["c"]) == sorted(plain.tolist())
    assert found.costs["c"] != plain.tolist()


# -- check, and the command ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The folder of a run of point-gather with an untrained policy, which seldom meets a bomb in three steps."""
    folder = tmp_path_factory.mktemp("certified") / "run"
    config = Config("point-gather", task={"max_steps": 3.0}, limit=(0.5,), networks=TINY, seed=4)
    with make.from_config(config) as sampler:
        spec = sampler.spec
    policy = networks.make_policy(spec, TINY, jax.random.key(0))
    directory = RunDirectory(folder)
    directory.begin(config)
    directory.save_policy(policy, *standalone.described(policy, spec, TINY, config))
    return folder


@pytest.fixture(scope="module")
def certified(run) -> Path:
    assert main(["certify", str(run), "--episodes", "400", "--out", str(run.parent / "c.json")]) == 0
    return run.parent / "c.json"


def test_the_command_certifies_and_checks(run, certified, capsys):
    assert main(["certify", "--check", str(certified)]) == 0
    assert "CERTIFIED with confidence 0.95: expected cost of bombs at most" in capsys.readouterr().out
    content = json.loads(certified.read_text())
    assert content["environment"] == {
        "name": "point-gather",
        "task": {"max_steps": 3.0},
        "horizon": 3,
        "engine": "PointEnv on cpu",
    }
    assert content["constraints"][0]["largest"] == pytest.approx(8)  # eight bombs, once each
    assert content["policy"]["file"] == str(run / "policy.npz")
    assert content["episodes"]["seed"] == 4


def test_the_command_prints_json_and_its_exit_status_is_the_verdict(run, capsys):
    assert main(["certify", str(run), "--episodes", "4", "--json"]) == 11
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["episodes"]["count"]) == ("not yet", 4)
    assert told["constraints"][0]["more"] > 0
    assert "costs" not in told
    assert main(["certify", str(run.parent)]) == 2
    assert main(["certify"]) == 2


def test_where_more_episodes_would_decide_the_command_says_how_to_look_again(run, capsys):
    """To repeat the same with ever more episodes until it certifies would make the confidence a lie."""
    assert main(["certify", str(run), "--episodes", "4"]) == 11
    assert "--until-certain may look as often as it likes" in capsys.readouterr().out
    assert main(["certify", str(run), "--episodes", "4", "--until-certain"]) == 11
    assert "may look as often" not in capsys.readouterr().out


def test_the_headline_says_of_how_many_policies_this_is_the_best(run, capsys):
    main(["certify", str(run), "--episodes", "400", "--best-of", "7"])
    assert "with confidence 0.95 as the best of 7" in capsys.readouterr().out


def test_a_check_prints_json_where_it_is_asked_for_and_writes_no_certificate(certified, run, tmp_path, capsys):
    assert main(["certify", "--check", str(certified), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["holds"], told["verdict"]) == (True, "certified")
    assert "costs" not in told
    assert main(["certify", "--check", str(certified), str(policy_file(tmp_path)), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["holds"] is False
    assert "is about another policy" in told["refused"]
    assert main(["certify", "--check", str(certified), "--out", str(tmp_path / "c.json")]) == 2
    assert not (tmp_path / "c.json").exists()


def test_a_policy_file_alone_is_certified_as_its_folder_is(run, certified, tmp_path, capsys):
    moved = tmp_path / "alone.npz"
    moved.write_bytes((run / "policy.npz").read_bytes())
    found = corral.certify(moved, episodes=400)
    assert found.costs == json.loads(certified.read_text())["costs"]
    assert main(["certify", "--check", str(certified), str(moved)]) == 0


def test_the_module_that_a_policy_file_names_is_said_before_it_is_imported(tmp_path, capsys):
    spec = EnvSpec("no_such_module:Thing-v0", 1, Box(1), 3, (ConstraintSpec("cost", 1.0, largest_step=1.0),))
    policy = networks.make_policy(spec, TINY, jax.random.key(0))
    standalone.write(tmp_path / "theirs.npz", policy, spec, TINY, Config(spec.name, limit=(1.0,), networks=TINY))
    assert main(["certify", str(tmp_path / "theirs.npz")]) == 2
    said, failed = capsys.readouterr().err.splitlines()
    assert said.startswith(f"importing the Python module no_such_module, which {tmp_path / 'theirs.npz'} names")
    assert "which cannot be made by its name" in failed


def test_a_policy_changed_by_one_bit_is_refused(run, certified, tmp_path, capsys):
    whole = (run / "policy.npz").read_bytes()
    altered = tmp_path / "policy.npz"
    for place in np.random.default_rng(0).integers(0, len(whole), 40):
        content = bytearray(whole)
        content[place] ^= 1 << int(place % 8)
        altered.write_bytes(content)
        assert main(["certify", "--check", str(certified), str(altered)]) == 1
        assert "REFUSED" in capsys.readouterr().out


def test_a_certificate_is_refused_for_another_environment(run, certified, tmp_path, capsys):
    """The same policy file in the folder of a run of another environment, of another task, and of another limit."""
    config = RunDirectory(run).config()
    others = {
        "env": replace(config, env="point-circle", task={}),
        "task": replace(config, task={"max_steps": 4.0}),
        "limit": replace(config, limit=(0.6,)),
    }
    for name, other in others.items():
        folder = RunDirectory(tmp_path / name)
        folder.begin(other)
        (folder.path / "policy.npz").write_bytes((run / "policy.npz").read_bytes())
        assert main(["certify", "--check", str(certified), str(folder)]) == 1
        assert "REFUSED" in capsys.readouterr().out


def test_a_certificate_that_names_another_environment_is_refused(run, certified, tmp_path):
    """Forged with a right hash: the policy file itself says where it was trained."""
    found = certificate.read(certified)
    save(replace(found, environment=found.environment | {"name": "ant-gather"}), tmp_path / "forged.json")
    with pytest.raises(CorralError, match=r"is about ant-gather with max_steps 3, and .* was trained in point-gather"):
        check(tmp_path / "forged.json")


def test_a_certificate_of_another_horizon_or_of_cheaper_episodes_than_the_policy_file_states_is_refused(
    run, certified, tmp_path
):
    """Forged with a right hash, and bounds that follow from the smaller range."""
    found = certificate.read(certified)
    save(replace(found, environment=found.environment | {"horizon": 2}), tmp_path / "short.json")
    with pytest.raises(CorralError, match=r"is about 2 steps of point-gather, and .* was trained in 3"):
        check(tmp_path / "short.json")
    costs = np.asarray(found.costs["bombs"])
    cheap = certificate.state("bombs", 0.5, costs, 4.0, 0.05, False)
    save(replace(found, constraints=(cheap,)), tmp_path / "cheap.json")
    with pytest.raises(CorralError, match=r"rests on episodes that cost 4\.0 of bombs at most, and .* states 8"):
        check(tmp_path / "cheap.json")
    save(
        replace(found, constraints=(certificate.state("bombs", 0.5, costs, 9.0, 0.05, False),)), tmp_path / "dear.json"
    )
    assert check(tmp_path / "dear.json").verdict == "certified"


def test_the_policy_of_a_certificate_that_is_gone_must_be_named(certified, run, tmp_path):
    found = certificate.read(certified)
    save(replace(found, policy=found.policy | {"file": str(tmp_path / "gone.npz")}), tmp_path / "c.json")
    with pytest.raises(CorralError, match="name its file or the folder of its run"):
        check(tmp_path / "c.json")
    assert check(tmp_path / "c.json", run).verdict == "certified"


def with_checkpoints(folder: Path) -> tuple[RunDirectory, list]:
    """A run with two checkpoints of different policies, and the policies."""
    config = replace(BASE, shape_costs=False)
    run = RunDirectory(folder)
    run.begin(config)
    trainer = Trainer([config], Walk())
    state = trainer.state_of(trainer.initial(), 0)
    states = [state, eqx.tree_at(lambda s: s.policy.log_std, state, replace_fn=lambda x: x - 1)]
    for k, each in enumerate(states, start=1):
        run.save_checkpoint(k, each, {"iteration": k, "env": "walk"})
    return run, [each.policy for each in states]


def test_an_unfinished_run_is_certified_by_its_newest_checkpoint(tmp_path):
    run, _ = with_checkpoints(tmp_path / "run")
    found = corral.certify(run.path, env=Walk(), episodes=20, max_step_cost=(1.0, 1.0))
    assert found.policy["file"].endswith("checkpoint-000002.npz")
    assert [c.name for c in found.constraints] == ["near", "far"]
    save(found, tmp_path / "c.json")
    assert check(tmp_path / "c.json").verdict == found.verdict


def test_a_single_checkpoint_is_certified_and_never_another_policy_of_its_run(tmp_path):
    """Where it lies, and where it was copied into the folder of a run that has its final policy by now."""
    run, policies = with_checkpoints(tmp_path / "run")
    run.save_policy(policies[1], {})
    copied = Path(shutil.copy(run.checkpoints()[1], run.path / "best.npz"))
    for path, policy in (
        (run.checkpoints()[1], policies[0]),
        (run.checkpoints()[2], policies[1]),
        (copied, policies[0]),
    ):
        subject = load_subject(path, Walk().spec)
        assert subject.source == path
        assert subject.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        np.testing.assert_array_equal(subject.policy.log_std, policy.log_std)
        np.testing.assert_array_equal(corral.Result.load(path, env=Walk()).module.log_std, policy.log_std)
    found = corral.certify(copied, env=Walk(), episodes=20, max_step_cost=(1.0, 1.0))
    assert found.policy["file"] == str(copied)
    save(found, tmp_path / "c.json")
    assert check(tmp_path / "c.json", copied).verdict == found.verdict
    with pytest.raises(CorralError, match="is about another policy"):
        check(tmp_path / "c.json", run.path)


def test_a_checkpoint_is_certified_in_the_environment_of_its_run_only(run, tmp_path):
    """What a checkpoint does not say of its environment, the configuration of its run does."""
    config = RunDirectory(run).config()
    folder = RunDirectory(tmp_path / "run")
    folder.begin(config)
    trainer = Trainer([config], make.from_config(config))
    folder.save_checkpoint(1, trainer.state_of(trainer.initial(), 0), {"env": "point-gather"})
    path = folder.checkpoints()[1]
    own = envs.spec("point-gather", max_steps=3.0)
    assert load_subject(path, own).spec == own
    with pytest.raises(CorralError, match="horizon is 3 there and 2 here"):
        load_subject(path, replace(own, horizon=2))
    with pytest.raises(CorralError, match="was trained in point-gather, and cannot be certified in point-circle"):
        load_subject(path, envs.spec("point-circle"))

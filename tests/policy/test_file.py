"""Policy files that stand alone: what they say, that NumPy acts as JAX does, and that nothing altered is loaded."""

import hashlib
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policies import KINDS, made, observations
from toys import BASE, Walk

import corral
import corral.policy
from corral.config import Networks
from corral.errors import CorralError
from corral.learning import distributions, networks
from corral.policy import acting, archive, members, plain
from corral.running import checkpoint, standalone
from corral.running.directory import RunDirectory


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("activation", "normalised"), [("tanh", True), ("relu", False), ("elu", True), ("silu", True)])
def test_numpy_acts_as_jax_does(kind, activation, normalised, tmp_path):
    spec, obs = KINDS[kind], observations()
    obs = obs if normalised else np.clip(obs, -100, 100)
    policy, sizes = made(spec, activation, normalised)
    standalone.write(tmp_path / "p.npz", policy, spec, sizes, None)
    loaded = corral.policy.load(tmp_path / "p.npz")
    z = policy(jnp.asarray(obs))
    noise = np.asarray(distributions.noise(z, jax.random.key(5)))
    expected = np.asarray(z.mean if isinstance(z, distributions.Gaussian) else z.logits)
    scale = np.maximum(1, np.abs(expected).max())
    np.testing.assert_allclose(loaded.output(obs) / scale, expected / scale, atol=1e-6)
    for own, jaxs in (
        (loaded(obs), distributions.mode(z)),
        (loaded(obs, noise=noise), distributions.act(z, jnp.asarray(noise))),
    ):
        outside = spec.action.outside(np.asarray(jaxs))
        assert own.shape == outside.shape
        if loaded.choices is not None:
            assert np.mean(own == outside) > 0.98  # two logits may be equal up to rounding
        else:
            np.testing.assert_allclose(own / scale, outside / scale, atol=1e-6)
    assert loaded(obs[0]).shape == loaded(obs[:1])[0].shape


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("activation", "normalised"), [("tanh", True), ("relu", False), ("elu", True), ("silu", True)])
def test_python_alone_acts_as_numpy_does(kind, activation, normalised, tmp_path):
    obs = observations() if normalised else np.clip(observations(), -100, 100)
    policy, sizes = made(KINDS[kind], activation, normalised)
    standalone.write(tmp_path / "p.npz", policy, KINDS[kind], sizes, None)
    loaded = corral.policy.load(tmp_path / "p.npz")
    with_numpy, alone = loaded(obs), np.asarray([loaded.act(row.tolist()) for row in obs])
    if loaded.choices is not None:
        assert np.mean(with_numpy.reshape(alone.shape) == alone) > 0.98  # two logits may be equal up to rounding
    else:
        scale = np.maximum(1, np.abs(with_numpy).max())
        np.testing.assert_allclose(with_numpy.reshape(len(obs), -1) / scale, alone / scale, atol=1e-6)


def test_a_program_that_acts_in_python_alone_imports_neither_numpy_nor_jax(tmp_path):
    policy, sizes = made(KINDS["bounded box"])
    standalone.write(tmp_path / "p.npz", policy, KINDS["bounded box"], sizes, None)
    program = (
        "import sys, corral.policy; p = corral.policy.load(sys.argv[1]); a = p.act([1.0] * 5); "
        "assert not {'numpy', 'jax'} & set(sys.modules); print(*a)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "p.npz"], capture_output=True, text=True, check=True
    )
    expected = corral.policy.load(tmp_path / "p.npz")(np.ones(5, np.float32)).ravel()
    np.testing.assert_allclose([float(x) for x in done.stdout.split()], expected, atol=1e-6)


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu"])
def test_python_alone_refuses_what_has_no_action(activation, tmp_path):
    policy, sizes = made(KINDS["discrete"], activation)
    standalone.write(tmp_path / "p.npz", policy, KINDS["discrete"], sizes, None)
    loaded = corral.policy.load(tmp_path / "p.npz")
    with pytest.raises(CorralError, match="must hold 5 numbers, got 4"):
        loaded.act([1.0] * 4)
    for bad in ("nan", "inf", "-inf"):
        with pytest.raises(CorralError, match="no action for this observation"):
            loaded.act([1.0] * 4 + [float(bad)])
    layers = loaded._plain[-1]
    assert all(np.isnan(plain.output([float("nan")] * 5, layers, activation)))


@pytest.mark.parametrize("kind", ["box", "discrete"])
def test_an_infinite_observation_and_noise_that_is_no_number_are_refused(kind, tmp_path):
    policy, sizes = made(KINDS[kind])
    standalone.write(tmp_path / "p.npz", policy, KINDS[kind], sizes, None)
    loaded = corral.policy.load(tmp_path / "p.npz")
    for bad in (np.inf, -np.inf, 1e39):  # the last has no place in single precision
        with pytest.raises(CorralError, match="no action for this observation"):
            loaded(np.array([1.0, 1.0, bad, 1.0, 1.0]))
    for bad in (np.nan, np.inf):
        with pytest.raises(CorralError, match="noise must be finite"):
            loaded(np.ones(5), noise=np.full(loaded.output_size, bad))


def test_bounds_further_apart_than_the_largest_number_are_mapped(tmp_path):
    """A width of 6e38 is infinite in single precision: actions became infinite or NaN."""
    largest = float(np.finfo(np.float32).max)
    for low, high in ((-3e38, 3e38), (-largest, largest)):
        found = acting.outside(np.array([[-2.0, -1, 0, 0.5, 1, 2]], np.float32), (low,) * 6, (high,) * 6)
        np.testing.assert_allclose(found, [np.array([low, low, 0, high / 2, high, high])], rtol=1e-6)
        alone = [plain.outside(x, low, high) for x in (-2.0, -1.0, 0.0, 0.5, 1.0, 2.0)]
        np.testing.assert_allclose(alone, found[0], rtol=1e-6)


def test_ordinary_bounds_are_mapped_with_the_same_bits_as_by_their_half_width():
    generator = np.random.default_rng(8)
    ends = np.sort(generator.normal(size=(2, 5000)) * 10 ** generator.uniform(-3, 6, (2, 5000)), axis=0)
    low, high = ends.astype(np.float32)
    actions = generator.normal(size=(1, 5000)).astype(np.float32)
    found = acting.outside(actions, tuple(low.tolist()), tuple(high.tolist()))
    np.testing.assert_array_equal(found, low + (np.clip(actions, -1, 1) + 1) * ((high - low) / 2))


def test_an_observation_without_an_action_is_refused_and_not_answered_with_the_first_choice(tmp_path):
    """argmax takes the first of several NaN for the largest."""
    for kind in KINDS:
        policy, sizes = made(KINDS[kind])
        standalone.write(tmp_path / "p.npz", policy, KINDS[kind], sizes, None)
        loaded = corral.policy.load(tmp_path / "p.npz")
        obs = np.ones((2, 5), np.float32)
        obs[1, 3] = np.nan
        assert np.isfinite(loaded(obs[0])).all()
        with pytest.raises(CorralError, match="no action for this observation"):
            loaded(obs)


def test_several_choices_draw_each_place_by_its_own_probabilities(tmp_path):
    """20,000 draws at one observation: frequencies of each place, and that two places are independent."""
    spec = KINDS["shaped choices"]
    policy, sizes = made(spec)
    standalone.write(tmp_path / "p.npz", policy, spec, sizes, None)
    loaded, obs = corral.policy.load(tmp_path / "p.npz"), np.ones(5, np.float32)
    drawn = loaded(np.tile(obs, (20_000, 1)), deterministic=False, random=np.random.default_rng(6))
    assert drawn.shape == (20_000, 2, 2)
    counted = drawn.reshape(-1, 4) - np.array(spec.action.start)
    ends = np.cumsum(spec.action.sizes)[:-1]
    chances = [np.exp(part) / np.exp(part).sum() for part in np.split(loaded.output(obs), ends)]
    for place, expected in enumerate(chances):
        found = np.bincount(counted[:, place], minlength=len(expected)) / len(drawn)
        np.testing.assert_allclose(found, expected, atol=0.02)
    both = np.mean((counted[:, 1] == 0) & (counted[:, 2] == 0))
    assert both == pytest.approx(chances[1][0] * chances[2][0], abs=0.02)


def test_a_file_in_another_layout_is_read_with_numpy(tmp_path):
    """Written by `numpy.savez`, whose members have dates and extra fields, it holds the same policy."""
    policy, sizes = made(KINDS["box"])
    standalone.write(tmp_path / "p.npz", policy, KINDS["box"], sizes, None)
    with np.load(tmp_path / "p.npz") as content:
        np.savez(tmp_path / "again.npz", **content)
    assert members.numbers((tmp_path / "again.npz").read_bytes()) is None
    first, again = (corral.policy.load(tmp_path / name) for name in ("p.npz", "again.npz"))
    assert again.act([0.5] * 5) == first.act([0.5] * 5)
    np.testing.assert_array_equal(again(np.ones(5)), first(np.ones(5)))


def test_drawn_actions_have_the_policy_s_distribution():
    """20,000 draws at one observation: mean and deviation of a Gaussian, frequencies of a categorical."""
    obs = np.ones(5, np.float32)
    for kind in ("box", "discrete"):
        policy, sizes = made(KINDS[kind])
        meta, beside = standalone.described(policy, KINDS[kind], sizes)
        arrays = checkpoint._arrays(policy) | beside
        loaded = _loaded(arrays, meta)
        drawn = loaded(np.tile(obs, (20_000, 1)), deterministic=False, random=np.random.default_rng(6))
        z = policy(jnp.asarray(obs)[None])
        if isinstance(z, distributions.Categorical):
            expected = np.asarray(jax.nn.softmax(z.logits))[0]
            found = np.bincount(drawn - 2, minlength=4) / len(drawn)
            np.testing.assert_allclose(found, expected, atol=0.02)
        else:
            sigma = np.exp(np.asarray(z.log_std[0]))
            np.testing.assert_allclose(drawn.mean(0), np.asarray(z.mean[0]), atol=5 * sigma.max() / 141)
            np.testing.assert_allclose(drawn.std(0), sigma, rtol=0.05)
    first, second = (loaded(obs, deterministic=False, random=np.random.default_rng(7)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def _loaded(arrays, meta) -> corral.policy.Policy:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.npz"
        path.write_bytes(archive.content(arrays, meta))
        return corral.policy.load(path)


def test_the_file_says_what_its_arrays_mean(tmp_path):
    """The recipe of the page with numpy.load alone: no class of Corral's is needed."""
    spec = KINDS["bounded box"]
    policy, sizes = made(spec)
    standalone.write(tmp_path / "p.npz", policy, spec, sizes, None)
    with np.load(tmp_path / "p.npz") as content:
        about = json.loads(content["meta"].tobytes())["policy"]
        clip = about["normalizer"]["clip"]
        obs = np.ones(5, np.float32)
        x = np.clip((obs - content["observation.mean"]) / content["observation.deviation"], -clip, clip)
        *hidden, last = [(content[layer["weight"]], content[layer["bias"]]) for layer in about["network"]["layers"]]
        for W, b in hidden:
            x = np.tanh(x @ W + b)
        mean = x @ last[0] + last[1]
    np.testing.assert_allclose(mean, np.asarray(policy(jnp.ones((1, 5))).mean)[0], atol=1e-6)
    assert about["normalizer"]["dead_band"] == 1e-6
    assert about["normalizer"]["least_deviation"] == 0.05
    assert about["action"]["low"] == [-2, 0, None, None]
    assert about["constraints"][0] | {"name": "speed", "limit": 25.0, "largest": 1000.0} == about["constraints"][0]
    assert set(about["versions"]) == {"corral", "jax", "numpy", "python"}


def test_the_policy_of_a_run_loads_without_its_folder(tmp_path):
    spec = Walk().spec
    config = replace(BASE, limit=(3.0, 4.0), task={"steps": 8.0})
    policy = networks.make_policy(spec, config.networks, jax.random.key(0))
    run = RunDirectory(tmp_path / "run")
    run.begin(config)
    run.save_policy(policy, *standalone.described(policy, spec, config.networks, config))
    moved = tmp_path / "elsewhere" / "p.npz"
    moved.parent.mkdir()
    (tmp_path / "run" / "policy.npz").rename(moved)
    loaded, result = corral.policy.load(moved), corral.Result.load(moved)
    obs = np.linspace(-3, 3, 9, dtype=np.float32).reshape(9, 1)
    np.testing.assert_allclose(loaded(obs), result.policy(obs), atol=1e-6)
    assert [c["limit"] for c in loaded.about["constraints"]] == [3, 4]
    assert loaded.about["env"] == {"name": "walk", "task": {"steps": 8.0}, "horizon": 8}
    assert loaded.sha256 == hashlib.sha256(moved.read_bytes()).hexdigest()
    assert len(result.metrics) == 0
    assert result.config == run.config()  # where nothing is left to a preset
    result.save(tmp_path / "again.npz")
    assert corral.policy.load(tmp_path / "again.npz").about == loaded.about


def test_a_file_of_an_earlier_version_is_not_guessed_at(tmp_path):
    policy, _ = made(KINDS["box"])
    checkpoint.write(tmp_path / "old.npz", policy, {"env": "box"})
    with pytest.raises(CorralError, match="does not say how its arrays make a policy"):
        corral.policy.load(tmp_path / "old.npz")


def test_an_altered_file_is_refused_whichever_byte_it_is(tmp_path):
    policy, sizes = made(KINDS["box"])
    standalone.write(tmp_path / "p.npz", policy, KINDS["box"], sizes, None)
    whole = (tmp_path / "p.npz").read_bytes()
    before = corral.policy.load(tmp_path / "p.npz")
    for place in range(0, len(whole), 97):
        altered = bytearray(whole)
        altered[place] ^= 1
        (tmp_path / "p.npz").write_bytes(altered)
        try:
            after = corral.policy.load(tmp_path / "p.npz")
        except CorralError:
            continue
        # A bit that the content does not depend on, such as one of a date: the hash of the file tells all the same.
        assert after.sha256 != before.sha256


def test_a_network_of_the_user_s_own_is_refused_in_plain_words(tmp_path):
    spec, net = KINDS["box"], eqx.nn.MLP(5, 3, 4, 1, jnp.sin, key=jax.random.key(0))
    policy = networks.make_policy(spec, Networks(), jax.random.key(0), net)
    standalone.write(tmp_path / "p.npz", policy, spec, Networks(), None)
    with pytest.raises(CorralError, match="a network of your own, MLP, whose code is not in the file"):
        corral.policy.load(tmp_path / "p.npz")


FULLY_CONNECTED = {
    "MLP": lambda key: eqx.nn.MLP(5, 3, 4, 2, jnp.tanh, key=key),
    "MLP as it comes, without biases": lambda key: eqx.nn.MLP(
        5, 3, 4, 1, use_bias=False, use_final_bias=False, key=key
    ),
    "Sequential": lambda key: eqx.nn.Sequential(
        [eqx.nn.Linear(5, 6, key=key), eqx.nn.Lambda(jax.nn.swish), eqx.nn.Linear(6, 3, key=key)]
    ),
    "a single layer": lambda key: eqx.nn.Sequential([eqx.nn.Linear(5, 3, key=key)]),
}


@pytest.mark.parametrize("name", FULLY_CONNECTED)
def test_a_fully_connected_network_of_the_user_s_own_needs_no_code(name, tmp_path):
    spec, obs, sizes = KINDS["box"], observations(), Networks(normalize_observations=True)
    policy = networks.make_policy(spec, sizes, jax.random.key(0), FULLY_CONNECTED[name](jax.random.key(1)))
    seen = networks.Normalizer(jnp.ones(5), jnp.arange(1.0, 6), jnp.asarray(4.0))
    policy = eqx.tree_at(lambda p: p.normalizer, policy, seen)
    standalone.write(tmp_path / "p.npz", policy, spec, sizes, None)
    loaded = corral.policy.load(tmp_path / "p.npz")
    expected = np.asarray(policy(jnp.asarray(obs)).mean)
    np.testing.assert_allclose(loaded(obs), expected, atol=1e-5)
    np.testing.assert_allclose(loaded.act(obs[0].tolist()), expected[0], atol=1e-5)
    again = corral.Result.load(tmp_path / "p.npz", FULLY_CONNECTED[name](jax.random.key(2)))
    np.testing.assert_allclose(again.policy(obs), expected, atol=1e-5)


def test_a_network_whose_code_says_more_than_its_layers_is_not_taken_for_fully_connected():
    key = jax.random.key(0)
    linear = eqx.nn.Linear(5, 5, key=key)
    for net in (
        eqx.nn.MLP(5, 3, 4, 1, final_activation=jnp.tanh, key=key),
        eqx.nn.Sequential([linear, linear]),
        eqx.nn.Sequential([linear, eqx.nn.Lambda(jnp.tanh)]),
        eqx.nn.Sequential([linear, eqx.nn.Lambda(jnp.tanh), linear, eqx.nn.Lambda(jax.nn.relu), linear]),
        eqx.nn.Sequential([linear, eqx.nn.LayerNorm(5), linear]),
        linear.weight.dot,
    ):
        assert standalone.fully_connected(net) is None


def test_wrong_shapes_are_named(tmp_path):
    policy, sizes = made(KINDS["box"])
    standalone.write(tmp_path / "p.npz", policy, KINDS["box"], sizes, None)
    loaded = corral.policy.load(tmp_path / "p.npz")
    with pytest.raises(CorralError, match=r"obs must have shape \(5,\) or \(n, 5\), got \(4,\)"):
        loaded(np.zeros(4))
    with pytest.raises(CorralError, match=r"noise must have shape \(3,\), got \(2,\)"):
        loaded(np.zeros(5), noise=np.zeros(2))


def test_loading_imports_neither_jax_nor_gymnasium_and_gymnasium_still_knows_the_environments():
    script = """
import sys, corral.policy
heavy = {"jax", "equinox", "gymnasium", "scipy", "mujoco", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
import gymnasium
assert "corral/AntCircle-v0" in gymnasium.registry
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert "corral/PointGather-v0" in gymnasium.registry


def test_acting_imports_no_module_that_is_slow_to_import_and_not_needed(tmp_path):
    """What NumPy itself imports is there anyway; of the rest, these took more than half of the start."""
    policy, sizes = made(KINDS["box"])
    standalone.write(tmp_path / "p.npz", policy, KINDS["box"], sizes, None)
    script = """
import sys, numpy
before = set(sys.modules)
import corral.policy
corral.policy.load(sys.argv[1])(numpy.zeros(5))
slow = {"zipfile", "pathlib", "shutil", "urllib.parse", "importlib.util", "dataclasses"} & (set(sys.modules) - before)
assert not slow, slow
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "p.npz")], check=True)

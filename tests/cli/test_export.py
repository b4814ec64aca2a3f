"""`corral export`: ONNX, a policy file, a folder for the Hub; and nothing that does not pass its check."""

import json
import shutil
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import TINY

import corral.policy
from corral.certification.certify import certify, save
from corral.cli import main
from corral.config import Config
from corral.learning import networks
from corral.policy import onnx as exporting
from corral.rollout import make
from corral.running import standalone
from corral.running.directory import RunDirectory
from corral.running.trainer import Trainer

onnx = pytest.importorskip("onnx")


def made(folder: Path, alone: bool = True, net=None) -> Path:
    config = Config("point-gather", task={"max_steps": 3.0}, limit=(0.5,), networks=TINY)
    with make.from_config(config) as sampler:
        spec = sampler.spec
    policy = networks.make_policy(spec, TINY, jax.random.key(0), net)
    run = RunDirectory(folder)
    run.begin(config)
    run.save_policy(policy, *(standalone.described(policy, spec, TINY, config) if alone else ({},)))
    return folder


def test_onnx_is_checked_and_written(tmp_path, capsys):
    run = made(tmp_path / "run")
    assert main(["export", str(run), str(tmp_path / "p.onnx"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["difference"] <= 1e-5
    session, _ = exporting.session((tmp_path / "p.onnx").read_bytes())
    policy = corral.policy.load(run / "policy.npz")
    obs = np.random.default_rng(0).normal(size=(9, policy.observation_size)).astype(np.float32)
    np.testing.assert_allclose(session({"observation": obs})[0], policy(obs), atol=1e-5)


def test_a_model_that_fails_its_check_is_not_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(exporting, "TOLERANCE", -1.0)
    assert main(["export", str(made(tmp_path / "run")), str(tmp_path / "p.onnx")]) == 2
    assert "differs from the policy" in capsys.readouterr().err
    assert not (tmp_path / "p.onnx").exists()


def test_a_policy_of_an_earlier_version_gets_a_file_that_stands_alone(tmp_path):
    run = made(tmp_path / "run", alone=False)
    assert main(["export", str(run), str(tmp_path / "p.npz")]) == 0
    loaded, result = corral.policy.load(tmp_path / "p.npz"), corral.Result.load(run)
    obs = np.ones((2, loaded.observation_size), np.float32)
    np.testing.assert_allclose(loaded(obs), result.policy(obs), atol=1e-6)
    assert loaded.about["env"]["task"] == {"max_steps": 3.0}


def test_a_checkpoint_is_exported_and_not_the_final_policy_of_its_run(tmp_path):
    folder = made(tmp_path / "run")
    run = RunDirectory(folder)
    with make.from_config(run.config()) as sampler:
        trainer = Trainer([run.config()], sampler)
        state = trainer.state_of(trainer.initial(), 0)
        other = eqx.tree_at(lambda s: s.policy.log_std, state, replace_fn=lambda x: x - 1)
    run.save_checkpoint(1, other, {})
    assert main(["export", str(run.checkpoints()[1]), str(tmp_path / "p.npz")]) == 0
    sigma = np.exp(np.asarray(other.policy.log_std))
    np.testing.assert_allclose(corral.policy.load(tmp_path / "p.npz").sigma, sigma, rtol=1e-6)
    assert not np.allclose(corral.policy.load(folder / "policy.npz").sigma, sigma)


def test_a_folder_for_the_hub_has_a_card_a_config_the_weights_and_the_certificate(tmp_path):
    run = made(tmp_path / "run")
    save(certify(run, episodes=400), tmp_path / "c.json")
    hub = tmp_path / "hub"
    assert main(["export", str(run), str(hub), "--certificate", str(tmp_path / "c.json")]) == 0
    assert {path.name for path in hub.iterdir()} == {
        "README.md",
        "config.json",
        "model.npz",
        "model.onnx",
        "certificate.json",
    }
    header = (hub / "README.md").read_text().split("---\n")[1]
    said = dict(line.split(": ", 1) for line in header.strip().split("\n"))
    metrics = json.loads(said["model-index"])[0]["results"][0]["metrics"]
    assert {m["name"] for m in metrics} == {"mean_reward", "mean_cost_bombs", "cost_bombs_at_most"}
    card = (hub / "README.md").read_text()
    assert "**Certified** with confidence 0.95, from 400 fresh episodes" in card
    assert "bombs at most" in card
    assert "between" not in card  # the confidence is that of one bound, not of two together
    assert json.loads((hub / "config.json").read_text())["env"]["name"] == "point-gather"
    assert (hub / "model.npz").read_bytes() == (run / "policy.npz").read_bytes()
    assert main(["certify", "--check", str(hub / "certificate.json"), str(hub / "model.npz")]) == 0
    # The folder alone is enough: the policy beside the certificate has another name than the one that was certified.
    moved = (tmp_path / "moved").resolve()
    shutil.copytree(hub, moved)
    (run / "policy.npz").rename(run / "away.npz")
    assert main(["certify", "--check", str(moved / "certificate.json")]) == 0
    (run / "away.npz").rename(run / "policy.npz")
    assert "with actions that are drawn" in card
    assert "action = policy(observation, deterministic=False)" in card  # those that were certified
    # The certificate is about drawn actions: a model goes without it unless it draws as well.
    asked = ["export", str(run), str(hub), "--certificate", str(tmp_path / "c.json")]
    for flags, carried in (([], False), (["--sampled"], True)):
        assert main(asked + flags) == 0
        props = {p.key: p.value for p in onnx.load(hub / "model.onnx").metadata_props}
        assert ("corral.certificate" in props) == carried


def test_a_certificate_of_another_policy_does_not_go_with_it(tmp_path, capsys):
    save(certify(made(tmp_path / "run"), episodes=400), tmp_path / "c.json")
    other = made(tmp_path / "other")
    policy = corral.Result.load(other)
    policy.save(tmp_path / "other.npz")  # other bytes
    assert (
        main(
            ["export", str(tmp_path / "other.npz"), str(tmp_path / "p.onnx"), "--certificate", str(tmp_path / "c.json")]
        )
        == 2
    )
    assert "is about another policy" in capsys.readouterr().err
    assert not (tmp_path / "p.onnx").exists()


def test_a_model_does_not_carry_a_certificate_about_other_actions_than_it_takes(tmp_path, capsys):
    run, target = made(tmp_path / "run"), tmp_path / "p.onnx"
    for name, most_likely in (("drawn", False), ("most likely", True)):
        save(certify(run, episodes=400, deterministic=most_likely), tmp_path / f"{name}.json")
        ask = ["export", str(run), str(target), "--certificate", str(tmp_path / f"{name}.json")]
        right, wrong = ([], ["--sampled"]) if most_likely else (["--sampled"], [])
        assert main(ask + wrong) == 2
        assert f"is about actions that are {name}" in capsys.readouterr().err
        assert not target.exists()
        assert main(ask + right) == 0
        target.unlink()


def test_a_network_of_one_s_own_is_refused_in_plain_words(tmp_path, capsys):
    with make.from_config(Config("point-gather")) as sampler:
        spec = sampler.spec
    net = eqx.nn.MLP(spec.observation_size, spec.action.size, 4, 1, jnp.sin, key=jax.random.key(0))
    assert main(["export", str(made(tmp_path / "run", net=net)), str(tmp_path / "p.onnx")]) == 2
    assert "a network of your own, MLP, whose code is not in the file" in capsys.readouterr().err


def test_a_fully_connected_network_of_one_s_own_becomes_a_checked_model(tmp_path, capsys):
    with make.from_config(Config("point-gather")) as sampler:
        spec = sampler.spec
    net = eqx.nn.MLP(spec.observation_size, spec.action.size, 4, 2, jax.nn.silu, key=jax.random.key(0))
    assert main(["export", str(made(tmp_path / "run", net=net)), str(tmp_path / "p.onnx"), "--sampled", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["difference"] <= 1e-5

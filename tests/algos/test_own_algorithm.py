"""An algorithm of the user's own: known everywhere from the moment its class is defined."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import pytest
from toys import BASE, TINY, Walk

import corral
from corral import CorralError
from corral.algos import CPO
from corral.cli.flags import train_options
from corral.config import Algorithm, Config, algorithms
from corral.learning import surrogates
from corral.report.contents import documentation
from corral.running import config_file
from corral.running.programs import numbers, program


@pytest.fixture
def careful():
    """TRPO with a price on costs that grows by `factor` after every violation."""

    @dataclass(frozen=True)
    class Careful(Algorithm):
        """A price on costs that grows geometrically."""

        name = "careful"

        price: float = 0.5
        """The first price."""
        factor: float = 2.0
        """By how much it grows."""
        patience: int = 1
        """A number that is part of the program."""

        def check(self):
            if self.price < 0:
                raise CorralError(f"algo.price must not be negative, got {self.price}")

        def init(self, m):
            return jnp.full(m, self.price, jnp.float32)

        def update(self, state, local, constraints):
            objective = jnp.concatenate([jnp.ones(1), -state])
            step = surrogates.unconstrained(local, objective, constraints.limit, state)
            return jnp.where(constraints.value > constraints.limit, self.factor * state, state), step

    yield Careful
    del algorithms()["careful"]


def test_flags_help_files_and_the_report_know_it_by_its_name(careful, tmp_path, capsys):
    config, _ = train_options(["point-gather", "--algo", "careful", "--algo.price", "3", "--algo.patience", "2"])
    assert config.algo == careful(3.0, patience=2)
    config_file.save(config, tmp_path / "config.toml")
    assert config_file.load(tmp_path / "config.toml") == config
    with pytest.raises(SystemExit):
        train_options(["point-gather", "--algo", "careful", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "--algo {careful," in printed or ",careful" in printed
    assert "--algo.price FLOAT The first price. (default: 0.5)" in printed
    assert documentation()["algo.price"] == "The first price."
    with pytest.raises(CorralError, match=r"algo\.price must not be negative, got -1"):
        train_options(["point-gather", "--algo", "careful", "--algo.price", "-1"])
    with pytest.raises(CorralError, match=r"--algo\.price is an option of --algo careful"):
        train_options(["point-gather", "--algo.price", "1"])


def test_its_floats_are_inputs_of_the_program_and_its_whole_numbers_part_of_it(careful):
    base = replace(BASE, algo=careful())
    assert {"algo.price", "algo.factor"} <= set(numbers(base))
    assert "algo.patience" not in numbers(base)
    assert program(replace(base, algo=careful(price=9.0))) == program(base)
    assert program(replace(base, algo=careful(patience=2))) != program(base)


def test_it_trains_from_python(careful):
    """A limit below zero is always broken, so its price doubles after every update; a limit far away never is."""
    settings = dict(iterations=3, batch_size=160, networks=TINY, preset="paper", limit=(-1.0, 1e6))
    result = corral.train(Walk(), careful(), **settings)
    assert result.metrics["nu_near"].tolist() == [0.5, 1.0, 2.0]
    assert result.metrics["nu_far"].tolist() == [0.5, 0.5, 0.5]


def test_every_algorithm_of_corral_explains_itself():
    for name, kind in algorithms().items():
        assert kind.name == name
        assert kind.__doc__
        docs = config_file.field_docs(kind)
        assert all(docs.get(f) for f in kind.__dataclass_fields__), name


def test_a_default_that_the_preset_decides_is_written_as_what_the_paper_has(tmp_path):
    config_file.save(Config("x", algo=CPO()), tmp_path / "config.toml")
    assert "calibration = 0.0" in (tmp_path / "config.toml").read_text()

"""Bad command lines: every command, with options of its own and odd words."""

import contextlib
import io
import os
import random
import unittest.mock
from importlib import import_module
from pathlib import Path

from attack import odd
from attack.files import example
from attack.judge import Attack, Wrong
from corral.cli import COMMANDS, flags, main
from corral.config import Config, RunOptions
from corral.errors import CorralError

ENVS = ("point-gather", "point-circle", "ant-gather", "CartPole-v1", "no.module:Thing-v0", "point-gahter", "")
WORK = (
    *("corral.running.loop.train_into", "corral.cli.evaluate.evaluate", "corral.tabular.survey.examples.random_cmdp"),
    *("corral.cli.render.record", "corral.cli.tabular.exact_cpo", "corral.experiments.runner.run"),
    *("corral.cli.report.write", "corral.cli.plot.plot", "corral.cli.certify.certify", "corral.cli.export._standalone"),
    *("corral.cli.watch.gl_backend", "corral.cli.safety_gymnasium.run"),
)
"""Where the work of a command begins, after everything that was asked for has been checked."""


class Accepted(BaseException):
    """The command line was accepted, and the work would begin."""


def generate(rng: random.Random) -> Attack:
    """A command with some options, their values odd or good."""
    command = rng.choice([*COMMANDS, "train", "train", "resume", "evaluate"]) if rng.random() < 0.98 else odd.text(rng)
    argv = [command, *_positional(command, rng)]
    for option in rng.choices(_options(command), k=rng.randint(1, 4)):
        argv += _words(str(option), rng)
    if rng.random() < 0.1:
        argv.insert(rng.randint(0, len(argv)), rng.choice([odd.text(rng), "--help", "--", "-x", "--no-such-option"]))
    return Attack(
        " ".join(word if len(word) < 40 else f"{word[:40]}…" for word in argv), lambda folder: act(argv, folder)
    )


def act(argv: list[str], folder: Path) -> None:
    """Run the command up to where its work would begin."""
    said, before = io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stderr(said))
            for place in WORK:
                stack.enter_context(unittest.mock.patch(place, side_effect=Accepted))
            status = main(argv)
    except Accepted:
        return
    except SystemExit as left:
        status = left.code
    finally:
        os.chdir(before)
    lines = said.getvalue().strip().splitlines()
    if status == 0:
        return
    if status not in (1, 2) or not lines or "Traceback" in said.getvalue():
        raise Wrong(f"exit status {status}: {said.getvalue()}")
    raise CorralError(lines[-1])


def _options(command: str) -> list[flags.Option]:
    if command == "train" or command not in COMMANDS:
        found = [*flags.options_of(Config("point-gather")), *flags.options_of(RunOptions())]
    else:
        found = flags.options_of(import_module(f"corral.cli.{command.replace('-', '_')}").Config)
    return [option for option in found if not option.positional]


def _positional(command: str, rng: random.Random) -> list[str]:
    run = str(rng.choice(example(rng.choice([1, 3]))))
    odd_one = [odd.text(rng)]
    return {
        "train": rng.choice([[rng.choice(ENVS)], [rng.choice(ENVS)], odd_one]),
        "reproduce": rng.choice([["fig1"], ["all"], odd_one]),
        "grid": rng.choice([["nowhere.toml"], odd_one]),
        "render": rng.choice([["point-gather"], odd_one]),
        "bounds": [],
        "tabular": [],
        "envs": [],
    }.get(command, rng.choice([[run], odd_one, []]))


def _words(option: str, rng: random.Random) -> list[str]:
    values = [odd.word(rng) for _ in range(rng.choice([0, 1, 1, 1, 1, 2, 5]))]
    if option == "--task" and values:
        values = [rng.choice(["apples", "bombs", "max_steps", "min_steps", "raw_actions", odd.text(rng)]), *values[:1]]
    return [f"{option}={values[0]}"] if values and rng.random() < 0.2 else [option, *values]

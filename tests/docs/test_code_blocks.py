"""Every code block of README.md and of docs/ works: Python runs and prints what the page shows, commands and TOML parse.

Marks in a page, each an HTML comment on the line before a block:

    slow    the block trains for long: `make test` makes two iterations of it, `make test-slow` all, and compares
    varies  its numbers depend on rounding: only the first of each line, from the untrained policy, is compared
"""

import importlib
import itertools
import math
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import jax
import pytest

from corral import envs, presets
from corral.cli import COMMANDS, flags
from corral.cli import main as corral_main
from corral.config import algorithms
from corral.experiments import spec
from corral.learning.networks import make_policy
from corral.running import config_file, standalone
from corral.running.directory import RunDirectory

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
OWN_ALGORITHM = ROOT / "docs" / "your-own-algorithm.md"
NEXT = "-- next block --"


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    start: int
    """The number of its first line."""
    lines: list[str]
    marks: set[str]

    @property
    def text(self):
        return "\n".join(self.lines)


def blocks(page: Path) -> list[Block]:
    found, inside, marks = [], None, set()
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if inside is not None:
            if line.startswith("```"):
                found.append(inside)
                inside, marks = None, set()
            else:
                inside.lines.append(line)
        elif fence := re.match(r"```(\w*)", line):
            inside = Block(fence[1], number + 1, [], marks)
        elif mark := re.fullmatch(r"<!-- (slow|varies) -->", line):
            marks = marks | {mark[1]}
        elif line.strip():
            marks = set()
    assert inside is None, f"{page.name}: the block at line {inside.start} has no end"
    return found


def names(pages):
    return [str(page.relative_to(ROOT)) for page in pages]


# -- Python ------------------------------------------------------------------------------------------------------------


def run(page: Path, chosen: list[Block], folder: Path) -> list[str]:
    """What each block prints, all of them in one process; line numbers of errors are those of the page."""
    script: list[str] = []
    for block in chosen:
        script += [""] * (block.start - 1 - len(script)) + block.lines + [f"print({NEXT!r}, flush=True)"]
    path = folder / f"{page.stem}.py"
    path.write_text("\n".join(script) + "\n")
    (folder / "docs" / "img").mkdir(parents=True)
    if "runs/demo" in path.read_text():
        untrained_demo(folder / "runs" / "demo")
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3"}
    done = subprocess.run(
        [sys.executable, path.name], cwd=folder, env=os.environ | quick, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{page.name}, lines of the page:\n{done.stderr[-3000:]}"
    return done.stdout.split(f"{NEXT}\n")[:-1]


def untrained_demo(folder: Path) -> None:
    """A run like the one of `make demo`, but for the training."""
    config, demo = presets.preset("point-gather"), RunDirectory(folder)
    demo.begin(config)
    facts = envs.spec(config.env)
    policy = make_policy(facts, config.networks, jax.random.key(0))
    demo.save_policy(policy, *standalone.described(policy, facts, config.networks, config))


def check(page: Path, folder: Path, slow: bool) -> None:
    written = blocks(page)
    python = [b for b in written if b.language == "python"]
    if not slow:
        python = [shortened(b) if "slow" in b.marks else b for b in python]
    printed = dict(zip((b.start for b in python), run(page, python, folder), strict=True))
    for block, shown in itertools.pairwise(written):
        if block.language == "python" and shown.language == "text" and (slow or "slow" not in block.marks):
            where = f"{page.name}, line {shown.start}"
            compare(printed[block.start].rstrip("\n"), shown.text, "varies" in shown.marks, where)


def shortened(block: Block) -> Block:
    return block._replace(lines=[re.sub(r"\biterations=\d+", "iterations=2", line) for line in block.lines])


def compare(printed: str, shown: str, varies: bool, where: str) -> None:
    """Words must be equal and numbers equal to 1%; where they vary, the first of each line to 5%."""
    number = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d*)?(?:e-?\d+)?")
    words = [" ".join(re.sub(r"[\[\]]", " ", number.sub("#", text)).split()) for text in (printed, shown)]
    assert words[0] == words[1], f"{where}: shown\n{shown}\nprinted\n{printed}"
    for line, expected in zip(printed.splitlines(), shown.splitlines(), strict=True):
        pairs = list(zip(*(map(as_float, number.findall(text)) for text in (line, expected)), strict=True))
        assert all(math.isfinite(x) for x, _ in pairs), where
        for got, want in pairs[:1] if varies else pairs:
            assert got == pytest.approx(want, rel=0.05 if varies else 0.01, abs=1e-3), f"{where}: {line}"


def as_float(word: str) -> float:
    return float(word.replace(",", ""))


ELSEWHERE = ("your-own-robot.md",)  # its files and code are tested by tests/envs/test_your_own_robot.py
WITH_PYTHON = [p for p in PAGES if p.name not in ELSEWHERE and any(b.language == "python" for b in blocks(p))]
WITH_SLOW = [page for page in PAGES if any("slow" in b.marks for b in blocks(page))]


# The README trains too, and is the first that people try: it stays among the quick tests.
LONG = ("algorithms.md", "pitfalls.md", "python.md", "workers.md", "your-own-algorithm.md")


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=pytest.mark.slow if p.name in LONG else (), id=p.name) for p in WITH_PYTHON]
)
def test_python_blocks_run_in_order_and_print_what_the_page_shows(page, tmp_path):
    check(page, tmp_path, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_SLOW, ids=names(WITH_SLOW))
def test_long_python_blocks_run_too(page, tmp_path):
    check(page, tmp_path, slow=True)


def test_a_page_that_shows_something_else_is_noticed():
    compare("cost 4.99 of 5", "cost 5 of 5", varies=False, where="here")
    compare("cost 4.99 9", "cost 5 2", varies=True, where="here")
    for printed, shown, varies in (
        ("cost 4.9", "cost 5", False),
        ("price 5", "cost 5", True),
        ("nan", "5", True),
        ("4 5", "5 5", True),
    ):
        with pytest.raises(AssertionError):
            compare(printed, shown, varies, "here")


# -- commands ----------------------------------------------------------------------------------------------------------


def commands(page: Path) -> list[str]:
    """Every command of Corral and of make in the page: lines of blocks, and code within a sentence.

    Patterns are no commands: usage lines with [options] or …, names like DIR, sentences about an option without its value.
    """
    outside = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for b in blocks(page) if b.language in ("", "sh", "console") for line in b.lines]
    lines += re.findall(r"^ {4}(.*)$", outside, re.MULTILINE)
    said = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", outside)]
    lines += [code for code in said if not re.search(r"--(?!help|json)\S+$", code)]
    found = []
    for line in lines:
        if loop := re.fullmatch(r"for (\w+) in (.*?); do (.*); done", line):
            name, values, body = loop.groups()
            found += [body.replace(f"${name}", value) for value in values.split()]
        else:
            found.append(re.sub(r"^(\$ )?(\w+=\S* )*", "", line).split(" #")[0].strip())
    start = re.compile(r"((\.venv/bin/)?corral|python -m corral|make) [a-z-]")
    pattern = re.compile(r"[\[…]|, | [A-Z]+( |$)")
    chosen = [line for line in found if start.match(line) and not pattern.search(line)]
    # The page on performance quotes how its numbers were recorded, and says what the command is now.
    return [line for line in chosen if not (page.name == "performance.md" and line.startswith("corral bench"))]


PARSED = [(page, line) for page in PAGES for line in dict.fromkeys(commands(page))]


@pytest.fixture(scope="module")
def own_algorithm():
    """The algorithm that its page defines: the commands of the page name it."""
    before = set(algorithms())
    first = next(b for b in blocks(OWN_ALGORITHM) if b.language == "python")
    exec(compile(first.text, OWN_ALGORITHM.name, "exec"), {"__name__": "own_algorithm"})
    yield
    for name in set(algorithms()) - before:
        del algorithms()[name]


@pytest.mark.parametrize(("page", "line"), PARSED, ids=[f"{page.name}: {line}" for page, line in PARSED])
def test_every_command_parses(page, line, request):
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in words[1:] if "=" not in word and word.islower()} <= set(targets), line
        return
    command, *args = words[3:] if words[0] == "python" else words[1:]
    if command.startswith("--"):
        return
    assert command in COMMANDS, line
    if page == OWN_ALGORITHM:
        request.getfixturevalue("own_algorithm")
    if not args and line in (f"corral {command}", f"python -m corral {command}"):
        return  # the name of the command
    if "--help" in args:
        with pytest.raises(SystemExit):
            corral_main([command, *args])
    elif command == "train":
        flags.train_options(args)
    else:
        flags.parse(importlib.import_module(f"corral.cli.{command.replace('-', '_')}").Config, args, command)


def test_the_table_of_environments_is_the_one_that_corral_envs_prints(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    shown = next(b for b in blocks(ROOT / "docs" / "environments.md") if b.lines[0] == "$ corral envs")
    assert corral_main(["envs"]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert printed == [line.split() for line in shown.lines[1:]]


# -- TOML --------------------------------------------------------------------------------------------------------------

TOML = [(page, b) for page in PAGES for b in blocks(page) if b.language == "toml"]


@pytest.mark.parametrize(("page", "block"), TOML, ids=[f"{page.name}:{b.start}" for page, b in TOML])
def test_every_toml_block_is_accepted(page, block, tmp_path):
    content = tomllib.loads(block.text)
    if page.name == "experiments.md":
        path = tmp_path / "mine.toml"
        path.write_text(block.text)
        spec.load(path)
    elif page.name == "training.md":
        path = tmp_path / "run.toml"
        path.write_text(block.text)
        config, options = flags.train_options(["--config", str(path)])
        assert config.env == content["env"]
        assert options.seeds == content["run"]["seeds"]
        filled = config_file.fill(presets.preset(config.env), {k: v for k, v in content.items() if k != "run"})
        assert config == filled

"""A hundred attacks of every kind: none may end in a traceback, without end, or with a wrong result."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attack import KINDS, driver, system_calls
from attack.files import require_same
from attack.judge import Attack, Wrong, carry_out
from attack.kills import ready, resume, train
from corral.errors import CorralError

EACH = 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_attacks_of_each_kind_are_refused_in_a_line_or_do_no_harm(kind):
    results = [(number, carry_out(KINDS[kind].generate, kind, number)) for number in range(EACH)]
    bad = [f"{kind} {n}: {r.outcome}: {r.what}: {r.said}" for n, r in results if r.outcome not in ("clean", "right")]
    assert not bad, "\n".join(bad)


def raising(error):
    def act(folder):
        raise error

    return lambda rng: Attack("", act)


def test_the_judge_tells_a_refusal_from_a_crash(monkeypatch):
    """Otherwise the attacks above could not fail."""
    assert carry_out(lambda rng: Attack("", lambda folder: None), "", 0).outcome == "right"
    assert carry_out(raising(CorralError("no")), "", 0).outcome == "clean"
    assert carry_out(raising(CorralError("two\nlines")), "", 0).outcome == "wrong"
    assert carry_out(raising(Wrong("6 instead of 7")), "", 0).outcome == "wrong"
    assert carry_out(raising(KeyError("x")), "", 0).outcome == "traceback"
    assert carry_out(raising(SystemExit(0)), "", 0).outcome == "traceback"
    monkeypatch.setattr("attack.judge.SECONDS", 0.01)
    assert carry_out(lambda rng: Attack("", lambda folder: signal.pause()), "", 0).outcome == "hang"


def killed_for_real(folder, seeds, call, number):
    """Whether SIGKILL hit a process that trains there, at its system call of this kind and number."""
    given = [sys.executable, str(Path(driver.__file__)), str(folder), str(seeds), call, str(number)]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(given, env=os.environ | {"PYTHONPATH": path}, capture_output=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode != 0


FEW = [("replace", 3, 1), ("write", 7, 3)]
ONE_SEED = {"replace": 6, "fsync": 12, "write": 6, "unlink": 6, "link": 1}
THREE_SEEDS = {"replace": 18, "fsync": 20, "write": 18, "unlink": 10, "link": 4}
MANY = [
    (c, k, n) for n, counts in ((1, ONE_SEED), (3, THREE_SEEDS)) for c, count in counts.items() for k in range(count)
]


@pytest.mark.parametrize(("call", "number", "seeds"), [*FEW, *(pytest.param(*k, marks=pytest.mark.slow) for k in MANY)])
def test_a_process_killed_at_a_system_call_is_resumed_bit_for_bit(call, number, seeds, tmp_path):
    assert call in system_calls.CALLS
    assert killed_for_real(tmp_path / "run", seeds, call, number)
    with ready():
        train(tmp_path / "whole", seeds)
        resume(tmp_path / "run", seeds)
    require_same(tmp_path / "whole", tmp_path / "run")

"""Real training in processes that are killed: its result is that of training which nobody killed."""

import os
import random
import shutil
import subprocess

import pytest

from attack import kills, real_kills
from attack.judge import Wrong, carry_out

QUICK = {"several seeds": 1, "a grid": 1, "workers": 1, "resumes of resumes": 2}


@pytest.mark.parametrize("scenario", real_kills.SCENARIOS)
def test_a_killed_process_is_taken_up_again_bit_for_bit(scenario):
    before = real_kills.landed[scenario]
    result = carry_out(lambda rng: real_kills.of_scenario(scenario, rng, QUICK[scenario]), "quick", 0)
    assert result.outcome == "right", result
    assert real_kills.landed[scenario] > before


@pytest.mark.slow
@pytest.mark.parametrize("number", range(40))
def test_a_process_killed_several_times_is_taken_up_again_bit_for_bit(number):
    result = carry_out(real_kills.generate, "real-kills", number)
    assert result.outcome == "right", result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "number"),
    [
        pytest.param("checkpoint-000002.npz", 1, id="between the first checkpoints of a program"),
        pytest.param("checkpoint-000004.npz", 1, id="between later checkpoints"),
        pytest.param("policy.npz", 1, id="between the final policies"),
        pytest.param("provenance.json", 7, id="at the last provenance of the last run"),
    ],
)
def test_a_grid_killed_where_its_runs_differ_goes_on_bit_for_bit(file, number, tmp_path):
    """Two runs in each program: a kill before the second file of a name leaves it with the first run only."""
    real_kills.killed_at("a grid", real_kills.Kill(False, number, 0.0, file), tmp_path / "run")


def test_generated_kills_follow_from_their_number_and_reach_every_scenario():
    once, again = ([real_kills.generate(random.Random(n)).what for n in range(40)] for _ in range(2))
    assert once == again
    assert {what.split(",")[0] for what in once} == set(real_kills.SCENARIOS)


def test_another_policy_and_a_file_that_stays_behind_are_noticed(tmp_path):
    with kills.ready():
        whole, _ = kills.uninterrupted("a run")
    other = tmp_path / "other"
    shutil.copytree(whole, other)
    kills.require_as_if_never_killed(whole, other, None)
    (other / ".left.tmp").touch()
    with pytest.raises(Wrong, match=r"\.left\.tmp stayed behind"):
        kills.require_as_if_never_killed(whole, other, None)
    with open(other / "policy.npz", "ab") as file:
        file.write(b"0")
    with pytest.raises(Wrong, match="another policy"):
        kills.require_as_if_never_killed(whole, other, None)


def test_a_process_that_outlives_its_parent_is_noticed_and_ended(monkeypatch):
    monkeypatch.setattr(real_kills, "ORPHANS_END", 0.1)
    with real_kills.marked() as mark:
        real_kills.require_no_orphans(mark)
        # A shell that waits for a line that nobody writes. It speaks once it runs: until then it may not bear its mark,
        # since Popen returns while exec is still under way.
        environment, pipe = os.environ | {real_kills.MARK: mark}, subprocess.PIPE
        orphan = subprocess.Popen(["sh", "-c", "echo; read line"], env=environment, stdin=pipe, stdout=pipe)
        assert orphan.stdin is not None
        assert orphan.stdout is not None
        assert orphan.stdout.read(1) == b"\n"
        with pytest.raises(Wrong, match=rf"processes \[{orphan.pid}\] live 0.1 s after their parent"):
            real_kills.require_no_orphans(mark)
    with orphan.stdin, orphan.stdout:
        assert orphan.wait(10) == -9

"""A run that is killed for real, with SIGKILL at a random moment, and resumed, is the run that was never interrupted."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from corral.running import log

TINY = ["--networks.hidden", "8", "--iterations", "12", "--shape-costs", "--shaping.steps", "2", "--critic.epochs", "2"]
ON_DEVICE = ["point-gather", "--batch-size", "600"]
ON_HOST = ["ant-circle", "--batch-size", "1000", "--task", "max_steps", "50"]
RUNS = [(algo, env) for algo in ("cpo", "pdo", "trpo", "fpo") for env in (ON_DEVICE, ON_HOST)]


def corral(*arguments):
    code = "import sys; from corral.cli import main; sys.exit(main())"
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.DEVNULL, env=os.environ)


def rows(directory):
    path = directory / "metrics.csv"
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "env"), RUNS, ids=lambda value: value if isinstance(value, str) else value[0])
def test_a_killed_run_resumes_bit_for_bit(algo, env, tmp_path):
    def train(out):
        return ["train", *env, "--algo", algo, *TINY, "--checkpoint-every", "3", "--out", str(out)]

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert corral(*train(whole)).wait() == 0
    process = corral(*train(killed))
    target = random.Random(algo).randrange(4, 9)
    while rows(killed) < target:
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert rows(killed) < 12
    assert corral("resume", str(killed)).wait() == 0
    a, b = log.read(whole), log.read(killed)
    assert len(b) == 12
    for name in a.columns:
        if not name.startswith("seconds") and name != "steps_per_second":
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)
    assert (whole / "policy.npz").read_bytes() == (killed / "policy.npz").read_bytes()

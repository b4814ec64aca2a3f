"""How long a program takes from its start to the first action of a policy file, with NumPy alone and without.

    .venv/bin/python benchmarks/policy_start.py [POLICY.npz] [--repeat 30]

Without a file, one of the size of the velocity suite's is made (17 inputs, 64 and 32 hidden units, 6 outputs). Every
start is a process of its own; the time is from before it is started to after it has printed an action. Python alone and
`import numpy` alone are shown beside it, since they are the floor. All modules are there as bytecode, as they are in an
installed package, whatever PYTHONDONTWRITEBYTECODE says: it is kept in a folder of its own, and a first start of each
program, which writes it, is not counted.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAMS = {
    "python alone": "pass",
    "import numpy": "import numpy",
    "with NumPy": "import sys, numpy, corral.policy; p = corral.policy.load(sys.argv[1]); "
    "print(p(numpy.zeros(p.observation_size, numpy.float32)))",
    "without": "import sys, corral.policy; p = corral.policy.load(sys.argv[1]); print(p.act([0.0] * p.observation_size))",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", nargs="?", type=Path)
    parser.add_argument("--repeat", type=int, default=30)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.policy or _made(Path(folder) / "policy.npz")
        cached = os.environ | {"PYTHONPYCACHEPREFIX": f"{folder}/bytecode", "PYTHONDONTWRITEBYTECODE": ""}
        # One of each in turn, so that a busy moment of the machine meets all alike.
        seconds: dict[str, list[float]] = {name: [] for name in PROGRAMS}
        for turn in range(1 + given.repeat):
            for name, program in PROGRAMS.items():
                argv = [sys.executable, "-c", program, str(path)]
                started = time.perf_counter()
                subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env=cached)
                if turn > 0:
                    seconds[name].append(time.perf_counter() - started)
    for name, times in seconds.items():
        print(f"{name:14} median {1000 * statistics.median(times):6.1f} ms   least {1000 * min(times):6.1f} ms")


def _made(path: Path) -> Path:
    import jax

    from corral.config import Networks
    from corral.envs.contract import Box, EnvSpec
    from corral.learning.networks import make_policy
    from corral.running import standalone

    spec, sizes = EnvSpec("benchmark", 17, Box(6), 1000), Networks(normalize_observations=True)
    standalone.write(path, make_policy(spec, sizes, jax.random.key(0)), spec, sizes, None)
    return path


if __name__ == "__main__":
    main()

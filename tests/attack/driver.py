"""A process that trains and kills itself: python driver.py FOLDER SEEDS CALL NUMBER.

SIGKILL comes at the system call of this name and number, counted from 0; of a write the first half is made before.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from attack import system_calls
from attack.kills import ready, train


def main(folder: str, seeds: str, call: str, number: str) -> None:
    """Train until the kill."""
    left = int(number)

    def happens(name: str, given: tuple[Any, ...]) -> None:
        nonlocal left
        if name == call:
            if left == 0:
                if name == "write":
                    os.pwrite(given[0], given[1][: len(given[1]) // 2], os.fstat(given[0]).st_size)
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    with ready(), system_calls.watched(happens):
        train(Path(folder), int(seeds))


if __name__ == "__main__":
    main(*sys.argv[1:])

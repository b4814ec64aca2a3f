"""A process that trains and kills itself: python driver.py FOLDER SEEDS CALL NUMBER.

SIGKILL comes at the system call of this name and number, counted from 0; of a write the first half is made before.
"""

import sys
from pathlib import Path

from attack import system_calls
from attack.kills import ready, train


def main(folder: str, seeds: str, call: str, number: str) -> None:
    """Train until the kill."""
    kill = system_calls.kill_at(int(number), lambda name, given: name == call)
    with ready(), system_calls.watched(kill):
        train(Path(folder), int(seeds))


if __name__ == "__main__":
    main(*sys.argv[1:])

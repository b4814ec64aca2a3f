"""What an attack is, and what may come of it."""

import contextlib
import io
import os
import random
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from corral.errors import CorralError

OUTCOMES = ("clean", "right", "traceback", "hang", "wrong")
"""Refused in a line; accepted, with the right result; a traceback; no end; accepted, with a wrong result."""

SECONDS = 30
"""After which an attack counts as hanging; all but real kills take a fraction of a second."""


class Wrong(Exception):
    """The result of an attack is not what it must be."""


class Hangs(BaseException):
    """No end is in sight. It is no `Exception`, so that no handler on the way takes it for an error of its own."""


class Attack(NamedTuple):
    """One attack: what it does, in words, and the function that does it in a folder of its own."""

    what: str
    act: Callable[[Path], None]
    """Raises CorralError or OSError where the attack was refused; returns where it was accepted and all is right."""
    seconds: float | None = None
    """After which it counts as hanging; None: `SECONDS`."""


class Result(NamedTuple):
    """What came of an attack."""

    outcome: str
    what: str
    said: str


Generator = Callable[[random.Random], Attack]


def carry_out(generate: Generator, kind: str, number: int) -> Result:
    """Make the attack of this kind and number, and judge it."""
    attack = generate(random.Random(f"{kind} {number}"))
    folder = new_folder()
    try:
        with (
            _alarm(attack.seconds or SECONDS),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            attack.act(folder)
        return Result("right", attack.what, "")
    except Hangs:
        return Result("hang", attack.what, "".join(traceback.format_exc()))
    except Wrong as error:
        return Result("wrong", attack.what, str(error))
    except (CorralError, OSError) as error:
        lines = str(error).splitlines()
        fine = len(lines) == 1 and len(lines[0]) < 2000
        return Result("clean" if fine else "wrong", attack.what, f"{type(error).__name__}: {error}")
    except BaseException:
        return Result("traceback", attack.what, traceback.format_exc())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_folder() -> Path:
    """An empty folder, in memory where the system has such a place: thousands of attacks would wait for the disk."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="corral-attack-", dir=memory if os.access(memory, os.W_OK) else None))


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

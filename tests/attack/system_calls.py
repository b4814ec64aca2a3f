"""The system calls that change a folder, counted while a run makes them; something happens at a chosen one."""

import contextlib
import os
import signal
import stat
import threading
import unittest.mock
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CALLS = ("replace", "fsync", "write", "link", "unlink", "mkdir", "rmdir", "utime")

Happens = Callable[[str, tuple[Any, ...]], None]
"""Hears of a system call, by its name and arguments, before it is made."""


@contextlib.contextmanager
def watched(happens: Happens) -> Iterator[None]:
    """Call `happens` before every system call that changes files, of this thread or another."""
    with contextlib.ExitStack() as stack:
        for name in CALLS:
            stack.enter_context(unittest.mock.patch.object(os, name, _told(name, getattr(os, name), happens)))
        yield


def _told(name: str, true: Callable[..., Any], happens: Happens) -> Callable[..., Any]:
    def told(*given: Any, **named: Any) -> Any:
        happens(name, given)
        return true(*given, **named)

    return told


def to_a_process(name: str, given: tuple[Any, ...]) -> bool:
    """Whether a call writes to the pipe of another process: it changes no file."""
    return name == "write" and stat.S_ISFIFO(os.fstat(given[0]).st_mode)


def kill_at(number: int, counts: Callable[[str, tuple[Any, ...]], bool], delay: float = 0.0) -> Happens:
    """SIGKILL for this process at the call of this number, from 0 on, among those that count, or so many seconds later.

    A kill without delay falls into the call: of what it would write the first half is written.
    """
    left = number

    def happens(name: str, given: tuple[Any, ...]) -> None:
        nonlocal left
        if not counts(name, given):
            return
        left -= 1
        if left == -1 and delay:
            timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()
        elif left == -1:
            if name == "write" and not to_a_process(name, given):
                os.pwrite(given[0], given[1][: len(given[1]) // 2], os.fstat(given[0]).st_size)
            os.kill(os.getpid(), signal.SIGKILL)

    return happens


def torn(name: str, given: tuple[Any, ...], share: float) -> Callable[[Path, Path], None] | None:
    """What a kill in the middle of this call leaves: a function of the folder and a copy of it that tears the copy's file.

    Of a row that is being written a part is there, of a temporary file that is about to be forced to the disk too.
    """
    if name not in ("write", "fsync") or not isinstance(given[0], int):
        return None
    path = Path(os.readlink(f"/proc/self/fd/{given[0]}"))
    if path.is_dir():
        return None

    def tear(folder: Path, copy: Path) -> None:
        if path.is_relative_to(folder) and (copy / path.relative_to(folder)).is_file():
            target = copy / path.relative_to(folder)
            content = target.read_bytes()
            if name == "write":
                target.write_bytes(content + given[1][: int(share * len(given[1]))])
            elif target.suffix == ".tmp":
                target.write_bytes(content[: int(share * len(content))])

    return tear

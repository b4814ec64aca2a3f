"""Ctrl-C, SIGTERM and SIGHUP: a request to stop that the loop hears between two iterations.

A terminal that closes sends SIGHUP; a cluster sends SIGTERM some seconds before it kills.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_missed: list[int] = []
"""Signals that raised KeyboardInterrupt before there was a loop: a library may have swallowed it."""


@contextmanager
def before_the_loop() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, as usual, and remember it for `interruptible`."""

    def handler(number: int, frame: Any) -> None:
        _missed.append(number)
        raise KeyboardInterrupt

    try:
        with _handled(handler, signal.SIGINT):
            yield
    finally:
        _missed.clear()


@contextmanager
def interruptible(note: Callable[[str], None]) -> Iterator[Callable[[], int]]:
    """Turn the first signal into a request to stop: yields a function that returns its number, 0 while there is none.

    A second signal raises KeyboardInterrupt at once.
    """
    if _missed:
        raise KeyboardInterrupt
    asked = 0

    def handler(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = number
        # The terminal may be gone, or be in the middle of another line.
        with contextlib.suppress(Exception):
            again = "; Ctrl-C again stops at once" if number == signal.SIGINT else f" ({signal.Signals(number).name})"
            note(f"stopping when this iteration is done and saved{again}")

    with _handled(handler, *SIGNALS):
        yield lambda: asked


@contextmanager
def _handled(handler: Callable[[int, Any], None], *numbers: int) -> Iterator[None]:
    """Give these signals to a handler; in another thread than the main one the caller's own handling applies.

    A signal that the process ignores, such as SIGHUP under nohup, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {n: signal.getsignal(n) for n in numbers}
    mine = [n for n in numbers if before[n] not in (signal.SIG_IGN, None)]
    try:
        for number in mine:
            signal.signal(number, handler)
        yield
    finally:
        for number in mine:
            signal.signal(number, before[number])

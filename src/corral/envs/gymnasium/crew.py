"""Processes that step copies of an environment: each runs `worker.py`, under this Python or another.

Each worker has some slots of every group. It plays whole episodes by itself: it gets the policy in NumPy, and sends back all
steps at the end. Where the policy can be asked in this process only, workers are asked for every single step: commands of 16
bytes and answers of one go through pipes, everything else through memory that all of them share, and each group is asked for
by a thread of its own, so that the workers step one while another waits for its policy.
"""

import contextlib
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from corral.envs.gymnasium import worker as other_side
from corral.envs.gymnasium.worker import (
    ATTACH,
    COMMAND,
    DONE,
    LEAVE,
    LENGTH,
    NO_GYMNASIUM,
    PLAY,
    RESET,
    STEP,
    Rows,
    beats_in,
    packed,
    rows_in,
    unpacked,
)
from corral.errors import CorralError, require
from corral.policy import acting

PATIENCE = 300.0
"""Seconds that a worker may take to make its environments, to reset them, or to step them once."""
_LEAVING = 5.0
"""Seconds in which a worker has to close its environments at the end."""

_ACTING = Path(acting.__file__).read_text(encoding="utf-8")

# One thread each, as the workers share the cores; and JAX on the CPU, as a GPU is the learner's.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Lost(CorralError):
    """A worker has ended, or was ended, without a word: the same episodes may be played by another."""


@dataclass(eq=False)
class _Process:
    number: int
    popen: "subprocess.Popen[bytes]"
    commands: int
    """Where commands are written."""
    replies: list[int]
    """Where the answers for each group are read."""
    slots: list[tuple[int, int]]
    """Its slots of each group, from and to before."""
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Whoever writes a command owns this: a long one must not be mixed with another."""


class Crew:
    """Workers with the environments of several groups of slots; `rows[g]` are the arrays of group g.

    The first failure of a worker ends them all: whoever waits for a worker then gets the error of that failure.
    """

    rows: list[Rows] | None = None
    """None before there are arrays to `share`."""

    def __init__(
        self,
        env: str,
        parameters: Mapping[str, Any],
        constraints: Sequence[str],
        parcel: bytes,
        sizes: Sequence[int],
        split: Mapping[int, list[tuple[int, int]]],
        python: Path | None = None,
    ) -> None:
        """Start workers of these numbers, each with its slots of every group (`shares`); `sizes` are those of the groups.

        `parcel` is (function or specification, cost functions), pickled; empty: all is in the id `env`.
        """
        self._env, self._sizes = env, tuple(sizes)
        self._lock = threading.Lock()
        self._trouble: CorralError | None = None
        self._processes: list[_Process] = []
        self._memory = _shared_memory()
        self._beats: np.ndarray | None = None
        try:
            for number, slots in split.items():
                self._processes.append(self._start(number, slots, python))
            for place, process in enumerate(self._processes):
                order = {
                    "id": env,
                    "parameters": dict(parameters),
                    "constraints": list(constraints),
                    "slots": process.slots,
                    "parcel": len(parcel),
                    "path": None if python else sys.path,
                    "quiet": process.number > 0,
                    "place": place,
                    "acting": _ACTING,
                }
                self._brief(process, json.dumps(order).encode(), parcel)
            self.description, *_ = [json.loads(self._text(process)) for process in self._processes]
        except BaseException:
            self.interrupt()
            self.close()
            raise

    def _start(self, number: int, slots: list[tuple[int, int]], python: Path | None) -> _Process:
        theirs, ours = os.pipe()
        replies = [os.pipe() for _ in slots]
        passed = (theirs, self._memory, *(end for _, end in replies))
        single = {name: os.environ.get(name, "1") for name in _THREADS}
        try:
            popen = subprocess.Popen(
                [str(python or sys.executable), "-X", "faulthandler", other_side.__file__, *map(str, passed)],
                stdin=subprocess.PIPE,
                pass_fds=passed,
                env={**os.environ, **single, "JAX_PLATFORMS": "cpu"},
                start_new_session=True,  # Ctrl-C is for us, who then tell them
            )
        except OSError as error:
            for each in (ours, *(end for end, _ in replies)):
                os.close(each)
            raise CorralError(
                f"{python or sys.executable}, the Python for {self._env}, cannot be started: {error}"
            ) from error
        finally:
            for each in (theirs, *(end for _, end in replies)):
                os.close(each)
        return _Process(number, popen, ours, [end for end, _ in replies], slots)

    def _brief(self, process: _Process, order: bytes, parcel: bytes) -> None:
        assert process.popen.stdin is not None
        # One that has died says so when it is asked for its description.
        with contextlib.suppress(BrokenPipeError):
            process.popen.stdin.write(LENGTH.pack(len(order)) + order + parcel)
            process.popen.stdin.flush()

    def share(self, shape: Mapping[str, Any]) -> None:
        """Lay out the arrays, of the sizes in `shape` (`worker.rows_in`), in memory that everybody sees."""
        workers = len(self._processes)
        _, size = beats_in(bytes(8 * workers), workers)
        for count in self._sizes:
            _, size = rows_in(None, size, count, dict(shape))
        os.ftruncate(self._memory, size)
        memory, found = mmap.mmap(self._memory, size), []
        self._beats, offset = beats_in(memory, workers)
        for count in self._sizes:
            rows, offset = rows_in(memory, offset, count, dict(shape))
            assert rows is not None
            found.append(rows)
        text = json.dumps({**shape, "bytes": size, "counts": self._sizes, "workers": workers}).encode()
        for process in self._processes:
            self._send(process, COMMAND.pack(ATTACH, 0, len(text), 0) + text)
        self._wait(0, self._processes)
        self.rows = found
        self._with_slots = [
            [p for p in self._processes if p.slots[g][0] < p.slots[g][1]] for g in range(len(self._sizes))
        ]

    def reset(self, group: int, seed: int) -> None:
        """Start every slot of the group afresh."""
        self._ask(group, COMMAND.pack(RESET, group, 0, seed))

    def step(self, group: int) -> None:
        """Step the group's active slots with its actions."""
        self._ask(group, COMMAND.pack(STEP, group, 0, 0))

    def play(
        self, group: int, actor: acting.Actor, seed: int, chance: Sequence[int] | None, shares: Sequence[int]
    ) -> dict[str, np.ndarray]:
        """Play `shares[i]` episodes in slot i of the group, as `worker.Copies.play` says."""
        require(bool(self._processes), f"the workers of {self._env} have been closed")
        asked = [p for p in self._with_slots[group] if any(shares[slice(*p.slots[group])])]
        for process in asked:
            own = shares[slice(*process.slots[group])]
            order = packed([[seed, chance, own], actor.how], dict(actor.arrays))
            self._send(process, COMMAND.pack(PLAY, group, 0, 0) + order)
        answers = self._wait(group, asked, lambda process: unpacked(self._reader(process, group))[1])
        played = [answers[process.number] for process in asked]
        return {name: np.concatenate([each[name] for each in played]) for name in played[0]}

    def interrupt(self) -> None:
        """End the workers at once; whoever waits for them gets an error."""
        self._end(CorralError(f"the workers of {self._env} have been stopped"))

    def close(self) -> None:
        """Let the workers close their environments; end those that do not."""
        for process in self._processes:
            if process.popen.poll() is None:
                with contextlib.suppress(OSError):
                    os.write(process.commands, COMMAND.pack(LEAVE, 0, 0, 0))
        until = time.monotonic() + _LEAVING
        for process in self._processes:
            try:
                process.popen.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
            with contextlib.suppress(OSError):
                assert process.popen.stdin is not None
                process.popen.stdin.close()
            for end in (process.commands, *process.replies):
                os.close(end)
        if self._processes or self._memory >= 0:
            os.close(self._memory)
        self._processes, self._memory = [], -1

    # -- words to and fro ----------------------------------------------------------------------------------------------

    def _ask(self, group: int, command: bytes) -> None:
        require(bool(self._processes), f"the workers of {self._env} have been closed")
        for process in self._with_slots[group]:
            self._send(process, command)
        self._wait(group, self._with_slots[group])

    def _send(self, process: _Process, command: bytes) -> None:
        # To one that has died nothing can be sent: its answer says so.
        left = memoryview(command)
        with contextlib.suppress(BrokenPipeError), process.turn:
            while left:
                left = left[os.write(process.commands, left) :]

    def _wait(
        self, group: int, asked: Sequence[_Process], receive: Callable[[_Process], Any] = lambda process: None
    ) -> dict[int, Any]:
        """Wait until all of them have done what they were asked for this group; what came with the answer of each."""
        waiting = {process.replies[group]: process for process in asked}
        received: dict[int, Any] = {}
        poll = select.poll()
        for reply in waiting:
            poll.register(reply, select.POLLIN)
        latest = {reply: (-1, 0.0) for reply in waiting}  # when a worker was last seen to go on
        while waiting:
            now = time.monotonic()
            for reply, process in waiting.items():
                beats = 0 if self._beats is None else int(self._beats[self._processes.index(process)])
                if beats != latest[reply][0]:
                    latest[reply] = beats, now
                elif now - latest[reply][1] >= PATIENCE:
                    self._fail(
                        process,
                        group,
                        CorralError,
                        f"has not answered for {PATIENCE:g} seconds: it hangs, and was ended",
                    )
            for reply, _ in poll.poll(1000 * PATIENCE / 8):
                process = waiting.pop(reply)
                self._judge(process, group, os.read(reply, 1))
                received[process.number] = receive(process)
                poll.unregister(reply)
        return received

    def _text(self, process: _Process) -> str:
        """The text that comes with a worker's first answer."""
        self._wait(0, [process])
        return self._following(process, 0)

    def _following(self, process: _Process, group: int) -> str:
        read = self._reader(process, group)
        return read(*LENGTH.unpack(read(LENGTH.size))).decode()

    def _reader(self, process: _Process, group: int) -> Callable[[int], bytearray]:
        """A function that reads the next so many bytes of an answer."""

        def read(size: int) -> bytearray:
            found, at = bytearray(size), 0
            while at < size:
                more = os.readv(process.replies[group], [memoryview(found)[at:]])
                if not more:
                    self._fail(process, group, Lost, _death(process.popen))
                at += more
            return found

        return read

    def _judge(self, process: _Process, group: int, answer: bytes) -> None:
        if answer == DONE:
            return
        if answer == b"":
            self._fail(process, group, Lost, _death(process.popen))
        said = json.loads(self._following(process, group))
        before, slot = sum(self._sizes[:group]), said["slot"]
        where = f"worker {process.number}" + ("" if slot is None else f", slot {before + slot}")
        if said["traceback"]:
            failed = CorralError(f"{self._env} failed in {where}: {said['message']}")
            failed.add_note(said["traceback"].rstrip())  # Python shows it; the command line says the first line
            self._end(failed)
        self._end(CorralError(f"{said['message']} ({where})"))
        self._raise()

    # -- failures ------------------------------------------------------------------------------------------------------

    def _fail(self, process: _Process, group: int, kind: type[CorralError], how: str) -> None:
        before = sum(self._sizes[:group])
        names = [str(before + slot) for slot in range(*process.slots[group])]
        self._end(kind(f"worker {process.number} of {self._env}, which steps slots {', '.join(names)}, {how}"))
        self._raise()

    def _end(self, trouble: CorralError) -> None:
        """Remember the first trouble, and end all workers."""
        with self._lock:
            self._trouble = self._trouble or trouble
            for process in self._processes:
                process.popen.kill()

    def _raise(self) -> None:
        assert self._trouble is not None
        raise self._trouble


def _death(process: "subprocess.Popen[bytes]") -> str:
    """How a worker that answers no more came to its end."""
    try:
        status = process.wait(_LEAVING)
    except subprocess.TimeoutExpired:
        return "closed its pipes: the environment must leave the open files of others alone"
    if status < 0:
        hint = ": was there memory enough?" if -status == signal.SIGKILL else ""
        return f"was ended by {signal.Signals(-status).name}{hint}"
    if status == NO_GYMNASIUM:
        return f"found no Gymnasium, or no NumPy, in its Python: {process.args[0]} -m pip install gymnasium"  # type: ignore
    return f"ended by itself with exit status {status}; what it said is above"


def shares(sizes: Sequence[int], workers: int) -> dict[int, list[tuple[int, int]]]:
    """For each worker, of which there are at most as many as slots, its slots of every group, from and to before.

    Each gets slots that follow one another, so of as few groups as possible: a worker asks the policy once for all its slots
    of a group, whatever their number.
    """
    total, found = sum(sizes), {}
    starts = [sum(sizes[:group]) for group in range(len(sizes))]
    workers = min(workers, total)
    for k in range(workers):
        first, last = -(-total * k // workers), -(-total * (k + 1) // workers)
        cut = [(max(first - start, 0), min(last - start, size)) for start, size in zip(starts, sizes, strict=True)]
        found[k] = [(min(low, size), max(high, min(low, size))) for (low, high), size in zip(cut, sizes, strict=True)]
    return found


def _shared_memory() -> int:
    """An open file without a name, in memory where the system can do that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("corral")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

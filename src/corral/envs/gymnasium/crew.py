"""Processes that step copies of an environment: each runs `worker.py`, under this Python or another.

Commands of 16 bytes and answers of one go through pipes, everything else through memory that all of them share. Each worker
steps some slots of every group. A group is asked for by a thread of its own, so while one waits for its policy, the workers
step the other.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.envs.gymnasium import worker as other_side
from corral.envs.gymnasium.worker import ATTACH, COMMAND, DONE, LEAVE, LENGTH, NO_GYMNASIUM, RESET, STEP, Rows, rows_in
from corral.errors import CorralError, require

PATIENCE = 300.0
"""Seconds for which a worker may say nothing, while it makes its environments, resets or steps them once."""
_LEAVING = 5.0
"""Seconds in which a worker has to close its environments at the end."""

# One thread each, as the workers share the cores; and JAX on the CPU, as a GPU is the learner's.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass
class _Process:
    number: int
    popen: "subprocess.Popen[bytes]"
    commands: int
    """Where commands are written."""
    replies: list[int]
    """Where the answers for each group are read."""
    slots: list[tuple[int, int]]
    """Its slots of each group, from and to before."""


class Crew:
    """Workers with the environments of several groups of slots; `rows[g]` are the arrays of group g.

    The first failure of a worker ends them all: whoever waits for a worker then gets the error of that failure.
    """

    rows: list[Rows]

    def __init__(
        self,
        env: str,
        parameters: Mapping[str, Any],
        constraints: Sequence[str],
        parcel: bytes,
        sizes: Sequence[int],
        workers: int,
        python: Path | None = None,
    ) -> None:
        """Start them. `parcel` is (function or specification, cost functions), pickled; empty: all is in the id `env`."""
        self._env, self._sizes = env, tuple(sizes)
        self._lock = threading.Lock()
        self._trouble: CorralError | None = None
        self._processes: list[_Process] = []
        self._memory = _shared_memory()
        shares = _shares(self._sizes, min(workers, sum(self._sizes)))
        try:
            for number, slots in enumerate(shares):
                self._processes.append(self._start(number, slots, python))
            for process in self._processes:
                order = {
                    "id": env,
                    "parameters": dict(parameters),
                    "constraints": list(constraints),
                    "slots": process.slots,
                    "parcel": len(parcel),
                    "path": None if python else sys.path,
                    "quiet": process.number > 0,
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
        size = 0
        for count in self._sizes:
            _, size = rows_in(None, size, count, dict(shape))
        os.ftruncate(self._memory, size)
        memory, offset, self.rows = mmap.mmap(self._memory, size), 0, []
        for count in self._sizes:
            rows, offset = rows_in(memory, offset, count, dict(shape))
            assert rows is not None
            self.rows.append(rows)
        text = json.dumps({**shape, "bytes": size, "counts": self._sizes}).encode()
        for process in self._processes:
            self._send(process, COMMAND.pack(ATTACH, 0, len(text), 0) + text)
        self._wait(0, self._processes)
        self._with_slots = [
            [p for p in self._processes if p.slots[g][0] < p.slots[g][1]] for g in range(len(self._sizes))
        ]

    def reset(self, group: int, seed: int) -> None:
        """Start every slot of the group afresh."""
        self._ask(group, COMMAND.pack(RESET, group, 0, seed))

    def step(self, group: int) -> None:
        """Step the group's active slots with its actions."""
        self._ask(group, COMMAND.pack(STEP, group, 0, 0))

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
        with contextlib.suppress(BrokenPipeError):
            os.write(process.commands, command)

    def _wait(self, group: int, asked: Sequence[_Process]) -> None:
        """Wait until all of them have done what they were asked for this group."""
        waiting = {process.replies[group]: process for process in asked}
        poll = select.poll()
        for reply in waiting:
            poll.register(reply, select.POLLIN)
        until = time.monotonic() + PATIENCE
        while waiting:
            ready = poll.poll(1000 * max(0.0, until - time.monotonic()))
            if not ready:
                slow = next(iter(waiting.values()))
                self._fail(slow, group, f"has not answered for {PATIENCE:g} seconds: it hangs, and was ended")
            for reply, _ in ready:
                self._judge(waiting.pop(reply), group, os.read(reply, 1))
                poll.unregister(reply)

    def _text(self, process: _Process) -> str:
        """The text that comes with a worker's first answer."""
        self._wait(0, [process])
        return self._following(process, 0)

    def _following(self, process: _Process, group: int) -> str:
        def read(size: int) -> bytes:
            found = b""
            while len(found) < size:
                more = os.read(process.replies[group], size - len(found))
                if not more:
                    self._fail(process, group, _death(process.popen))
                found += more
            return found

        return read(*LENGTH.unpack(read(LENGTH.size))).decode()

    def _judge(self, process: _Process, group: int, answer: bytes) -> None:
        if answer == DONE:
            return
        if answer == b"":
            self._fail(process, group, _death(process.popen))
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

    def _fail(self, process: _Process, group: int, how: str) -> None:
        before = sum(self._sizes[:group])
        names = [str(before + slot) for slot in range(*process.slots[group])]
        self._end(CorralError(f"worker {process.number} of {self._env}, which steps slots {', '.join(names)}, {how}"))
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


def _shares(sizes: Sequence[int], workers: int) -> list[list[tuple[int, int]]]:
    """For each worker its slots of every group, from and to before. Larger shares go to the first, then to the last."""
    shares: list[list[tuple[int, int]]] = [[] for _ in range(workers)]
    for group, size in enumerate(sizes):
        counts = [size // workers + (k < size % workers) for k in range(workers)]
        first = 0
        for own, count in zip(shares, counts if group % 2 == 0 else counts[::-1], strict=True):
            own.append((first, first + count))
            first += count
    return shares


def _shared_memory() -> int:
    """An open file without a name, in memory where the system can do that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("corral")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

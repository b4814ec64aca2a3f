"""One process owns the folder of a run, from before its first write to its end.

The owner is named in the file `.lock`: host, process, when that process began, and a token that no other lock has. The file
appears with its content in one step (a hard link), which local and network disks (NFS) do for one process only.

A process that died leaves its lock behind. On the same host the system tells whether the process lives; a process number
that was given out again belongs to a process that began later. From elsewhere (another host, another container) nobody can
see that, so the owner touches its lock every `BEAT` seconds, and a lock that stays untouched for `PATIENCE` seconds of
watching is that of a dead process. No clocks are compared.

An owner that was only frozen for so long may wake up later. So an owner looks at its locks before every write (`check`), and
writes nothing more where one is gone or names somebody else. The same look notices that the folder was deleted.
"""

import contextlib
import fcntl
import functools
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from corral.errors import CorralError
from corral.running.files import no_room

FILE = ".lock"
BEAT = 5.0
PATIENCE = 30.0

_SETTLE = 0.2
"""Seconds between taking over a dead process's lock and the look that nobody else did at the same moment."""

Note = Callable[[str], None]


class Owner(NamedTuple):
    """A process, as its lock names it."""

    host: str
    place: str
    """Which running system, and which of its containers: process numbers mean something within one only."""
    pid: int
    began: str
    """When the process began, as the system counts; empty where the system does not say."""
    since: str
    """When it took the lock, for the reader."""
    token: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (since {self.since})"


class Owned:
    """Folders that this process owns; more may be added. All are released together."""

    def __init__(self, note: Note = lambda text: None) -> None:
        self._note = note
        self._held: dict[Path, Owner] = {}
        self._over = threading.Event()
        self._beating: threading.Thread | None = None

    def add(self, folder: Path) -> None:
        """Own one more folder, which is made if there is none; CorralError if a process that lives owns it."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE
        mine = _myself()
        if not _appear(path, mine):
            self._take_over(path, mine)
        self._held[path] = mine
        for leftover in folder.glob(f"{FILE}.*"):  # of a process killed while it made its lock
            leftover.unlink(missing_ok=True)
        if self._beating is None:
            self._beating = threading.Thread(target=self._beat, name="corral-lock", daemon=True)
            self._beating.start()

    def check(self) -> None:
        """Raise CorralError where a folder is not this process's any more; nothing may be written to it then."""
        for path, mine in self._held.items():
            now = _owner(path)
            if now == mine:
                continue
            if now is None:
                raise CorralError(
                    f"{path.parent} was deleted or moved while this process was writing to it (its {FILE} is gone): "
                    "nothing more is written"
                )
            raise CorralError(f"{path.parent} was taken over by {now}: this process writes nothing more to it")

    def release(self) -> None:
        """Give all folders back; those that are empty go."""
        self._over.set()
        if self._beating is not None:
            self._beating.join()
        for path, mine in reversed(self._held.items()):
            if _owner(path) == mine:
                with contextlib.suppress(OSError):
                    path.unlink()
                    path.parent.rmdir()  # fails where anything is left in it
        self._held.clear()

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            for path in list(self._held):
                with contextlib.suppress(OSError):
                    os.utime(path)

    def _take_over(self, path: Path, mine: Owner) -> None:
        """Take the lock of a dead process; CorralError if it lives."""
        found = _require_dead(path, self._note)
        with _one_at_a_time(path.parent):
            # Another process may have taken it over in the meantime.
            if _owner(path) == found:
                path.unlink(missing_ok=True)
            if not _appear(path, mine):
                raise _taken(path, _owner(path))
        if found is not None:
            self._note(f"{path.parent} was owned by {found}, which is no more: this process goes on")
        # Where the disk knows no locks for `_one_at_a_time`, the last of several to take over has it.
        time.sleep(_SETTLE)
        if (now := _owner(path)) != mine:
            raise _taken(path, now)


@contextmanager
def owned(*folders: Path, note: Note = lambda text: None) -> Iterator[Owned]:
    """Own these folders for the length of the block."""
    held = Owned(note)
    try:
        for folder in folders:
            held.add(folder)
        yield held
    finally:
        held.release()


def require_unowned(folder: Path, note: Note = lambda text: None) -> None:
    """Require that no living process owns this folder."""
    if (folder / FILE).exists():
        _require_dead(folder / FILE, note)


def is_lock(name: str) -> bool:
    """Whether a file of this name is a lock, or what was left of making one."""
    return name == FILE or name.startswith(f"{FILE}.")


def _myself() -> Owner:
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    return Owner(socket.gethostname(), _place(), os.getpid(), _began(os.getpid()) or "", since, secrets.token_hex(8))


@functools.cache
def _place() -> str:
    """This start of this system, and the namespace of its process numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _began(pid: int) -> str | None:
    """When a living process began, "" if the system does not say, None if there is no such process."""
    try:
        state, *fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
        # A zombie waits for its parent to hear of its end; it writes nothing any more.
        return None if state in ("Z", "X") else fields[18]
    except (OSError, ValueError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return ""


def _lives(owner: Owner) -> bool:
    """Whether the process of this place that took a lock is still there, and its number not another's by now."""
    began = _began(owner.pid)
    return began is not None and ("" in (began, owner.began) or began == owner.began)


def _appear(path: Path, mine: Owner) -> bool:
    """Make the lock, with its content, in one step; False if there is one."""
    content = json.dumps(mine._asdict()).encode()
    temporary = path.with_name(f"{FILE}.{mine.token}")
    try:
        temporary.write_bytes(content)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:  # a disk without hard links: there the name comes first, and the content a moment later
            with open(path, "xb") as file:
                file.write(content)
        return True
    except FileExistsError:
        return False
    except OSError as error:
        raise no_room(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _owner(path: Path) -> Owner | None:
    """Who holds a lock; None if there is no lock, or none that can be read."""
    try:
        said: Any = json.loads(path.read_bytes()) if path.is_file() else None
        kinds = Owner.__annotations__
        fits = isinstance(said, dict) and said.keys() == kinds.keys()
        return Owner(**said) if fits and all(isinstance(said[name], kind) for name, kind in kinds.items()) else None
    except (OSError, ValueError, RecursionError):
        return None


def _require_dead(path: Path, note: Note) -> Owner | None:
    """The owner, which is no more, of a lock; None if it cannot be read. CorralError if the owner lives."""
    found = _owner(path)
    if found is not None and found.place and found.place == _place():
        if _lives(found):
            raise _taken(path, found)
        return found
    touched = _touched(path)
    if touched is None:
        return None
    who = found or "an unknown process"
    note(f"{path.parent} has a lock of {who}; watching for {PATIENCE:.0f} s whether it lives")
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        time.sleep(min(1.0, PATIENCE / 10))
        if _touched(path) != touched or _owner(path) != found:
            raise _taken(path, _owner(path))
    return found


def _touched(path: Path) -> int | None:
    """When a lock was touched last; opening it makes a network disk ask its server."""
    try:
        if not path.is_file():
            return None
        with open(path, "rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process of this host at a time take over locks in a folder, where the disk can do that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _taken(path: Path, owner: Owner | None) -> CorralError:
    who = owner or "another process"
    return CorralError(f"{path.parent} is in use by {who}: wait for it to end, or choose another folder")

"""Files that are written all at once or not at all, and plain files that are read."""

import contextlib
import errno
import os
import stat
from pathlib import Path

from corral.errors import CorralError, require

# The disk is full, a quota is used up, or the file system takes no file of this size.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def read(path: Path) -> bytes:
    """The content of a plain file; CorralError for a folder, a pipe or a device, which might never end."""
    require(stat.S_ISREG(path.stat().st_mode), f"{path} is not a plain file")
    return path.read_bytes()


def temporary(name: str) -> str:
    """The name under which a file is written before it takes its own; a kill meanwhile leaves it behind."""
    return f".{name}.tmp"


def write_atomically(path: Path, content: bytes) -> None:
    """Make `path` hold `content`: whoever looks, at any moment and after any crash, sees the old file or the new one.

    The content goes to a temporary file in the same folder, is forced to the disk, and takes the name in one step.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(temporary(path.name))  # one name: the next write clears up after a killed one
    try:
        with open(written, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(written, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise no_room(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            written.unlink(missing_ok=True)


def no_room(path: Path, error: OSError) -> Exception:
    """What to raise for a failed write: the same error, or a clearer one if there was no room for the file."""
    if error.errno not in _NO_ROOM:
        return error
    return CorralError(
        f"no room on the disk to write {path} ({error.strerror}); what was written before is intact: make room and resume"
    )


def _sync_folder(folder: Path) -> None:
    """Force a renamed entry of a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

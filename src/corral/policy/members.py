"""The members of a verified .npz (`corral.policy.archive` has the format), read without NumPy.

A program that only acts can then start without it: to import NumPy takes longer than everything else it does.
"""

import hashlib
import io
import math
import re
import struct
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from corral.errors import require

# The records of a zip file, as its specification (APPNOTE.TXT, 4.3) lays them out.
_MEMBER = struct.Struct("<4s5H3L2H")
_LISTED = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")

# What NumPy writes in front of an array that lies in memory row after row.
_HEADER = re.compile(rb"\{'descr': '([<|][a-z]\d)', 'fortran_order': False, 'shape': \(([\d, ]*)\), \} *\n")


class Numbers(NamedTuple):
    """An array of a file as it lies there."""

    kind: str
    """NumPy's name of its numbers, such as <f4."""
    shape: tuple[int, ...]
    data: bytes
    """Row after row."""


def numbers(data: bytes) -> dict[str, Numbers] | None:
    """The arrays in the bytes of a file that is laid out as `archive.content` does it, and whole.

    None where anything is otherwise: `archive.parse` then reads the file, or says what is wrong with it.
    """
    entries = plain(data)
    if entries is None or "sha256" not in entries:
        return None
    stored = _numbers(entries.pop("sha256"))
    if stored is None or stored.data != digest(entries):
        return None
    found = {name: _numbers(part) for name, part in entries.items()}
    arrays = {name: array for name, array in found.items() if array is not None}
    return arrays if len(arrays) == len(found) else None


def _numbers(part: bytes) -> Numbers | None:
    """One array in version 1 of the .npy format; None where the header is any other."""
    begins = 10 + int.from_bytes(part[8:10], "little")
    header = _HEADER.fullmatch(part, 10, begins)
    if part[:8] != b"\x93NUMPY\1\0" or header is None:
        return None
    kind, shape = header[1].decode(), tuple(int(n) for n in header[2].split(b",") if n.strip())
    data = part[begins:]
    return Numbers(kind, shape, data) if len(data) == math.prod(shape) * int(kind[2:]) else None


def plain(data: bytes) -> dict[str, bytes] | None:
    """The members of an archive laid out as `archive.content` does it, without `zipfile`: to import that takes several ms.

    Members lie one behind the other from the first byte on, the list of them follows, then the end record; nothing is
    between or behind. None where anything differs from that: `of_any_zip` then decides.
    """
    end = len(data) - _END.size
    if end < 0:
        return None
    signature, *disks, count, size, start, comment = _END.unpack_from(data, end)
    if (signature, disks, comment, start + size) != (b"PK\5\6", [0, 0, count], 0, end):
        return None
    found: dict[str, bytes] = {}
    place, listed = 0, start
    for _ in range(count):
        member = _plain_member(data, place, listed)
        if member is None or member[0] in found:
            return None
        name, body = member
        found[name] = body
        place += _MEMBER.size + len(name) + len(body)
        listed += _LISTED.size + len(name)
    if (place, listed) != (start, end):
        return None
    return {name.removesuffix(".npy"): body for name, body in found.items()}


def _plain_member(data: bytes, place: int, listed: int) -> tuple[str, bytes] | None:
    """Name and bytes of the uncompressed member at `place` whose entry in the list is at `listed`; None if it is none."""
    try:
        own, *said, length, extra = _MEMBER.unpack_from(data, place)
        entry, _, *repeated, length_again, extra_again, comment, disk, _, _, offset = _LISTED.unpack_from(data, listed)
    except struct.error:  # beyond the end
        return None
    _, flags, method, _, _, crc, packed, size = said
    behind = place + _MEMBER.size
    name, body = data[behind : behind + length], data[behind + length : behind + length + size]
    name_again = data[listed + _LISTED.size : listed + _LISTED.size + length]
    agrees = (own, entry, said, length, name) == (b"PK\3\4", b"PK\1\2", repeated, length_again, name_again)
    plain = not any((flags, method, extra, extra_again, comment, disk)) and (offset, packed) == (place, size)
    if not (agrees and plain and name.isascii() and b"\0" not in name and zlib.crc32(body) == crc):
        return None
    return name.decode(), body


def of_any_zip(data: bytes) -> dict[str, bytes]:
    """The members of an archive. Ours are not compressed, so all of them together are smaller than the file.

    That is checked before anything is read: a small file could otherwise claim any amount of memory.
    """
    import zipfile

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        plain = all(m.compress_type == zipfile.ZIP_STORED and m.file_size == m.compress_size for m in members)
        fits = sum(m.file_size for m in members) <= len(data)
        alone = len({m.filename for m in members}) == len(members)
        require(plain and fits and alone, "its members are compressed, overlap or share a name")
        return {m.filename.removesuffix(".npy"): archive.read(m) for m in members}


def digest(entries: Mapping[str, bytes]) -> bytes:
    """SHA-256 over names and contents, in the order of the names, each preceded by its length."""
    total = hashlib.sha256()
    for name in sorted(entries):
        for part in (name.encode(), entries[name]):
            total.update(len(part).to_bytes(8, "little"))
            total.update(part)
    return total.digest()

"""TensorBoard event files, written without TensorBoard.

A file is a sequence of records, each   length (u64) | masked crc of it (u32) | event | masked crc of the event (u32)   with
crc32c (Castagnoli). An event is this part of TensorFlow's protocol buffers, with the field numbers given here:

    Event { wall_time: double = 1;  step: int64 = 2;  file_version: string = 3;  summary: Summary = 5;  session_log = 7 }
    Summary { value = 1 (repeated) }    Value { tag: string = 1;  simple_value: float = 2 }    SessionLog { status = 1 }
"""

import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from corral.running.files import no_room
from corral.running.loggers import Logger

# The two kinds of field used, by their wire type; the tag of field n is n·8 + wire type.
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5

_START = 1  # SessionLog.START: TensorBoard forgets the steps from this event's on, which a resumed run makes again


class EventWriter(Logger):
    """An event file in `directory`; every `log` is on its way to the disk when it returns."""

    def __init__(self, directory: Path, resume_at: int | None = None) -> None:
        """Open a new file; with `resume_at`, steps from there on in older files of the folder no longer count."""
        directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names: the time goes first, and finely enough.
        name = f"events.out.tfevents.{time.time_ns() // 1_000_000}.{socket.gethostname()}.corral"
        self.path = directory / name
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115, closed by `close`
        self._write(_field(3, b"brain.Event:2"))
        if resume_at is not None:
            self._write(_field(2, resume_at) + _field(7, _field(1, _START)))

    def log(self, iteration: int, values: Mapping[str, float]) -> None:
        """Write the numbers of one iteration."""
        summary = b"".join(
            _field(1, _field(1, tag.encode()) + _field(2, value, _FLOAT)) for tag, value in values.items()
        )
        self._write(_field(2, iteration) + _field(5, summary))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        try:
            self._file.write(record(_field(1, time.time(), _DOUBLE) + event))
        except OSError as error:
            raise no_room(self.path, error) from error


def record(data: bytes) -> bytes:
    """One framed record of an event file."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked_crc(length)) + data + struct.pack("<I", _masked_crc(data))


def _field(number: int, value: bytes | int | float, wire: int | None = None) -> bytes:
    """One field of a protocol buffer: its tag, then its value."""
    if isinstance(value, bytes):
        return _varint(number << 3 | _BYTES) + _varint(len(value)) + value
    if wire is None:
        return _varint(number << 3 | _VARINT) + _varint(int(value))
    try:
        packed = struct.pack("<d" if wire == _DOUBLE else "<f", value)
    except OverflowError:  # beyond the largest float32
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _varint(number << 3 | wire) + packed


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first, the top bit set on all but the last; negative ones as 64-bit complement."""
    value &= 0xFFFFFFFFFFFFFFFF
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _crc_table() -> list[int]:
    """What each byte does to the remainder modulo the Castagnoli polynomial, bits reversed."""
    table = []
    for remainder in range(256):
        for _ in range(8):
            remainder = remainder >> 1 ^ (0x82F63B78 if remainder & 1 else 0)
        table.append(remainder)
    return table


_TABLE = _crc_table()


def _masked_crc(data: bytes) -> int:
    """crc32c, then rotated right by 15 bits and shifted, as the format wants: a crc of a crc is a poor crc."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

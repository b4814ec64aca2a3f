import math
import struct

import pytest

from corral.running import tensorboard as events
from corral.running.loggers import tags
from corral.running.tensorboard import EventWriter


def crc32c(data: bytes) -> int:
    """Long division, bit by bit, highest power first; the format counts the bits of a byte from the low end."""
    bits = [byte >> i & 1 for byte in data for i in range(8)] + [0] * 32
    for i in range(32):
        bits[i] ^= 1
    polynomial = [0x11EDC6F41 >> i & 1 for i in range(32, -1, -1)]
    for start in range(len(bits) - 32):
        if bits[start]:
            for i, bit in enumerate(polynomial):
                bits[start + i] ^= bit
    return sum((bit ^ 1) << i for i, bit in enumerate(bits[-32:]))


def unmask(value: int) -> int:
    rotated = (value - 0xA282EAD8) % 2**32
    return (rotated << 15 | rotated >> 17) % 2**32


def parse(data: bytes) -> list[tuple[int, object]]:
    """Fields of a protocol buffer as (number, int | float | bytes)."""
    fields, at = [], 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        number, wire = divmod(varint(), 8)
        if wire == 0:
            fields.append((number, varint()))
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            fields.append((number, struct.unpack("<d" if wire == 1 else "<f", data[at : at + size])[0]))
            at += size
        else:
            assert wire == 2
            size = varint()
            fields.append((number, data[at : at + size]))
            at += size
    assert at == len(data)
    return fields


def records(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        length, crc = struct.unpack("<QI", data[at : at + 12])
        assert unmask(crc) == crc32c(data[at : at + 8])
        body = data[at + 12 : at + 12 + length]
        assert unmask(struct.unpack("<I", data[at + 12 + length : at + 16 + length])[0]) == crc32c(body)
        found.append(body)
        at += 16 + length
    assert at == len(data)
    return found


def scalars(event: bytes) -> tuple[int, dict[str, float]]:
    fields = dict(parse(event))
    values = [dict(parse(value)) for number, value in parse(fields[5]) if number == 1]
    return fields[2], {value[1].decode(): value[2] for value in values}


def test_the_checker_in_this_file_knows_the_published_check_value():
    assert crc32c(b"123456789") == 0xE3069283


def test_every_record_is_framed_checked_and_says_what_was_added(tmp_path):
    writer = EventWriter(tmp_path)
    writer.log(0, {"run/return": 1.5, "bombs/cost": -0.25})
    writer.log(300, {"λ": math.inf, "huge": 1e300, "nothing": math.nan, "long" * 40: 2.0**-20})
    writer.close()
    [path] = tmp_path.iterdir()
    assert path.name.startswith("events.out.tfevents.")
    first, second, third = records(path.read_bytes())
    assert dict(parse(first))[3] == b"brain.Event:2"
    assert all(1.7e9 < dict(parse(event))[1] < 1e11 for event in (first, second, third))
    assert scalars(second) == (0, {"run/return": 1.5, "bombs/cost": -0.25})
    step, values = scalars(third)
    assert step == 300
    assert values["λ"] == values["huge"] == math.inf
    assert math.isnan(values["nothing"])
    assert values["long" * 40] == 2.0**-20


def test_a_resumed_run_writes_a_later_file_that_takes_back_the_steps_it_will_repeat(tmp_path):
    EventWriter(tmp_path).close()
    [older] = tmp_path.iterdir()
    # Names count milliseconds.
    while len(list(tmp_path.iterdir())) == 1:
        EventWriter(tmp_path, resume_at=7).close()
    newer = max(tmp_path.iterdir())
    assert newer.name > older.name
    _, start = map(dict, map(parse, records(newer.read_bytes())[:2]))
    assert start[2] == 7
    assert dict(parse(start[7])) == {1: 1}  # SessionLog.START


def test_a_file_is_whole_after_every_addition_without_closing(tmp_path):
    writer = EventWriter(tmp_path)
    for k in range(3):
        writer.log(k, {"x": float(k)})
        found = records(writer.path.read_bytes())
        assert scalars(found[-1]) == (k, {"x": float(k)})
    writer.close()


def test_tags_group_by_constraint_and_leave_out_words():
    row = {"kl": 0.01, "cost_a": 1, "cost_b_a": 2, "rejected_cost_a": 3, "case": "INSIDE", "explained_variance": 0.5}
    assert tags(row, ["a", "b_a"]) == {
        "run/kl": 0.01,
        "a/cost": 1.0,
        "b_a/cost": 2.0,
        "a/rejected_cost": 3.0,
        "run/explained_variance": 0.5,
    }


def test_a_negative_step_is_written_as_its_complement():
    assert parse(events._field(2, -1)) == [(2, 2**64 - 1)]


def test_tensorboard_itself_reads_the_file_and_forgets_what_a_resumed_run_repeats(tmp_path):
    module = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(module, exc_type=ImportError)
    first = EventWriter(tmp_path)
    for k in range(1, 6):
        first.log(k, {"run/return": float(k)})
    first.close()
    second = EventWriter(tmp_path, resume_at=4)
    for k in range(4, 8):
        second.log(k, {"run/return": 10.0 * k})
    second.close()
    loaded = accumulator.EventAccumulator(str(tmp_path))
    loaded.Reload()
    assert [(e.step, e.value) for e in loaded.Scalars("run/return")] == [
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
        *((k, 10.0 * k) for k in range(4, 8)),
    ]

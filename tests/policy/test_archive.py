"""Archives: the short way to read them and Python's `zipfile` find the same, and neither takes what the other refuses."""

import io
import struct
import zipfile

import numpy as np
import pytest

from corral.errors import CorralError
from corral.policy import archive, members

ARRAYS = {"a.weight": np.arange(12.0).reshape(3, 4), "b": np.ones(2, np.int8), "nothing": np.zeros((0, 3), np.float32)}
META = {"said": "in short"}


@pytest.fixture
def data() -> bytes:
    """The bytes of an archive."""
    return archive.content(ARRAYS, META)


def again(data: bytes, compression: int = zipfile.ZIP_STORED, comment: bytes = b"", before: bytes = b"") -> bytes:
    """The same members in an archive of another form."""
    made = io.BytesIO()
    made.write(before)
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(made, "a" if before else "w", compression) as to:
        to.comment = comment
        for name in source.namelist():
            with to.open(name, "w", force_zip64=bool(before)) as member:
                member.write(source.read(name))
    return made.getvalue()


def test_what_was_written_is_read_the_short_way(data):
    assert members.plain(data) == members.of_any_zip(data)
    arrays, meta = archive.parse(data, "file")
    assert meta == META
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)


def test_the_short_way_takes_nothing_that_zipfile_reads_otherwise(data):
    """Every byte of the file is changed in three ways, and every start of the file is tried."""
    changed = [data[:k] + bytes([data[k] ^ bits]) + data[k + 1 :] for k in range(len(data)) for bits in (1, 128, 255)]
    for other in [*changed, *(data[:k] for k in range(len(data)))]:
        found = members.plain(other)
        if found is not None:
            assert found == members.of_any_zip(other)


@pytest.mark.parametrize("form", [{"comment": b"by hand"}, {"before": b"#!/bin/sh\n"}])
def test_an_archive_of_another_form_is_left_to_zipfile_and_read_all_the_same(data, form):
    other = again(data, **form)
    assert members.plain(other) is None
    assert archive.parse(other, "file")[1] == META


def test_a_compressed_archive_is_refused(data):
    with pytest.raises(CorralError, match="damaged or cut short"):
        archive.parse(again(data, zipfile.ZIP_DEFLATED), "file")


def test_two_members_of_one_name_are_refused():
    """The second would take the place of the first in one reader, and not in another."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as to:
        to.writestr("meta.npy", b"1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            to.writestr("meta.npy", b"1")
    assert members.plain(made.getvalue()) is None
    with pytest.raises(CorralError, match="damaged or cut short"):
        archive.parse(made.getvalue(), "file")


def test_an_end_record_that_counts_wrongly_is_left_to_zipfile_which_counts_for_itself(data):
    lying = data[:-14] + struct.pack("<2H", 9, 9) + data[-10:]
    assert members.plain(lying) is None
    assert archive.parse(lying, "file")[1] == META


@pytest.mark.parametrize("data", [b"", b"PK", bytes(22), b"PK\5\6" + bytes(18)])
def test_bytes_that_are_no_archive_are_refused(data):
    with pytest.raises(CorralError, match="damaged or cut short"):
        archive.parse(data, "file")

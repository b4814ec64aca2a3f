"""Arrays and a little JSON in one .npz that is verified when it is read: the format of checkpoints and of policy files.

An ordinary .npz that `numpy.load` opens: named arrays, `meta` (JSON as bytes), and `sha256`, which covers the names and
bytes of all the others. Nothing is pickled, nothing is compressed, and nothing is interpreted before its hash has been
checked. A hash shows that a file is whole, not who wrote it: what it holds is checked as well.
"""

import io
import json
import math
import os
import stat
from collections.abc import Mapping
from typing import Any

import numpy as np

from corral.errors import CorralError, require
from corral.policy import members

_NUMBERS = "biufc"
"""The kinds of NumPy's dtypes that a file may hold: bool, integers, floats, complex."""


def content(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> bytes:
    """The bytes of a file with these arrays and this meta; equal content makes equal bytes."""
    entries = {name: _encode(name, array) for name, array in arrays.items()}
    entries["meta"] = _encode("meta", np.frombuffer(json.dumps(meta).encode(), np.uint8))
    entries["sha256"] = _encode("sha256", np.frombuffer(members.digest(entries), np.uint8))
    import zipfile  # here: a program that only acts starts without it

    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in entries.items():
            # A fixed date: equal content makes equal files.
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), data)
    return made.getvalue()


def read(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the meta of a plain file whose hash is right."""
    require(stat.S_ISREG(os.stat(path).st_mode), f"{path} is not a plain file")  # a pipe might never end
    with open(path, "rb") as file:
        return parse(file.read(), str(path))


def parse(data: bytes, path: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the meta in the bytes of a file; `path` names it in errors."""
    try:
        entries = members.plain(data)
        entries = members.of_any_zip(data) if entries is None else entries
        stored = entries.pop("sha256")
        whole = _decode(stored).tobytes() == members.digest(entries)
    except Exception as error:  # a damaged zip file fails in a dozen ways, and all of them mean the same
        raise CorralError(f"{path} is damaged or cut short and cannot be read") from error
    require(whole, f"{path} has been altered: its content does not match its hash")
    arrays = {}
    for name, part in entries.items():
        try:
            arrays[name] = _decode(part)
        except ValueError as error:
            raise CorralError(f"{path} is no file of Corral's: {name[:80]!r} in it {error}") from error
    return arrays, _meta(path, arrays)


def _meta(path: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The meta, taken out of the arrays."""
    try:
        meta = json.loads(arrays.pop("meta").tobytes())
    except (KeyError, ValueError, RecursionError) as error:
        raise CorralError(f"{path} is no file of Corral's: it holds no readable meta") from error
    require(isinstance(meta, dict), f"{path} is no file of Corral's: its meta is no table")
    found: dict[str, Any] = meta
    return found


def _encode(name: str, array: np.ndarray) -> bytes:
    # bool, integers, floats, complex: the rest (objects, strings, bfloat16) would need pickle or lose its meaning.
    require(array.dtype.kind in _NUMBERS, f"a checkpoint cannot hold {name}: its dtype is {array.dtype}")
    made = io.BytesIO()
    np.lib.format.write_array(made, array, allow_pickle=False)
    return made.getvalue()


def _decode(data: bytes) -> np.ndarray:
    """One array of numbers in the .npy format; ValueError if the bytes are anything else.

    The size that the header states is compared with the bytes that are there before any memory is taken for it.
    """
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, by_columns, dtype = header(file)
    except Exception as error:  # the header is a Python literal: NumPy's parser fails on a bad one in many ways
        raise ValueError("has no header of a NumPy array") from error
    if dtype.kind not in _NUMBERS:
        raise ValueError(f"holds no numbers but {dtype}")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise ValueError(f"has another size than its header states, {shape} of {dtype}")
    array = np.frombuffer(data, dtype, offset=file.tell()).reshape(shape, order="F" if by_columns else "C")
    return array.copy(order="C")

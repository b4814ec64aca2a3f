"""Arrays and a little JSON in one .npz that is verified when it is read: the format of checkpoints and of policy files.

An ordinary .npz that `numpy.load` opens: named arrays, `meta` (JSON as bytes), and `sha256`, which covers the names and
bytes of all the others. Nothing is pickled, and nothing is interpreted before its hash has been checked.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from corral.errors import CorralError, require


def content(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> bytes:
    """The bytes of a file with these arrays and this meta; equal content makes equal bytes."""
    entries = {name: _encode(name, array) for name, array in arrays.items()}
    entries["meta"] = _encode("meta", np.frombuffer(json.dumps(meta).encode(), np.uint8))
    entries["sha256"] = _encode("sha256", np.frombuffer(_digest(entries), np.uint8))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in entries.items():
            # A fixed date: equal content makes equal files.
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), data)
    return made.getvalue()


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the meta of a file whose hash is right."""
    return parse(path.read_bytes(), str(path))


def parse(data: bytes, path: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the meta in the bytes of a file; `path` names it in errors."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
        stored = entries.pop("sha256")
        whole = _decode(stored).tobytes() == _digest(entries)
    except Exception as error:  # a damaged zip file fails in a dozen ways, and all of them mean the same
        raise CorralError(f"{path} is damaged or cut short and cannot be read") from error
    require(whole, f"{path} has been altered: its content does not match its hash")
    arrays = {name: _decode(part) for name, part in entries.items()}
    return arrays, json.loads(arrays.pop("meta").tobytes())


def _encode(name: str, array: np.ndarray) -> bytes:
    # bool, integers, floats, complex: the rest (objects, strings, bfloat16) would need pickle or lose its meaning.
    require(array.dtype.kind in "biufc", f"a checkpoint cannot hold {name}: its dtype is {array.dtype}")
    made = io.BytesIO()
    np.lib.format.write_array(made, array, allow_pickle=False)
    return made.getvalue()


def _decode(data: bytes) -> np.ndarray:
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)


def _digest(entries: Mapping[str, bytes]) -> bytes:
    """SHA-256 over names and contents, in the order of the names, each preceded by its length."""
    total = hashlib.sha256()
    for name in sorted(entries):
        for part in (name.encode(), entries[name]):
            total.update(len(part).to_bytes(8, "little"))
            total.update(part)
    return total.digest()

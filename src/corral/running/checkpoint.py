"""Checkpoints: a pytree of arrays and a little JSON in one file, verified when it is read.

A file is an ordinary .npz that `numpy.load` opens: one array per leaf, named by its path in the tree ("tree.policy.w"),
`meta` (JSON as bytes) and `sha256`, which covers the names and bytes of all the others. Nothing is pickled, nothing is
compressed, and nothing is interpreted before its hash has been checked. A hash shows that a file is whole, not who wrote it:
what it holds is checked as well.
"""

import hashlib
import io
import json
import math
import re
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from corral.errors import CorralError, require
from corral.running import files
from corral.running.files import write_atomically

KEEP = 3
"""How many checkpoints of a run stay on the disk."""

_NUMBERS = "biufc"
"""The kinds of NumPy's dtypes that a file may hold: bool, integers, floats, complex."""

_NAME = re.compile(r"checkpoint-(\d+)\.npz")


def save(directory: Path, iteration: int, tree: Any, meta: dict[str, Any]) -> Path:
    """Write `directory/checkpoint-<iteration>.npz` and keep the last `KEEP`; returns its path.

    Earlier checkpoints go only once this one is safely on the disk. Later ones go as well: they belong to a course that the
    run left when it resumed from an earlier checkpoint.
    """
    path = directory / f"checkpoint-{iteration:06d}.npz"
    write(path, tree, meta)
    numbered = checkpoints(directory)
    past = [k for k in numbered if k <= iteration]
    for k in set(numbered) - set(past[-KEEP:]):
        numbered[k].unlink(missing_ok=True)
    for leftover in directory.glob(".checkpoint-*.tmp"):  # of a process killed while it wrote
        leftover.unlink(missing_ok=True)
    return path


def checkpoints(directory: Path) -> dict[int, Path]:
    """The checkpoint files of a folder by iteration, in order."""
    found = {int(match[1]): p for p in directory.glob("*.npz") if (match := _NAME.fullmatch(p.name))}
    return dict(sorted(found.items()))


def write(path: Path, tree: Any, meta: dict[str, Any]) -> None:
    """Write one tree of arrays and its `meta` (anything JSON can say) to `path`, atomically."""
    entries = {name: _encode(name, array) for name, array in _arrays(tree).items()}
    entries["meta"] = _encode("meta", np.frombuffer(json.dumps(meta).encode(), np.uint8))
    entries["sha256"] = _encode("sha256", np.frombuffer(_digest(entries), np.uint8))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in entries.items():
            # A fixed date: equal content makes equal files.
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), data)
    write_atomically(path, content.getvalue())


def load(path: Path, like: Any) -> tuple[Any, dict[str, Any]]:
    """The tree and the meta in `path`; names, shapes and dtypes must be those of the leaves of `like`, but for
    counts that earlier versions kept as floats, or as one for several networks.

    Leaves come back as what they are in `like`: JAX arrays, PRNG keys, NumPy arrays or Python numbers; of a JAX array a
    `jax.ShapeDtypeStruct` is enough.
    """
    entries = _verified(path)
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    names = [_name(where) for where, _ in leaves]
    missing = [name for name in names if name not in entries]
    extra = [name for name in entries if name not in {*names, "meta"}]
    for problem, listed in (("lacks", missing), ("also holds", extra)):
        more = f" and {len(listed) - 1} more" if len(listed) > 1 else ""
        require(not listed, f"{path} is of another kind of run: it {problem} {', '.join(listed[:1])}{more}")
    restored = [_restore(path, name, entries[name], leaf) for name, (_, leaf) in zip(names, leaves, strict=True)]
    return jax.tree_util.tree_unflatten(structure, restored), _meta(path, entries)


def read_meta(path: Path) -> dict[str, Any]:
    """The `meta` of a file alone, verified like the rest."""
    return _meta(path, _verified(path))


def _meta(path: Path, entries: dict[str, np.ndarray]) -> dict[str, Any]:
    try:
        meta = json.loads(entries["meta"].tobytes())
    except (KeyError, ValueError, RecursionError) as error:
        raise CorralError(f"{path} is no file of Corral's: it holds no readable meta") from error
    require(isinstance(meta, dict), f"{path} is no file of Corral's: its meta is no table")
    found: dict[str, Any] = meta
    return found


def _name(where: tuple[Any, ...]) -> str:
    return f"tree{jax.tree_util.keystr(where)}"


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)


def _arrays(tree: Any) -> dict[str, np.ndarray]:
    """Every leaf as plain numbers, by name; keys as their data."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    named = [(_name(where), jax.random.key_data(leaf) if _is_key(leaf) else leaf) for where, leaf in leaves]
    return {name: np.asarray(leaf) for name, leaf in named}


def _encode(name: str, array: np.ndarray) -> bytes:
    # bool, integers, floats, complex: the rest (objects, strings, bfloat16) would need pickle or lose its meaning.
    require(array.dtype.kind in _NUMBERS, f"a checkpoint cannot hold {name}: its dtype is {array.dtype}")
    content = io.BytesIO()
    np.lib.format.write_array(content, array, allow_pickle=False)
    return content.getvalue()


def _digest(entries: dict[str, bytes]) -> bytes:
    """SHA-256 over names and contents, in the order of the names, each preceded by its length."""
    total = hashlib.sha256()
    for name in sorted(entries):
        for part in (name.encode(), entries[name]):
            total.update(len(part).to_bytes(8, "little"))
            total.update(part)
    return total.digest()


def _verified(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file whose hash is right, except the hash itself."""
    content = files.read(path)
    try:
        entries = _stored(content)
        stored = entries.pop("sha256")
        whole = _decode(stored).tobytes() == _digest(entries)
    except Exception as error:  # a damaged zip file fails in a dozen ways, and all of them mean the same
        raise CorralError(f"{path} is damaged or cut short and cannot be read") from error
    require(whole, f"{path} has been altered: its content does not match its hash")
    found = {}
    for name, data in entries.items():
        try:
            found[name] = _decode(data)
        except ValueError as error:
            raise CorralError(f"{path} is no file of Corral's: {name[:80]!r} in it {error}") from error
    return found


def _stored(content: bytes) -> dict[str, bytes]:
    """The members of an archive. Ours are not compressed, so all of them together are smaller than the file.

    That is checked before anything is read: a small file could otherwise claim any amount of memory.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        plain = all(m.compress_type == zipfile.ZIP_STORED and m.file_size == m.compress_size for m in members)
        fits = sum(m.file_size for m in members) <= len(content)
        alone = len({m.filename for m in members}) == len(members)
        require(plain and fits and alone, "its members are compressed, overlap or share a name")
        return {m.filename.removesuffix(".npy"): archive.read(m) for m in members}


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


def _restore(path: Path, name: str, array: np.ndarray, like: Any) -> Any:
    """`array` as the kind of thing `like` is, if it fits."""
    wanted = jax.eval_shape(jax.random.key_data, like) if _is_key(like) else like
    wanted = wanted if hasattr(wanted, "dtype") else np.asarray(wanted)
    # Earlier versions kept counts as floats, and one count of Adam's steps for all critics.
    if array.dtype == np.float32 and wanted.dtype == np.uint32 and not _is_key(like):
        array = array.astype(np.uint32)
    if name.endswith(".count") and array.shape == () and len(wanted.shape) == 1:
        array = np.full(wanted.shape, array)
    require(
        array.shape == wanted.shape and array.dtype == wanted.dtype,
        f"{path} is of another kind of run: {name} is {array.dtype}{list(array.shape)} there and "
        f"{wanted.dtype}{list(wanted.shape)} here",
    )
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=_key_kind(like))
    if isinstance(like, np.ndarray):
        return array
    if isinstance(like, np.generic | bool | int | float | complex):
        return type(like)(array.item())
    return jnp.asarray(array)


def _key_kind(like: Any) -> str:
    """The generator behind a PRNG key, also when only its shape and dtype are known."""
    found: list[str] = []
    jax.eval_shape(lambda key: found.append(str(jax.random.key_impl(key))), like)
    return found[0]

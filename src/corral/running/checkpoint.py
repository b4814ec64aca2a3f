"""Checkpoints: a pytree of arrays and a little JSON in one file, verified when it is read.

A file is one of `policy.archive`: an ordinary .npz with one array per leaf, named by its path in the tree ("tree.policy.w").
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from corral.errors import require
from corral.policy import archive
from corral.running.files import temporary, write_atomically

KEEP = 3
"""How many checkpoints of a run stay on the disk."""

_ROOT = "tree"
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
    for leftover in directory.glob(temporary("checkpoint-*")):  # of a process killed while it wrote
        leftover.unlink(missing_ok=True)
    return path


def checkpoints(directory: Path) -> dict[int, Path]:
    """The checkpoint files of a folder by iteration, in order."""
    found = {int(match[1]): p for p in directory.glob("*.npz") if (match := _NAME.fullmatch(p.name))}
    return dict(sorted(found.items()))


def write(path: Path, tree: Any, meta: dict[str, Any], beside: Mapping[str, np.ndarray] | None = None) -> None:
    """Write one tree of arrays and its `meta` (anything JSON can say) to `path`, atomically.

    Arrays `beside` the tree are for readers that do not know it; `load` passes them over.
    """
    write_atomically(path, archive.content(_arrays(tree) | dict(beside or {}), meta))


def load(path: Path, like: Any, content: bytes | None = None) -> tuple[Any, dict[str, Any]]:
    """The tree and the meta in `path`, or in its `content` where that was read before.

    Names, shapes and dtypes must be those of the leaves of `like`, but for counts that earlier
    versions kept as floats, or as one for several networks.

    Leaves come back as what they are in `like`: JAX arrays, PRNG keys, NumPy arrays or Python numbers; of a JAX array a
    `jax.ShapeDtypeStruct` is enough.
    """
    entries, meta = archive.read(path) if content is None else archive.parse(content, str(path))
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    names = [name_of(where) for where, _ in leaves]
    missing = [name for name in names if name not in entries]
    extra = [name for name in entries if name.startswith(_ROOT) and name not in names]
    for problem, listed in (("lacks", missing), ("also holds", extra)):
        more = f" and {len(listed) - 1} more" if len(listed) > 1 else ""
        require(not listed, f"{path} is of another kind of run: it {problem} {', '.join(listed[:1])}{more}")
    restored = [_restore(path, name, entries[name], leaf) for name, (_, leaf) in zip(names, leaves, strict=True)]
    return jax.tree_util.tree_unflatten(structure, restored), meta


def read_meta(path: Path, content: bytes | None = None) -> dict[str, Any]:
    """The `meta` of a file, or of its `content`, alone, verified like the rest."""
    return (archive.read(path) if content is None else archive.parse(content, str(path)))[1]


def has_branch(path: Path, content: bytes, name: str) -> bool:
    """Whether the tree in the content of a file has a branch of this name."""
    arrays, _ = archive.parse(content, str(path))
    return any(array.startswith(f"{_ROOT}.{name}") for array in arrays)


def name_of(where: tuple[Any, ...]) -> str:
    """The name of the array at this path in a tree."""
    return f"{_ROOT}{jax.tree_util.keystr(where)}"


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)


def _arrays(tree: Any) -> dict[str, np.ndarray]:
    """Every leaf as plain numbers, by name; keys as their data."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    named = [(name_of(where), jax.random.key_data(leaf) if _is_key(leaf) else leaf) for where, leaf in leaves]
    return {name: np.asarray(leaf) for name, leaf in named}


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

"""Host environments of several processes (`jax.distributed`): each plays its lanes, then everybody has all of them."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from corral.envs.contract import Box, EnvSpec
from corral.errors import CorralError


class Lanes(NamedTuple):
    """How many lanes there are, and which of them this process plays."""

    total: int
    own: tuple[int, ...]

    def sizes(self, slots: int) -> list[int]:
        """The slots of each lane of this process, of so many in all."""
        return [slots // self.total + (i < slots % self.total) for i in self.own]


def lanes() -> Lanes:
    """Two, on every machine, as results depend on their number; more only where there are more processes than that."""
    total = max(2, jax.process_count())
    return Lanes(total, tuple(range(jax.process_index(), total, jax.process_count())))


def exchange(
    spec: EnvSpec, total: int, played: Mapping[int, list[np.ndarray]] | BaseException
) -> dict[int, list[np.ndarray]]:
    """The columns of every lane, from those that each process has played; where one failed, all raise an error."""
    sizes = np.zeros((total, 2), np.int32)
    if isinstance(played, BaseException):
        sizes[:] = -1
    else:
        for lane, columns in played.items():
            sizes[lane] = len(columns[0]), len(columns[-1])
    everybody = _gathered(sizes)
    if isinstance(played, BaseException):
        raise played
    failed = np.flatnonzero((everybody < 0).any(axis=(1, 2)))
    if len(failed):
        raise CorralError(f"process {failed[0]} failed while it played its episodes; what it says there tells why")
    text = b"".join(_packed(spec, columns) for _, columns in sorted(played.items()))
    # A multiple of a megabyte, since every length is compiled anew.
    longest = int(_gathered(np.int64(len(text))).max())
    room = np.zeros(-(-longest // 2**20) * 2**20, np.uint8)
    room[: len(text)] = np.frombuffer(text, np.uint8)
    found: dict[int, list[np.ndarray]] = {}
    for bytes_of_one, its_sizes in zip(_gathered(room), everybody, strict=True):
        offset = 0
        for lane in np.flatnonzero(its_sizes[:, 0]).tolist():
            found[lane], offset = _unpacked(spec, bytes_of_one, offset, *its_sizes[lane].tolist())
    return dict(sorted(found.items()))


def _gathered(value: np.ndarray | np.integer) -> np.ndarray:
    """(processes, …): this value of every process."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(np.asarray(value)))


def _columns(spec: EnvSpec, rows: int, episodes: int) -> list[tuple[np.dtype, tuple[int, ...]]]:
    """Type and shape of each column of a lane (`host._columns`)."""
    seen, whole, number, truth = (spec.observation_size,), np.dtype(np.int32), np.dtype(np.float32), np.dtype(bool)
    acts = (number, (rows, spec.action.size)) if isinstance(spec.action, Box) else (whole, (rows,))
    costs = (number, (rows, len(spec.constraints)))
    first = [(number, (rows, *seen)), acts, (number, (rows,)), costs, (whole, (rows,))]
    return [*first, *[(truth, (rows,))] * 4, (number, (episodes, *seen))]


def _packed(spec: EnvSpec, columns: list[np.ndarray]) -> bytes:
    kinds = _columns(spec, len(columns[0]), len(columns[-1]))
    return b"".join(column.astype(dtype).tobytes() for column, (dtype, _) in zip(columns, kinds, strict=True))


def _unpacked(spec: EnvSpec, text: np.ndarray, offset: int, rows: int, episodes: int) -> tuple[list[np.ndarray], int]:
    found = []
    for dtype, shape in _columns(spec, rows, episodes):
        size = int(np.prod(shape)) * dtype.itemsize
        found.append(np.frombuffer(text[offset : offset + size].tobytes(), dtype).reshape(shape))
        offset += size
    return found, offset

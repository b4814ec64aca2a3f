import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax import ScaleByAdamState

from corral.errors import CorralError
from corral.policy import members
from corral.running import checkpoint, files


class State(NamedTuple):
    weights: dict[str, jax.Array]
    key: jax.Array
    count: np.ndarray
    rate: float
    done: bool


def state(seed: int = 0) -> State:
    key = jax.random.key(seed)
    weights = {"w": jax.random.normal(key, (4, 3)), "b/odd name": jnp.arange(3, dtype=jnp.int32)}
    return State(weights, jax.random.split(key), np.array(2**60 + seed, np.int64), 0.1 + seed, True)


def same(a: State, b: State) -> bool:
    def plain(leaf):
        is_key = jnp.issubdtype(getattr(leaf, "dtype", float), jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        type(x) is type(y) and plain(x).dtype == plain(y).dtype and np.array_equal(plain(x), plain(y)) for x, y in pairs
    )


def test_what_is_saved_comes_back_bit_for_bit_and_of_the_same_kind(tmp_path):
    path = checkpoint.save(tmp_path, 12, state(), {"iteration": 12, "ν": [0.5, float("inf")]})
    assert path == tmp_path / "checkpoint-000012.npz"
    tree, meta = checkpoint.load(path, state(1))
    assert same(tree, state())
    assert meta == {"iteration": 12, "ν": [0.5, float("inf")]}
    assert jax.random.uniform(tree.key[1]) == jax.random.uniform(state().key[1])
    assert checkpoint.read_meta(path) == meta


def test_shapes_and_dtypes_alone_are_enough_to_load(tmp_path):
    path = checkpoint.save(tmp_path, 0, state().key, {})
    like = jax.ShapeDtypeStruct((2,), jax.random.key(0).dtype)
    tree, _ = checkpoint.load(path, like)
    assert np.array_equal(jax.random.key_data(tree), jax.random.key_data(state().key))


def test_the_file_is_an_ordinary_npz_without_pickle_and_equal_content_makes_equal_files(tmp_path):
    first = checkpoint.save(tmp_path / "a", 1, state(), {"x": 1}).read_bytes()
    second = checkpoint.save(tmp_path / "b", 1, state(), {"x": 1}).read_bytes()
    assert first == second
    with np.load(tmp_path / "a" / "checkpoint-000001.npz", allow_pickle=False) as arrays:
        assert np.array_equal(arrays["tree.weights['w']"], state().weights["w"])
        assert json.loads(arrays["meta"].tobytes()) == {"x": 1}


def test_only_the_last_three_stay_and_those_of_an_abandoned_future_go(tmp_path):
    for k in (2, 4, 6, 8, 1000000):
        checkpoint.save(tmp_path, k, state(k), {})
    assert list(checkpoint.checkpoints(tmp_path)) == [6, 8, 1000000]
    checkpoint.save(tmp_path, 9, state(9), {})
    assert list(checkpoint.checkpoints(tmp_path)) == [6, 8, 9]
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"checkpoint-{k:06d}.npz" for k in (6, 8, 9)]


def test_no_single_altered_or_missing_byte_yields_a_wrong_tree(tmp_path):
    """Either the file is refused or what it gives is right: some bytes of a zip file mean nothing."""
    path = checkpoint.save(tmp_path, 3, state(), {"k": 3})
    whole = path.read_bytes()
    refused = 0
    rng = np.random.default_rng(0)
    for where in rng.choice(len(whole), 300, replace=False):
        flipped = bytearray(whole)
        flipped[where] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        try:
            tree, meta = checkpoint.load(path, state(1))
        except CorralError:
            refused += 1
        else:
            assert same(tree, state())
            assert meta == {"k": 3}
    assert refused > 200
    for length in rng.choice(len(whole), 60, replace=False):
        path.write_bytes(whole[:length])
        with pytest.raises(CorralError, match="damaged or cut short"):
            checkpoint.load(path, state(1))


def test_content_exchanged_with_care_for_the_zip_checksums_is_still_noticed(tmp_path):
    path = checkpoint.save(tmp_path, 3, state(), {"k": 3})
    with np.load(path) as arrays:
        content = dict(arrays)
    content["tree.rate"] = np.array(0.7)
    np.savez(path, **content)
    with pytest.raises(CorralError, match=r"has been altered: its content does not match its hash"):
        checkpoint.load(path, state())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (state()._replace(rate=1), r"tree\.rate is float64\[\] there and int64\[\] here"),
        (state()._replace(key=jax.random.key(0)), r"tree\.key is uint32\[2, 2\] there and uint32\[2\] here"),
        (state()._replace(weights={"w": jnp.zeros((4, 3))}), r"also holds tree\.weights\['b/odd name'\]"),
        ({"w": jnp.zeros(3), "x": jnp.zeros(3)}, r"lacks tree\['w'\] and 1 more"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_with_the_first_difference(tmp_path, other, message):
    path = checkpoint.save(tmp_path, 0, state(), {})
    with pytest.raises(CorralError, match=message):
        checkpoint.load(path, other)


def test_what_numpy_could_only_pickle_is_refused_when_saving(tmp_path):
    with pytest.raises(CorralError, match=r"cannot hold tree\['a'\]: its dtype is object"):
        checkpoint.save(tmp_path, 0, {"a": np.array([None])}, {})
    with pytest.raises(CorralError, match="its dtype is bfloat16"):
        checkpoint.save(tmp_path, 0, {"a": jnp.zeros(2, jnp.bfloat16)}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_earlier_checkpoints_alone_and_says_so(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, state(1), {})

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(CorralError, match=r"no room on the disk to write .*checkpoint-000002.npz"):
        checkpoint.save(tmp_path, 2, state(2), {})
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-000001.npz"]
    tree, _ = checkpoint.load(tmp_path / "checkpoint-000001.npz", state())
    assert same(tree, state(1))


def test_a_write_the_system_really_cuts_short_leaves_no_trace(tmp_path):
    checkpoint.save(tmp_path, 1, state(1), {})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(CorralError, match="no room on the disk"):
            checkpoint.save(tmp_path, 2, state(2), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-000001.npz"]


WRITER = """
import sys
from pathlib import Path
import numpy as np
from corral.running import checkpoint
directory, k = Path(sys.argv[1]), int(sys.argv[2])
while True:
    checkpoint.save(directory, k, {"a": np.full(100_000, k), "b": np.arange(k, k + 9.0)}, {"k": k})
    print(k, flush=True)
    k += 1
"""


def test_a_process_killed_at_any_moment_leaves_a_whole_checkpoint_no_older_than_the_last_it_reported(tmp_path):
    rng = np.random.default_rng(1)
    start = 0
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(start)], stdout=subprocess.PIPE
        ) as writer:
            writer.stdout.readline()
            time.sleep(rng.uniform(0, 0.05))
            writer.send_signal(signal.SIGKILL)
            printed = writer.stdout.read().split()
        reported = int(printed[-1]) if printed else start
        like = {"a": np.zeros(100_000, int), "b": np.zeros(9)}
        newest = list(checkpoint.checkpoints(tmp_path).values())[-1]
        tree, meta = checkpoint.load(newest, like)
        k = meta["k"]
        assert reported <= k <= reported + 1
        assert np.array_equal(tree["a"], np.full(100_000, k))
        assert np.array_equal(tree["b"], np.arange(k, k + 9.0))
        assert 1 <= len(checkpoint.checkpoints(Path(tmp_path))) <= checkpoint.KEEP + 1
        start = k + 1
    checkpoint.save(tmp_path, start, {"a": np.zeros(1)}, {})
    assert list(tmp_path.glob(".*")) == []


def test_a_count_that_an_earlier_version_kept_for_several_networks_is_that_of_each(tmp_path):
    checkpoint.write(tmp_path / "old.npz", {"adam": ScaleByAdamState(np.int32(7), 0.0, 0.0)}, {})
    like = {"adam": ScaleByAdamState(jnp.zeros(3, jnp.int32), 0.0, 0.0)}
    assert checkpoint.load(tmp_path / "old.npz", like)[0]["adam"].count.tolist() == [7, 7, 7]


def test_counts_that_an_earlier_version_kept_as_floats_are_read(tmp_path):
    checkpoint.write(tmp_path / "old.npz", {"steps": np.float32(40_000_000)}, {})
    tree, _ = checkpoint.load(tmp_path / "old.npz", {"steps": jnp.zeros((), jnp.uint32)})
    assert tree["steps"].dtype == jnp.uint32
    assert int(tree["steps"]) == 40_000_000


def hashed(path, entries, how=zipfile.ZIP_STORED):
    """A file with these members and the hash that belongs to them: somebody else's, not a damaged one."""
    entries = dict(entries)
    entries["sha256"] = npy(np.frombuffer(members.digest(entries), np.uint8))
    with zipfile.ZipFile(path, "w", how) as made:
        for name, data in entries.items():
            made.writestr(f"{name}.npy", data)


def npy(array):
    content = io.BytesIO()
    np.lib.format.write_array(content, array)
    return content.getvalue()


def header(text):
    """A .npy file without data whose header is this."""
    line = text.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line


META = npy(np.frombuffer(b"{}", np.uint8))
HUGE = header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000)}")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"meta": META, "tree": npy(np.array([{}, None], object))}, "'tree' in it holds no numbers but object"),
        ({"meta": META, "tree": npy(np.array(["a"]))}, "'tree' in it holds no numbers but <U1"),
        ({"meta": META, "tree": b"no array"}, "'tree' in it has no header of a NumPy array"),
        ({"meta": META, "tree": header("__import__('os')")}, "'tree' in it has no header of a NumPy array"),
        ({"meta": META, "tree": HUGE}, "'tree' in it has another size than its header states"),
        ({"meta": META, "tree": npy(np.ones(3))[:-1]}, "'tree' in it has another size than its header states"),
        ({"tree": npy(np.ones(3))}, "it holds no readable meta"),
        ({"meta": npy(np.frombuffer(b"{]", np.uint8)), "tree": npy(np.ones(3))}, "it holds no readable meta"),
        ({"meta": npy(np.frombuffer(b"[" * 10000, np.uint8)), "tree": npy(np.ones(3))}, "it holds no readable meta"),
        ({"meta": npy(np.frombuffer(b"[1]", np.uint8)), "tree": npy(np.ones(3))}, "its meta is no table"),
    ],
)
def test_a_right_hash_is_no_proof_of_a_good_file(entries, message, tmp_path):
    hashed(tmp_path / "x.npz", entries)
    with pytest.raises(CorralError, match=message):
        checkpoint.load(tmp_path / "x.npz", np.ones(3))


def test_nothing_is_inflated(tmp_path):
    """64 MB of zeros in a file of 64 kB."""
    hashed(tmp_path / "x.npz", {"meta": META, "tree": npy(np.zeros(2**23))}, zipfile.ZIP_DEFLATED)
    assert (tmp_path / "x.npz").stat().st_size < 2**17
    with pytest.raises(CorralError, match="is damaged or cut short"):
        checkpoint.load(tmp_path / "x.npz", np.zeros(2**23))


def test_arrays_by_columns_come_back_as_they_were(tmp_path):
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    hashed(tmp_path / "x.npz", {"meta": META, "tree": npy(array)})
    tree, _ = checkpoint.load(tmp_path / "x.npz", np.zeros((2, 3)))
    np.testing.assert_array_equal(tree, array)


def test_only_plain_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "folder.npz").mkdir()
    for name in ("pipe.npz", "folder.npz"):
        with pytest.raises(CorralError, match="is not a plain file"):
            checkpoint.load(tmp_path / name, np.ones(3))

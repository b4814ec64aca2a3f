"""Damaged files: a run that was stopped, one or two of its files damaged, then resumed and read."""

import atexit
import contextlib
import functools
import io
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from toys import BASE, stubbed

from attack import odd
from attack.judge import Attack, Wrong, new_folder
from corral.policy import members
from corral.running import log, loop
from corral.running.directory import RunDirectory

TIMED = ("seconds_sampling", "seconds_updating", "steps_per_second")
CONFIG = replace(BASE, iterations=9)


class Stop(loop.Watcher):
    """Ends the loop after so many iterations."""

    def __init__(self, after: int) -> None:
        self.after = after

    def update(self, row: loop.Row) -> None:
        if row["iteration"] + 1 == self.after:
            raise KeyboardInterrupt


@functools.cache
def example(seeds: int) -> tuple[Path, Path]:
    """Two folders: a run that went through, and the same run stopped after seven of its nine iterations."""
    folder = new_folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with stubbed():
        loop.run(CONFIG, folder / "whole", seeds=seeds, checkpoint_every=2)
        with contextlib.suppress(KeyboardInterrupt):
            loop.run(CONFIG, folder / "stopped", seeds=seeds, checkpoint_every=2, watcher=Stop(7))
    return folder / "whole", folder / "stopped"


def require_same(whole: Path, other: Path) -> None:
    """Raise `Wrong` unless both runs have the same seeds, rows, but for the times, and policies."""
    pairs = list(zip(RunDirectory.find(whole), RunDirectory.find(other), strict=True))
    for one, two in pairs:
        a, b = log.read(one.path), log.read(two.path)
        for name in a.columns:
            if name not in TIMED and not np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f"):
                raise Wrong(f"{two}: the column {name} differs: {b[name]} instead of {a[name]}")
        if (one.path / "policy.npz").read_bytes() != (two.path / "policy.npz").read_bytes():
            raise Wrong(f"{two}: another policy")


def generate(rng: random.Random) -> Attack:
    """Damage one or two files of a stopped run, then resume it, and read it."""
    seeds = rng.choice([1, 1, 3])
    _, stopped = example(seeds)
    names = sorted(str(path.relative_to(stopped)) for path in stopped.rglob("*") if path.is_file())
    chosen = [(rng.choice(names), rng.choice(DAMAGES), rng.getrandbits(64)) for _ in range(rng.choice([1, 1, 2]))]
    what = f"{seeds} seeds: " + ", then ".join(f"{damage.__name__} {name}" for name, damage, _ in chosen)

    def act(folder: Path) -> None:
        run = folder / "run"
        shutil.copytree(stopped, run)
        for name, damage, seed in chosen:
            if (run / name).is_file():
                damage(run / name, random.Random(seed))
        with stubbed():
            loop.resume(run)
        # The configuration is the user's to change; whatever else was damaged must not show.
        if not any(name.endswith("config.toml") for name, _, _ in chosen):
            require_same(example(seeds)[0], run)

    return Attack(what, act)


# -- damages -----------------------------------------------------------------------------------------------------------


def flip_a_bit(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut_short(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randint(0, len(content))])


def lengthen(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randint(1, 100)))


def scribble(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    at = rng.randint(0, len(content))
    content[at : at + rng.randint(0, 40)] = rng.randbytes(rng.randint(1, 40))
    path.write_bytes(content)


def change_a_digit(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    digits = [k for k, byte in enumerate(content) if chr(byte).isdigit()]
    if digits:
        content[rng.choice(digits)] = ord(rng.choice("0123456789"))
    path.write_bytes(content)


def shuffle_lines(path: Path, rng: random.Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    rng.shuffle(lines)
    path.write_bytes(b"".join(lines))


def repeat_a_line(path: Path, rng: random.Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True) or [b"\n"]
    lines.insert(rng.randint(0, len(lines)), rng.choice(lines))
    path.write_bytes(b"".join(lines))


def delete(path: Path, rng: random.Random) -> None:
    path.unlink()


def put_a_folder_in_the_place_of(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def put_a_pipe_in_the_place_of(path: Path, rng: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def put_a_link_to_itself_in_the_place_of(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.symlink_to(path)


def put_a_sibling_in_the_place_of(path: Path, rng: random.Random) -> None:
    others = sorted(other for other in path.parent.iterdir() if other.is_file())
    path.write_bytes(rng.choice(others).read_bytes())


def rename(path: Path, rng: random.Random) -> None:
    path.rename(path.with_name(f"checkpoint-{rng.randint(0, 12):06d}.npz"))


def rewrite_with_a_right_hash(path: Path, rng: random.Random) -> None:
    """Another content, with the hash that belongs to it: an array, a header or the meta is odd."""
    try:
        with zipfile.ZipFile(path) as found:
            entries = {name.removesuffix(".npy"): found.read(name) for name in found.namelist()}
    except (zipfile.BadZipFile, OSError):
        entries = {"meta": b"", "sha256": b""}
    entries.pop("sha256", None)
    name = rng.choice(sorted(entries))
    odd_ones: list[Callable[[], bytes]] = [
        lambda: rng.randbytes(rng.randint(0, 200)),
        lambda: _npy(np.array([odd.value(rng), None], object)),
        lambda: _npy(np.frombuffer(repr(odd.value(rng)).encode(), np.uint8)),
        lambda: _npy(np.zeros(rng.randint(0, 3), rng.choice(["f4", "i8", "U3", "c8"]))),
        lambda: _npy(np.zeros(3))[: rng.randint(0, 150)],
    ]
    entries[name] = rng.choice(odd_ones)()
    entries["sha256"] = _npy(np.frombuffer(members.digest(entries), np.uint8))
    how = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    with zipfile.ZipFile(path, "w", how) as made:
        for key, data in entries.items():
            made.writestr(f"{key}.npy", data)


def _npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array(content, array)
    return content.getvalue()


DAMAGES = (
    *(flip_a_bit, cut_short, lengthen, scribble, change_a_digit, shuffle_lines, repeat_a_line, delete, rename),
    *(put_a_folder_in_the_place_of, put_a_pipe_in_the_place_of, put_a_link_to_itself_in_the_place_of),
    *(put_a_sibling_in_the_place_of, rewrite_with_a_right_hash),
)

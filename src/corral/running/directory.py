"""The folder of a run: this module alone knows what lies in it.

    config.toml                     the configuration, and how the run was carried out
    metrics.csv, events.out.…       one row per iteration, for programs and for TensorBoard
    checkpoints/checkpoint-N.npz    the state after N iterations, the newest few
    policy.npz                      the final policy, once all iterations are done
    figure.png, figure.svg          the picture of the whole run
    error.txt, provenance.json      written by grids: why a run failed, and where it was made
    evaluation.json                 written by grids: what the final policy does with its most likely actions
    id.txt, wandb/                  by which services of others know the run, and what Weights & Biases keeps of it
    .lock                           while a process writes here: which one (`lock.py`)

A run with several seeds has a folder `seed-<n>` for each, with these files, and the figure in the folder above them. While
these folders are made, `.starting.toml` in the folder above tells what they will be, so that a run that is killed meanwhile
can be resumed too.
"""

import contextlib
import hashlib
import json
import re
import secrets
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import jax

from corral.config import Config, RunOptions
from corral.envs.contract import EnvSpec
from corral.errors import CorralError, require
from corral.learning import update
from corral.learning.networks import Policy
from corral.running import checkpoint, config_file, files, lock, log
from corral.running.files import write_atomically

Note = Callable[[str], None]
"""Hears of something worth a line."""

_CONFIG, _CHECKPOINTS, _POLICY, _ERROR, _SEED = ("config.toml", "checkpoints", "policy.npz", "error.txt", "seed-")
_PROVENANCE, _EVALUATION, _ID, _WANDB = "provenance.json", "evaluation.json", "id.txt", "wandb"
_ROWS = "rows_sha256"
_POLICY_HASH = "policy_sha256"
_STARTING = ".starting.toml"
_MADE = (_CONFIG, log.FILE, _POLICY, "events.out.tfevents.*", "figure.*", _ERROR, _PROVENANCE, _EVALUATION, _ID)
"""The files that a run leaves in its folder, beside its checkpoints and its lock."""


class Restored(NamedTuple):
    """The states of runs side by side, from the newest checkpoint that all of them have."""

    states: list[Any]
    meta: dict[str, Any]
    done: int
    """Iterations that lie behind them."""


class RunDirectory:
    """The folder of one run with one seed."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    @staticmethod
    def find(directory: Path | str) -> "list[RunDirectory]":
        """The run in this folder, or the seeds of the run in this folder in their order; CorralError if there is none."""
        whole = RunDirectory(directory)
        found = [whole] if whole.exists else whole.seeds()
        require(len(found) > 0, f"{directory} is not the folder of a run: it holds no {_CONFIG}")
        return found

    @staticmethod
    def find_one(directory: Path | str) -> "RunDirectory":
        """The run in this folder; CorralError where it has several seeds."""
        found = RunDirectory.find(directory)
        names = ", ".join(map(str, found))
        require(len(found) == 1, f"{directory} holds {len(found)} seeds: choose one of {names}")
        return found[0]

    @staticmethod
    def folder_of(file: Path) -> Path:
        """The folder of the run that a file belongs to: its own, or the one above if it lies among the checkpoints."""
        folder = file.absolute().parent
        return folder.parent if folder.name == _CHECKPOINTS and not RunDirectory(folder).exists else folder

    @staticmethod
    def find_all(directory: Path) -> "list[RunDirectory]":
        """Every run in this folder or anywhere below it, seed-2 before seed-10; CorralError if there is none."""
        require(directory.is_dir(), f"there is no folder {directory}")
        if RunDirectory(directory).exists:
            return [RunDirectory(directory)]
        found = sorted((path.parent for path in directory.rglob(log.FILE)), key=_natural)
        require(len(found) > 0, f"{directory} holds no runs: there is no {log.FILE} in it or below it")
        return [RunDirectory(path) for path in found]

    @staticmethod
    def for_seeds(directory: Path, seeds: Sequence[int]) -> "list[RunDirectory]":
        """Where the seeds of a new run go: one into the folder itself, several into folders of their own."""
        one = len(seeds) == 1
        return [RunDirectory(directory if one else directory / f"{_SEED}{seed}") for seed in seeds]

    @property
    def whole(self) -> Path:
        """The folder of the run with all its seeds."""
        folder = self.path.resolve()
        return folder.parent if re.fullmatch(rf"{_SEED}\d+", folder.name) else folder

    def seed(self, number: int) -> "RunDirectory":
        """The folder of one of its seeds."""
        return RunDirectory(self.path / f"{_SEED}{number}")

    def seeds(self) -> "list[RunDirectory]":
        """The seeds in this folder that have begun, in order."""
        found = sorted(self.path.glob(f"{_SEED}*"), key=_natural)
        return [run for run in map(RunDirectory, found) if run.exists]

    # -- what it holds ---------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether a run has begun here."""
        return (self.path / _CONFIG).is_file() or (self.path / log.FILE).is_file()

    @property
    def finished(self) -> bool:
        """Whether the final policy is there."""
        return (self.path / _POLICY).is_file()

    @property
    def untouched(self) -> bool:
        """Whether no iteration has left anything here: neither a checkpoint nor a row of metrics."""
        rows = self.path / log.FILE
        begun = self.finished or self.checkpoints() or (rows.exists() and files.read(rows).count(b"\n") > 1)
        return not begun

    def config(self) -> Config:
        """The configuration of the run."""
        return config_file.load(self.path / _CONFIG)

    def options(self) -> RunOptions:
        """How the run is carried out."""
        return config_file.load_options(self.path / _CONFIG)

    def metrics(self) -> log.Metrics:
        """The rows so far; none before the first iteration."""
        begun = (self.path / log.FILE).is_file()
        return log.read(self.path) if begun or not self.exists else log.Metrics({})

    def checkpoints(self) -> dict[int, Path]:
        """The checkpoint files by the number of iterations behind them, in order."""
        return checkpoint.checkpoints(self.path / _CHECKPOINTS)

    def done(self, asked: int) -> int:
        """How many of the iterations asked for need not be made again.

        All of them if the run is finished, or went on past them; else those before its newest checkpoint.
        """
        newest = max(self.checkpoints(), default=0)
        # A finished run has its policy, and its last checkpoint or none, as when only results were kept.
        complete = self.finished and newest in (0, asked)
        if self.exists and len(self.metrics()) >= asked and (complete or newest > asked):
            return asked
        return min(newest, asked - 1)

    def files(self) -> list[str]:
        """The names of what a run leaves in its folder; "…" stands for the long ends of some."""
        names = (_CONFIG, log.FILE, _POLICY, f"{_CHECKPOINTS}/", "events.out.tfevents.…")
        return [name for name in names if any(self.path.glob(name.replace("…", "*").rstrip("/")))]

    def policy(self, config: Config, spec: EnvSpec, net: Any | None = None) -> tuple[Policy, Path]:
        """The final policy, or the one of the newest checkpoint of an unfinished run, and the file it came from.

        `net` has the shapes of the network, where the run had one of the user's own.
        """
        like: Any = jax.eval_shape(lambda: update.init(config, spec, jax.random.key(0), net))
        if self.finished:
            policy, _ = checkpoint.load(self.path / _POLICY, like.policy)
            return policy, self.path / _POLICY
        found = restore([self], [like], warnings.warn)
        require(found.done > 0, f"{self} holds no policy yet: neither {_POLICY} nor a checkpoint")
        return found.states[0].policy, self.checkpoints()[found.done]

    def policy_in(self, file: Path, content: bytes, spec: EnvSpec, net: Any | None = None) -> Policy:
        """The policy in the content of one file of this run: a final policy, or the state of a checkpoint."""
        config = self.config()
        like: Any = jax.eval_shape(lambda: update.init(config, spec, jax.random.key(0), net))
        whole = checkpoint.has_branch(file, content, "policy")
        found, _ = checkpoint.load(file, like if whole else like.policy, content)
        policy: Policy = found.policy if whole else found
        return policy

    def policy_file(self) -> Path:
        """The file that `policy` reads: of the final policy, else the newest checkpoint; CorralError if there is neither."""
        found = self.path / _POLICY if self.finished else next(reversed(self.checkpoints().values()), None)
        require(found is not None, f"{self} holds no policy yet: neither {_POLICY} nor a checkpoint")
        assert found is not None
        return found

    # -- writing ---------------------------------------------------------------------------------------------------

    def begin(self, config: Config, options: RunOptions | None = None) -> None:
        """Make the folder and write the configuration."""
        (self.path / _CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        config_file.save(config, self.path / _CONFIG, options)

    def open_log(self, columns: Sequence[str], resume_at: int | None) -> log.RunLog:
        """metrics.csv and the TensorBoard events, open for rows from iteration `resume_at` on; None: a new file."""
        return log.RunLog(self.path, columns, resume_at)

    def save_checkpoint(self, done: int, state: Any, meta: dict[str, Any], rows: str | None = None) -> None:
        """Write the state after `done` iterations and the hash of the rows so far, then remove the oldest."""
        checkpoint.save(self.path / _CHECKPOINTS, done, state, meta if rows is None else meta | {_ROWS: rows})

    def save_policy(self, policy: Policy, meta: dict[str, Any], beside: Mapping[str, Any] | None = None) -> None:
        """Write the final policy: the run is finished. `standalone.described` makes a meta and arrays that stand alone."""
        checkpoint.write(self.path / _POLICY, policy, meta, beside)

    def save_error(self, text: str | None) -> None:
        """Write down why the run failed; None removes what an earlier attempt wrote."""
        if text is None:
            (self.path / _ERROR).unlink(missing_ok=True)
        else:
            write_atomically(self.path / _ERROR, text.encode())

    def provenance(self) -> dict[str, Any]:
        """Where the run was made, as a grid wrote it down; nothing if none did or the file is damaged."""
        return _json(self.path / _PROVENANCE)

    def evaluation(self) -> dict[str, Any]:
        """What the final policy does with its most likely actions, if a grid has measured this very policy."""
        found = _json(self.path / _EVALUATION)
        return found if self.finished and found.pop(_POLICY_HASH, None) == self.policy_hash() else {}

    def save_evaluation(self, content: dict[str, Any]) -> None:
        """Write that down, with the hash of the policy."""
        known = {_POLICY_HASH: self.policy_hash(), **content}
        write_atomically(self.path / _EVALUATION, (json.dumps(known, indent=1) + "\n").encode())

    def policy_hash(self) -> str:
        """SHA-256 of the file of the final policy."""
        return hashlib.sha256((self.path / _POLICY).read_bytes()).hexdigest()

    def id(self) -> str:
        """By which services of others know the run; made and written down when it is first asked for."""
        path = self.path / _ID
        if not path.is_file():
            write_atomically(path, (secrets.token_hex(8) + "\n").encode())
        return path.read_text(encoding="utf-8").strip()

    def save_provenance(self, content: dict[str, Any]) -> None:
        """Write down where the run was made."""
        write_atomically(self.path / _PROVENANCE, (json.dumps(content, indent=1) + "\n").encode())

    def discard_policy(self) -> None:
        """Remove the final policy: the run goes on, and a kill must not leave the policy of an earlier end as its last."""
        (self.path / _POLICY).unlink(missing_ok=True)

    def leftovers(self) -> list[Path]:
        """Temporary files of writes that were killed, beside those of checkpoints, which the next checkpoint clears up."""
        return [path for name in _MADE for path in self.path.glob(files.temporary(name))]

    def sweep(self) -> None:
        """Remove such leftovers; for the owner of the folder alone, since others may be writing."""
        for path in self.leftovers():
            path.unlink(missing_ok=True)

    def discard_start(self) -> None:
        """Remove the files of a run that failed before its first iteration, so that a second try finds the place free."""
        if self.untouched:
            for path in self.path.glob("*"):
                if path.is_file() and any(_is(path.name, name) for name in _MADE):
                    path.unlink()
            for folder in (self.path / _CHECKPOINTS, self.path):
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()


def require_free(directory: Path, overwrite: bool) -> None:
    """Require that a new run may use this folder: there is none, or it is empty, or what lies there may go (`clear`).

    A run that was killed before its first iteration goes, with `overwrite` any run; a file that no run has made never does.
    """
    if not directory.exists():
        return
    require(directory.is_dir(), f"{directory} is a file, and a run needs a folder: choose another with --out")
    if not any(directory.iterdir()):
        return
    found = [path for path in directory.rglob("*") if not path.is_dir() or path.is_symlink()]
    runs = [run for run in (RunDirectory(directory), *RunDirectory(directory).seeds()) if run.exists]
    # What a run leaves that was killed before it had written its configuration.
    only_begun = all(_before_config(path.relative_to(directory)) for path in directory.rglob("*"))
    require(
        overwrite or only_begun or (len(runs) > 0 and all(run.untouched for run in runs)),
        f"{directory} exists and is not empty: choose another with --out, replace it with --overwrite, "
        f"or continue it with `corral resume {directory}`",
    )
    require(
        only_begun or len(runs) > 0,
        f"{directory} is not the folder of a run: nothing in it is deleted, choose another with --out",
    )
    theirs = [path for path in found if not _of_a_run(path.relative_to(directory))]
    require(
        not theirs,
        f"{directory} holds {', '.join(str(path) for path in theirs[:3])}, which no run has made: "
        "nothing in it is deleted, choose another with --out",
    )


def clear(directory: Path) -> None:
    """Delete what is in the folder of a run that `require_free` lets go, but for the lock of its owner."""
    for path in directory.iterdir() if directory.exists() else []:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif not lock.is_lock(path.name):
            path.unlink()
    with contextlib.suppress(OSError):
        directory.rmdir()  # unless its lock is there


def _inside(path: Path) -> tuple[str, ...]:
    """The parts of a path, given relative to the folder of a run, within the folder of its seed."""
    return path.parts[1:] if len(path.parts) > 1 and path.parts[0].startswith(_SEED) else path.parts


def _of_a_run(path: Path) -> bool:
    """Whether a file, given relative to the folder of a run, is one that runs leave there or in their seeds' folders."""
    parts = _inside(path)
    if parts[0] in (_CHECKPOINTS, _WANDB):
        return True
    return len(parts) == 1 and (_before_config(path) or any(_is(parts[0], name) for name in _MADE))


def _before_config(path: Path) -> bool:
    """Whether a file or folder is one that a run leaves there before its configuration."""
    if path.name == _CHECKPOINTS or re.fullmatch(rf"{_SEED}\d+", str(path)):
        return True
    parts = _inside(path)
    early = parts[-1] in (_STARTING, *map(files.temporary, (_STARTING, _CONFIG))) or lock.is_lock(parts[-1])
    return len(parts) == 1 and early


def _is(name: str, made: str) -> bool:
    """Whether a file has a name that a run gives, or that of a write which was killed."""
    return fnmatch(name, made) or fnmatch(name, files.temporary(made))


def starting(directory: Path) -> tuple[Config, RunOptions] | None:
    """What a run with several seeds was to be that was killed while its folders were made."""
    path = directory / _STARTING
    return (config_file.load(path), config_file.load_options(path)) if path.is_file() else None


def begin(directory: Path, configs: Sequence[Config], runs: Sequence[RunDirectory], options: RunOptions) -> None:
    """Make the folders of a run with these seeds, and write their configurations."""
    if len(runs) > 1:
        config_file.save(configs[0], directory / _STARTING, replace(options, seeds=len(runs)))
    try:
        for config, run in zip(configs, runs, strict=True):
            run.begin(config, options)
    finally:
        (directory / _STARTING).unlink(missing_ok=True)


def restore(runs: Sequence[RunDirectory], likes: Sequence[Any], note: Note, rows: bool = False) -> Restored:
    """The newest checkpoint that every one of these runs has and that can be used; none: `done` is 0 and states are `likes`.

    `likes` have the structure of the runs' states. `note` hears of each checkpoint that is passed over. With `rows`, the
    metrics before a checkpoint must be those that it was written after. If there are checkpoints and none can be used, that
    is an error.
    """
    common = set.intersection(*(set(run.checkpoints()) for run in runs))
    failures: list[str] = []
    for done in sorted(common, reverse=True):
        try:
            loaded = [_at(run, done, like, rows) for run, like in zip(runs, likes, strict=True)]
        except (CorralError, OSError) as error:
            failures.append(str(error))
            note(f"{error}; looking for an earlier one")
            continue
        return Restored([state for state, _ in loaded], loaded[0][1], done)
    require(
        not failures,
        f"none of the {len(common)} checkpoints under {runs[0]} can be used ({'; '.join(failures)}); to train it "
        f"anew: corral train --config {runs[0].path / _CONFIG} --out FOLDER",
    )
    return Restored(list(likes), {}, 0)


def _at(run: RunDirectory, done: int, like: Any, rows: bool) -> tuple[Any, dict[str, Any]]:
    """The state after `done` iterations and its meta; CorralError if it is that of another moment, or of other rows."""
    path = run.checkpoints()[done]
    state, meta = checkpoint.load(path, like)
    number = meta.get("iteration", done)
    require(number == done, f"{path} was renamed: it holds the state after {number} iterations")
    wanted = meta.get(_ROWS)
    if rows and wanted is not None:
        found = log.digest(run.path, done)
        require(
            found == wanted,
            f"{run.path / log.FILE} was changed: its rows before iteration {done} are not those that {path.name} knows",
        )
    return state, meta


def _json(path: Path) -> dict[str, Any]:
    """The table in a file; an empty one if there is none or it is damaged."""
    try:
        content = json.loads(files.read(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _natural(path: Path) -> list[tuple[int, str]]:
    """A key for sorting that puts seed-2 before seed-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]

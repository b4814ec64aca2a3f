"""Carry out a grid in many processes: each program of runs is one of this machine's cores, of a Ray cluster or of SLURM.

The tasks work on the folder of the grid, which every machine must see under the same path. They train what a grid on this
machine would train, in the same programs, so that the results are the same. A task whose machine is lost is tried again,
and goes on from the checkpoints that it left.
"""

import abc
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import jax

from corral import devices
from corral.errors import CorralError, package, require
from corral.experiments import plan, runner
from corral.experiments.plan import Job
from corral.experiments.runner import How, Outcome, Progress

Where = Literal["here", "cores", "ray", "slurm"]

RETRIES = 3
"""How often a program is tried again after its machine was lost."""
_LOOK = 1.0
"""Seconds between two looks at what the tasks do."""
_SAY = 20.0
"""Seconds between two lines about how far the runs are."""
_A_DAY = 24 * 60


class Lost(Exception):
    """The process of a task, or its machine, has gone."""


@dataclass(frozen=True)
class Work:
    """One program of runs, to be trained in a process of its own; it can be sent to another machine."""

    program: tuple[Job, ...]
    how: How
    sign: Path
    """A file of the grid: a machine that does not see it does not share the folder."""
    until: float | None = None
    """When the time is over, in seconds since 1970."""

    def __call__(self) -> Outcome:
        """Train, or go on with, these runs."""
        require(
            self.sign.is_file(),
            f"{os.uname().nodename} does not see {self.sign.parent}: a grid on several machines needs a shared --out",
        )
        devices.use_cache()
        devices.keep_memory()
        left = None if self.until is None else (self.until - time.time()) / 60
        if left is not None and left <= 0:
            return Outcome(stopped="time", unfinished=len(self.program))
        return runner.run(self.program, _Silent(), replace(self.how, minutes=left))

    def checkpoint(self) -> Any:
        """What submitit asks for when SLURM takes the machine away: the same work, which goes on from its checkpoints."""
        return import_module("submitit").helpers.DelayedSubmission(self)


class _Silent:
    """A progress that shows nothing: the process that waits for the tasks does."""

    def start(self, done: int, total: int, runs: int, finished: int) -> None: ...
    def program(self, jobs: Any, begins: int, part: Any, waiting: Any) -> None: ...
    def update(self, row: Any) -> None: ...
    def note(self, text: str) -> None: ...
    def stop(self) -> None: ...


class Cluster(abc.ABC):
    """Where tasks are carried out."""

    accelerated = False
    """Whether they have a GPU each."""

    @abc.abstractmethod
    def submit(self, work: Work) -> Any:
        """Hand over a piece of work; returns a handle."""

    @abc.abstractmethod
    def outcome(self, handle: Any) -> Outcome | None:
        """How the work ended; None while it goes on. Raises `Lost` if its process has gone, else the error of the work."""

    @abc.abstractmethod
    def cancel(self, handle: Any) -> None:
        """Stop the work, as soon as its iteration is saved where that is possible."""

    def close(self) -> None:
        """Leave the cluster."""
        return None


class Cores(Cluster):
    """Processes of this machine, as many at a time as it has cores for, each on cores of its own and without a GPU.

    With small batches this is the fastest way to use many cores: one run cannot keep more than a few of them busy.
    """

    def __init__(self, how: How) -> None:
        own = devices.own_cores()
        self._threads = min(how.threads or 1, len(own))
        self._free = [own[k : k + self._threads] for k in range(0, len(own) - self._threads + 1, self._threads)]
        self._waiting: deque[_Task] = deque()

    def submit(self, work: Work) -> Any:
        """As the contract says."""
        task = _Task(replace(work, how=replace(work.how, threads=self._threads)))
        self._waiting.append(task)
        self._start()
        return task

    def outcome(self, handle: Any) -> Outcome | None:
        """As the contract says."""
        found: Outcome | Exception | None = handle.end()
        if found is None:
            return None
        if handle.cores:
            self._free.append(handle.cores)
            self._start()
        if isinstance(found, Exception):
            raise found
        return found

    def cancel(self, handle: Any) -> None:
        """As the contract says: as Ctrl-C would, which ends the iteration and saves it."""
        if handle in self._waiting:
            self._waiting.remove(handle)
            handle.asked_to_stop = True
        elif handle.process.is_alive():
            os.kill(handle.process.pid, signal.SIGINT)

    def _start(self) -> None:
        while self._free and self._waiting:
            self._waiting.popleft().start(self._free.pop(0))


class _Task:
    """A piece of work that waits for cores, or the process that does it."""

    process: Any = None
    asked_to_stop = False

    def __init__(self, work: Work) -> None:
        self.work = work
        self.cores: list[int] = []

    def start(self, cores: list[int]) -> None:
        """Begin the work on these cores."""
        self.cores = cores
        fresh = multiprocessing.get_context("spawn")  # a fork would inherit threads of JAX in the middle of something
        self._answer, end = fresh.Pipe(duplex=False)
        self.process = fresh.Process(target=_on_cores, args=(self.work, cores, end))
        self.process.start()
        end.close()

    def end(self) -> Outcome | Exception | None:
        """What it came to, or the error that ended it; None while it goes on."""
        if self.asked_to_stop:
            return Outcome(stopped="asked")
        if self.process is None or not self._answer.poll():
            return None
        try:
            found: Outcome | str = self._answer.recv()
        except EOFError:  # the process ended without a word
            self.process.join()
            return Lost(f"its process ended with status {self.process.exitcode}")
        self.process.join()
        return CorralError(found) if isinstance(found, str) else found


def _on_cores(work: Work, cores: list[int], answer: Any) -> None:
    """Do the work on these cores, and send what it came to, or the line that says why it failed."""
    os.setsid()  # Ctrl-C is for the process that waits, which passes it on
    threading.Thread(target=_stop_after_parent, daemon=True).start()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    jax.config.update("jax_platforms", "cpu")
    try:
        found: Outcome | str = work()
    except Exception as error:
        found = str(error) or type(error).__name__
    answer.send(found)


def _stop_after_parent() -> None:
    """Once the process that waits for this one is no more, end as after Ctrl-C: the iteration is saved."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "this runs in a child"
    parent.join()
    os.kill(os.getpid(), signal.SIGINT)


class RayCluster(Cluster):
    """Tasks of Ray: on the cluster of RAY_ADDRESS, or the one that runs on this machine, else on this machine alone."""

    def __init__(self, how: How) -> None:
        self._ray = package("ray")
        self._mine = not self._ray.is_initialized()
        if self._mine:
            self._ray.init(log_to_driver=False)
        gpus = int(self._ray.cluster_resources().get("GPU", 0) > 0)
        self.accelerated = bool(gpus)
        # A process for each task: it gives back all its memory at the end. Retries are ours, so that they are said.
        options = {"num_cpus": how.threads or 1, "num_gpus": gpus, "max_retries": 0, "max_calls": 1}
        self._task = self._ray.remote(**options)(_call)

    def submit(self, work: Work) -> Any:
        """As the contract says."""
        return self._task.remote(work)

    def outcome(self, handle: Any) -> Outcome | None:
        """As the contract says."""
        ready, _ = self._ray.wait([handle], timeout=0)
        if not ready:
            return None
        try:
            found: Outcome = self._ray.get(handle)
        except self._ray.exceptions.RayTaskError as error:  # the work's own
            raise CorralError(str(error.cause)) from error
        except self._ray.exceptions.TaskCancelledError:
            return Outcome(stopped="asked")
        except self._ray.exceptions.RayError as error:
            raise Lost((str(error).splitlines() or [type(error).__name__])[0]) from error
        return found

    def cancel(self, handle: Any) -> None:
        """As the contract says: Ray interrupts the task as Ctrl-C would, which ends the iteration and saves it."""
        self._ray.cancel(handle, force=False)

    def close(self) -> None:
        """Leave a cluster that was joined here."""
        if self._mine:
            self._ray.shutdown()


def _call(work: Work) -> Outcome:
    return work()


class SlurmCluster(Cluster):
    """Jobs of SLURM through submitit; sbatch's own variables, such as SBATCH_PARTITION, say which and how long."""

    def __init__(self, how: How, folder: Path, cluster: str = "slurm") -> None:
        self._submitit = package("submitit")
        self._executor = self._submitit.AutoExecutor(folder=folder, cluster=cluster)
        minutes = _A_DAY if how.minutes is None else int(how.minutes) + 1
        cpus = {} if how.threads is None else {"cpus_per_task": how.threads}
        self._executor.update_parameters(name="corral", timeout_min=minutes, **cpus)

    def submit(self, work: Work) -> Any:
        """As the contract says."""
        return self._executor.submit(work)

    def outcome(self, handle: Any) -> Outcome | None:
        """As the contract says."""
        if not handle.done():
            return None
        errors = self._submitit.core.utils
        try:
            found: Outcome = handle.result()
        except errors.FailedJobError as error:  # the work's own
            raise CorralError(str(error).strip().splitlines()[-1]) from error
        except errors.UncompletedJobError as error:
            raise Lost(str(error).strip().splitlines()[0]) from error
        return found

    def cancel(self, handle: Any) -> None:
        """As the contract says, but at once: the runs go on from their last checkpoints."""
        handle.cancel()


def cluster_of(on: Where, how: How, out: Path) -> Cluster:
    """The cluster of that name."""
    if on == "cores":
        return Cores(how)
    return RayCluster(how) if on == "ray" else SlurmCluster(how, out / "slurm")


def run(jobs: Sequence[Job], progress: Progress, how: How, cluster: Cluster, sign: Path) -> Outcome:
    """Train every job that is not finished, all programs at once as far as the cluster has room."""
    jobs = [replace(job, folder=job.folder.absolute()) for job in jobs]
    done = [job.done for job in jobs]
    todo = plan.unfinished(jobs, done)
    on_host = jax.default_backend() == "cpu" and not cluster.accelerated
    until = None if how.minutes is None else time.time() + 60 * how.minutes
    total = sum(job.config.iterations * job.config.batch_size for job in jobs)
    steps = sum(made * job.config.batch_size for job, made in zip(jobs, done, strict=True))
    finished = sum(made == job.config.iterations for job, made in zip(jobs, done, strict=True))
    progress.start(steps, total, len(jobs), finished)
    runner.sweep(jobs, progress)
    works = [
        Work(tuple(program), how, sign.absolute(), until) for program in plan.programs(todo, on_host, how.together)
    ]
    outcome = Outcome()
    try:
        _wait(works, cluster, outcome, progress, jobs)
    finally:
        progress.stop()
        cluster.close()
    outcome.unfinished = sum(job.done < job.config.iterations for job in jobs)
    return outcome


def _wait(works: Sequence[Work], cluster: Cluster, outcome: Outcome, progress: Progress, jobs: Sequence[Job]) -> None:
    """Submit all work, wait for it, try again what was lost; after Ctrl-C, wait until what goes on is saved."""
    going = {k: cluster.submit(work) for k, work in enumerate(works)}
    tries, said = dict.fromkeys(going, 0), time.monotonic()
    while going:
        try:
            time.sleep(_LOOK)
            for k, handle in list(going.items()):
                names = ", ".join(dict.fromkeys(job.name for job in works[k].program))
                try:
                    found = cluster.outcome(handle)
                except Lost as lost:
                    tries[k] += 1
                    del going[k]
                    if outcome.stopped == "asked":
                        continue
                    if tries[k] > RETRIES:
                        _fail(works[k], f"lost {tries[k]} times: {lost}", outcome, progress)
                        continue
                    progress.note(f"lost: {lost}; trying again from the last checkpoints: {names}")
                    going[k] = cluster.submit(works[k])
                    continue
                except CorralError as error:
                    del going[k]
                    _fail(works[k], str(error), outcome, progress)
                    continue
                if found is not None:
                    del going[k]
                    outcome.failures |= found.failures
                    outcome.stopped = outcome.stopped or found.stopped
                    progress.note(f"{len(works) - len(going)} of {len(works)} tasks done: {names}")
            if time.monotonic() - said > _SAY:
                said = time.monotonic()
                progress.note(_how_far(jobs, len(going)))
        except KeyboardInterrupt:
            if outcome.stopped == "asked":
                return
            outcome.stopped = "asked"
            progress.note("stopping the tasks; Ctrl-C again does not wait for them")
            for handle in going.values():
                cluster.cancel(handle)


def _fail(work: Work, reason: str, outcome: Outcome, progress: Progress) -> None:
    for job in work.program:
        outcome.failures[job.name] = reason
        progress.note(f"failed: {job.name}: {reason}")


def _how_far(jobs: Sequence[Job], going: int) -> str:
    made = sum(min(len(job.directory.metrics()), job.config.iterations) for job in jobs if job.directory.exists)
    asked = sum(job.config.iterations for job in jobs)
    return f"{made:,} of {asked:,} iterations made, {going} tasks running or waiting"

"""Several devices, one program: environments and rows of a batch are split among them, parameters are on each.

The partitioning is JAX's own. Where the split falls changes the order of sums and nothing else: random numbers belong to
episodes and rows, not to devices. The same code serves several GPUs and several hosts (`jax.distributed`).
"""

import contextlib
import ctypes
import functools
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from corral.errors import require

ROWS = "rows"
"""The mesh's only axis: robots while they are simulated, rows of the batch afterwards."""

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def own_cores() -> list[int]:
    """The numbers of the processor cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]


def cores() -> int:
    """Processor cores this process may use."""
    return len(own_cores())


def join() -> None:
    """Become one of several processes that train together, if the environment says so (docs/scaling.md).

    CORRAL_COORDINATOR is the address host:port of the first, CORRAL_PROCESSES their number, CORRAL_PROCESS this one's.
    """
    coordinator = os.environ.get("CORRAL_COORDINATOR")
    if coordinator is None:
        return
    numbers = {}
    for name in ("CORRAL_PROCESSES", "CORRAL_PROCESS"):
        text = os.environ.get(name, "")
        require(text.isdigit(), f"with CORRAL_COORDINATOR, {name} must be a number, got {text!r}")
        numbers[name] = int(text)
    # A CPU runs independent operations in any order, so the processes would wait for different messages.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.distributed.initialize(coordinator, numbers["CORRAL_PROCESSES"], numbers["CORRAL_PROCESS"])


def cache_folder() -> Path:
    """The folder for compiled programs, which Corral can make again if they are deleted."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "corral"


def own_cache() -> Path | None:
    """The folder for compiled programs, made if it is not there; None where it is another user's.

    Whoever can write there can have this process run any code: nobody but its owner may.
    """
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            return None
        if folder.stat().st_mode & WRITABLE_BY_OTHERS:
            folder.chmod(0o700)
    except OSError:
        return None
    return folder


def prepare() -> None:
    """Get this process ready for training: join others if there are any, keep compiled programs and freed memory."""
    join()
    use_cache()
    keep_memory()


def use_cache() -> None:
    """Keep compiled programs on disk between runs, where nobody has chosen a place for them yet."""
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        folder = own_cache()
        if folder is not None:
            jax.config.update("jax_compilation_cache_dir", str(folder / "xla"))


# XLA's compiler for GPUs writes kernels for matrix products itself, and tries several of each. With cuBLAS instead, an
# update of many Points compiles in a quarter of the time, an Ant's in two thirds, and runs about as fast, since
# `networks.product` cuts the sums that cuBLAS does not (docs/performance.md).
_QUICK_TO_COMPILE = {"xla_gpu_experimental_enable_fusion_autotuner": False, "xla_gpu_enable_triton_gemm": False}


def jit(function: Callable[..., Any], **how: Any) -> Any:
    """`jax.jit` for rollouts and updates: matrix products in full float32, short compile time.

    A function that is itself jitted cannot call the result: JAX takes compiler options at the top level only.
    """

    @functools.wraps(function)
    def in_full(*args: Any, **named: Any) -> Any:
        # Some hardware multiplies in less precision by default. Conjugate gradients magnify such errors, and the update must
        # see the probabilities of the policy that acted.
        with jax.default_matmul_precision("float32"):
            return function(*args, **named)

    return jax.jit(in_full, compiler_options=compiler_options(), **how)


@functools.cache
def compiler_options() -> dict[str, bool]:
    """The options XLA gets with such a program; options that XLA_FLAGS names are left out."""
    if jax.default_backend() != "gpu":
        return {}
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: on for name, on in _QUICK_TO_COMPILE.items() if name not in flags and _known(name, on)}


def _known(option: str, on: bool) -> bool:
    """Whether this version of XLA has such an option; a program that names another is refused."""
    try:
        jax.jit(lambda x: x, compiler_options={option: on}).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def memory() -> float:
    """Bytes of memory that this process may use on the host; infinity where the system does not say."""
    found = [float("inf")]
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found.append(float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    with contextlib.suppress(OSError, ValueError):  # in a container; "max" where it has no limit
        found.append(float(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return min(found)


# Parameters of mallopt(3).
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8


def keep_memory() -> None:
    """Let memory that is freed stay with the process, for its life.

    The temporary arrays of an update are hundreds of megabytes. Given back to the system and asked for anew in every
    iteration, their 95,000 pages took a seventh of an Ant's update. With glibc only; elsewhere nothing happens.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if set_option is not None:
        # One heap for all threads, nothing outside it, and nothing cut off its end.
        for option, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1)):
            set_option(option, value)


def mesh() -> Mesh | None:
    """All devices in a row, or None where there is but one."""
    found = jax.devices()
    return Mesh(np.asarray(found), (ROWS,), axis_types=(AxisType.Auto,)) if len(found) > 1 else None


def split(on: Mesh, axis: int) -> NamedSharding:
    """Arrays cut along this axis, a piece on each device."""
    return NamedSharding(on, PartitionSpec(*[None] * axis, ROWS))


def whole(on: Mesh) -> NamedSharding:
    """Arrays that every device has whole."""
    return NamedSharding(on, PartitionSpec())

"""Measure how cost grows: fit time = a + b·x over batch, robots, width, constraints and cores, and say how far it holds."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from benchmarks.bench import raw, sampling, work
from benchmarks.bench.clock import Note, Row, in_turns, spread
from benchmarks.bench.floors import flops
from benchmarks.bench.update import problem, whole
from benchmarks.bench.work import Done
from corral import devices, envs
from corral.envs.engines.mujoco import ThreadedEnv

TOLERANCE = 0.1
"""A line fits if it differs from every time by at most this share."""


class Line(NamedTuple):
    """The line time = a + b·x with the least relative errors."""

    a: float
    b: float
    residual: float
    """The largest |fit − time|/time."""
    linear_to: float
    """The largest x up to which a line fits all times within `TOLERANCE`."""


def fitted(x: Sequence[float], seconds: Sequence[float]) -> Line:
    """Fit a line to all points, and find the longest run of first points that a line fits."""
    a, b, residual = _least_squares(x, seconds)
    linear_to = x[min(1, len(x) - 1)]
    for count in range(3, len(x) + 1):
        if _least_squares(x[:count], seconds[:count])[2] > TOLERANCE:
            break
        linear_to = x[count - 1]
    return Line(a, b, residual, linear_to)


def _least_squares(x: Sequence[float], seconds: Sequence[float]) -> tuple[float, float, float]:
    """Minimise Σ ((a + b·xᵢ)/tᵢ − 1)²."""
    t = np.asarray(seconds, float)
    columns = np.stack([1 / t, np.asarray(x, float) / t], axis=1)
    (a, b), *_ = np.linalg.lstsq(columns, np.ones(len(t)), rcond=None)
    return float(a), float(b), float(np.max(np.abs(columns @ (a, b) - 1)))


class Axis(NamedTuple):
    """One quantity that grows: a call for each of its values, in ascending order."""

    name: str
    unit: str
    calls: dict[float, Callable[[], Any]]
    x: Callable[[float], float] = float
    """The abscissa of the fit as a function of the value."""
    fit: bool = True


def measure(quick: bool, chosen: Sequence[str], repeats: int, note: Note) -> Iterator[Row]:
    """Yield a row for each axis."""
    for name, make in axes(quick).items():
        if chosen and name not in chosen:
            continue
        note(f"scaling: {name}, {repeats} rounds")
        axis = make()
        times = in_turns({str(value): call for value, call in axis.calls.items()}, repeats)
        yield _row(axis, [times[str(value)] for value in axis.calls])


def _row(axis: Axis, times: list[list[float]]) -> Row:
    values = list(axis.calls)
    middle = [spread(found)[0] for found in times]
    x = [axis.x(value) for value in values]
    line = fitted(x, middle) if axis.fit and len(x) >= 3 else None
    return {
        "axis": axis.name,
        "unit": axis.unit,
        "values": values,
        "x": x,
        "seconds": [spread(found) for found in times],
        "line": None if line is None else line._asdict(),
        "linear_to": None if line is None else values[x.index(line.linear_to)],
    }


def axes(quick: bool) -> dict[str, Callable[[], Axis]]:
    """Return the axes of this machine, by name."""
    n = 4_000 if quick else 50_000
    cores = [k for k in range(1, devices.cores() + 1) if n % k == 0 and (k & (k - 1) == 0)]
    found: dict[str, Callable[[], Axis]] = {
        "batch": lambda: _updates(
            "batch",
            "samples",
            [2_000, 4_000, 8_000] if quick else [12_500, 25_000, 50_000, 100_000, 200_000],
            rows=float,
        ),
        "width": lambda: _widths([8, 32, 64] if quick else [16, 32, 64, 128, 256], n),
        "constraints": lambda: _updates(
            "constraints", "m", [1, 2, 4] if quick else list(range(1, 9)), m=lambda k: int(k), size=n // 2
        ),
    }
    if jax.default_backend() == "cpu":
        robots = [2, 4, 8] if quick else [10, 25, 50, 100, 200, 400]
        found["robots"] = lambda: _host_robots(robots, steps=5 if quick else 50)
        found["threads"] = lambda: _threads(devices.cores(), robots=4 if quick else 200, steps=5 if quick else 50)
        if len(cores) > 1:
            found["cores"] = lambda: _cores(cores, n)
    else:
        found["robots"] = lambda: _device_robots([64, 512] if quick else [256, 1024, 4096, 16384])
    return found


def _updates(name: str, unit: str, values: Sequence[float], size: int = 0, **how: Callable[[float], Any]) -> Axis:
    """Make whole updates with the paper's settings; `how` maps a value to arguments of `update.problem`."""
    calls = {}
    for value in values:
        given: dict[str, Any] = {"rows": size} | {key: make(value) for key, make in how.items()}
        given["rows"] = int(given["rows"])
        calls[float(value)] = whole(problem(mesh=devices.mesh(), **given)).call
    return Axis(name, unit, calls)


def _widths(widths: Sequence[int], rows: int) -> Axis:
    """Make updates of networks (w, w/2); the line is over the flops of the update, not over w."""
    calls = {}
    counted = {}
    for width in widths:
        made = problem(rows, hidden=(width, width // 2), mesh=devices.mesh())
        calls[float(width)] = whole(made).call
        counted[float(width)] = flops(work.update(made.config, made.spec, made.rows, Done(1))) / 1e9
    return Axis("width", "first hidden layer, line in GFLOP", calls, x=counted.__getitem__)


def _cores(counts: Sequence[int], rows: int) -> Axis:
    """Make an update with its rows on the first k devices, one for each core."""
    calls = {}
    for count in counts:
        found = np.asarray(jax.devices()[:count])
        mesh = Mesh(found, (devices.ROWS,), axis_types=(AxisType.Auto,))
        calls[float(count)] = whole(problem(rows, mesh=mesh)).call
    return Axis("cores", "devices, one a core: an update", calls, fit=False)


def _host_robots(counts: Sequence[int], steps: int) -> Axis:
    """Step so many Ants on MuJoCo's C engine."""
    calls: dict[float, Callable[[], Any]] = {}
    for count in counts:
        env = envs.make_host("ant-circle", count, devices.cores())
        assert isinstance(env, ThreadedEnv)
        calls[float(count)] = sampling.host_env(env, steps)
    return Axis("robots", f"Ants on the C engine, {steps} steps", calls)


def _threads(most: int, robots: int, steps: int) -> Axis:
    calls: dict[float, Callable[[], Any]] = {}
    for count in range(1, most + 1):
        env = envs.make_host("ant-circle", robots, count)
        assert isinstance(env, ThreadedEnv)
        calls[float(count)] = sampling.host_env(env, steps)
    return Axis("threads", f"threads: {robots} Ants, {steps} steps", calls, fit=False)


def _device_robots(counts: Sequence[int]) -> Axis:
    env = envs.make("ant-circle", robots=max(counts))
    return Axis(
        "robots",
        "Ants on MJX, 100 steps of mjx.step",
        {float(count): raw.device_engine(env, count, 100)[1] for count in counts},
    )

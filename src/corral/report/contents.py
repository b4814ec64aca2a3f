"""Everything the page shows, as plain values for JSON; numbers have five significant digits."""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from corral import envs
from corral.config import Config, algorithms
from corral.errors import CorralError
from corral.report import paths
from corral.report.runs import Group, Run, flat, summary
from corral.running.config_file import field_docs
from corral.trust_region.dual import Case

_POINTS = 2000
"""The page draws at most this many iterations of a run, and every k-th of a longer one."""
_CASES = [case.name.lower() for case in Case]


def groups(found: Sequence[Group], progress: Callable[[int, int], None]) -> list[dict[str, Any]]:
    """The groups with their curves, configurations and paths; `progress(done, total)` is called after each run."""
    total = sum(len(group.runs) for group in found)
    done = 0
    contents = []
    for group in found:
        runs = []
        for run in group.runs:
            runs.append(_run(run))
            done += 1
            progress(done, total)
        contents.append(_heading(group) | {"runs": runs})
    return contents


def documentation() -> dict[str, str]:
    """The meaning of each setting by dotted name; parameters of algorithms are under algo.*."""
    found = {}

    def walk(cls: type, prefix: str) -> None:
        docs = field_docs(cls)
        for field in fields(cls):
            found[prefix + field.name] = docs.get(field.name, "")
            default = field.default_factory() if callable(field.default_factory) else field.default
            if is_dataclass(default):
                walk(type(default), f"{prefix}{field.name}.")

    walk(Config, "")
    for algo in algorithms().values():
        walk(algo, "algo.")
    return {name: text for name, text in found.items() if text}


def _heading(group: Group) -> dict[str, Any]:
    config, metrics = group.config, group.runs[0].metrics
    described = _descriptions(config)
    planned = ", ".join(map(str, sorted({run.config.iterations for run in group.runs})))
    constraints = [
        {"name": name, "limit": _short(float(metrics[f"limit_{name}"][-1])), "about": described.get(name, "")}
        for name in metrics.constraints
    ]
    return {
        "label": group.label,
        "env": config.env,
        "constrained": config.algo.constrained,
        "shaped": config.shape_costs,
        "constraints": constraints,
        "config": flat(config) | {"iterations": planned},
    }


def _descriptions(config: Config) -> dict[str, str]:
    """What each constraint of one of Corral's environments counts; nothing for other environments."""
    try:
        return {c.name: c.description for c in envs.spec(config.env, **config.task).constraints}
    except CorralError:  # not Corral's, or with a parameter that no longer exists
        return {}


def _run(run: Run) -> dict[str, Any]:
    metrics = run.metrics
    every = -(-len(metrics) // _POINTS)
    rows = np.arange(0, len(metrics), every)
    apart = ("iteration", "case")  # the page stores them in a form of their own
    numeric = [name for name in metrics.columns if name not in apart and metrics[name].dtype.kind in "if"]
    cases = metrics["case"][rows].tolist() if "case" in metrics else []
    return {
        "seed": run.config.seed,
        "folder": str(run.folder),
        "done": len(metrics),
        "planned": run.config.iterations,
        "finished": run.finished,
        "every": every,
        # Iterations count from 1 wherever people read them.
        "x": (metrics["iteration"][rows] + 1).tolist(),
        "columns": {name: column(metrics[name][rows]) for name in numeric},
        "cases": "".join(str(_CASES.index(case)) if case in _CASES else "-" for case in cases),
        "summary": _rounded(summary(run)),
        "paths": paths.play(run),
    }


def column(values: np.ndarray) -> Any:
    """A column as a list, or as its one value if it is constant; NaN and infinities become null."""
    short = [_short(float(value)) for value in values]
    return short[0] if len(set(short)) == 1 else short


def _short(value: float) -> int | float | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() else rounded


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return _short(value) if isinstance(value, float) else value

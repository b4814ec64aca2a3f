"""The figure of an experiment: a column of panels per environment, returns above, costs and limits below."""

from pathlib import Path

from corral.experiments.data import Results
from corral.experiments.spec import Experiment
from corral.report import panels
from corral.report.panels import Column, Line, constraint_title, env_title


def draw(experiment: Experiment, results: list[Results], folder: Path) -> list[Path]:
    """Draw <experiment>.png, .svg and .pdf into `folder`."""
    paths = [folder / f"{experiment.name}.{kind}" for kind in ("png", "svg", "pdf")]
    columns = [_column(experiment, part) for part in results]
    panels.write(paths, experiment.title, columns, experiment.plot.times_limit)
    return paths


def _column(experiment: Experiment, results: Results) -> Column:
    """The panels of an environment; a run has the same colour in all of them, by its place in the file."""
    places = {entry.label: k for k, entry in enumerate(experiment.runs)}
    window = experiment.plot.window(results.env)

    def lines(name: str, constraint: str | None = None) -> list[Line]:
        return [
            Line(
                label,
                places[label],
                [seed.columns[name] for seed in seeds],
                float(seeds[0].columns[f"limit_{constraint}"][-1]) if constraint else float("nan"),
                window,
            )
            for label, seeds in results.curves.items()
        ]

    column = experiment.column(results.env)
    several = len(results.constraints) > 1
    costs = {
        constraint_title(column) + (f" ({name})" if several else ""): lines(f"{column}_{name}", name)
        for name in results.constraints
    }
    return Column(env_title(results.env), lines("return"), costs, window)

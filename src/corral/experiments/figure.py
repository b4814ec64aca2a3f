"""The figure of an experiment: a column of panels per environment, returns above, costs and limits below."""

from pathlib import Path

from corral.experiments.data import Results
from corral.experiments.spec import Experiment
from corral.report import panels


def draw(experiment: Experiment, results: list[Results], folder: Path) -> list[Path]:
    """Draw <experiment>.png, .svg and .pdf into `folder`; the place of a run in the file decides its colour."""
    places = {entry.label: k for k, entry in enumerate(experiment.runs)}
    columns = []
    for part in results:
        cost = experiment.column(part.env)
        runs = [panels.Run(label, places[label], cost, seeds) for label, seeds in part.curves.items()]
        columns.append(panels.column(part.env, runs, experiment.plot.window(part.env)))
    paths = [folder / f"{experiment.name}.{kind}" for kind in ("png", "svg", "pdf")]
    panels.write(paths, experiment.title, columns, experiment.plot.times_limit)
    return paths

"""A whole experiment: train what is missing, export the data, draw the figure, write the table."""

from collections.abc import Sequence
from pathlib import Path

from corral import devices
from corral.errors import require
from corral.experiments import data, figure, most_likely, plan, ranking, remote, runner, spec, tables
from corral.experiments.runner import How, Outcome, Progress
from corral.experiments.spec import Experiment
from corral.running import lock


def carry_out(
    experiments: Sequence[Experiment],
    scale: str,
    out: Path,
    progress: Progress,
    how: How | None = None,
    *,
    only: Sequence[str] = (),
    seeds: int | None = None,
    iterations: int | None = None,
    train: bool = True,
    on: remote.Where = "here",
    known: Path | None = None,
) -> tuple[Outcome, list[Path]]:
    """Train the runs that are missing in OUT, then write data, figures and tables, unless Ctrl-C ended training.

    `only` names environments, none: all. `seeds` and `iterations` take the place of the scale's. Without `train` the files
    are made of the runs that are there. `on` says where runs are trained. Runs that are finished in the data of the folder
    `known` are not trained; their numbers come along. Returns how training ended, and the files.
    """
    chosen = [spec.choose(experiment, only) for experiment in experiments]
    chosen = [experiment for experiment in chosen if experiment.environments]
    names = " and ".join(experiment.name for experiment in experiments)
    require(len(chosen) > 0, f"there is no environment {' or '.join(only)} in {names}")
    outcome = Outcome()
    if train:
        devices.use_cache()
        devices.keep_memory()
        own = [_unknown(e, plan.jobs(e, scale, out, seeds, iterations), scale, known, iterations) for e in chosen]
        jobs = plan.merge(own)
        how = how or How()
        with lock.owned(out, note=progress.note):
            if on == "here":
                outcome = runner.run(jobs, progress, how)
            else:
                outcome = remote.run(jobs, progress, how, remote.cluster_of(on, how, out), out / lock.FILE)
            for experiment, its in zip(chosen, own, strict=True):
                _evaluate(experiment, its, outcome, progress)
    files: list[Path] = []
    if outcome.stopped != "asked":
        whole = {experiment.name: experiment for experiment in experiments}
        for experiment in chosen:
            # What is known comes along whole, so that the new data may take the place of the old.
            exported = experiment if known is None else whole[experiment.name]
            files += data.export(exported, scale, out, known, iterations)
            folder = data.folder_of(out, experiment.name)
            if folder.is_dir():
                # The figure shows the environments of earlier calls as well.
                files += draw_from(whole[experiment.name], folder, out / "figures")
    return outcome, files


def _unknown(
    experiment: Experiment, jobs: Sequence[plan.Job], scale: str, known: Path | None, iterations: int | None
) -> list[plan.Job]:
    """The jobs that are not finished in the data of the folder `known`."""
    if known is None:
        return list(jobs)
    done = {env: data.finished(experiment, env, scale, known, iterations) for env in experiment.environments}
    return [job for job in jobs if (job.label, job.config.seed) not in done[job.config.env]]


def _evaluate(experiment: Experiment, jobs: Sequence[plan.Job], outcome: Outcome, progress: Progress) -> None:
    """Play the most likely actions of finished runs, if the experiment asks for it and nothing has ended it early."""
    if experiment.most_likely and not outcome.stopped:
        try:
            outcome.failures |= most_likely.measure(jobs, experiment.most_likely, progress.note)
        except KeyboardInterrupt:
            outcome.stopped = "asked"


def draw_from(experiment: Experiment, folder: Path, figures: Path) -> list[Path]:
    """Draw the figure and write the table from a folder of data alone."""
    results = data.read(experiment, folder)
    files = figure.draw(experiment, results, figures) + tables.write(experiment, results, figures)
    if experiment.plot.ranking:
        files += ranking.write(experiment, results, data.hours(folder), figures)
    return files

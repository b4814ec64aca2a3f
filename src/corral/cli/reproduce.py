"""`corral reproduce fig1|fig3|fig4|ablations|all`: the paper's experiments and figures with one command."""

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from corral.cli import parse
from corral.cli.grid import Options, carry_out, draw_from

if TYPE_CHECKING:
    from corral.experiments.spec import Experiment


@dataclass(frozen=True)
class Config(Options):
    """Run the paper's experiments and draw its figures.

    fig1: CPO, PDO and TRPO in five environments. fig3: CPO with and without cost shaping. fig4: CPO against fixed penalties.
    ablations: what each option of the corral preset changes. They share their runs. The experiments are the .toml files in
    corral/experiments; docs/experiments.md explains them.
    """

    what: Annotated[Literal["fig1", "fig3", "fig4", "ablations", "all"], tyro.conf.Positional]
    """The experiment."""
    scale: Literal["smoke", "laptop", "paper"] = "laptop"
    """smoke: minutes, to see that it works. laptop: a night on a few cores. paper: the paper's seeds, iterations and
    batches, for a GPU."""
    source: Annotated[Path | None, tyro.conf.arg(name="from", metavar="DIR")] = None
    """Train nothing: draw and tabulate from the data in this folder, such as results/."""


def main(argv: list[str]) -> int:
    """Run the command; 1 if a run failed, 130 if Ctrl-C ended it early."""
    config = parse(Config, argv, "reproduce")
    if config.scale == "smoke" and config.source is None:
        _compile_without_optimising()
    from corral.experiments import spec

    experiments = [spec.paper(name) for name in (spec.PAPER if config.what == "all" else (config.what,))]
    if config.source is not None:
        return _redraw(experiments, config, config.source)
    out = config.out or Path("runs") / config.scale
    return carry_out(experiments, config.scale, out, config, f"corral reproduce {shlex.join(argv)}")


def _compile_without_optimising() -> None:
    """At the smoke scale nearly all time is compilation, and fast programs have nothing to do: XLA's least effort."""
    if "jax" not in sys.modules:  # it reads the flags when it starts
        least = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=1"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {least}".strip()


def _redraw(experiments: "list[Experiment]", config: Config, source: Path) -> int:
    from corral.errors import require
    from corral.experiments import data, spec

    found = [(e, folder) for e in experiments if (folder := data.folder_of(source, e.name)).is_dir()]
    require(len(found) > 0, f"--from {source}: it holds no folder {', '.join(e.name for e in experiments)}")
    figures = (config.out or source) / "figures"
    for experiment, folder in found:
        chosen = spec.choose(experiment, config.only)
        if chosen.environments:
            for path in draw_from(chosen, folder, figures):
                print(f"{'table' if path.suffix == '.md' else 'figure':<8} {path}")
    return 0

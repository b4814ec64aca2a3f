"""`corral reproduce fig1|fig3|fig4|ablations|velocity|all`: the paper's experiments and ours, each with one command."""

import os
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from corral.cli.grid import Options, carry_out, print_files
from corral.errors import require

if TYPE_CHECKING:
    from corral.experiments.spec import Experiment


@dataclass(frozen=True)
class Config(Options):
    """Run the paper's experiments and ours, and draw their figures.

    fig1: CPO, PDO and TRPO in five environments. fig3: CPO with and without cost shaping. fig4: CPO against fixed penalties.
    ablations: what each option of the corral preset of 0.1 changes. velocity: CPO on six robots. They share their runs. The
    experiments are the .toml files in corral/experiments; docs/experiments.md explains them.
    """

    what: Literal["fig1", "fig3", "fig4", "ablations", "velocity", "all"] = field(metadata={"positional": True})
    """The experiment."""
    scale: Literal["smoke", "laptop", "paper"] = "laptop"
    """smoke: minutes, to see that it works. laptop: a night on a few cores. paper: the paper's seeds, iterations and
    batches, for a GPU."""
    source: Path | None = field(default=None, metadata={"flag": "from"})
    """Train nothing: draw and tabulate from the data in this folder, such as results/."""


def main(argv: list[str]) -> int:
    """Run the command; 1 if a run failed, 130 if Ctrl-C ended it early."""
    if "--scale smoke" in " ".join(argv).replace("=", " "):
        _compile_without_optimising()
    from corral.cli.flags import parse
    from corral.experiments import spec

    config = parse(Config, argv, "reproduce")
    experiments = [spec.paper(name) for name in (spec.PAPER if config.what == "all" else (config.what,))]
    if config.source is not None:
        return _redraw(experiments, config, config.source)
    out = config.out or Path("runs") / config.scale
    return carry_out(experiments, config.scale, out, config, f"corral reproduce {shlex.join(argv)}")


def _compile_without_optimising() -> None:
    """Ask XLA for its least effort: at the smoke scale nearly all time is compilation, and programs have little to do."""
    if "jax" not in sys.modules:  # it reads the flags when it starts
        least = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=1"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {least}".strip()


def _redraw(experiments: "list[Experiment]", config: Config, source: Path) -> int:
    """Draw from data alone."""
    from corral.experiments import data, pipeline, spec

    found = [(e, folder) for e in experiments if (folder := data.folder_of(source, e.name)).is_dir()]
    require(len(found) > 0, f"--from {source}: it holds no folder {', '.join(e.name for e in experiments)}")
    figures = (config.out or source) / "figures"
    for experiment, folder in found:
        chosen = spec.choose(experiment, config.only)
        if chosen.environments:
            print_files(pipeline.draw_from(chosen, folder, figures))
    return 0

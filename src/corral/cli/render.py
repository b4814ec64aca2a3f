"""`corral render ENV`: a film of the scene and a picture of the paths from above."""

import io
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import tyro

from corral.cli import parse
from corral.errors import CorralError, require

if TYPE_CHECKING:
    import numpy as np

    from corral.envs.scenarios import Scenario
    from corral.report.render.record import Actor, Trajectory

# Frames per second, width, height: a GIF of full rate and size would be large.
_FORMATS = {".mp4": (25.0, 640, 480), ".gif": (12.5, 480, 360), ".png": (0.0, 640, 480)}
_FILM_SECONDS = 20


@dataclass(frozen=True)
class Config:
    """Play episodes and show them: a film of the 3-D scene, and a picture of all paths from above.

    Where nothing can draw 3-D scenes the picture from above is made all the same, and the exit status is 1.
    """

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """Environment: a name from `corral envs`."""
    policy: str = "random"
    """Who acts: `random`, or the folder of a run, whose policy then draws the actions."""
    out: Path | None = None
    """The film, FILE.mp4 or FILE.gif, or FILE.png for one picture, halfway through the first episode. What is seen from
    above goes to FILE-top.png. By default a film in runs/render."""
    episodes: int = 6
    """Episodes to play, all seen from above; the film shows whole ones, as many as fit into 20 seconds."""
    steps: int | None = None
    """Stop every episode after so many steps."""
    seed: int = 0
    """Seed of the starts, the layouts and the actions."""
    json: bool = False
    """Print what was made as JSON instead of text."""


class _Cast(NamedTuple):
    """What is played, by whom, and under which limits (none: the environment's own)."""

    scenario: "Scenario"
    actor: "Actor"
    limits: tuple[float, ...] = ()


def main(argv: list[str]) -> int:
    """Run the command; 1 if nothing can draw 3-D scenes here."""
    config = parse(Config, argv, "render")
    _check(config)
    from corral.report.render.gl import gl_backend

    missing = ""
    try:
        gl_backend()  # before anything imports MuJoCo, which fails if MUJOCO_GL names what is not there
    except CorralError as error:
        missing = str(error)
    from corral.report.render.record import record

    cast = _random_cast(config) if config.policy == "random" else _trained_cast(config, Path(config.policy))
    out = _out(config)
    _say(f"playing {_episodes(config.episodes)} of {config.env}")
    trajectories = record(cast.scenario, cast.actor, config.episodes, config.seed, config.steps)
    seen_from_above = out.with_name(f"{out.stem}-top.png")
    _write_map(seen_from_above, trajectories, cast)
    if not missing:
        _write_scene(out, trajectories, cast)
    _report(config, trajectories, None if missing else out, seen_from_above)
    if missing:
        print(f"corral render: {missing}; only the picture from above was made", file=sys.stderr)
    return 1 if missing else 0


def _check(config: Config) -> None:
    """Refuse bad arguments before any work is done."""
    require(config.episodes >= 1, f"episodes must be at least 1, got {config.episodes}")
    require(config.steps is None or config.steps >= 0, f"steps must not be negative, got {config.steps}")
    require(0 <= config.seed < 2**32, f"seed must lie in [0, 2^32), got {config.seed}")
    kind = ".mp4" if config.out is None else config.out.suffix
    require(kind in _FORMATS, f"out must end in {', '.join(_FORMATS)}, got {config.out}")


def _random_cast(config: Config) -> _Cast:
    from corral import envs
    from corral.report.render.record import random_actor

    scenario = envs.scenario(config.env)
    return _Cast(scenario, random_actor(scenario, config.seed))


def _trained_cast(config: Config, folder: Path) -> _Cast:
    """The policy of a run in the environment it was trained in, parameters included."""
    from corral import envs
    from corral.running import config_file, log

    envs.scenario(config.env)
    require(folder.is_dir(), f"policy must be `random` or the folder of a run, and {folder} is neither")
    folders = log.run_directories(folder)
    require(len(folders) == 1, f"{folder} holds {len(folders)} seeds: choose one, such as {folders[0]}")
    trained = config_file.load(folder / "config.toml")
    require(
        trained.env == config.env,
        f"the policy in {folder} was trained in {trained.env}: it cannot act in {config.env}",
    )
    import equinox as eqx
    import jax
    import numpy as np

    from corral.evaluation import load_policy
    from corral.learning import distributions

    scenario = envs.scenario(trained.env, **trained.task)
    policy, source = load_policy(folder, trained, scenario.spec)
    _say(f"policy from {source}")
    draw = eqx.filter_jit(lambda policy, obs, key: distributions.sample(policy(obs), key))
    keys = (jax.random.fold_in(jax.random.key(config.seed), step) for step in count())
    return _Cast(scenario, lambda obs: np.asarray(draw(policy, obs, next(keys))), trained.limit)


def _out(config: Config) -> Path:
    """The file to write: the one asked for, but a GIF instead of an MP4 where there is no ffmpeg."""
    from corral.report.render.video import find_ffmpeg

    actor = "random" if config.policy == "random" else Path(config.policy).resolve().name
    out = config.out or Path("runs") / "render" / f"{config.env}-{actor}.mp4"
    if out.suffix == ".mp4" and find_ffmpeg() is None:
        _say("no ffmpeg here, so the film is a GIF; for MP4 install ffmpeg, or `pip install imageio-ffmpeg`")
        return out.with_suffix(".gif")
    return out


def _write_map(path: Path, trajectories: "list[Trajectory]", cast: _Cast) -> None:
    from corral.report.render.top_view import top_down
    from corral.running.files import write_atomically

    content = io.BytesIO()
    top_down(trajectories, cast.scenario, cast.limits).savefig(content, format="png", dpi=110)
    write_atomically(path, content.getvalue())


def _write_scene(path: Path, trajectories: "list[Trajectory]", cast: _Cast) -> None:
    """The film or the single picture."""
    from corral.report.render.scene import Photographer
    from corral.report.render.video import find_ffmpeg, write_gif, write_mp4, write_picture

    rate, width, height = _FORMATS[path.suffix]
    with Photographer(cast.scenario, cast.limits, width, height) as photographer:
        if path.suffix == ".png":
            write_picture(path, photographer.still(trajectories[0]))
            return
        lengths = [photographer.film_length(trajectory, rate) for trajectory in trajectories]
        fitting = max(1, sum(total <= _FILM_SECONDS * rate for total in accumulate(lengths)))
        films = (photographer.film(trajectory, rate) for trajectory in trajectories[:fitting])
        frames = _counted(chain.from_iterable(films), sum(lengths[:fitting]))
        ffmpeg = find_ffmpeg()
        if path.suffix == ".mp4" and ffmpeg is not None:
            write_mp4(path, frames, rate, ffmpeg)
        else:
            write_gif(path, frames, rate)


def _counted(frames: "Iterable[np.ndarray]", total: int) -> "Iterator[np.ndarray]":
    """The same frames, with their number on stderr: a bar on a terminal, else a line for every quarter."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track

        yield from track(frames, "drawing", total, console=Console(stderr=True), transient=True)
        return
    told = {total * quarter // 4 for quarter in range(1, 5)}
    for done, frame in enumerate(frames, start=1):
        if done in told:
            _say(f"{done} of {total} frames")
        yield frame


def _report(config: Config, trajectories: "list[Trajectory]", scene: Path | None, above: Path) -> None:
    import numpy as np

    returns = [float(trajectory.reward.sum()) for trajectory in trajectories]
    costs = [trajectory.costs.sum(axis=0).tolist() for trajectory in trajectories]
    if config.json:
        made = {"scene": str(scene) if scene else None, "top_down": str(above)}
        lengths = [trajectory.steps for trajectory in trajectories]
        print(json.dumps({"env": config.env} | made | {"steps": lengths, "returns": returns, "costs": costs}))
        return
    mean = ", ".join(f"{cost:.3g}" for cost in np.mean(costs, axis=0))
    print(f"{_episodes(len(returns))}: mean return {np.mean(returns):.3g}, mean cost {mean}")
    if scene:
        print(f"{'picture' if scene.suffix == '.png' else 'film'}: {scene}")
    print(f"from above: {above}")


def _episodes(number: int) -> str:
    return "one episode" if number == 1 else f"{number} episodes"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

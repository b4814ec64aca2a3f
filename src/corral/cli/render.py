"""`corral render ENV`: a film of the scene and a picture of the paths from above."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corral import envs
from corral.cli.flags import parse
from corral.display.progress import bar, say
from corral.envs.scenarios import Scenario
from corral.errors import CorralError, require
from corral.learning.update import limits
from corral.report.render import video
from corral.report.render.gl import gl_backend
from corral.report.render.record import Actor, Trajectory, policy_actor, random_actor, record
from corral.report.render.top_view import top_down
from corral.running.directory import RunDirectory

# Frames per second, width, height: a GIF of full rate and size would be large.
_FORMATS = {".mp4": (25.0, 640, 480), ".gif": (12.5, 480, 360), ".png": (0.0, 640, 480)}
_FILM_SECONDS = 20


@dataclass(frozen=True)
class Config:
    """Play episodes and show them: a film of the 3-D scene, and a picture of all paths from above.

    Where no OpenGL works, only the picture from above is made, and the exit status is 1.
    """

    env: str = field(metadata={"positional": True})
    """Environment: a name from `corral envs`."""
    policy: tuple[str, ...] = ("random",)
    """Who acts: `random`, or the folder of a run, whose policy then draws the actions. Several are shown side by side, from
    the same starts."""
    out: Path | None = None
    """The film, FILE.mp4 or FILE.gif, or FILE.png for one picture, halfway through the first episode. The picture from
    above goes to FILE-top.png. By default a film in runs/render."""
    episodes: int = 6
    """Episodes to play. The picture from above shows all of them; the film shows as many whole ones as fit into 20
    seconds, or the first 20 seconds of the first."""
    steps: int | None = None
    """Stop every episode after this many steps."""
    seed: int = 0
    """Seed of the starts, the layouts and the actions."""
    json: bool = False
    """Print the results as JSON instead of text; those of several policies are a list under "policies"."""


class _Cast(NamedTuple):
    """A policy, the environment it plays in, and its limits (empty: the environment's own)."""

    name: str
    """Tells the policy from the others; empty if it is the only one."""
    scenario: Scenario
    actor: Actor
    limits: tuple[float, ...] = ()


_Play = tuple[_Cast, list[Trajectory]]


def main(argv: list[str]) -> int:
    """Run the command; 1 if no OpenGL can draw 3-D scenes here."""
    config = parse(Config, argv, "render")
    _check(config)
    missing = ""
    try:
        gl_backend()  # before MuJoCo is imported: that import fails if MUJOCO_GL names a backend that does not work
    except CorralError as error:
        missing = str(error)
    casts, out = _casts(config), _out(config)
    say(f"playing {_episodes(config.episodes)} of {config.env}")
    plays = [(c, record(c.scenario, c.actor, config.episodes, config.seed, config.steps)) for c in casts]
    above = out.with_name(f"{out.stem}-top.png")
    _write_map(above, plays)
    if not missing:
        _write_scene(out, plays)
    _report(config, plays, None if missing else out, above)
    if missing:
        print(f"corral render: {missing}; only the picture from above was made", file=sys.stderr)
    return 1 if missing else 0


def _check(config: Config) -> None:
    """Refuse bad arguments before any work is done."""
    require(len(config.policy) >= 1, "policy must be `random` or the folder of a run, got nothing")
    require(config.episodes >= 1, f"episodes must be at least 1, got {config.episodes}")
    require(config.steps is None or config.steps >= 0, f"steps must not be negative, got {config.steps}")
    require(0 <= config.seed < 2**32, f"seed must lie in [0, 2^32), got {config.seed}")
    kind = ".mp4" if config.out is None else config.out.suffix
    require(kind in _FORMATS, f"out must end in {', '.join(_FORMATS)}, got {config.out}")


def _casts(config: Config) -> list[_Cast]:
    """The policies by their algorithms, or by their folders where two have the same algorithm."""
    scenario = envs.scenario(config.env)
    casts = [
        _Cast(p, scenario, random_actor(scenario, config.seed)) if p == "random" else _trained_cast(config, Path(p))
        for p in config.policy
    ]
    if len({cast.name for cast in casts}) < len(casts):
        casts = [cast._replace(name=_label(p)) for cast, p in zip(casts, config.policy, strict=True)]
    return casts if len(casts) > 1 else [casts[0]._replace(name="")]


def _trained_cast(config: Config, folder: Path) -> _Cast:
    """The policy of a run, in the environment and with the task parameters that it was trained with."""
    require(folder.is_dir(), f"policy must be `random` or the folder of a run, and {folder} is neither")
    run = RunDirectory.find_one(folder)
    trained = run.config()
    fits = trained.env == config.env
    require(fits, f"the policy in {folder} was trained in {trained.env}: it cannot act in {config.env}")
    scenario = envs.scenario(trained.env, **trained.task)
    policy, source = run.policy(trained, scenario.spec)
    say(f"policy from {source}")
    return _Cast(trained.algo.name.upper(), scenario, policy_actor(policy, config.seed), limits(trained, scenario.spec))


def _label(policy: str) -> str:
    """The name of a policy in file names and captions."""
    return policy if policy == "random" else Path(policy).resolve().name


def _out(config: Config) -> Path:
    """The file to write: the one asked for, but a GIF instead of an MP4 where there is no ffmpeg."""
    actors = "-".join(map(_label, config.policy))
    out = config.out or Path("runs") / "render" / f"{config.env}-{actors}.mp4"
    if out.suffix == ".mp4" and video.find_ffmpeg() is None:
        say("no ffmpeg here, so the film is a GIF; for MP4 install ffmpeg, or `pip install imageio-ffmpeg`")
        return out.with_suffix(".gif")
    return out


def _write_map(path: Path, plays: list[_Play]) -> None:
    """Write the paths from above, the figures of several policies side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    pictures = []
    for cast, episodes in plays:
        figure = top_down(episodes, cast.scenario, cast.limits, cast.name)
        figure.set_dpi(110)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        pictures.append(np.asarray(canvas.buffer_rgba())[..., :3])
    video.write_picture(path, np.hstack(pictures))


def _write_scene(path: Path, plays: list[_Play]) -> None:
    """Write the film or the single picture, those of several policies side by side."""
    from corral.report.render.scene import Photographer  # imports MuJoCo

    rate, width, height = _FORMATS[path.suffix]
    with ExitStack() as stack:
        made = (Photographer(cast.scenario, cast.limits, width, height, cast.name) for cast, _ in plays)
        cameras = [stack.enter_context(camera) for camera in made]
        takes = [list(zip(cameras, e, strict=True)) for e in zip(*(e for _, e in plays), strict=True)]
        if path.suffix == ".png":
            video.write_picture(path, np.hstack([camera.still(episode) for camera, episode in takes[0]]))
            return
        lengths = [max(camera.film_length(episode, rate) for camera, episode in take) for take in takes]
        most = int(_FILM_SECONDS * rate)
        fitting = max(1, sum(total <= most for total in accumulate(lengths)))
        films = (video.side_by_side([camera.film(e, rate) for camera, e in take]) for take in takes[:fitting])
        advance = stack.enter_context(bar("drawing", "frames", lines=4))

        def frames() -> Iterator[np.ndarray]:
            for done, frame in enumerate(islice(chain.from_iterable(films), most), start=1):
                advance(done, min(most, sum(lengths[:fitting])))
                yield frame

        ffmpeg = video.find_ffmpeg()
        if path.suffix == ".mp4" and ffmpeg is not None:
            video.write_mp4(path, frames(), rate, ffmpeg)
        else:
            video.write_gif(path, frames(), rate)


def _report(config: Config, plays: list[_Play], scene: Path | None, above: Path) -> None:
    """Print the files and the episodes' returns and costs."""
    results: list[dict[str, Any]] = []
    for policy, (_, episodes) in zip(config.policy, plays, strict=True):
        returns = [float(episode.reward.sum()) for episode in episodes]
        costs = [episode.costs.sum(axis=0).tolist() for episode in episodes]
        lengths = [episode.steps for episode in episodes]
        results.append({"policy": policy, "steps": lengths, "returns": returns, "costs": costs})
    if config.json:
        made = {"env": config.env, "scene": str(scene) if scene else None, "top_down": str(above)}
        print(json.dumps(made | (results[0] if len(results) == 1 else {"policies": results})))
        return
    for (cast, _), result in zip(plays, results, strict=True):
        mean = ", ".join(f"{cost:.3g}" for cost in np.mean(result["costs"], axis=0))
        told = f"mean return {np.mean(result['returns']):.3g}, mean cost {mean}"
        print(f"{cast.name}{', ' if cast.name else ''}{_episodes(config.episodes)}: {told}")
    if scene:
        print(f"{'picture' if scene.suffix == '.png' else 'film'}: {scene}")
    print(f"from above: {above}")


def _episodes(number: int) -> str:
    return "one episode" if number == 1 else f"{number} episodes"

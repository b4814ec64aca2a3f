"""`corral watch RUN`: the policy acting, live on a local page of the browser."""

import threading
import webbrowser
from dataclasses import dataclass, field
from pathlib import Path

from corral import envs
from corral.cli.flags import parse
from corral.display.progress import say
from corral.errors import require
from corral.learning import update
from corral.report.render.gl import gl_backend
from corral.report.render.record import policy_actor
from corral.running.directory import RunDirectory


@dataclass(frozen=True)
class Config:
    """Watch a trained policy act, in real time, on a page of the browser: the scene, the return, the costs and their limits.

    The page is at http://127.0.0.1 and can be reached from this machine only; Ctrl-C ends it.
    """

    run: Path = field(metadata={"positional": True})
    """Folder of the run."""
    port: int = 0
    """Port of the page; 0 takes one that is free."""
    seed: int = 0
    """Seed of the episodes."""
    open: bool = True
    """Open the page in the browser."""


def main(argv: list[str]) -> int:
    """Run the command until Ctrl-C."""
    config = parse(Config, argv, "watch")
    require(0 <= config.port < 2**16, f"port must lie in [0, 65535], got {config.port}")
    require(0 <= config.seed < 2**32, f"seed must lie in [0, 2^32), got {config.seed}")
    run = RunDirectory.find_one(config.run)
    trained = run.config()
    require(
        trained.env in envs.names(), f"{trained.env} is not one of Corral's own environments: nothing here can draw it"
    )
    gl_backend()  # before MuJoCo is imported; says what to install where nothing can draw
    from corral.report.render.scene import Photographer  # imports MuJoCo
    from corral.report.watch import RATE, Film, Server, Stage

    scenario = envs.scenario(trained.env, **trained.task)
    policy, source = run.policy(trained, scenario.spec)
    limits = update.limits(trained, scenario.spec)

    def make_film() -> Film:
        camera = Photographer(scenario, limits, 640, 480)
        return lambda episode: camera.film_with_steps(episode, RATE, caption=False)

    stage = Stage(scenario, policy_actor(policy, config.seed), limits, config.seed, make_film)
    server = Server(stage, config.port)
    stage.start()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    say(f"policy from {source}; the page is {server.address} and Ctrl-C ends it")
    if config.open:
        webbrowser.open(server.address)
    try:
        while not stage.wait(0.5):
            pass
    except KeyboardInterrupt:
        say("ended")
    finally:
        server.over.set()
        stage.stop()
        server.shutdown()
        server.server_close()
    if stage.error is not None:
        raise stage.error
    return 0

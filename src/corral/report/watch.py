"""A policy acting, live on a local page: frames as a stream of JPEGs, and the running return and costs against their
limits.

One thread plays episodes and draws them in real time while anybody looks; a server of the standard library, on
127.0.0.1 only, hands out the page (`/`), the pictures (`/stream`, `/frame.jpg`) and the numbers (`/state`).
"""

import contextlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from itertools import count
from typing import Any

import numpy as np
from PIL import Image

from corral.envs.scenarios import Scenario
from corral.report.render.record import Actor, Trajectory, record

RATE = 20.0
"""Frames per second."""
_AT_ONCE = 4  # episodes played together, then shown one after the other
_PATIENCE = 5.0  # seconds after the last question for a picture, until the robot rests

Film = Callable[[Trajectory], Iterator[tuple[int, np.ndarray]]]
"""The frames of an episode, each with the number of steps behind it."""


class Stage:
    """Plays and draws episodes in a thread of its own; `latest` is what it shows now."""

    def __init__(
        self, scenario: Scenario, actor: Actor, limits: tuple[float, ...], seed: int, make_film: Callable[[], Film]
    ) -> None:
        """`make_film` is called in the thread: a graphics context belongs to the thread that made it."""
        self._scenario, self._actor, self._seed, self._make_film = scenario, actor, seed, make_film
        self._limits = limits or tuple(c.limit for c in scenario.spec.constraints)
        self._changed, self._over = threading.Condition(), threading.Event()
        self._frame, self._number, self._state = b"", 0, dict[str, Any]()
        self._asked = time.monotonic()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for it."""
        self._over.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()

    def wait(self, seconds: float) -> bool:
        """Wait so long at most; whether it has ended."""
        return self._over.wait(seconds)

    def state(self) -> dict[str, Any]:
        """Episode, step, return, and each constraint's cost so far with its limit."""
        with self._changed:
            return dict(self._state)

    def frame(self, after: int = 0, patience: float = 30.0) -> tuple[int, bytes]:
        """The number and the JPEG of the newest frame, once its number is over `after`; (after, b"") if none came."""
        self._asked = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._number > after or self._over.is_set(), patience)
            return (self._number, self._frame) if self._number > after else (after, b"")

    def _run(self) -> None:
        try:
            film = self._make_film()
            for number, episode in enumerate(self._episodes()):
                due = time.monotonic()
                for step, picture in film(episode):
                    self._show(number, episode, step, picture)
                    while time.monotonic() - self._asked > _PATIENCE and not self._over.is_set():
                        self._over.wait(0.05)
                    due = max(due + 1 / RATE, time.monotonic())  # a machine that draws slowly shows slow motion
                    if self._over.wait(due - time.monotonic()):
                        return
        except Exception as error:  # the page says what went wrong, and the command raises it
            self.error = error
            with self._changed:
                self._state = {"error": str(error)}
                self._over.set()
                self._changed.notify_all()

    def _episodes(self) -> Iterator[Trajectory]:
        for portion in count():
            yield from record(self._scenario, self._actor, _AT_ONCE, (self._seed + portion) % 2**32)

    def _show(self, number: int, episode: Trajectory, step: int, picture: np.ndarray) -> None:
        content = io.BytesIO()
        Image.fromarray(picture).save(content, "JPEG", quality=85)
        spent = episode.costs[:step].sum(axis=0).tolist()
        constraints = [
            {"name": c.name, "about": c.description, "cost": cost, "limit": limit}
            for c, cost, limit in zip(self._scenario.spec.constraints, spent, self._limits, strict=True)
        ]
        with self._changed:
            self._frame, self._number = content.getvalue(), self._number + 1
            self._state = {
                "env": self._scenario.name,
                "episode": number + 1,
                "step": step,
                "steps": episode.steps,
                "return": float(episode.reward[:step].sum()),
                "constraints": constraints,
            }
            self._changed.notify_all()


class Server(ThreadingHTTPServer):
    """The local page of a stage."""

    daemon_threads = True

    def __init__(self, stage: Stage, port: int = 0) -> None:
        """Port 0: any that is free."""
        self.stage, self.over = stage, threading.Event()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://127.0.0.1:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        """Answer, unless the browser has left."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._answer()

    def _answer(self) -> None:
        """Answer by the path."""
        # A page of another site that points its own name at this machine asks with that name: it gets nothing.
        if self.headers.get("Host", "").rsplit(":", 1)[0] not in ("127.0.0.1", "localhost"):
            self.send_error(403)
        elif self.path == "/":
            self._send("text/html; charset=utf-8", (files("corral.report") / "page" / "watch.html").read_bytes())
        elif self.path == "/state":
            self._send("application/json", json.dumps(self.server.stage.state()).encode())
        elif self.path == "/frame.jpg":
            self._send("image/jpeg", self.server.stage.frame()[1])
        elif self.path == "/stream":
            self._stream()
        else:
            self.send_error(404)

    def _send(self, kind: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def _stream(self) -> None:
        """One JPEG after the other, until the browser leaves."""
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
        self.end_headers()
        number = 0
        while not self.server.over.is_set():
            number, jpeg = self.server.stage.frame(number)
            if not jpeg:
                return
            self.wfile.write(b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(jpeg))
            self.wfile.write(jpeg + b"\r\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal belongs to the command."""

"""Headless Chromium, driven over a pipe by its DevTools protocol, and runs to report about."""

import json
import os
import selectors
import shutil
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from corral import envs
from corral.algos import CPO, TRPO
from corral.config import Config
from corral.learning import networks
from corral.running import log
from corral.running.directory import RunDirectory

_PATIENCE = 60  # seconds for one answer

# The browser listens on descriptor 3 and answers on 4: put our pipes there, whichever numbers they have, and become it.
_LAUNCHER = """
import fcntl, os, sys
for descriptor, place in [(fcntl.fcntl(int(n), fcntl.F_DUPFD, 10), k) for k, n in enumerate(sys.argv[1:3], 3)]:
    os.dup2(descriptor, place)
os.execv(sys.argv[3], sys.argv[3:])
"""


def executable() -> str | None:
    """Chromium by one of its names."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """One tab. Everything it logs, throws and asks of the network is in `events`.

    Messages of the protocol (https://chromedevtools.github.io/devtools-protocol) are JSON and end with a zero byte.
    """

    def __init__(self, profile: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        command = [sys.executable, "-S", "-c", _LAUNCHER, str(to_read), str(to_write), executable(), *flags]
        self._process = subprocess.Popen(
            command, pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._read, selectors.EVENT_READ)
        self._buffer, self._number, self._session = b"", 0, None
        self.events: list[dict] = []
        target = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        try:
            self._session = None
            self.send("Browser.close")
        finally:
            os.close(self._write)
            os.close(self._read)
            self._selector.close()
            self._process.wait(_PATIENCE)

    def send(self, method: str, **params) -> dict:
        """Call a method of the protocol and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def _receive(self) -> dict:
        until = time.monotonic() + _PATIENCE
        while b"\0" not in self._buffer:
            assert self._selector.select(until - time.monotonic()), "the browser does not answer"
            piece = os.read(self._read, 1 << 16)
            assert piece, "the browser has gone"
            self._buffer += piece
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, page: Path) -> None:
        """Load a file and wait until it has drawn itself."""
        self.events.clear()
        self.send("Page.navigate", url=page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())
        self.frame()

    def frame(self) -> None:
        """Wait until what has happened is on the screen."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str):
        """The value of a JavaScript expression, or of the promise it is."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def point(self, selector: str, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
        """A point of an element, scrolled into view, in fractions of its size."""
        box = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
        )
        return box[0] + across * box[2], box[1] + down * box[3]

    def mouse(self, kind: str, at: tuple[float, float], clicks: int = 1) -> None:
        """`kind` is mouseMoved, mousePressed or mouseReleased."""
        held = {} if kind == "mouseMoved" else {"button": "left", "clickCount": clicks}
        pressed = 1 if kind == "mousePressed" else 0
        self.send("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], buttons=pressed, **held)

    def click(self, selector: str) -> None:
        at = self.point(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, at)
        self.frame()

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.mouse("mouseMoved", start)
        self.mouse("mousePressed", start)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=end[0], y=end[1], buttons=1, button="left")
        self.mouse("mouseReleased", end)
        self.frame()

    def key(self, name: str, text: str = "") -> None:
        """Press a key, such as "ArrowLeft", or ("Enter", "\\r")."""
        typed = {"text": text} if text else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=name, code=name, **typed)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=name, code=name)
        self.frame()

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements that fit."""
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")

    def count(self, selector: str) -> int:
        """How many elements fit."""
        return self.run(f"document.querySelectorAll({json.dumps(selector)}).length")

    def complaints(self) -> list[dict]:
        """Errors and warnings on the console, and exceptions that nobody caught."""
        self.frame()
        logged = [
            e
            for e in self.events
            if (e.get("method") == "Runtime.consoleAPICalled" and e["params"]["type"] in ("error", "warning", "assert"))
            or e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
        ]
        return [event["params"] for event in logged]

    def requests(self) -> list[str]:
        """Addresses that something was asked of."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]


def pytest_collection_modifyitems(items):
    """Without a browser, say so in one line instead of one for every test."""
    if executable() is None:
        why = "no Chromium: the page of `corral report` was not opened in a browser (Debian: apt-get install chromium)"
        for item in items:
            if "browser" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(why))


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def write_run(folder: Path, config: Config, done: int, value=lambda k: float(k), final: bool = True) -> Path:
    """A run as training leaves it after `done` iterations, with a return of value(k); its policy is untrained."""
    spec = envs.spec(config.env, **config.task)
    run = RunDirectory(folder)
    run.begin(config)
    writer = run.open_log(log.columns([c.name for c in spec.constraints]), None)
    cases = ("inside", "boundary", "feasible_recovery", "recovery")
    for k in range(done):
        row = {"iteration": k, "env_steps": 1000 * (k + 1), "return": value(k), "return_se": 0.25}
        row |= {"kl": 0.001 * (k % 7), "entropy": 2 - 0.01 * k, "case": cases[k % 4], "accepted": int(k % 9 != 8)}
        for c in spec.constraints:
            # Over the limit in the first 8 iterations.
            row |= {f"cost_{c.name}": 2 * c.limit * 8 / (k + 9), f"limit_{c.name}": c.limit}
            row |= {f"shaped_cost_{c.name}": 2 * c.limit * 8 / (k + 9) + 0.01, f"cost_se_{c.name}": 0.1}
        writer.append(row)
    writer.close()
    if final:
        policy = networks.make_policy(spec, config.networks, jax.random.key(config.seed))
        run.save_policy(policy, {"env": config.env})
    return folder


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """Two environments: CPO (two seeds) and TRPO (one) in Circle, an unfinished CPO in Gather."""
    root = tmp_path_factory.mktemp("tree")
    for seed in (0, 1):
        config = Config("point-circle", CPO(), iterations=30, seed=seed, shape_costs=True)
        write_run(root / "circle" / "cpo" / f"seed-{seed}", config, 30, lambda k, seed=seed: k + 10.0 * seed)
    write_run(root / "circle" / "trpo", Config("point-circle", TRPO(), iterations=30), 30, lambda k: 2.0 * k)
    write_run(root / "gather" / "done", Config("point-gather", iterations=20), 20)
    write_run(root / "gather" / "going-on", Config("point-gather", iterations=20, seed=1), 12, final=False)
    return root

"""`corral watch`: the page, its pictures and its numbers, over HTTP and in a browser."""

import json
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import jax
import numpy as np
import pytest
from toys import TINY

from corral import envs
from corral.cli import main
from corral.config import Config
from corral.learning.networks import make_policy
from corral.report.render.record import policy_actor
from corral.report.watch import Server, Stage
from corral.running.directory import RunDirectory


def plain_film(episode):
    """A grey picture for every step: what is drawn is tested where it is drawn."""
    for step in range(episode.steps + 1):
        yield step, np.full((48, 64, 3), 10 * step % 255, np.uint8)


@contextmanager
def served(film=plain_film, limits=(0.5,)):
    scenario = envs.scenario("point-gather", max_steps=5)
    policy = make_policy(scenario.spec, TINY, jax.random.key(0))
    stage = Stage(scenario, policy_actor(policy, 0), limits, 0, lambda: film)
    server = Server(stage)
    stage.start()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        stage.stop()
        server.shutdown()
        server.server_close()
        thread.join()


def get(server, path, **headers):
    with urllib.request.urlopen(urllib.request.Request(server.address + path, headers=headers), timeout=60) as answer:
        return answer.headers["Content-Type"], answer.read()


def test_the_page_hands_out_pictures_and_numbers_to_this_machine_only():
    with served() as server:
        kind, page = get(server, "")
        assert kind.startswith("text/html")
        assert b'src="/stream"' in page
        kind, jpeg = get(server, "frame.jpg")
        assert (kind, jpeg[:2]) == ("image/jpeg", b"\xff\xd8")
        state = json.loads(get(server, "state")[1])
        assert state["env"] == "point-gather"
        assert state["constraints"][0] | {"name": "bombs", "limit": 0.5} == state["constraints"][0]
        assert server.server_address[0] == "127.0.0.1"
        for path, headers, status in (("nothing", {}, 404), ("state", {"Host": "elsewhere.example"}, 403)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(server, path, **headers)
            assert refused.value.code == status
            refused.value.close()


def test_the_stream_is_one_picture_after_the_other_and_episodes_follow_each_other():
    with served() as server, urllib.request.urlopen(server.address + "stream", timeout=60) as stream:
        seen = []
        while len(seen) < 9:  # six pictures of the first episode, three of the next
            line = stream.readline()
            if line.startswith(b"Content-Length"):
                stream.readline()
                assert stream.read(int(line.split()[1]))[:2] == b"\xff\xd8"
                seen.append(server.stage.state()["episode"])
        assert set(seen) == {1, 2}


def test_a_film_that_fails_is_told_on_the_page_and_ends_the_command():
    def broken(episode):
        raise ValueError("no light")

    with served(broken) as server:
        assert server.stage.wait(60.0)
        assert json.loads(get(server, "state")[1]) == {"error": "no light"}
        assert isinstance(server.stage.error, ValueError)


def test_an_environment_that_nothing_here_can_draw_is_refused(tmp_path, capsys):
    RunDirectory(tmp_path / "run").begin(Config("Pendulum-v1"))
    assert main(["watch", str(tmp_path / "run"), "--no-open"]) == 2
    assert "Pendulum-v1 is not one of Corral's own environments" in capsys.readouterr().err


@pytest.mark.slow
def test_a_browser_shows_the_robot_and_its_costs(browser, tmp_path):
    with served() as server:
        browser.send("Page.navigate", url=server.address)
        told, until = {}, time.monotonic() + 60
        script = """JSON.stringify({env: document.getElementById("env").textContent,
            width: document.querySelector("img").naturalWidth, costs: document.getElementById("costs").textContent,
            step: document.getElementById("step").textContent})"""
        while time.monotonic() < until and not (told.get("width") and told.get("costs")):
            time.sleep(0.2)
            told = json.loads(browser.send("Runtime.evaluate", expression=script)["result"]["value"])
        assert told["env"] == "point-gather"
        assert told["width"] == 64
        assert told["costs"].startswith("bombs: bombs caught")
        assert told["step"].endswith("of 5")
        browser.send("Page.navigate", url="about:blank")

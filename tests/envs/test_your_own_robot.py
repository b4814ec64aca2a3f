"""The code of docs/your-own-robot.md runs, on both engines."""

import re
from pathlib import Path

import numpy as np
import pytest

from corral.envs import mjcf
from corral.errors import CorralError

PAGE = (Path(__file__).parents[2] / "docs" / "your-own-robot.md").read_text()
DEFINITION, ON_C, ON_MJX, PICTURES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def page(tmp_path, monkeypatch):
    """The names of the page after its definition, in a folder with its MJCF file; `run` runs a further piece, shortened."""
    monkeypatch.chdir(tmp_path)
    mjcf.load.cache_clear()  # the file of another test had the same name
    Path("crane.xml").write_text(re.search(r"```xml\n(.*?)```", PAGE, re.DOTALL)[1])
    names = {"__name__": "page"}

    def run(code):
        exec(code.replace("iterations=40, batch_size=10_000", "iterations=2, batch_size=1_000"), names)
        return names

    run(DEFINITION)
    yield run
    mjcf.load.cache_clear()


def test_the_definition_has_forty_lines_at_most():
    assert len(DEFINITION.splitlines()) <= 40


def test_it_trains_on_the_c_engine_and_can_be_looked_at(page):
    names = page(ON_C)
    names["host"].close()
    assert np.isfinite(names["result"].metrics["cost_swing"]).all()
    page(PICTURES.split("with Photographer")[0])  # the film needs OpenGL
    assert len(names["episodes"]) == 6
    for episode in names["episodes"]:
        np.testing.assert_array_equal(np.abs(episode.qpos[1:, 1]) > 0.15, episode.costly)
        way = np.diff(episode.qpos[:, 0]) / 0.02  # two time steps of 0.01 s
        np.testing.assert_allclose(episode.velocity[1:, 0], way, atol=1e-4)
    assert Path("crane-top.png").stat().st_size > 0
    assert not Path("MUJOCO_LOG.TXT").exists()


@pytest.mark.slow
def test_it_trains_on_mjx(page):
    names = page("import corral\n" + ON_MJX)
    assert np.isfinite(names["result"].metrics["cost_swing"]).all()


def test_a_bare_name_is_gymnasium_s_where_gymnasium_has_it_and_margins_are_halved_only_there(page, tmp_path):
    assert mjcf.find("ant.xml").parent.name == "assets"
    own = Path("crane.xml").read_text().replace('type="sphere"', 'type="sphere" margin="0.02"')
    Path("ant.xml").write_text(own)
    assert mjcf.find("./ant.xml") == Path("ant.xml")
    assert mjcf.load("./ant.xml").geom_margin.max() == 0.02
    with pytest.raises(CorralError, match=f"there is no MJCF file {tmp_path}/kran.xml"):
        mjcf.find("kran.xml")

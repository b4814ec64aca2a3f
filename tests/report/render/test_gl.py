import os

import pytest

from corral.errors import CorralError
from corral.report.render import gl as render_gl


@pytest.fixture(autouse=True)
def linux_and_afresh(monkeypatch):
    """Whatever was found before is forgotten, and the environment is put back afterwards."""
    monkeypatch.setenv("MUJOCO_GL", "")
    monkeypatch.setattr(render_gl.platform, "system", lambda: "Linux")
    render_gl._find.cache_clear()
    yield
    render_gl._find.cache_clear()


def working(monkeypatch, *backends):
    """Let only these work; the list of those tried."""
    tried = []
    monkeypatch.setattr(render_gl, "_works", lambda name: tried.append(name) or name in backends)
    return tried


def test_egl_is_tried_first_and_osmesa_next(monkeypatch):
    tried = working(monkeypatch, "osmesa")
    assert render_gl.gl_backend() == "osmesa"
    assert tried == ["egl", "osmesa"]
    assert os.environ["MUJOCO_GL"] == "osmesa"


def test_the_search_is_made_once(monkeypatch):
    tried = working(monkeypatch, "egl")
    assert [render_gl.gl_backend() for _ in range(3)] == ["egl"] * 3
    assert tried == ["egl"]


def test_where_none_works_the_error_names_packages_every_time(monkeypatch):
    working(monkeypatch)
    for _ in range(2):
        with pytest.raises(CorralError) as caught:
            render_gl.gl_backend()
        assert "`apt-get install libegl1 libgl1 libgl1-mesa-dri` (EGL)" in str(caught.value)
        assert "`apt-get install libosmesa6` (OSMESA)" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert os.environ["MUJOCO_GL"] == "disabled"  # so that MuJoCo can be imported for the physics


def test_the_users_own_choice_is_the_only_one_tried(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "OSMesa")
    tried = working(monkeypatch, "egl")
    with pytest.raises(CorralError, match=r"MUJOCO_GL=osmesa cannot .* apt-get install libosmesa6"):
        render_gl.gl_backend()
    assert tried == ["osmesa"]


def test_drawing_that_the_user_switched_off_stays_off(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "off")
    tried = working(monkeypatch, "egl")
    with pytest.raises(CorralError, match="switched off by MUJOCO_GL=off"):
        render_gl.gl_backend()
    assert tried == []


def test_a_backend_that_does_not_exist_does_not_work():
    assert not render_gl._works("no_such_backend")

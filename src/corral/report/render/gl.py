"""Which OpenGL can draw without a window here. Imports nothing of MuJoCo, whose own import fails on a bad choice."""

import os
import platform
import subprocess
import sys
from functools import cache

from corral.errors import CorralError

_PACKAGES = {"egl": "libegl1 libgl1 libgl1-mesa-dri", "osmesa": "libosmesa6"}
"""What provides a backend on Debian and Ubuntu."""
# MUJOCO_GL may also just say yes or no.
_YES, _NO = ("", "enable", "enabled", "on", "true", "1"), ("disable", "disabled", "off", "false", "0")
# Draws nothing, but takes every step that can fail.
_PROBE = """
import sys, importlib, mujoco
context = importlib.import_module("mujoco." + sys.argv[1]).GLContext(8, 8)
context.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), 100).free()
context.free()
"""


def gl_backend() -> str:
    """The module of MuJoCo, "egl" or "osmesa" on Linux, that gives a context for drawing off-screen.

    The first that works, or the one in MUJOCO_GL if that is set; if none does, an error says what to install.
    MUJOCO_GL is set to what was found, since MuJoCo cannot be imported while it names one that does not work.
    """
    backend, problem = _find()
    os.environ["MUJOCO_GL"] = backend or "disabled"
    if backend is None:
        raise CorralError(problem)
    return backend


@cache
def _find() -> tuple[str | None, str]:
    """The backend, or None and what to do about it."""
    wanted = os.environ.get("MUJOCO_GL", "").lower().strip()
    if wanted in _NO:
        return None, f"drawing off-screen is switched off by MUJOCO_GL={wanted}: unset it"
    ours = {"Linux": ("egl", "osmesa"), "Darwin": ("cgl",)}.get(platform.system(), ("glfw",))
    for backend in ours if wanted in _YES else (wanted,):
        if _works(backend):
            return backend, ""
    if wanted not in _YES:
        hint = f", or install it: apt-get install {_PACKAGES[wanted]}" if wanted in _PACKAGES else ""
        return None, f"MUJOCO_GL={wanted} cannot draw off-screen here: unset it{hint}"
    if platform.system() != "Linux":
        return None, f"no OpenGL for drawing off-screen works here (tried {', '.join(ours)})"
    choices = " or ".join(f"`apt-get install {_PACKAGES[backend]}` ({backend.upper()})" for backend in ours)
    return None, f"no OpenGL for drawing off-screen works here: on Debian or Ubuntu try {choices}"


def _works(backend: str) -> bool:
    """Tried in a process of its own: the OpenGL binding keeps to the first platform it meets, and drivers crash."""
    environment = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    command = [sys.executable, "-c", _PROBE, backend]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0

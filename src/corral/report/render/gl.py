"""Find an OpenGL backend that draws without a window, before MuJoCo is imported: a wrong MUJOCO_GL breaks that import."""

import os
import platform
import subprocess
import sys
from functools import cache

from corral.errors import CorralError

_PACKAGES = {"egl": "libegl1 libgl1 libgl1-mesa-dri", "osmesa": "libosmesa6"}
"""The packages that provide a backend on Debian and Ubuntu."""
# MUJOCO_GL may name a backend, or just say yes or no.
_YES, _NO = ("", "enable", "enabled", "on", "true", "1"), ("disable", "disabled", "off", "false", "0")
# The probe draws nothing, but takes every step that can fail.
_PROBE = """
import sys, importlib, mujoco
context = importlib.import_module("mujoco." + sys.argv[1]).GLContext(8, 8)
context.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), 100).free()
context.free()
"""


def gl_backend() -> str:
    """The name of the MuJoCo module that can draw off-screen here: "egl" or "osmesa" on Linux.

    MUJOCO_GL names the only candidate if it is set; otherwise the first that works is taken. CorralError says what to
    install if none works. The function sets MUJOCO_GL to its answer, so that MuJoCo can be imported afterwards.
    """
    backend, problem = _find()
    os.environ["MUJOCO_GL"] = backend or "disabled"
    if backend is None:
        raise CorralError(problem)
    return backend


@cache
def _find() -> tuple[str | None, str]:
    """The backend that works, or None and the error message; one search serves the whole process."""
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
    """Whether a backend draws. A separate process tries it: drivers can crash, and PyOpenGL keeps its first platform."""
    environment = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    command = [sys.executable, "-c", _PROBE, backend]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0

"""The inner loop of `physics.py` in C, compiled on first use where there is a C compiler.

MuJoCo's Python bindings take one robot at a time, and every call lets go of Python's lock and takes it back: many
times per robot and step. Two threads on a busy machine then spend up to half of their time waiting for the lock.
Here a thread hands over all its robots at once. Without a compiler the same calls are made from Python, with the
same results.
"""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import mujoco

from corral.running.files import cache_folder

SOURCE = """
#include <mujoco/mujoco.h>

/* Move each of `count` robots by one step under its row of `controls`, or, without controls, only derive what
   follows from its state. A row of `states` is qpos, qvel, com, com velocity and, if it feels them, contact
   wrenches; a row of `warm` is where the constraint solver starts. All robots share the workspace d. */
void corral_step(const mjModel* m, mjData* d, const int* robots, int count, const mjtNum* controls,
                 int feels, mjtNum* states, int width, mjtNum* warm) {
  mjcb_time = 0;  /* the bindings' clock for MuJoCo's own profile, which nobody reads here: 6% of a step */
  for (int k = 0; k < count; k++) {
    mjtSize i = robots[k];
    mjtNum *qpos = states + i * width, *qvel = qpos + m->nq, *com = qvel + m->nv, *wrench = com + 6;
    mju_copy(d->qpos, qpos, m->nq);
    mju_copy(d->qvel, qvel, m->nv);
    mju_copy(d->qacc_warmstart, warm + i * m->nv, m->nv);
    if (controls) {
      mju_copy(d->ctrl, controls + i * m->nu, m->nu);
      mj_forwardSkip(m, d, mjSTAGE_NONE, 1);
      mj_RungeKutta(m, d, 4);
      mju_copy(qpos, d->qpos, m->nq);
      mju_copy(qvel, d->qvel, m->nv);
    } else {
      mju_zero(d->ctrl, m->nu);
    }
    if (feels) {
      mj_step1(m, d);
      if (d->ncon) {
        mj_forwardSkip(m, d, mjSTAGE_VEL, 0);
        mju_copy(wrench, d->cfrc_ext, 6 * m->nbody);
      } else {
        mju_zero(wrench, 6 * m->nbody);
      }
    } else {
      mj_kinematics(m, d);
      mj_comPos(m, d);
      mj_comVel(m, d);
    }
    mj_subtreeVel(m, d);
    mju_copy(com, d->subtree_com + 3, 3);
    mju_copy(com + 3, d->subtree_linvel + 3, 3);
    mju_copy(warm + i * m->nv, d->qacc_warmstart, m->nv);
  }
}
"""


@functools.cache
def step_function() -> Any | None:
    """`corral_step` as a ctypes function, or None where it cannot be compiled."""
    try:
        function = ctypes.CDLL(str(_library())).corral_step
    except (OSError, subprocess.SubprocessError):
        return None
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    function.argtypes = [pointer, pointer, pointer, integer, pointer, integer, pointer, integer, pointer]
    function.restype = None
    return function


def _library() -> Path:
    """The compiled library, from the user's cache or built into it; OSError if that cannot be."""
    package = Path(mujoco.__file__).parent
    engine = next(package.glob("libmujoco.*"), None)
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if engine is None or compiler is None:
        raise OSError("no C compiler, or MuJoCo without its library")
    # Another source, MuJoCo or place of installation is another library.
    name = hashlib.sha256(f"{SOURCE}{mujoco.__version__}{package}".encode()).hexdigest()[:16]
    cache = cache_folder()
    target = cache / f"step-{name}.so"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            source, built = Path(folder, "step.c"), Path(folder, "step.so")
            source.write_text(SOURCE)
            flags = ["-O2", "-shared", "-fPIC", f"-I{package / 'include'}", f"-Wl,-rpath,{package}"]
            command = [compiler, *flags, str(source), str(engine), "-o", str(built)]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            os.replace(built, target)
    return target

"""Robots from any MJCF file, such as Gymnasium's or one of your own: docs/your-own-robot.md has an example.

The paper's robots speak of the new state only: kinematics follows every step. A robot from a file speaks as Gymnasium's do.
Quantities other than qpos and qvel are those that the integrator left (with Runge-Kutta, of its last stage), and the
velocity is the way of a step over its time.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from corral.envs.robots import Position, Robot, RobotState
from corral.errors import did_you_mean, require

if TYPE_CHECKING:
    import mujoco


@dataclass(frozen=True)
class MjcfRobot(Robot):
    """A robot described by an MJCF file. A subclass says what it senses, when it has fallen and how it starts."""

    name: str
    """Its name in messages."""
    file: str
    """The path of the MJCF file; the bare name of one of Gymnasium's, such as ant.xml, means Gymnasium's own."""
    frame_skip: int = 1
    """Time steps of the simulation under one action."""
    position: Position = "torso"
    """The point whose velocity is rewarded and limited: "x" (qpos[0]), "torso" (the first body) or "mass" (all bodies)."""
    further: tuple[str, ...] = ()
    """Fields of MjData that it senses beside qpos and qvel, such as cfrc_ext."""

    @property
    def start(self) -> tuple[float, ...]:
        """qpos as the file states it."""
        return tuple(self.model().qpos0.tolist())

    @property
    def nv(self) -> int:
        """Degrees of freedom."""
        return int(self.model().nv)

    @property
    def control(self) -> tuple[float, ...]:
        """Half of the range of every control; the ranges must be symmetric."""
        return tuple(self.model().actuator_ctrlrange[:, 1].tolist())

    @property
    def extra_size(self) -> int:
        """Numbers in the further fields."""
        sizes = _field_sizes(self.file)
        for name in self.further:
            require(name in sizes, f"{self.name} cannot sense {name!r}; {did_you_mean(name, sizes)}")
        return sum(sizes[name] for name in self.further)

    def model(self, walls: bool = False, listed: bool = False) -> "mujoco.MjModel":
        """The compiled model. All callers share it: copy it before changing anything."""
        return load(self.file)

    def yaw(self, state: RobotState) -> Float[Array, ""]:
        """The heading of a free body; 0 for one that moves in a plane."""
        return super().yaw(state) if len(self.start) > self.nv else jnp.zeros(())

    def fallen(self, state: RobotState) -> Bool[Array, ""]:
        """It never falls, unless a subclass says so."""
        return jnp.zeros((), bool)

    def observation(self, state: RobotState) -> Float[Array, " o"]:
        """qpos, qvel and the further fields."""
        return jnp.concatenate([state.qpos, state.qvel, state.extra])

    @property
    def observation_size(self) -> int:
        """The length of `observation`."""
        q, v, size = len(self.start), self.nv, self.extra_size
        blank: Any = RobotState(*(jnp.zeros(n) for n in (q, v, 3, 3, size)))
        return int(jax.eval_shape(self.observation, blank).shape[0])

    def draw_start(self, key: Key[Array, ""]) -> tuple[Float[Array, " q"], Float[Array, " v"]]:
        """The start of the file, without noise, unless a subclass adds some."""
        return jnp.asarray(self.start), jnp.zeros(self.nv)


def find(file: str) -> Path:
    """The path of an MJCF file: Gymnasium's for the bare name of one of its robots, ./ant.xml for a file of your own."""
    import gymnasium

    own, known = Path(file), Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / file
    path = known if "/" not in file and known.is_file() else own
    require(path.is_file(), f"there is no MJCF file {own.absolute()}")
    return path


@cache
def load(file: str) -> "mujoco.MjModel":
    """Compile an MJCF file for Corral's engines.

    MuJoCo adds the margins of the two geoms of a contact; the version that Gymnasium's robots were made for took the larger.
    Half of each margin gives the same contacts where all geoms of a file share one margin, as Gymnasium's do. The margins
    of other files stay.
    """
    import mujoco

    path = find(file)
    with without_log():
        model = mujoco.MjModel.from_xml_path(str(path))
    low, high = model.actuator_ctrlrange.T
    require(bool(np.all(low == -high) and np.all(high > 0)), f"{path}: the range of every control must be −c to c")
    if path != Path(file):
        model.geom_margin[:] *= 0.5
    # One robot is one island, and a state that blows up is reported as broken instead of being reset.
    flags = mujoco.mjtDisableBit
    model.opt.disableflags |= int(flags.mjDSBL_ISLAND) | int(flags.mjDSBL_AUTORESET)
    return model


@cache
def _field_sizes(file: str) -> dict[str, int]:
    """The number of numbers in every array of a simulation."""
    import mujoco

    data = mujoco.MjData(load(file))
    arrays = {
        name: getattr(data, name) for name in ("cinert", "cvel", "qfrc_actuator", "cfrc_ext", "xpos", "sensordata")
    }
    return {name: int(array.size) for name, array in arrays.items()}


_for_good = False


@contextlib.contextmanager
def without_log() -> Iterator[None]:
    """Keep MuJoCo from writing MUJOCO_LOG.TXT into the user's folder: Gymnasium's files use a deprecated attribute."""
    import mujoco

    mujoco.set_mju_user_warning(_drop)
    try:
        yield
    finally:
        if not _for_good:
            mujoco.set_mju_user_warning(None)


def without_log_for_good() -> None:
    """The same for the life of the process: an environment of Gymnasium's loads its file, and warns, at any time.

    Numbers that are not finite, which most warnings are about, end a training with an error of Corral's own.
    """
    global _for_good
    import mujoco

    _for_good = True
    mujoco.set_mju_user_warning(_drop)


def _drop(message: str) -> None:
    return None

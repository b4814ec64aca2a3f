"""The robots' bodies as MJCF, written out from the figures of the paper's environments.

Only the floor (and, in Gather, the walls) collides with a robot: robot geoms have contype 1 and conaffinity 0, the
world's the other way round. MuJoCo adds the margins of the two geoms of a contact (older versions took the larger), so
the world's margin is 0 and a contact has the robot's.

Without walls, a model may list the contacts that can occur: every geom of the robot with the floor. The C engine then
skips the search for geoms that come near each other, a tenth of a step, and finds the same contacts, to the last bit.

Options: one robot is one island, so the search for islands is switched off (6 to 8% of a step); a small arena keeps a
workspace small; MuJoCo must not reset a state that blows up, since Corral reports it (`broken`). Sensors hold the robot's
centre of mass and its velocity; the accelerometer makes MuJoCo fill in contact wrenches (`cfrc_ext`).
"""

import math
import re
from functools import cache
from typing import TYPE_CHECKING

from corral.envs.robots import ROBOTS

if TYPE_CHECKING:
    import mujoco

WALL_INNER = 6.5
"""Gather's walls: the inner faces are at ±6.5 in x and y."""
WALL_HALF_THICKNESS, WALL_HALF_HEIGHT = 0.25, 0.75


def mjcf(robot: str, walls: bool, listed: bool = False) -> str:
    """The model of a robot ("point", "ant", "humanoid") in an empty or a walled world; `listed` adds a list of contacts."""
    assert not (walls and listed), "with walls, a list of contacts is slower than the search for them"
    timestep = {"point": 0.02, "ant": 0.02, "humanoid": 0.01}[robot]
    contact = {"ant": 'margin="0.01" solref="0.02 1" solimp="0.8 0.8 0.01"', "humanoid": 'margin="0.1"'}.get(robot, "")
    body, motors = {"point": _point, "ant": _ant, "humanoid": _humanoid}[robot]()
    own, others = ((0, 0), (0, 0)) if listed else ((1, 0), (0, 1))
    geoms = re.findall('<geom name="([a-z0-9_]+)"', body) if listed else []
    ctrl = zip(motors, ROBOTS[robot].control, strict=True)
    actuators = [f'<motor name="{j}" joint="{j}" ctrlrange="-{half} {half}"/>' for j, half in ctrl]
    return f"""
<mujoco model="{robot}">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{timestep}" integrator="RK4"><flag island="disable" autoreset="disable"/></option>
  <size memory="512K"/>
  <default>
    <geom contype="{own[0]}" conaffinity="{own[1]}" condim="3" friction="1 0.5 0.5" {contact} rgba="0.8 0.6 0.4 1"/>
    <joint armature="1" damping="1"/>
    <default class="world">
      <geom contype="{others[0]}" conaffinity="{others[1]}" margin="0" rgba="0.8 0.9 0.8 1"/>
    </default>
    <pair condim="3" friction="1 1 0.5 0.5 0.5" {contact}/>
  </default>
  <worldbody>
    <light directional="true" pos="0 0 4" dir="0 0 -1"/>
    <geom class="world" name="floor" type="plane" size="40 40 1"/>
    {_walls() if walls else ""}
    {body}
  </worldbody>
  <contact>{"".join(f'<pair geom1="floor" geom2="{name}"/>' for name in geoms)}</contact>
  <actuator>{"".join(actuators)}</actuator>
  <sensor>
    <subtreecom body="torso"/>
    <subtreelinvel body="torso"/>
    {'<accelerometer site="torso"/>' if ROBOTS[robot].extra_size else ""}
  </sensor>
</mujoco>
"""


@cache
def compile_model(robot: str, walls: bool, listed: bool = False) -> "mujoco.MjModel":
    """The compiled model. All callers share it: copy it before changing anything."""
    import mujoco

    return mujoco.MjModel.from_xml_string(mjcf(robot, walls, listed))


def _walls() -> str:
    """Four boxes around the square [-6.5, 6.5]²; those across x also fill the corners."""
    centre, half_length = WALL_INNER + WALL_HALF_THICKNESS, WALL_INNER + 2 * WALL_HALF_THICKNESS
    boxes = []
    for name, sign in (("high", 1), ("low", -1)):
        x = f"{sign * centre} 0 {WALL_HALF_HEIGHT}", f"{WALL_HALF_THICKNESS} {half_length} {WALL_HALF_HEIGHT}"
        y = f"0 {sign * centre} {WALL_HALF_HEIGHT}", f"{WALL_INNER} {WALL_HALF_THICKNESS} {WALL_HALF_HEIGHT}"
        for axis, (pos, size) in (("x", x), ("y", y)):
            boxes.append(f'<geom class="world" name="wall_{axis}_{name}" type="box" pos="{pos}" size="{size}"/>')
    return "\n    ".join(boxes)


def _point() -> tuple[str, list[str]]:
    """A ball and an arrow, for pictures only: MuJoCo never simulates the Point, which is kinematic."""
    body = """
    <body name="torso" pos="0 0 0.5">
      <joint name="x" type="slide" axis="1 0 0"/>
      <joint name="y" type="slide" axis="0 1 0"/>
      <joint name="heading" type="hinge" axis="0 0 1"/>
      <geom name="ball" type="sphere" size="0.5"/>
      <geom name="arrow" type="box" pos="0.6 0 0" size="0.5 0.1 0.1"/>
    </body>"""
    return body, ["x", "heading"]


def _ant() -> tuple[str, list[str]]:
    """A sphere with four legs: hip link welded to the torso, leg on a hip hinge, shin on an ankle hinge."""
    # (signs of x and y, ankle axis, ankle range in degrees), in body order
    legs = [
        ((1, 1), (-1, 1, 0), (30, 70)),
        ((-1, 1), (1, 1, 0), (-70, -30)),
        ((-1, -1), (-1, 1, 0), (-70, -30)),
        ((1, -1), (1, 1, 0), (30, 70)),
    ]
    links, limbs = [], []
    hip_range = f"{math.radians(-30)} {math.radians(30)}"
    for number, ((sx, sy), axis, bend) in enumerate(legs, start=1):
        short, long = f"{0.2 * sx} {0.2 * sy} 0", f"{0.4 * sx} {0.4 * sy} 0"
        ankle_axis, ankle_range = " ".join(map(str, axis)), " ".join(str(math.radians(a)) for a in bend)
        links.append(f'<geom name="link_{number}" type="capsule" size="0.08" fromto="0 0 0 {short}" density="5"/>')
        limbs.append(f"""
      <body name="leg_{number}" pos="{short}">
        <joint name="hip_{number}" axis="0 0 1" range="{hip_range}"/>
        <geom name="leg_{number}" type="capsule" size="0.08" fromto="0 0 0 {short}" density="5"/>
        <body name="shin_{number}" pos="{short}">
          <joint name="ankle_{number}" axis="{ankle_axis}" range="{ankle_range}"/>
          <geom name="shin_{number}" type="capsule" size="0.08" fromto="0 0 0 {long}" density="5"/>
        </body>
      </body>""")
    body = f"""
    <body name="torso" pos="0 0 0.55">
      <freejoint name="root"/>
      <geom name="torso" type="sphere" size="0.25" density="5"/>
      {"".join(links)}{"".join(limbs)}
    </body>"""
    return body, [f"{joint}_{leg}" for leg in (4, 1, 2, 3) for joint in ("hip", "ankle")]


def _humanoid() -> tuple[str, list[str]]:
    """Torso, pelvis, two legs (thigh, shin, foot), two arms; masses as given, not from the geoms."""
    body = f"""
    <body name="torso" pos="0 0 1.4">
      <freejoint name="root"/>
      <site name="torso"/>
      <inertial pos="0 0 0.0403624" mass="8.32208" diaginertia="0.159056 0.147471 0.0330627"/>
      <geom name="chest" type="capsule" fromto="0 -0.07 0 0 0.07 0" size="0.07"/>
      <geom name="head" type="sphere" pos="0 0 0.19" size="0.09"/>
      <geom name="waist" type="capsule" fromto="0 -0.06 -0.12 0 0.06 -0.12" size="0.06"/>
      <body name="pelvis" pos="0 0 -0.425" quat="0.999998 0 -0.002 0">
        <inertial pos="-0.0148387 0 0.0387097" quat="0.997805 0 0.0662273 0" mass="7.88854"
                  diaginertia="0.0795697 0.0619562 0.0449816"/>
        <geom name="belly" type="capsule" fromto="0 -0.06 0.15 0 0.06 0.15" size="0.06"/>
        <geom name="hips" type="capsule" fromto="-0.02 -0.07 0 -0.02 0.07 0" size="0.09"/>
        {_leg("right", -1)}
        {_leg("left", 1)}
      </body>
      {_arm("right", -1)}
      {_arm("left", 1)}
    </body>"""
    joints = ("hip1", "hip3", "knee"), ("shoulder1", "shoulder2")
    motors = [f"{side}_{joint}" for limb in joints for side in ("right", "left") for joint in limb]
    return body, motors


def _leg(side: str, s: int) -> str:
    """A leg on the side y = s (right: -1): positions mirror in y, quaternions in x."""
    thigh = f'pos="0 {-0.005 * s} -0.17" quat="0.999892 {-0.0147011 * s} 0 0"'
    return f"""
        <body name="{side}_thigh" pos="0 {0.1 * s} -0.04">
          <inertial {thigh} mass="5.37761" diaginertia="0.0792387 0.0792387 0.0113602"/>
          <joint name="{side}_hip1" axis="{-s} 0 0" stiffness="10" range="-0.15 0.0872665" margin="0.01"/>
          <joint name="{side}_hip3" axis="0 1 0" stiffness="20" range="-1.91986 0.174533" margin="0.01"/>
          <geom name="{side}_thigh" type="capsule" {thigh} size="0.065 0.170074"/>
          <body name="{side}_shin" pos="0 {-0.01 * s} -0.403">
            <inertial pos="0 0 -0.181" mass="3.10016" diaginertia="0.045501 0.045501 0.00372174"/>
            <joint name="{side}_knee" pos="0 0 0.05" axis="0 -1 0" range="-1.3 -0.0349066" margin="0.01"/>
            <geom name="{side}_shin" type="capsule" pos="0 0 -0.181" size="0.049 0.181"/>
            <body name="{side}_foot" pos="0 0 -0.45">
              <geom name="{side}_foot" type="sphere" pos="0 0 0.1" size="0.075"/>
            </body>
          </body>
        </body>"""


def _arm(side: str, s: int) -> str:
    """An arm on the side y = s (right: -1)."""
    upper = f'pos="0.08 {0.08 * s} -0.08" quat="0.888074 {0.325058 * s} -0.325058 0"'
    first = f'axis="0 {0.707107 * s} 0.707107" range="-1.0472 0.785398"'
    second = f'axis="0.816497 {-0.408248 * s} 0.408248" range="-0.785398 0.785398"'
    return f"""
      <body name="{side}_upper_arm" pos="0 {0.17 * s} 0.06">
        <inertial {upper} mass="1.59406" diaginertia="0.0139972 0.0139972 0.00127525"/>
        <joint name="{side}_shoulder1" {first} stiffness="1" margin="0.01"/>
        <joint name="{side}_shoulder2" {second} stiffness="1" margin="0.01"/>
        <geom name="{side}_upper_arm" type="capsule" {upper} size="0.04 0.2"/>
      </body>"""

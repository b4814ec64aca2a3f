"""A MuJoCo robot of one's own: a crane whose load must not swing. docs/your-own-robot.md explains every part."""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

import corral
from corral.envs import ConstraintSpec, MjcfRobot, Scenario, Score, Task, ThreadedEnv

BODY = """
<mujoco model="crane">
  <option timestep="0.01" integrator="RK4"/>
  <worldbody>
    <geom type="plane" size="40 40 1" contype="0" conaffinity="0"/>
    <body name="trolley" pos="0 0 1.5">
      <joint name="rail" type="slide" axis="1 0 0" damping="2"/>
      <geom type="box" size="0.2 0.1 0.1" mass="2"/>
      <body name="load">
        <joint name="swing" axis="0 1 0" damping="0.02"/>
        <geom type="capsule" fromto="0 0 0 0 0 -1" size="0.015" mass="0.1"/>
        <geom type="sphere" pos="0 0 -1" size="0.12" mass="1"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="rail" ctrlrange="-10 10"/></actuator>
</mujoco>
"""


class Crane(MjcfRobot):
    """What it senses, when it has failed, and how it starts."""

    def observation(self, state):
        """The angle and both velocities."""
        return jnp.concatenate([state.qpos[1:], state.qvel])

    def fallen(self, state):
        """The load has hit the rail."""
        return jnp.abs(state.qpos[1]) > 1.5

    def draw_start(self, key):
        """At rest, nearly."""
        return jnp.asarray(self.start), 0.1 * jax.random.normal(key, (self.nv,))


@dataclass(frozen=True)
class Carry(Task):
    """Drive forward; a step costs 1 while the load swings by more than 0.15 rad."""

    limit: float = 10.0
    max_steps: int = 200

    def constraints(self):
        """One."""
        return (ConstraintSpec("swing", self.limit, "steps with |angle| > 0.15", largest=float(self.max_steps)),)

    def score(self, robot, layout, state, action, fallen):
        """Reward and cost of a step."""
        cost = (jnp.abs(state.qpos[1]) > 0.15).astype(jnp.float32)
        return Score(layout, state.com_vel[0] - 0.01 * jnp.sum(action**2), cost[None], done=jnp.zeros((), bool))


def main(quick: bool) -> None:
    """Train on MuJoCo's C engine."""
    iterations, batch = (2, 1_000) if quick else (40, 10_000)
    with tempfile.TemporaryDirectory() as folder:
        body = Path(folder) / "crane.xml"
        body.write_text(BODY)
        scenario = Scenario(Crane("crane", str(body), frame_skip=2, position="x"), Carry(), "crane-carry")
        host = ThreadedEnv(scenario, 16)
        result = corral.train(host, corral.CPO(), iterations=iterations, batch_size=batch)
        host.close()
    print("return", result.metrics["return"][[0, -1]].round(1))
    print("swing", result.metrics["cost_swing"][[0, -1]].round(1), "limit", result.metrics["limit_swing"][-1])


if __name__ == "__main__":
    main("--quick" in sys.argv)

"""Drive the raw engines: the same robots, actions and threads as Corral, but only the simulation's own step.

MuJoCo's C engine offers three ways: `mujoco.batch` with one MjData per robot, the same with one per thread, and
`mujoco.rollout`. For MJX the raw engine is `mjx.step` in a scan, for the Point its kinematics.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jax.sharding import Mesh

from benchmarks.bench.clock import Run
from corral import devices
from corral.envs import Env
from corral.envs.engines.mjx import MjxEnv
from corral.envs.engines.mujoco import ThreadedEnv
from corral.envs.engines.point import PointEnv
from corral.envs.robots import Robot

UPRIGHT = {
    **{name: (0.2, 1.0) for name in ("ant-circle", "ant-gather", "ant-velocity")},
    **{name: (0.8, 2.0) for name in ("humanoid-circle", "humanoid-gather", "walker2d-velocity")},
    "humanoid-velocity": (1.0, 2.0),
    "hopper-velocity": (0.7, np.inf),
}
"""The lowest and the highest torso of a robot that stands. A raw engine puts back a robot that falls, because robots on the
floor would change its speed.
"""


def height_of(robot: Robot) -> int:
    """Return where the height of the torso is in qpos: third for a free body, second for one that moves in a plane."""
    return 2 if len(robot.start) > robot.nv else 1


class Stepper(NamedTuple):
    """A raw engine: `put_back(robots)` returns them to the start, `step(controls)` returns the torsos' heights."""

    put_back: Callable[[np.ndarray], None]
    step: Callable[[np.ndarray], np.ndarray]


def c_engines(env: ThreadedEnv, steps: int) -> dict[str, Run]:
    """Return MuJoCo's own ways of stepping these robots with random actions, by name."""
    size = env.spec.action.size
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, env.num_envs, size)).astype(np.float32)
    return {name: _run(env, actions, make(env)) for name, make in _STEPPERS.items()}


def _run(env: ThreadedEnv, actions: np.ndarray, stepper: Stepper) -> Run:
    lowest, highest = UPRIGHT.get(env.scenario.name, (-np.inf, np.inf))
    controls = [env.scenario.control(action) for action in actions]

    def run() -> int:
        stepper.put_back(np.arange(env.num_envs))
        for control in controls:
            height = stepper.step(control)
            fallen = np.flatnonzero((height < lowest) | (height > highest))
            if len(fallen):
                stepper.put_back(fallen)
        return len(controls) * env.num_envs

    return run


def _batch_stepper(env: ThreadedEnv, persistent: bool) -> Stepper:
    """Step with MuJoCo's own batches, one step at a time."""
    from mujoco.batch import Batch

    batch = Batch(env.physics.model, env.num_envs, env.physics.threads, persistent)
    qpos, ctrl = batch.bind("qpos"), batch.bind("ctrl")
    robot = env.scenario.robot

    def put_back(robots: np.ndarray) -> None:
        batch.reset(robots, stage=0)
        qpos[robots] = env.scenario.robot.start

    def step(controls: np.ndarray) -> np.ndarray:
        ctrl[:] = controls
        for _ in range(robot.frame_skip):
            batch.step()
        heights: np.ndarray = qpos[:, height_of(robot)]
        return heights

    return Stepper(put_back, step)


def _rollout_stepper(env: ThreadedEnv) -> Stepper:
    """Step with MuJoCo's older thread pool, one step at a time."""
    from mujoco import rollout

    model, threads, count = env.physics.model, env.physics.threads, env.num_envs
    full = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)
    datas = [mujoco.MjData(model) for _ in range(threads)]
    first = np.zeros(mujoco.mj_stateSize(model, full))
    datas[0].qpos[:] = env.scenario.robot.start
    mujoco.mj_getState(model, datas[0], first, full)
    state = np.tile(first, (count, 1))
    skip, height = env.scenario.robot.frame_skip, height_of(env.scenario.robot)
    after = np.zeros((count, skip, len(first)))
    sensors = np.zeros((count, skip, model.nsensordata))
    pool = rollout.Rollout(nthread=threads)

    def put_back(robots: np.ndarray) -> None:
        state[robots] = first

    def step(controls: np.ndarray) -> np.ndarray:
        control = np.repeat(np.asarray(controls, float)[:, None], skip, axis=1)
        pool.rollout(model, datas, state, control, nstep=skip, state=after, sensordata=sensors)
        state[:] = after[:, -1]
        return state[:, 1 + height]  # the state starts with the time, then qpos

    return Stepper(put_back, step)


_STEPPERS: dict[str, Callable[[ThreadedEnv], Stepper]] = {
    "mujoco.batch, an MjData per robot": lambda env: _batch_stepper(env, persistent=True),
    "mujoco.batch, an MjData per thread": lambda env: _batch_stepper(env, persistent=False),
    "mujoco.rollout": _rollout_stepper,
}


# -- on the device: everything in one compiled scan ------------------------------------------------------------------


def device_engine(env: Env, robots: int, steps: int, mesh: Mesh | None = None) -> tuple[str, Run]:
    """Return the name of the raw engine beneath a functional environment, and a run of it."""
    if isinstance(env, PointEnv):
        return "its kinematics", _kinematics(env, robots, steps, mesh)
    assert isinstance(env, MjxEnv)
    return f"mjx.step, {env.impl}", _mjx(env, robots, steps)


def on_each(mesh: Mesh | None, robots: int, simulate: Callable[[int, Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Jit `simulate(robots, key, state)` as a function of key and state.

    On several devices each simulates its share of the robots, and the results have a leading axis of devices.
    """
    if mesh is None:
        return jax.jit(lambda key, state: simulate(robots, key, state))
    share, axis = robots // mesh.size, mesh.axis_names[0]

    def own(key: Any, state: Any) -> Any:
        state = jax.tree.map(lambda x: x[0], state)
        found = simulate(share, jax.random.fold_in(key, jax.lax.axis_index(axis)), state)
        return jax.tree.map(lambda x: jnp.asarray(x)[None], found)

    everywhere, split = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec(axis)
    return jax.jit(jax.shard_map(own, mesh=mesh, in_specs=(everywhere, split), out_specs=split, check_vma=False))


def _kinematics(env: PointEnv, robots: int, steps: int, mesh: Mesh | None) -> Run:
    """Run heading += a₁, (x, y) += a₀ (cos, sin)(heading), clipped to the arena, with given actions."""
    half_size = env.scenario.task.half_size()
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, 2, robots)).astype(np.float32)

    @jax.jit
    def simulate(actions: Any) -> Any:
        def step(place: tuple[Any, Any, Any], action: Any) -> tuple[tuple[Any, Any, Any], Any]:
            x, y, heading = place
            heading = heading + action[1]
            x = jnp.clip(x + action[0] * jnp.cos(heading), -half_size, half_size)
            y = jnp.clip(y + action[0] * jnp.sin(heading), -half_size, half_size)
            return (x, y, heading), (x, y)

        origin = jnp.zeros(robots)
        return jax.lax.scan(step, (origin, origin, origin), actions)

    put = jax.device_put(actions, None if mesh is None else devices.split(mesh, 2))

    def run() -> int:
        jax.block_until_ready(simulate(put))
        return steps * robots

    return run


def _mjx(env: MjxEnv, robots: int, steps: int) -> Run:
    """Run `mjx.step` for all robots with random actions."""
    from mujoco import mjx

    simulator, scenario = env._stepping, env.scenario
    lowest, highest = UPRIGHT.get(scenario.name, (-np.inf, np.inf))
    size, nv = env.spec.action.size, scenario.robot.nv
    start = jnp.asarray(scenario.robot.start, jnp.float32)

    def step(data: Any, key: Any) -> tuple[Any, Any]:
        actions = jax.random.uniform(key, (robots, size), minval=-1, maxval=1)
        data = data.replace(ctrl=scenario.control(actions))
        for _ in range(scenario.robot.frame_skip):
            data = jax.vmap(mjx.step, in_axes=(None, 0))(simulator.model, data)
        height = data.qpos[:, height_of(scenario.robot)]
        fallen = (height < lowest) | (height > highest) | ~jnp.isfinite(data.qpos).all(axis=1)
        qpos = jnp.where(fallen[:, None], start, data.qpos)
        return data.replace(qpos=qpos, qvel=jnp.where(fallen[:, None], 0.0, data.qvel)), jnp.sum(data.qpos)

    def one(qpos: Any) -> Any:
        data = simulator.data(qpos, jnp.zeros(nv), jnp.zeros(nv), jnp.zeros(size))
        return mjx.step(simulator.model, data)

    # After one step every field has its axis of robots.
    first = jax.jit(jax.vmap(one))(jnp.tile(start, (robots, 1)))
    keys = jax.random.split(jax.random.key(1), steps)
    simulate = jax.jit(lambda data: jax.lax.scan(step, data, keys))

    def run() -> int:
        jax.block_until_ready(simulate(first))
        return steps * robots

    return run

"""Record single steps of Safety-Gymnasium's velocity tasks, for `test_parity.py` to compare ours with.

It runs under another Python, where the real package is installed (it pins versions that ours cannot live with):

    python3.10 -m venv sg && sg/bin/pip install safety-gymnasium==1.0.0
    sg/bin/python tests/envs/velocity/record.py tests/envs/velocity

For each robot 200 states are set in a simulation without a past. Half of them lie on the way of random actions, up to 100
steps after a reset. The others are thrown about, with noise on positions and velocities, so that falls and high speeds are
among them. One action is taken from each, in and beyond its bounds, and the results are kept in float64, with the means and
deviations of 1,000 starts.
"""

import sys
from pathlib import Path

import mujoco
import numpy as np
import safety_gymnasium

ROBOTS = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "Swimmer", "Walker2d")
STATES, RESETS = 200, 1000


def states(env, rng):
    """Positions and velocities to start a step from."""
    core = env.unwrapped
    for k in range(STATES):
        env.reset(seed=k)
        for _ in range(k // 2 % 100):
            action = rng.uniform(core.action_space.low, core.action_space.high)
            if any(env.step(action)[3:5]):
                env.reset(seed=10_000 + k)
        qpos, qvel = core.data.qpos.copy(), core.data.qvel.copy()
        if k % 2:
            free = core.model.nq != core.model.nv
            qpos[7 if free else 3 :] += rng.normal(0, 0.2, qpos[7 if free else 3 :].shape)
            qpos[2 if free else 1] += rng.normal(0, 0.15)
            qvel += rng.normal(0, 2.0, qvel.shape) * (k % 4 == 1) + rng.normal(0, 0.5, qvel.shape)
            qvel[0] += rng.normal(0, 3.0) * (k % 4 == 3)
        yield qpos, qvel


def steps(env, rng):
    """Columns of single steps, by name."""
    core, rows = env.unwrapped, []
    for qpos, qvel in states(env, rng):
        mujoco.mj_resetData(core.model, core.data)
        core.set_state(qpos, qvel)
        action = rng.uniform(1.5 * core.action_space.low, 1.5 * core.action_space.high).astype(np.float32)
        obs, reward, cost, terminated, _, _ = core.step(action)
        rows.append((qpos, qvel, action, obs, reward, cost, terminated))
    names = ("qpos", "qvel", "action", "obs", "reward", "cost", "terminated")
    return {name: np.asarray(column) for name, column in zip(names, zip(*rows))}  # noqa: B905 (Python 3.8)


def starts(env):
    """Positions and velocities after resets, and the first observation."""
    core, rows = env.unwrapped, []
    for k in range(RESETS):
        obs, _ = env.reset(seed=k)
        rows.append((core.data.qpos.copy(), core.data.qvel.copy()))
    return {"start_qpos": np.asarray([r[0] for r in rows]), "start_qvel": np.asarray([r[1] for r in rows]), "obs": obs}


def main(folder):
    """Write a compressed file for each robot."""
    for robot in ROBOTS:
        env = safety_gymnasium.make(f"Safety{robot}Velocity-v1")
        rng = np.random.default_rng(0)
        found = steps(env, rng)
        begun = starts(env)
        found["start_mean"] = np.concatenate([begun["start_qpos"].mean(0), begun["start_qvel"].mean(0)])
        found["start_std"] = np.concatenate([begun["start_qpos"].std(0), begun["start_qvel"].std(0)])
        found["versions"] = np.array([safety_gymnasium.__version__, mujoco.__version__])
        path = Path(folder) / f"{robot.lower()}.npz"
        np.savez_compressed(path, **found)
        print(path, path.stat().st_size, "cost", found["cost"].mean(), "terminated", found["terminated"].mean())


if __name__ == "__main__":
    main(sys.argv[1])

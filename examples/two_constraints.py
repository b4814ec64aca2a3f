"""Pendulum with two constraints that it reports by name: into a folder, resumed, and judged."""

import sys

import gymnasium

import corral


class Careful(gymnasium.Wrapper):
    """Reports what a step costs: torque, and 1 while it swings fast."""

    def step(self, action):
        """One step, with costs by name in info."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        costs = {"torque": abs(float(action[0])), "fast": float(abs(obs[2]) > 4)}
        return obs, reward, terminated, truncated, info | {"costs": costs}


def make():
    """A new one for each copy."""
    return Careful(gymnasium.make("Pendulum-v1"))


def main(quick: bool) -> None:
    """Train, go on, judge."""
    iterations, batch = (2, 1_000) if quick else (100, 10_000)
    limits = [corral.Constraint("torque", 150.0), corral.Constraint("fast", 30.0)]
    out = "runs/two-constraints"
    corral.train(
        make, corral.CPO(), limits, iterations=iterations, batch_size=batch, out=out, overwrite=True, progress=True
    )
    # The environment stands in no file, so it is given again; names and limits are in config.toml.
    (result,) = corral.resume(out, env=make, iterations=iterations + 1)
    print("limits", {name: float(result.metrics[f"limit_{name}"][-1]) for name in result.metrics.constraints})
    for found in corral.evaluate(out, episodes=10 if quick else 200, env=make):
        for constraint in found.constraints:
            print(constraint.name, round(constraint.cost.mean, 1), "of", constraint.limit, constraint.verdict)


if __name__ == "__main__":
    main("--quick" in sys.argv)

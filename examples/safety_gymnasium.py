"""The real Safety-Gymnasium under a Python of its own: `corral safety-gymnasium ~/sg` sets that up (docs/workers.md).

python examples/safety_gymnasium.py ~/sg/bin/python
"""

import sys

import corral


def main(python: str, quick: bool) -> None:
    """A point that shall reach its goal, and enter hazards at most 25 steps an episode."""
    iterations, batch = (3, 2_000) if quick else (300, 20_000)
    result = corral.train(
        "SafetyPointGoal1-v0",
        corral.CPO(),
        corral.Constraint("cost_hazards", 25.0),
        env_python=python,
        iterations=iterations,
        batch_size=batch,
        progress=True,
    )
    print("return", result.metrics["return"][[0, -1]].round(1))
    print("hazards", result.metrics["cost_cost_hazards"][[0, -1]].round(1))


if __name__ == "__main__":
    main(next(word for word in sys.argv[1:] if not word.startswith("--")), "--quick" in sys.argv)

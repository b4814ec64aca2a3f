"""The bench of algorithms counts the products that an update cannot do without."""

from benchmarks.bench import algorithms, floors, update
from corral.algos import PDO, PPO, TRPO


def test_the_floor_of_ppo_is_its_minibatches_and_two_looks_at_all_rows():
    """1,000 rows in minibatches of 64 are 16 steps a pass, three passes; policies of 32 × 64 × 64 × 8.

    A row's forward pass is 2·(32·64 + 64·64 + 64·8) = 13,312 flops; its gradients are twice that, less the inputs of the
    first layer.
    """
    problem = update.problem(1_000, hidden=(64, 64), preset="corral")
    work = algorithms.work_of(problem, PPO(minibatch=64), tried=3)
    forward = 2 * (32 * 64 + 64 * 64 + 64 * 8)
    backward = 2 * forward - 2 * 32 * 64
    assert floors.flops(work) == 3 * 16 * 64 * (forward + backward) + 2 * 1_000 * forward


def test_algorithms_without_hard_constraints_solve_for_one_direction():
    problem = update.problem(1_000, hidden=(64, 64), preset="corral")
    trpo, pdo = (floors.flops(algorithms.work_of(problem, kind(), tried=1)) for kind in (TRPO, PDO))
    assert trpo == pdo


def test_every_algorithm_is_measured_and_ppo_twice():
    assert len(algorithms.cases(quick=False)) == 16

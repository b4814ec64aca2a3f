"""The same program on several devices: a process of its own, since their number is fixed when JAX starts."""

import json
import platform
import subprocess
import sys

import jax
import numpy as np
import pytest
from toys import by_two_processes

from corral import CorralError, devices

# Point-Gather for three iterations with both kinds of critic, printed as JSON.
RUN = """
import json, sys, jax
from corral import devices
count = int(sys.argv[1])
if len(sys.argv) > 2:
    devices.join()
else:
    jax.config.update("jax_num_cpu_devices", count)
from dataclasses import replace
from corral.rollout import make
from corral.rollout.shapes import Plan
from corral.running.trainer import Trainer
from corral.algos import CPO, PDO
from corral.config import Critic, Networks, TrustRegion
from corral.presets import preset
assert len(jax.devices()) == count
base = replace(
    preset("point-gather", "paper"), batch_size=1200, iterations=2, networks=Networks((8,)),
    trust=TrustRegion(cg_iterations=3),
)
configs = [base, replace(base, seed=1, critic=Critic("adam", epochs=2, held_out=0.1, minibatch=256, sees_time=True))]
trainer = Trainer(configs, make.from_config(base))
state, plan, found = trainer.initial(), Plan(80, 1500, 80), []
for _ in range(base.iterations):
    state, rows = trainer.iterate(state, plan)
    found.append([[float(r[n]) for n in ("return", "cost_bombs", "kl", "entropy", "explained_variance")] for r in rows])
batch = trainer.sample(state, plan, 0)
pieces = {str(s.data.shape) for s in batch.obs.addressable_shards}
again = trainer.sample(state, Plan(16, 1500, 160), 0)  # in turns
parts = (again.present, again.reward, again.costs, again.obs, again.final_obs)
found.append([[float(x[i].sum()) for x in parts] for i in range(2)])
print(json.dumps({"found": found, "pieces": sorted(pieces)}))
"""


def run_on(count):
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(count)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_two_processes_draw_the_learning_curve_of_one():
    """Each has one device and half of the rows; they meet through `jax.distributed` on the loopback interface."""
    first, second = by_two_processes(RUN, "2", "together")
    assert first == second
    assert first["pieces"] == ["(2, 600, 29)"]
    np.testing.assert_allclose(first["found"], run_on(1)["found"], rtol=2e-3, atol=2e-4)


@pytest.mark.slow
def test_four_devices_learn_what_one_learns_each_holding_a_quarter_of_the_rows():
    one, four = run_on(1), run_on(4)
    # 80 episodes of 15 steps: 1200 rows, 300 on each of four devices.
    assert one["pieces"] == ["(2, 1200, 29)"]
    assert four["pieces"] == ["(2, 300, 29)"]
    first, last = (np.asarray(x["found"])[:, 0] for x in (one, four))
    np.testing.assert_allclose(first, last, rtol=2e-3, atol=2e-4)
    first, last = (np.asarray(x["found"])[:, 1] for x in (one, four))
    np.testing.assert_allclose(first, last, rtol=2e-3, atol=2e-4)


PIECES = """
import jax, jax.numpy as jnp
jax.config.update("jax_num_cpu_devices", 4)
from corral import devices
from corral.learning import distributions, networks
mesh = devices.mesh()
x, y = (jax.device_put(jnp.ones((40_000, k)), devices.split(mesh, 0)) for k in (4, 2))
W = jax.device_put(jnp.ones((4, 2)), devices.whole(mesh))
count = networks.pieces(len(x), 4)
assert count > 4
gradient = jax.jit(jax.grad(lambda W, x, y: jnp.sum(networks.in_pieces(x, W, count) * y)))
print(gradient.lower(W, x, y).compile().as_text())
"""


def test_pieces_of_rows_lie_on_one_device_each_and_only_their_sums_travel():
    done = subprocess.run([sys.executable, "-c", PIECES], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "all-reduce" in done.stdout
    assert not any(moved in done.stdout for moved in ("all-gather", "all-to-all", "collective-permute"))


def test_there_is_no_mesh_of_one_device():
    assert devices.mesh() is None


def test_the_matrix_products_of_what_learns_are_in_full_float32_also_where_less_is_the_default():
    def product(a, b):
        return a @ b

    given = np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)
    assert "HIGHEST" not in jax.jit(product).lower(*given).as_text()
    assert "precision = [HIGHEST, HIGHEST]" in devices.jit(product).lower(*given).as_text()


def _options_on_a_gpu(monkeypatch, flags, quick=None):
    """What XLA would be told there. Every XLA knows the options of all backends, so that a CPU's can be asked."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setenv("XLA_FLAGS", flags)
    if quick is not None:
        monkeypatch.setattr(devices, "_QUICK_TO_COMPILE", quick)
    return devices.compiler_options.__wrapped__()


def test_on_a_gpu_an_update_is_compiled_without_trials_of_kernels_and_elsewhere_as_ever(monkeypatch):
    assert devices.compiler_options() == {}
    assert _options_on_a_gpu(monkeypatch, "") == {
        "xla_gpu_experimental_enable_fusion_autotuner": False,
        "xla_gpu_enable_triton_gemm": False,
    }


def test_an_option_of_the_compiler_that_xla_flags_names_is_left_to_them(monkeypatch):
    found = _options_on_a_gpu(monkeypatch, "--xla_gpu_enable_triton_gemm=true")
    assert list(found) == ["xla_gpu_experimental_enable_fusion_autotuner"]


def test_an_option_of_the_compiler_that_this_xla_does_not_know_is_left_out(monkeypatch):
    found = _options_on_a_gpu(monkeypatch, "", {"xla_gpu_of_tomorrow": False, "xla_gpu_enable_triton_gemm": False})
    assert list(found) == ["xla_gpu_enable_triton_gemm"]


def test_a_process_that_is_to_join_others_must_say_which_it_is(monkeypatch):
    monkeypatch.setenv("CORRAL_COORDINATOR", "127.0.0.1:1")
    monkeypatch.setenv("CORRAL_PROCESSES", "two")
    with pytest.raises(CorralError, match="CORRAL_PROCESSES must be a number, got 'two'"):
        devices.join()


AGAIN = """
import resource, sys
from corral import devices
if sys.argv[1] == "keep":
    devices.keep_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
b"x" * 2**27
before = faults()
b"x" * 2**27
print(faults() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif("glibc" not in platform.libc_ver()[0], reason="the allocator is glibc's")
def test_memory_that_is_kept_is_not_asked_of_the_system_again():
    """128 MiB are 32,768 pages of 4 KiB, or 64 large ones, each a fault when it is touched for the first time."""
    found = {
        how: int(subprocess.run([sys.executable, "-c", AGAIN, how], capture_output=True, check=True).stdout)
        for how in ("keep", "return")
    }
    assert found["return"] >= 64
    assert found["keep"] < 16

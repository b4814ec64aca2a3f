import jax
import pytest

# One device, whatever command a test calls: `corral train` would make every core one.
jax.config.update("jax_num_cpu_devices", 1)


@pytest.fixture
def float64():
    """Double precision for the length of a test."""
    with jax.enable_x64(True):
        yield

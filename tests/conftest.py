import jax
import pytest


@pytest.fixture
def float64():
    """Double precision for the length of a test."""
    with jax.enable_x64(True):
        yield

import os
import signal
from pathlib import Path

import jax
import pytest

# A shell that runs the tests in the background lets them ignore these signals, and so would all that they start.
for _ignored, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_ignored) == signal.SIG_IGN:
        signal.signal(_ignored, _usual)

# Programs that several tests compile, here and in processes that they start, are compiled once, and once for all clones.
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "corral" / "xla-tests"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)

# Where programs run long rather than often: elsewhere most of the time would go into compiling.
_OPTIMISED = ("tests/trust_region", "tests/tabular", "tests/envs")


@pytest.fixture(autouse=True, scope="module")
def _compile_quickly(request):
    """Compile with little optimisation, which changes no test's verdict."""
    place = request.path.relative_to(request.config.rootpath).as_posix()
    jax.config.update("jax_disable_most_optimizations", not place.startswith(_OPTIMISED))
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def float64():
    """Double precision for the length of a test."""
    with jax.enable_x64(True):
        yield

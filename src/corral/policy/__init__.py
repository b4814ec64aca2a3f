"""A trained policy without its trainer: load a policy file with NumPy alone, and act.

`corral.policy.load("policy.npz")` needs neither JAX nor the folder of the run. `onnx` writes the same policy for other
runtimes.
"""

from corral.policy.file import Policy, load

__all__ = ["Policy", "load"]

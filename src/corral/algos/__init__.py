"""One file per algorithm: its parameters, what it remembers, and its update. None imports another.

Every update is a pure function of a local model of the current policy (`corral.learning.surrogates`). Each class enters
itself in the registry of `corral.config.Algorithm`.
"""

from corral.algos.cpo import CPO
from corral.algos.fpo import FPO
from corral.algos.pdo import PDO
from corral.algos.trpo import TRPO

__all__ = ["CPO", "FPO", "PDO", "TRPO"]

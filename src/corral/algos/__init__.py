"""One file per algorithm: `init` makes its state, `update` moves the policy. None imports another.

Every update is a pure function of a `Local` model of the neighbourhood of the current policy (`corral.learning.surrogates`).
"""

from types import ModuleType

from corral.algos import cpo, fpo, pdo, trpo

MODULES: dict[str, ModuleType] = {"cpo": cpo, "fpo": fpo, "pdo": pdo, "trpo": trpo}

"""One file per algorithm: its parameters, what it remembers, and its update. None imports another.

Every update is a pure function of a local model of the current policy (`corral.learning.surrogates`). What several share
is in `corral.learning`: `first_order` (Adam on minibatches), `multipliers` (prices that are learned) and `recovery` (steps
on costs only). Each class enters itself in the registry of `corral.config.Algorithm`.
"""

from corral.algos.cpo import CPO
from corral.algos.cppo_pid import CPPOPID
from corral.algos.crpo import CRPO
from corral.algos.ctrpo import CTRPO
from corral.algos.cup import CUP
from corral.algos.focops import FOCOPS
from corral.algos.fpo import FPO
from corral.algos.ipo import IPO
from corral.algos.p3o import P3O
from corral.algos.pcpo import PCPO
from corral.algos.pdo import PDO
from corral.algos.ppo import PPO
from corral.algos.ppo_lag import PPOLag
from corral.algos.trpo import TRPO
from corral.algos.trpo_lag import TRPOLag

__all__ = [
    "CPO",
    "CPPOPID",
    "CRPO",
    "CTRPO",
    "CUP",
    "FOCOPS",
    "FPO",
    "IPO",
    "P3O",
    "PCPO",
    "PDO",
    "PPO",
    "TRPO",
    "PPOLag",
    "TRPOLag",
]

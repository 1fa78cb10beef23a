"""The stand-in of tests/runtime/ascend/stand_in_acl.py as module `acl`, for programs with this folder on PYTHONPATH.

It is not pyACL, but a machine with 8 devices on the CPU. LOPA_STAND_IN_SOC names their chip.
"""

import os
from typing import Any

from tests.runtime.ascend.stand_in_acl import StandInAcl

STAND_IN = True
MACHINE = StandInAcl(soc=os.environ.get("LOPA_STAND_IN_SOC", "Ascend910B1"))


def __getattr__(name: str) -> Any:
    return getattr(MACHINE, name)

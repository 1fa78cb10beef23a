"""The stand-in of tests/runtime/ascend/stand_in_acl.py under pyACL's name, for programs with this folder on PYTHONPATH.

Not pyACL: a machine with 8 devices of the chip that LOPA_STAND_IN_SOC names, on the CPU.
"""

import os
from typing import Any

from tests.runtime.ascend.stand_in_acl import StandInAcl

STAND_IN = True
MACHINE = StandInAcl(soc=os.environ.get("LOPA_STAND_IN_SOC", "Ascend910B1"))


def __getattr__(name: str) -> Any:
    return getattr(MACHINE, name)

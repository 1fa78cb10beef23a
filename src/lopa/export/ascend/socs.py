"""Chips that ATC compiles for, by their names for --soc-version."""

import difflib
from dataclasses import dataclass

from lopa.runtime.errors import BadInputError


@dataclass(frozen=True)
class Soc:
    """Properties of a chip that affect compilation."""

    name: str
    bfloat16: bool
    max_buckets: int


_MAX_BUCKETS = 100
_FAMILIES = (
    # (names, bfloat16, maximum number of shape buckets). Names of A2, A3 and 310P are from the graph engine's source.
    # For the 950, only names that other public source code mentions are listed.
    (("Ascend910B1", "Ascend910B2", "Ascend910B2C", "Ascend910B3", "Ascend910B4", "Ascend910B4-1"), True, _MAX_BUCKETS),
    (tuple(f"Ascend910_{number}" for number in (9362, 9363, 9372, 9381, 9382, 9391, 9392)), True, _MAX_BUCKETS),
    (("Ascend310P1", "Ascend310P3", "Ascend310P5", "Ascend310P7"), False, _MAX_BUCKETS),
    (("Ascend950PR_9579", "Ascend950PR_9589", "Ascend950PR_9599"), True, 256),
)
SOCS = {name: Soc(name, bfloat16, limit) for names, bfloat16, limit in _FAMILIES for name in names}


def soc_from_name(name: str) -> Soc:
    """Return the chip called `name`. Raises BadInputError, with the closest names, for an unknown one."""
    if name in SOCS:
        return SOCS[name]
    short_names = {known.lower().removeprefix("ascend"): known for known in SOCS}
    received = name.lower().removeprefix("ascend")
    near = [short_names[each] for each in difflib.get_close_matches(received, short_names, n=3, cutoff=0.6)]
    raise BadInputError(
        f"unknown soc version {name!r}",
        expected=("perhaps " + ", ".join(near)) if near else "one of " + ", ".join(SOCS),
        remedy="use the name from `npu-smi info`, prefixed with Ascend; on A3 (910C) the chip's name, an underscore "
        "and the NPU's name, e.g. Ascend910_9392",
    )

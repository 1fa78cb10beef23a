"""The chips that ATC compiles for, by the names that --soc-version takes. Knows nothing that is installed."""

import difflib
from dataclasses import dataclass

from lopa.runtime.errors import BadInputError


@dataclass(frozen=True)
class Soc:
    """One chip and what of it decides how a graph may be compiled."""

    name: str
    bfloat16: bool
    most_buckets: int


_MAX_BUCKETS = 100
_FAMILIES = (
    # (names, bfloat16, most buckets). The names of A2, A3 and 310P are those of the graph engine's source. Of the 950
    # only those are listed that other public source names.
    (("Ascend910B1", "Ascend910B2", "Ascend910B2C", "Ascend910B3", "Ascend910B4", "Ascend910B4-1"), True, _MAX_BUCKETS),
    (tuple(f"Ascend910_{number}" for number in (9362, 9363, 9372, 9381, 9382, 9391, 9392)), True, _MAX_BUCKETS),
    (("Ascend310P1", "Ascend310P3", "Ascend310P5", "Ascend310P7"), False, _MAX_BUCKETS),
    (("Ascend950PR_9579", "Ascend950PR_9589", "Ascend950PR_9599"), True, 256),
)
SOCS = {name: Soc(name, bfloat16, upper) for names, bfloat16, upper in _FAMILIES for name in names}


def soc_from_name(name: str) -> Soc:
    """The chip called `name`. Raises BadInputError, with the nearest names, for one that is not known."""
    if name in SOCS:
        return SOCS[name]
    short_names = {known.lower().removeprefix("ascend"): known for known in SOCS}
    asked = name.lower().removeprefix("ascend")
    near = [short_names[each] for each in difflib.get_close_matches(asked, short_names, n=3, cutoff=0.6)]
    raise BadInputError(
        f"soc version {name!r}",
        expected=("perhaps " + ", ".join(near)) if near else "one of " + ", ".join(SOCS),
        remedy="take the name from `npu-smi info` with Ascend before it; on A3 (910C) it is the chip's name, an "
        "underscore and the NPU's name, e.g. Ascend910_9392",
    )

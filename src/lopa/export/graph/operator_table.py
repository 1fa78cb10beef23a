"""Tables of the ONNX operators and opsets that a compiler supports.

ascend_operators.json is the table of Ascend's ATC and names its source.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_ASCEND = Path(__file__).with_name("ascend_operators.json")


@dataclass(frozen=True)
class OperatorTable:
    """Registered opsets by "domain::operator". The standard domain is ai.onnx."""

    opsets: Mapping[str, frozenset[int]]

    def opsets_of(self, operator: str, domain: str = "") -> frozenset[int]:
        """Return the opsets of an operator; an empty set if it is not registered."""
        return self.opsets.get(f"{domain or 'ai.onnx'}::{operator}", frozenset())


@cache
def ascend_operators() -> OperatorTable:
    """Return the operators that ATC's ONNX parser registers."""
    operators: dict[str, str] = json.loads(_ASCEND.read_bytes())["operators"]
    return OperatorTable({name: _numbers(ranges) for name, ranges in operators.items()})


def _numbers(ranges: str) -> frozenset[int]:
    """Return the numbers of ranges, e.g. 8, 12, 13, .., 18 for "8,12-18"."""
    pairs = [part.split("-") for part in ranges.split(",")]
    return frozenset(number for pair in pairs for number in range(int(pair[0]), int(pair[-1]) + 1))

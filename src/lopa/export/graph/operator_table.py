"""Which ONNX operators a compiler knows, and at which opsets. Knows no graph.

The table that lies here is that of Ascend's ATC, ascend_operators.json, which says where it comes from.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_ASCEND = Path(__file__).with_name("ascend_operators.json")


@dataclass(frozen=True)
class OperatorTable:
    """Registered opsets by "domain::operator"; the standard domain is called ai.onnx."""

    opsets: Mapping[str, frozenset[int]]

    def opsets_of(self, operator: str, domain: str = "") -> frozenset[int]:
        """Empty for an operator that is not registered at all."""
        return self.opsets.get(f"{domain or 'ai.onnx'}::{operator}", frozenset())


@cache
def ascend_operators() -> OperatorTable:
    """The operators that ATC's ONNX parser registers."""
    operators: dict[str, str] = json.loads(_ASCEND.read_bytes())["operators"]
    return OperatorTable({name: _numbers(ranges) for name, ranges in operators.items()})


def _numbers(ranges: str) -> frozenset[int]:
    """ "8,12-18" -> 8, 12, 13, .., 18"""
    pairs = [part.split("-") for part in ranges.split(",")]
    return frozenset(number for pair in pairs for number in range(int(pair[0]), int(pair[-1]) + 1))

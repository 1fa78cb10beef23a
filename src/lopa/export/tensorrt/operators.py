"""Operators that TensorRT's ONNX parser supports, from operators.json, which names its sources."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

_TABLE = Path(__file__).with_suffix(".json")


class ParserOperator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One operator of ai.onnx."""

    types: str
    """Names of TensorProto.DataType that its data may have, separated by spaces."""
    limits: list[str] = []
    """Further conditions, for humans. lopa.export.tensorrt.parser_lint checks the conditions of exported operators."""

    def takes(self, type_name: str) -> bool:
        """Return True if data may have this type, e.g. BFLOAT16."""
        return type_name in self.types.split()


class ParserTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of operators.json."""

    source: str
    opsets: tuple[int, int]
    """Oldest and newest supported opset of ai.onnx."""
    max_axes: int
    """Maximum number of axes of a tensor."""
    operators: Mapping[str, ParserOperator]
    """Supported operators."""


@cache
def tensorrt_operators() -> ParserTable:
    """Return the table of operators.json."""
    return msgspec.json.decode(_TABLE.read_bytes(), type=ParserTable)

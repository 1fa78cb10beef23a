"""What TensorRT's ONNX parser supports: operators.json, which says where it comes from. Knows no graph."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

_TABLE = Path(__file__).with_suffix(".json")


class ParserOperator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One operator of ai.onnx."""

    types: str
    """Names of TensorProto.DataType that its data may have."""
    limits: list[str] = []
    """What else must hold, for people; lopa.export.tensorrt.lint checks those of operators that we export."""

    def takes(self, type_name: str) -> bool:
        """Whether data may have this type, e.g. BFLOAT16."""
        return type_name in self.types.split()


class ParserTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole table."""

    source: str
    opsets: tuple[int, int]
    """The oldest and the newest opset of ai.onnx that is read."""
    most_axes: int
    """Of any tensor."""
    operators: Mapping[str, ParserOperator]
    """Those supported at all."""


@cache
def tensorrt_operators() -> ParserTable:
    """The table that lies here."""
    return msgspec.json.decode(_TABLE.read_bytes(), type=ParserTable)

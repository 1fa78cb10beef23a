"""The file that the stand-in atc writes in place of an OM and the stand-in acl reads. A stand-in: nothing vendor-made.

A JSON object. It says what was compiled, and how; a real OM holds machine code. Knows neither atc nor acl.
"""

from pathlib import Path
from typing import Literal

import msgspec

SUFFIX = ".om"


class OmInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One input, as in the graph and in its order."""

    name: str
    dims: list[int]
    """-1 for an axis that a bucket decides."""
    dtype: str
    """numpy's name; bfloat16 has none of its own there and is called that."""


class OmOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One output, as in the graph and in its order."""

    name: str
    dtype: str


class StandInModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    atc_cmdline: list[str]
    soc_version: str
    inputs: list[OmInput]
    outputs: list[OmOutput]
    buckets: list[list[int]]
    """One tuple over every -1, in the order of the inputs; empty in a static OM."""
    graph: bytes
    """The ONNX graph; its external data lies in `weights`, relative to the OM's folder."""
    weights: list[str]
    stand_in: Literal["OM"] = "OM"
    version: Literal[1] = 1


def write_om(path: Path, model: StandInModel) -> None:
    """Write `model`; bytes are base64 in the JSON."""
    path.write_bytes(msgspec.json.encode(model) + b"\n")


def read_om(path: Path) -> StandInModel:
    """Read it back. Raises msgspec.ValidationError for a file that is no stand-in OM."""
    return msgspec.json.decode(path.read_bytes(), type=StandInModel)

"""The JSON file that the stand-in atc writes as an OM, and that the stand-in acl reads. It is not vendor software. It
describes the compiled graph and its options. A real OM contains machine code.
"""

from pathlib import Path
from typing import Literal

import msgspec

SUFFIX = ".om"


class OmInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One input, as in the graph and in order."""

    name: str
    dims: list[int]
    """Dims of the input. -1 marks dims that are set per forward."""
    dtype: str
    """Type name as in numpy, or bfloat16."""


class OmOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One output, as in the graph and in order."""

    name: str
    dtype: str


class StandInModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Content of the file."""

    atc_cmdline: list[str]
    soc_version: str
    inputs: list[OmInput]
    outputs: list[OmOutput]
    buckets: list[list[int]]
    """Values for every -1, in the order of the inputs, per dims profile. It is empty in a static OM."""
    graph: bytes
    """The ONNX graph. Its external data is in `weights`, relative to the OM's folder."""
    weights: list[str]
    stand_in: Literal["OM"] = "OM"
    version: Literal[1] = 1


def write_om(path: Path, model: StandInModel) -> None:
    """Write `model` as JSON, with bytes in base64."""
    path.write_bytes(msgspec.json.encode(model) + b"\n")


def read_om(path: Path) -> StandInModel:
    """Read a model. Raises msgspec.ValidationError if the file is not a stand-in OM."""
    return msgspec.json.decode(path.read_bytes(), type=StandInModel)

"""Sides of the comparison and their commands."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from lopa.runtime.errors import MissingBackendError
from tools.peers import python_side
from tools.peers.materials import Materials


@dataclass(frozen=True)
class Side:
    """One program with one precision."""

    name: str
    peer: str
    """Peer: lopa, llama.cpp, openvino or torch."""
    precision: str
    """Precision of the weights, a key of tools.peers.agreement.TOLERANCES."""
    computes: str
    """Argument of the peer: llama.cpp's file kind, or the type of floats."""


OURS = "lopa"
SIDES = (
    Side("ours float32", OURS, "f32", "f32"),
    Side("ours int8", OURS, "int8", "f32"),
    Side("ours int4", OURS, "int4", "f32"),
    Side("llama.cpp F32", "llama.cpp", "f32", "f32"),
    Side("llama.cpp Q8_0", "llama.cpp", "int8", "q8_0"),
    Side("llama.cpp Q4_0", "llama.cpp", "int4", "q4_0"),
    Side("OpenVINO f32, our float32 graph", "openvino", "f32", "f32"),
    Side("OpenVINO bf16, our float32 graph", "openvino", "bf16", "bf16"),
    Side("OpenVINO f32, our int8 graph", "openvino", "int8", "f32"),
    Side("OpenVINO bf16, our int8 graph", "openvino", "int8", "bf16"),
    Side("OpenVINO f32, our int4 graph", "openvino", "int4", "f32"),
    Side("torch eager float32", "torch", "f32", "f32"),
    Side("torch eager bfloat16", "torch", "bf16", "bf16"),
)
REFERENCE = SIDES[0]
"""Side that all others must agree with."""
BASELINE = SIDES[1]
"""Side that all times are relative to."""
_BUNDLES = {"f32": "fp32", "bf16": "fp32", "int8": "int8", "int4": "int4"}


def groups_of_sides(sides: Sequence[Side]) -> list[list[Side]]:
    """Return the sides grouped by precision. All at once would need more memory than many machines have (24 GB)."""
    return [group for precision in _BUNDLES if (group := [side for side in sides if side.precision == precision])]


def command_of_side(side: Side, materials: Materials, threads: int) -> Sequence[str]:
    """Return the command of a side. Raises MissingBackendError if its program or its file is missing."""
    if side.peer == "llama.cpp":
        program, model = materials.llama_side, materials.gguf(side.computes)
        for path in (program, model):
            if not path.exists():
                raise MissingBackendError(
                    f"{path} does not exist", expected="llama.cpp, built", remedy="run python -m tools.peers prepare"
                )
        return [str(program), "run", str(model), str(threads)]
    folder = materials.checkpoint if side.peer == "torch" else materials.bundle(_BUNDLES[side.precision])
    python = [sys.executable, "-m", python_side.__name__]
    return [*python, side.peer, side.computes, str(folder), str(threads)]

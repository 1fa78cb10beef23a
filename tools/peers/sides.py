"""Sides of the comparison and their commands."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lopa.bench.forward.work import ForwardShape
from lopa.runtime.bundle.manifest import ModelDimensions
from lopa.runtime.errors import MissingBackendError
from tools.peers import python_side
from tools.peers.attention import Attention
from tools.peers.materials import Materials, Needed


@dataclass(frozen=True)
class Side:
    """One program with one precision."""

    name: str
    peer: str
    """Peer: lopa, llama.cpp, openvino, torch or genai."""
    precision: str
    """Precision of the weights, a key of tools.peers.agreement.TOLERANCES."""
    computes: str
    """Argument of the peer: llama.cpp's file kind, or the type that activations are rounded to."""
    form: str | None
    """Form in which a forward reads the matrices, as tools.peers.side_work defines it. None if the side chooses it."""
    attention: Attention = "cached"
    weights: str | None = None
    """Value of LOPA_WEIGHTS, for our quantized bundles."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the process gets in addition to this process's."""
        return {} if self.weights is None else {"LOPA_WEIGHTS": self.weights}

    def computes_shape(self, shape: ForwardShape) -> bool:
        """Return True if the side can run `shape`.

        Without a cache there is one sequence, hence one branch. ONNX Runtime's GroupQueryAttention, which GenAI uses,
        continues one sequence at a time too.
        """
        return self.attention == "cached" or shape.branches == 1


OURS = "lopa"
SIDES = (
    Side("ours float32", OURS, "f32", "f32", "f32"),
    Side("ours int8", OURS, "int8", "f32", "int8"),
    Side("ours int8 packed", OURS, "int8", "f32", "int8", weights="packed"),
    Side("ours int4", OURS, "int4", "f32", None),
    Side("ours int4 mapped", OURS, "int4", "f32", "int4", weights="mapped"),
    Side("ours int4 packed", OURS, "int4", "f32", "int4", weights="packed"),
    Side("llama.cpp F32", "llama.cpp", "f32", "f32", "f32"),
    Side("llama.cpp Q8_0", "llama.cpp", "int8", "q8_0", "q8_0"),
    Side("llama.cpp Q4_0", "llama.cpp", "int4", "q4_0", "q4_0"),
    Side("llama.cpp Q8_0, dream without cache", "llama.cpp", "int8", "q8_0", "q8_0", "whole"),
    Side("llama.cpp Q4_0, dream without cache", "llama.cpp", "int4", "q4_0", "q4_0", "whole"),
    Side("OpenVINO f32, our float32 graph", "openvino", "f32", "f32", "f32"),
    Side("OpenVINO bf16, our float32 graph", "openvino", "bf16", "bf16", "bf16"),
    Side("OpenVINO f32, our int8 graph", "openvino", "int8", "f32", "int8"),
    Side("OpenVINO bf16, our int8 graph", "openvino", "int8", "bf16", "int8"),
    Side("OpenVINO f32, our int4 graph", "openvino", "int4", "f32", "int4"),
    Side("OpenVINO int8, our int4 graph", "openvino", "int4", "int8", "int4"),
    Side("ONNX Runtime GenAI int4, causal", "genai", "int4", "int4", "int4", "causal"),
    Side("torch eager float32", "torch", "f32", "f32", "f32"),
    Side("torch eager bfloat16", "torch", "bf16", "bf16", "bf16"),
)
BASELINE = SIDES[1]
"""Side that all times are relative to."""
SPARSE_BASELINE = SIDES[4]
"""Side that all times of a mixture of experts are relative to, since int8 would need twice the memory."""
_BUNDLES = {"f32": "fp32", "bf16": "fp32", "int8": "int8", "int4": "int4"}
_LARGE_PRECISIONS = ("int4", "int8")
"""Precisions of large models by default: floats would need too much memory and disk space."""


def baseline_of_network(sizes: ModelDimensions) -> Side:
    """Return the side that times of a network with `sizes` are relative to."""
    return BASELINE if sizes.moe is None else SPARSE_BASELINE


def sides_of_sparse_models() -> list[Side]:
    """Return the default sides of a mixture of experts: int4 that every runtime reads as such."""
    return [
        side
        for side in SIDES
        if side.form in ("int4", "q4_0") and side.attention == "cached" and side.weights != "packed"
    ]


def groups_of_sides(sides: Sequence[Side]) -> list[list[Side]]:
    """Return the sides grouped by precision. All at once would need more memory than many machines have (24 GB)."""
    return [group for precision in _BUNDLES if (group := [side for side in sides if side.precision == precision])]


def sides_of_large_models() -> list[Side]:
    """Return the default sides of a model too large to open two sides at once: every int4 and int8 form once."""
    return [
        side
        for precision in _LARGE_PRECISIONS
        for side in SIDES
        if side.precision == precision and side.computes != "bf16" and side.form is not None
    ]


def needed_materials(sides: Sequence[Side]) -> Needed:
    """Return what has to be prepared for `sides`."""
    return Needed(
        bundles=frozenset(_BUNDLES[side.precision] for side in sides if side.peer in (OURS, "openvino")),
        ggufs=frozenset(side.computes for side in sides if side.peer == "llama.cpp"),
        genai=any(side.peer == "genai" for side in sides),
    )


def command_of_side(side: Side, materials: Materials, threads: int) -> Sequence[str]:
    """Return the command of a side. Raises MissingBackendError if its program or its file is missing."""
    if side.peer == "llama.cpp":
        program, model = materials.llama_side, materials.gguf(side.computes)
        for path in (program, model):
            if not path.exists():
                raise MissingBackendError(
                    f"{path} does not exist", expected="llama.cpp, built", remedy="run python -m tools.peers prepare"
                )
        architecture = materials.architectures[side.attention == "whole"]
        return [str(program), "run", str(model), str(threads), architecture]
    folder = _folder_of_side(side, materials)
    if not folder.exists():
        raise MissingBackendError(
            f"{folder} does not exist", expected=f"the model of {side.name}", remedy="run python -m tools.peers prepare"
        )
    python = [sys.executable, "-m", python_side.__name__]
    return [*python, side.peer, side.computes, str(folder), str(threads)]


def files_of_side(side: Side, materials: Materials) -> list[Path]:
    """Return the files that the side reads when it opens."""
    if side.peer == "llama.cpp":
        return [materials.gguf(side.computes)]
    folder = _folder_of_side(side, materials)
    return sorted(path for path in folder.iterdir() if path.is_file())


def _folder_of_side(side: Side, materials: Materials) -> Path:
    if side.peer == "torch":
        return materials.checkpoint
    return materials.genai_model if side.peer == "genai" else materials.bundle(_BUNDLES[side.precision])

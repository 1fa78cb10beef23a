"""Twin of a standard graph for ONNX Runtime's CPU provider, with the same inputs, outputs, weights and results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from lopa.export.cpu_graph.rounded_rows import RoundedRowsPass
from lopa.export.cpu_graph.row_scales import RowScalesPass
from lopa.export.cpu_graph.sampled_rows import SampledRowsPass
from lopa.export.cpu_graph.unpacked_int4 import UnpackedInt4Pass
from lopa.export.cpu_graph.vocabulary_statistics import VocabularyStatisticsPass
from lopa.runtime.bundle.manifest import ModelDimensions
from lopa.runtime.contract.model_part import ModelPart


@dataclass(frozen=True)
class TwinOf:
    """Facts about the original graph for the passes."""

    dimensions: ModelDimensions
    part: ModelPart


PassMaker = Callable[[TwinOf], ir.passes.InPlacePass]

CPU_PASSES: Sequence[PassMaker] = (
    lambda of: SampledRowsPass(of.part),
    lambda of: VocabularyStatisticsPass(of.dimensions.vocab_size),
    lambda _: RoundedRowsPass(),
    lambda _: RowScalesPass(),
)
"""Passes in their order. Each leaves a graph unchanged if it finds nothing to do."""


def twin_for_cpu(model: ir.Model, of: TwinOf) -> ir.Model | None:
    """Return a copy of `model` after all passes, or None if none changed it.

    Values of weights are not read, but stay in the file that `model` refers to. Raises onnx_ir.passes.PassError if a
    pass violates its contract.
    """
    twin = _copied(model)
    return twin if _apply_passes(twin, of) else None


def unpacked_twin(model: ir.Model, of: TwinOf) -> ir.Model | None:
    """Return a twin whose int4 matrices are unpacked before the other passes; None if `model` has none."""
    twin = _copied(model)
    if not UnpackedInt4Pass()(twin).modified:
        return None
    _apply_passes(twin, of)
    return twin


def _copied(model: ir.Model) -> ir.Model:
    copy: ir.Model = ir.from_proto(ir.to_proto(model))
    return copy


def _apply_passes(twin: ir.Model, of: TwinOf) -> bool:
    """Run all passes on `twin`. Return True if any changed it."""
    modified = [make(of)(twin).modified for make in CPU_PASSES]
    return any(modified)

"""A standard graph in, its twin for ONNX Runtime's CPU out: the same inputs, outputs, weights and answers.

The standard graph stays as it is for everybody else. Does not know what a bundle is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from lopa.export.cpu_graph.rounded_rows import RoundedRowsPass
from lopa.export.cpu_graph.row_scales import RowScalesPass
from lopa.export.cpu_graph.unpacked_int4 import UnpackedInt4Pass
from lopa.export.cpu_graph.vocabulary_statistics import VocabularyStatisticsPass
from lopa.export.cpu_graph.wanted_rows import WantedRowsPass
from lopa.runtime.bundle.manifest import ModelDimensions
from lopa.runtime.contract.model_part import ModelPart


@dataclass(frozen=True)
class TwinOf:
    """What passes may know of the graph that a twin is made from."""

    dimensions: ModelDimensions
    part: ModelPart


PassMaker = Callable[[TwinOf], ir.passes.InPlacePass]

CPU_PASSES: Sequence[PassMaker] = (
    lambda of: WantedRowsPass(of.part),
    lambda of: VocabularyStatisticsPass(of.dimensions.vocab_size),
    lambda _: RoundedRowsPass(),
    lambda _: RowScalesPass(),
)
"""In the order in which they run. Each leaves a graph alone in which it finds nothing to do."""


def twin_for_cpu(model: ir.Model, of: TwinOf) -> ir.Model | None:
    """A copy of `model` after all passes, None if none of them changed anything; `model` itself stays.

    Values of weights are not read: they stay in the file that `model` refers to. Raises onnx_ir.passes.PassError when a
    pass finds its contract broken.
    """
    twin = _copied(model)
    return twin if _apply_passes(twin, of) else None


def unpacked_twin(model: ir.Model, of: TwinOf) -> ir.Model | None:
    """As `twin_for_cpu`, with int4 matrices unpacked before the other passes; None if `model` has none."""
    twin = _copied(model)
    if not UnpackedInt4Pass()(twin).modified:
        return None
    _apply_passes(twin, of)
    return twin


def _copied(model: ir.Model) -> ir.Model:
    copy: ir.Model = ir.from_proto(ir.to_proto(model))
    return copy


def _apply_passes(twin: ir.Model, of: TwinOf) -> bool:
    """Run all of the passes on `twin`; whether any found something to do."""
    modified = [make(of)(twin).modified for make in CPU_PASSES]
    return any(modified)

"""Twins of a standard graph for ONNX Runtime's CPU provider, with the same inputs, outputs and weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from lopa.export.cpu_graph.mapped_matrices import MappedExpertsPass, MappedInt4Pass, MappedInt8Pass
from lopa.export.cpu_graph.nonfinite_rows import NonFiniteRowsPass
from lopa.export.cpu_graph.rounded_rows import RoundedRowsPass, RowScalesPass
from lopa.export.cpu_graph.sampled_rows import SampledRowsPass
from lopa.export.cpu_graph.vocabulary_statistics import VocabularyStatisticsPass
from lopa.export.graph.expert_forms import with_expert_operators
from lopa.export.graph.experts import expert_nodes
from lopa.runtime.bundle.manifest import ModelDimensions, TwinForm
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


def twins_for_cpu(model: ir.Model, of: TwinOf) -> dict[TwinForm, ir.Model]:
    """Return the copies of `model` for each form of quantized matrices that differs from `model`.

    Experts are single nodes in `model` (lopa.export.graph.experts). Values of weights are not read, but stay in the
    file that `model` refers to. Raises onnx_ir.passes.PassError if a pass violates its contract.
    """
    twins: dict[TwinForm, ir.Model] = {}
    packed = _copied(model)
    modified = [_apply_passes(packed, of)]
    mapped = _copied(packed)
    if expert_nodes(model):
        modified.append(_apply_passes(with_expert_operators(packed, "standard"), of))
    if any([*modified, NonFiniteRowsPass()(packed).modified]):
        twins["packed"] = packed
    if any(
        [MappedExpertsPass()(mapped).modified, MappedInt4Pass()(mapped).modified, MappedInt8Pass()(mapped).modified]
    ):
        NonFiniteRowsPass()(mapped)  # products that no kernel of lopa's computes
        twins["mapped"] = mapped
    return twins


def _copied(model: ir.Model) -> ir.Model:
    copy: ir.Model = ir.from_proto(ir.to_proto(model))
    return copy


def _apply_passes(twin: ir.Model, of: TwinOf) -> bool:
    """Run all passes on `twin`. Return True if any changed it."""
    modified = [make(of)(twin).modified for make in CPU_PASSES]
    return any(modified)

"""Twins of a standard graph for ONNX Runtime's CPU provider, with the same inputs, outputs and weights."""

from collections.abc import Sequence

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


def cpu_passes(dimensions: ModelDimensions, part: ModelPart) -> list[ir.passes.InPlacePass]:
    """Return the passes for a graph of `part`, in their order. Each leaves a graph unchanged if it finds nothing."""
    return [
        SampledRowsPass(part),
        VocabularyStatisticsPass(dimensions.vocab_size),
        RoundedRowsPass(),
        RowScalesPass(),
    ]


def twins_for_cpu(model: ir.Model, dimensions: ModelDimensions, part: ModelPart) -> dict[TwinForm, ir.Model]:
    """Return the copies of `model` for each form of quantized matrices that differs from `model`.

    Experts are single nodes in `model` (lopa.export.graph.experts). Values of weights are not read, but stay in the
    file that `model` refers to. Raises onnx_ir.passes.PassError if a pass violates its contract.
    """
    twins: dict[TwinForm, ir.Model] = {}
    passes, gelu = cpu_passes(dimensions, part), dimensions.canvas is not None
    packed = _copied(model)
    modified = [_apply_passes(packed, passes)]
    mapped = _copied(packed)
    if expert_nodes(model):
        modified.append(_apply_passes(with_expert_operators(packed, "standard", gelu=gelu), passes))
    if any([*modified, NonFiniteRowsPass()(packed).modified]):
        twins["packed"] = packed
    modified = [each(mapped).modified for each in (MappedExpertsPass(gelu=gelu), MappedInt4Pass(), MappedInt8Pass())]
    if any(modified):
        mapped = with_expert_operators(mapped, "standard")  # FP8
        NonFiniteRowsPass()(mapped)  # products that no kernel of lopa's computes
        twins["mapped"] = mapped
    return twins


def _copied(model: ir.Model) -> ir.Model:
    copy: ir.Model = ir.from_proto(ir.to_proto(model))
    return copy


def _apply_passes(twin: ir.Model, passes: Sequence[ir.passes.InPlacePass]) -> bool:
    """Run all passes on `twin`. Return True if any changed it."""
    modified = [each(twin).modified for each in passes]
    return any(modified)

"""Twin of the standard graph in operators of domain lopa.cuda, with the same function of packed rows.

Its inputs and outputs have no padding (lopa.runtime.bundle.graph_signature). Some inputs are matrices. A session puts
each together in device memory, from tensors of the bundle.
"""

import onnx_ir as ir
from onnx_ir.passes import common

from lopa.export.cuda_graph.attention_pass import BranchAttentionPass
from lopa.export.cuda_graph.nodes import DOMAIN, FusedInputs, OtherFormError, expect
from lopa.export.cuda_graph.product_passes import QuantizedProductsPass, RoundingPass, ScalesPass, StoredBytesPass
from lopa.export.cuda_graph.row_passes import (
    DrawsPass,
    FlatRowsPass,
    FusedExpertsPass,
    NormsPass,
    SwiGluPass,
    TokenStatisticsPass,
)
from lopa.runtime.bundle.manifest import FusedTensor, ModelDimensions
from lopa.runtime.contract import ATTENTION_START, LOGITS_INDEX, PREFIX_MASK, SAMPLED_ROWS, WINDOW_MASK, past_names


def twin_for_cuda(model: ir.Model, dimensions: ModelDimensions) -> tuple[ir.Model, list[FusedTensor]] | None:
    """Return the twin of `model` and the inputs that stand for tensors, or None for a graph of another form.

    Experts are single nodes in `model` (lopa.export.graph.experts). Raises onnx_ir.passes.PassError if a pass violates
    its contract.
    """
    twin: ir.Model = ir.from_proto(ir.to_proto(model))
    fused = FusedInputs()
    try:
        for each in (
            QuantizedProductsPass(),
            BranchAttentionPass(dimensions, fused),
            FlatRowsPass(),
            NormsPass(),
            SwiGluPass(fused),
            FusedExpertsPass(gelu=dimensions.canvas is not None),
            *([] if dimensions.canvas is None else [DrawsPass()]),
            TokenStatisticsPass(),
            common.RemoveUnusedNodesPass(),
            ScalesPass(),
            RoundingPass(),
            StoredBytesPass(fused),
            common.RemoveUnusedNodesPass(),
        ):
            each(twin)
        _pack_signature(twin.graph, dimensions.layers)
    except OtherFormError:
        return None
    twin.graph.inputs.extend(fused.values)
    twin.opset_imports[DOMAIN] = 1
    passes = ir.passes.Sequential(common.TopologicalSortPass(), common.NameFixPass())
    return passes(twin).model, fused.records


def _pack_signature(graph: ir.Graph, layers: int) -> None:
    """Remove the inputs that nothing uses, and give all values the shapes of packed rows. Raises OtherFormError."""
    for value in tuple(graph.inputs):
        if value.name in {WINDOW_MASK, PREFIX_MASK, ATTENTION_START, *past_names(layers)}:
            expect(not value.uses())
            graph.inputs.remove(value)
    for node in graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None  # of windows
    for value in (*graph.inputs, *graph.outputs):
        if value.name == LOGITS_INDEX:
            value.name = SAMPLED_ROWS
        axes = list(value.shape or ())
        if "window" in axes:
            value.shape = ir.Shape(["rows", *(axes[3:] if len(axes) < 5 else (axes[2], axes[4]))])
        elif "requests" in axes:
            value.shape = ir.Shape(["sampled", *axes[3:]])

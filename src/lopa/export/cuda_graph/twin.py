"""Twin of the standard graph in operators of domain lopa.cuda, with the same function and outputs.

It has more inputs than the graph: the attention's tasks (lopa.runtime.bundle.graph_signature), and matrices. A session
puts each matrix together in device memory, from tensors of the bundle.
"""

import onnx_ir as ir
from onnx_ir.passes import common

from lopa.export.cuda_graph.attention_pass import BranchAttentionPass
from lopa.export.cuda_graph.nodes import DOMAIN, FusedInputs, OtherFormError
from lopa.export.cuda_graph.row_passes import FlatRowsPass, NormsPass, SwiGluPass, TokenStatisticsPass
from lopa.export.graph.expert_forms import with_expert_operators
from lopa.runtime.bundle.manifest import FusedTensor, ModelDimensions


def twin_for_cuda(model: ir.Model, dimensions: ModelDimensions) -> tuple[ir.Model, list[FusedTensor]] | None:
    """Return the twin of `model` and the inputs that stand for tensors, or None for a graph of another form.

    Experts are single nodes in `model` (lopa.export.graph.experts) and as in the standard graph in the twin. Raises
    onnx_ir.passes.PassError if a pass violates its contract.
    """
    twin: ir.Model = ir.from_proto(ir.to_proto(model))
    fused = FusedInputs()
    try:
        for each in (
            BranchAttentionPass(dimensions, fused),
            FlatRowsPass(),
            NormsPass(),
            SwiGluPass(fused),
            TokenStatisticsPass(),
        ):
            each(twin)
    except OtherFormError:
        return None
    twin.graph.inputs.extend(fused.values)
    twin.opset_imports[DOMAIN] = 1
    for node in twin.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None  # of windows, not of one list of rows
    passes = ir.passes.Sequential(common.RemoveUnusedNodesPass(), common.TopologicalSortPass(), common.NameFixPass())
    return with_expert_operators(passes(twin).model, "standard"), fused.records

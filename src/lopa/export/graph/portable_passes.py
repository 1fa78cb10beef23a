"""Passes from a tidied graph of opset 18 to the portable dialect.

A graph with quantized matrices has opset 21, the first with int4 and scales of blocks. No other graph needs it, and
Ascend's ATC registers no operator of it.
"""

import onnx_ir as ir
from onnx_ir.passes import common

OPSET = 17
"""The newest ai.onnx opset that the portable dialect allows."""
QUANTIZED_OPSET = 21
"""The ai.onnx opset of portable graphs with quantized matrices."""
_IR_VERSIONS = {OPSET: 8, QUANTIZED_OPSET: 10}
"""IR versions that belong to the opsets."""
_AXES_AS_ATTRIBUTE = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceL2")
"""Operators whose axes became an input in opset 18. The axes of ReduceSum are an input in both opsets."""


def as_portable(model: ir.Model) -> ir.Model:
    """Return the model in opset 17, with its constants as initializers."""
    passes = ir.passes.Sequential(
        Opset17Pass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.RemoveUnusedNodesPass(),
    )
    return passes(model).model


def as_quantized_portable(model: ir.Model) -> ir.Model:
    """Return the model in opset 21, with its constants as initializers, for QuantizedMatricesPass.

    The operators that tidied graphs have mean the same in opsets 18 and 21.
    """
    model.graph.opset_imports[""] = QUANTIZED_OPSET
    model.ir_version = _IR_VERSIONS[QUANTIZED_OPSET]
    return ir.passes.Sequential(
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.RemoveUnusedNodesPass(),
    )(model).model


class Opset17Pass(ir.passes.InPlacePass):
    """Pass that rewrites operators whose form differs between opsets 17 and 18."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the nodes. Raises PassError for a reduction over computed axes, which opset 17 lacks."""
        for node in model.graph:
            if node.op_type in _AXES_AS_ATTRIBUTE and len(node.inputs) > 1:
                axes = None if node.inputs[1] is None else ir.convenience.get_const_tensor(node.inputs[1])
                if axes is None:
                    raise ir.passes.PassError(f"{node.name}: opset 17 needs constant axes of {node.op_type}")
                node.attributes["axes"] = ir.AttrInt64s("axes", [int(axis) for axis in axes.numpy().reshape(-1)])
                node.attributes.pop("noop_with_empty_axes", None)
                node.resize_inputs(1)
            if node.op_type == "Split":
                node.attributes.pop("num_outputs", None)
        model.graph.opset_imports[""] = OPSET
        model.ir_version = _IR_VERSIONS[OPSET]
        return ir.passes.PassResult(model, modified=True)

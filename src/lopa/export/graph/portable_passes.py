"""Passes from a tidied graph of opset 18 to the portable dialect. They know operators, not the model."""

import onnx_ir as ir
from onnx_ir.passes import common

OPSET = 17
"""The newest ai.onnx opset that the portable dialect allows."""
_IR_VERSION = 8
"""The version of the file format that came with opset 17."""
_AXES_AS_ATTRIBUTE = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceL2")
"""Of these the axes are an attribute until opset 17 and an input from 18 on; of ReduceSum they are an input in both."""


def as_portable(model: ir.Model) -> ir.Model:
    """The same function in opset 17, its constants as initializers."""
    passes = ir.passes.Sequential(
        Opset17Pass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.RemoveUnusedNodesPass(),
    )
    return passes(model).model


class Opset17Pass(ir.passes.InPlacePass):
    """Rewrites what opset 18 says in another way than opset 17."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Raises PassError for a reduction over computed axes, which opset 17 cannot say."""
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
        model.ir_version = _IR_VERSION
        return ir.passes.PassResult(model, modified=True)

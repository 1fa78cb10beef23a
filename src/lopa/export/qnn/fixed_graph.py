"""The graph that QNN compiles: a bundle's standard graph in one shape, with float masks and rotary inputs.

lopa.export.qnn.quantized_products has the forms of products with quantized matrices.
"""

import msgspec
import onnx_ir as ir
from onnx_ir.passes import common

from lopa.export.graph.quantize_pass import initializer
from lopa.export.graph.rotary_inputs import with_rotary_inputs
from lopa.export.qnn.quantized_products import Int16RowsPass, with_block_products
from lopa.runtime.accelerator.device_forward import GraphArrays
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract.sizes import Sizes

MASKED = -1e4
"""Mask value of pairs that do not attend. It is finite in float16, and its exponential is zero."""
_MASK_INPUT = 3
"""Index of the mask among the inputs of Attention."""


def fixed_graph(bundle: Bundle, sizes: Sizes) -> ir.Model:
    """Return the standard graph of `bundle` for inputs of `sizes`.

    Weights stay in the bundle's file, except the matrices `block_matrices`: the graph has no values for them.
    """
    model = with_rotary_inputs(ir.load(bundle.graph))
    shapes = GraphArrays(msgspec.structs.replace(bundle.manifest, rotary_inputs=["standard"])).input_shapes(sizes)
    for node in model.graph:
        for value in node.outputs:
            value.shape = None  # of any size; ONNX Runtime infers the fixed ones
    for value in model.graph.inputs:
        value.shape = ir.Shape(shapes[str(value.name)])
    use_float_masks(model, ir.DataType.FLOAT16 if bundle.manifest.dtype == "float16" else ir.DataType.FLOAT)
    Int16RowsPass()(model)
    if names := block_matrices(bundle.manifest):
        model = with_block_products(common.ShapeInferencePass()(model).model, names, sizes)
    return model


def block_matrices(manifest: Manifest) -> list[str]:
    """Return the names of the int4 matrices, which MatMulNBits takes in another order than the bundle's."""
    return [name for name, record in manifest.tensors.items() if record.dtype == "int4"]


def use_float_masks(model: ir.Model, dtype: ir.DataType) -> None:
    """Insert a Where between each boolean mask and the Attention nodes that take it, which QNN rejects otherwise."""
    nodes = [node for node in model.graph if node.op_type == "Attention"]
    masks = dict.fromkeys(mask for node in nodes if (mask := node.inputs[_MASK_INPUT]) is not None)
    for number, mask in enumerate(masks):
        users = [node for node in nodes if node.inputs[_MASK_INPUT] is mask]
        values = [
            initializer(model, ir.tensor(value, dtype=dtype, name=f"float_mask_{number}/{name}"))
            for name, value in (("allowed", 0.0), ("masked", MASKED))
        ]
        where = ir.node("Where", [mask, *values], name=f"float_mask_{number}")
        where.outputs[0].name = f"float_mask_{number}/mask"
        where.outputs[0].type = ir.TensorType(dtype)
        users[0].prepend([where])
        for node in users:
            node.replace_input_with(_MASK_INPUT, where.outputs[0])

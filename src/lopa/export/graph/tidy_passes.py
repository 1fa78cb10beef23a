"""Passes that remove the leftovers of tracing from a graph.

The passes do not read weights, which are not in a file yet.
"""

import ast

import onnx_ir as ir
import onnxscript.optimizer
from onnx_ir.passes import common

from lopa.export.graph.experts import TRACED_DOMAIN

_SCOPES = "pkg.torch.onnx.name_scopes"
"""Metadata key under which torch's exporter records the modules of a node."""


def tidy(model: ir.Model) -> ir.Model:
    """Simplify the model: fold constants, share equal nodes, remove shape arithmetic.

    Raises onnx_ir.passes.PassError if a pass violates its contract.
    """
    onnxscript.optimizer.fold_constants(model)
    passes = ir.passes.Sequential(
        NodeNamesPass(),
        common.IdentityEliminationPass(),
        DirectShapesPass(),
        ConstantReshapesPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
        common.ClearMetadataAndDocStringPass(),
        common.TopologicalSortPass(),
        common.NameFixPass(),
        StandardOperatorsPass(),
    )
    return passes(model).model


class NodeNamesPass(ir.passes.InPlacePass):
    """Pass that names every node after its module and operator: layers.0.attention.query/MatMul."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rename the nodes. NameFixPass adds numbers to equal names."""
        for node in model.graph:
            scopes = ast.literal_eval(node.metadata_props.get(_SCOPES, "[]"))
            # The last scope is the traced operation. The scopes before it are modules, outermost first.
            module = scopes[-2] if len(scopes) > 1 and not scopes[-2].startswith("_") else ""
            node.name = f"{module}/{node.op_type}" if module else node.op_type
        return ir.passes.PassResult(model, modified=True)


class DirectShapesPass(ir.passes.InPlacePass):
    """Pass that replaces Reshape(Squeeze(size), [-1]) by `size`: the exporter converts a size to a scalar and back."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Use the one-element output of Shape directly."""
        modified = False
        for node in model.graph:
            squeeze = node.inputs[0].producer() if node.op_type == "Reshape" and node.inputs[0] is not None else None
            if squeeze is None or squeeze.op_type != "Squeeze" or _ints(node.inputs[1]) != [-1]:
                continue
            if not node.outputs[0].uses() or node.outputs[0].is_graph_output():
                continue
            size = squeeze.inputs[0]
            if size is not None and (shape := size.producer()) is not None and _is_size_of_one_axis(shape):
                node.outputs[0].replace_all_uses_with(size)
                modified = True
        return ir.passes.PassResult(model, modified=modified)


class ConstantReshapesPass(ir.passes.InPlacePass):
    """Pass that makes a target of Reshape constant if 0 (copied from the input) and -1 (inferred) suffice.

    A target that still depends on sizes keeps its Concat, with -1 in place of the product of two axes.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the targets. The model must have the symbolic shapes of the exporter."""
        modified = False
        for node in tuple(model.graph):
            if node.op_type == "Reshape" and _ints(node.inputs[1]) is None:
                modified = _constant_target(node) or _inferred_product(node) or modified
        return ir.passes.PassResult(model, modified=modified)


class StandardOperatorsPass(ir.passes.InPlacePass):
    """Pass that changes nothing and checks that all operators are standard ones outside of functions.

    Experts are still one node of the domain TRACED_DOMAIN (lopa.export.graph.experts).
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Return the unchanged model."""
        return ir.passes.PassResult(model, modified=False)

    def ensures(self, model: ir.Model) -> None:
        """Raise PostconditionError for nodes of other domains and for functions."""
        others = {f"{node.domain}::{node.op_type}" for node in model.graph if node.domain not in ("", TRACED_DOMAIN)}
        if others or model.functions or not set(model.opset_imports) <= {"", TRACED_DOMAIN}:
            raise ir.passes.PostconditionError(f"operators outside ai.onnx: {sorted(others)}, {list(model.functions)}")


def _constant_target(reshape: ir.Node) -> bool:
    """Replace the target by a constant if that leaves at most one axis to infer."""
    source, result = reshape.inputs[0], reshape.outputs[0]
    if source is None or source.shape is None or result.shape is None:
        return False
    target: list[int] = []
    for axis, size in enumerate(result.shape):
        if isinstance(size, int):
            target.append(size)
        elif axis < len(source.shape) and source.shape[axis] == size:
            target.append(0)
        else:
            target.append(-1)
    if target.count(-1) > 1:
        return False
    _set_target(reshape, _constant(reshape, target))
    return True


def _inferred_product(reshape: ir.Node) -> bool:
    """Replace the one computed part of a concatenated target by -1, if all other parts are constants or sizes."""
    target = reshape.inputs[1]
    concat = target.producer() if target is not None else None
    if concat is None or concat.op_type != "Concat":
        return False
    computed = [
        i
        for i, part in enumerate(concat.inputs)
        if part is not None
        and _ints(part) is None
        and (producer := part.producer()) is not None
        and not _is_size_of_one_axis(producer)
    ]
    if len(computed) != 1:
        return False
    parts = list(concat.inputs)
    parts[computed[0]] = _constant(reshape, [-1])
    inferred = ir.node("Concat", parts, {"axis": 0}, name=f"{reshape.name}/target")
    reshape.prepend(inferred)
    _set_target(reshape, inferred.outputs[0])
    return True


def _set_target(reshape: ir.Node, target: ir.Value) -> None:
    reshape.replace_input_with(1, target)
    reshape.attributes["allowzero"] = ir.AttrInt64("allowzero", 0)


def _constant(before: ir.Node, values: list[int]) -> ir.Value:
    node = ir.node("Constant", [], {"value_ints": values}, name=f"{before.name}/Constant")
    before.prepend(node)
    output = node.outputs[0]
    output.const_value = ir.tensor(values, dtype=ir.DataType.INT64)
    output.shape, output.type = ir.Shape([len(values)]), ir.TensorType(ir.DataType.INT64)
    return output


def _ints(value: ir.Value | None) -> list[int] | None:
    """Return the numbers of a small constant; None for anything else."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    if tensor is None or tensor.dtype != ir.DataType.INT64:
        return None
    return [int(number) for number in tensor.numpy().reshape(-1)]


def _is_size_of_one_axis(node: ir.Node) -> bool:
    """Return True for a Shape node that returns the size of a single axis."""
    if node.op_type != "Shape" or "end" not in node.attributes:
        return False
    start = node.attributes["start"].as_int() if "start" in node.attributes else 0
    return node.attributes["end"].as_int() - start == 1

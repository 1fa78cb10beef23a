"""Passes over a freshly traced graph that take away what tracing left behind. They know operators, not the model.

Values of weights are never read: at this point they are in no file.
"""

import ast

import onnx_ir as ir
import onnxscript.optimizer
from onnx_ir.passes import common

_SCOPES = "pkg.torch.onnx.name_scopes"
"""Where torch's exporter notes the modules that a node came from."""


def tidy(model: ir.Model) -> ir.Model:
    """The same function in fewer nodes: constants folded, equal nodes shared, shape arithmetic removed.

    Raises onnx_ir.passes.PassError when a pass finds its contract broken.
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
    """Names every node after the module that it came from and its operator: layers.0.attention.query/MatMul."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rename; equal names get a number from NameFixPass."""
        for node in model.graph:
            scopes = ast.literal_eval(node.metadata_props.get(_SCOPES, "[]"))
            # The last scope is the traced operation itself; those before it are modules, outermost first.
            module = scopes[-2] if len(scopes) > 1 and not scopes[-2].startswith("_") else ""
            node.name = f"{module}/{node.op_type}" if module else node.op_type
        return ir.passes.PassResult(model, modified=True)


class DirectShapesPass(ir.passes.InPlacePass):
    """Reshape(Squeeze(size), [-1]) is `size`: the exporter makes a size a number and then a list again."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Use the list of one size, which Shape gives, directly."""
        modified = False
        for node in model.graph:
            squeeze = node.inputs[0].producer() if node.op_type == "Reshape" and node.inputs[0] is not None else None
            if squeeze is None or squeeze.op_type != "Squeeze" or _ints(node.inputs[1]) != [-1]:
                continue
            if not node.outputs[0].uses() or node.outputs[0].is_graph_output():
                continue
            size = squeeze.inputs[0]
            if size is not None and (shape := size.producer()) is not None and _is_one_size(shape):
                node.outputs[0].replace_all_uses_with(size)
                modified = True
        return ir.passes.PassResult(model, modified=modified)


class ConstantReshapesPass(ir.passes.InPlacePass):
    """Writes the target of a Reshape with 0 (copied from the input) and -1 (inferred) where these say the same.

    A target that still depends on sizes keeps its Concat, with -1 for the product of two axes.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Needs the symbolic shapes that the exporter gave the values."""
        modified = False
        for node in tuple(model.graph):
            if node.op_type == "Reshape" and _ints(node.inputs[1]) is None:
                modified = _constant_target(node) or _inferred_product(node) or modified
        return ir.passes.PassResult(model, modified=modified)


class StandardOperatorsPass(ir.passes.InPlacePass):
    """Changes nothing; its contract is that every operator is a standard one, in no function."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Leave the model as it is."""
        return ir.passes.PassResult(model, modified=False)

    def ensures(self, model: ir.Model) -> None:
        """Raise PostconditionError for a node of another domain, and for functions."""
        others = {f"{node.domain}::{node.op_type}" for node in model.graph if node.domain}
        if others or model.functions or set(model.opset_imports) != {""}:
            raise ir.passes.PostconditionError(f"operators outside ai.onnx: {sorted(others)}, {list(model.functions)}")


def _constant_target(reshape: ir.Node) -> bool:
    """Replace the target by a constant if at most one axis would have to be inferred."""
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
    """Replace the one part of a concatenated target that is computed, and not simply a size, by -1."""
    target = reshape.inputs[1]
    concat = target.producer() if target is not None else None
    if concat is None or concat.op_type != "Concat":
        return False
    computed = [
        i
        for i, part in enumerate(concat.inputs)
        if part is not None and _ints(part) is None and (made := part.producer()) is not None and not _is_one_size(made)
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
    """The numbers of a small constant; None for anything else."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    if tensor is None or tensor.dtype != ir.DataType.INT64:
        return None
    return [int(number) for number in tensor.numpy().reshape(-1)]


def _is_one_size(node: ir.Node) -> bool:
    """A Shape node that gives the size of a single axis."""
    if node.op_type != "Shape" or "end" not in node.attributes:
        return False
    start = node.attributes["start"].as_int() if "start" in node.attributes else 0
    return node.attributes["end"].as_int() - start == 1

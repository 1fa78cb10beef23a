"""Pass that restricts the last layer to the sampled positions, except for its keys and values.

Keys and values are needed for all tokens of the window, because attention reads them and the caller commits them. The
other operations of the last layer (queries, attention, products, MLP) compute each row on its own. The sampled rows are
therefore gathered before them and not after them. Results change only by the order of sums.

N = requests x branches, W window rows, Q sampled positions, P prefix rows, H hidden size.
"""

from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common

from lopa.export.graph.experts import EXPERTS_OPERATOR, TRACED_DOMAIN
from lopa.runtime.contract import LOGITS_INDEX
from lopa.runtime.contract.model_part import ModelPart

_ROWWISE = {
    "Abs",
    "Add",
    "Cast",
    "DequantizeLinear",
    "Div",
    "Equal",
    EXPERTS_OPERATOR,
    "Greater",
    "MatMul",
    "Max",
    "Mul",
    "QuantizeLinear",
    "RMSNormalization",
    "ReduceMax",
    "Sigmoid",
    "Where",
}
"""Operators that compute a row [.., channels] only from the same row, weights and constants in these layers."""
_ALONG_LAST_AXIS = {"Concat", "GatherElements", "Softmax", "TopK"}
"""Operators with an attribute for their axis, which compute a row on its own if this is the last axis."""
_LAST_AXES = [[-1], [-2], [3]]
"""Axes, as constants, along which the reductions and slices of these layers leave rows apart. Rows of a router are at
axis 1 of arrays with up to 4 axes. Heads have channels at axis 3."""
_HEADS_TRANSPOSE = [0, 2, 1, 3]
"""Permutation between [N, W, heads, D] and [N, heads, W, D]."""


class SampledRowsPass(ir.passes.InPlacePass):
    """Pass that gathers the sampled rows before the last layer of `part`, if it computes statistics."""

    def __init__(self, part: ModelPart) -> None:
        super().__init__()
        self._part = part

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Move the Gather. Leaves a graph unchanged if its last layer has an unexpected form."""
        norm = model.graph.initializers.get(f"layers.{self._part.end - 1}.attention_norm.weight")
        gather = _gather_of_sampled(model.graph)
        if norm is None or gather is None:
            return ir.passes.PassResult(model, modified=False)
        rows, after, index = next(iter(norm.uses())).node.inputs[0], gather.inputs[0], gather.inputs[1]
        flat = after.producer() if after is not None else None
        if rows is None or index is None or flat is None or flat.op_type != "Reshape" or flat.inputs[0] is None:
            return ir.passes.PassResult(model, modified=False)
        copies = _SampledCopies(rows, index)
        try:
            sampled = copies.of(flat.inputs[0])
        except _UnexpectedFormError:
            for node in copies.nodes:  # as users, they would keep what they read
                for place in range(len(node.inputs)):
                    node.replace_input_with(place, None)
            return ir.passes.PassResult(model, modified=False)
        result = gather.outputs[0]
        shaped = copies.reshape_to_index(sampled)
        gather.prepend(copies.nodes)
        shaped.name, shaped.shape, shaped.type = f"{result.name}/wanted", result.shape, result.type
        ir.convenience.replace_all_uses_with(result, shaped)
        model.graph.remove(gather, safe=True)
        common.RemoveUnusedNodesPass()(model)
        common.NameFixPass()(model)
        return ir.passes.PassResult(model, modified=True)


class _UnexpectedFormError(Exception):
    """The last layer has a node that may combine rows."""


class _SampledCopies:
    """Copies of nodes that compute the sampled rows [N, Q, ..] instead of all rows [N, W, ..]."""

    def __init__(self, rows: ir.Value, index: ir.Value) -> None:
        """Gather `rows` [N, W, H] by `index`, int64 [R, B, Q], which counts rows over all windows."""
        self.nodes: list[ir.Node] = []
        """Copied nodes in order. They are not in the graph yet."""
        self._index = index
        self._count = self._add("Shape", [index], {"start": 2})
        self._by_window = self._add(
            "Reshape", [index, self._add("Concat", [self._constant([-1]), self._count], {"axis": 0})]
        )
        self._copies: dict[ir.Value, ir.Value] = {rows: self._gathered(rows)}

    def of(self, value: ir.Value) -> ir.Value:
        """Return the copy of `value` for the sampled rows, or `value` itself if it does not depend on rows.

        Raises _UnexpectedFormError for an unexpected form.
        """
        if value in self._copies:
            return self._copies[value]
        node = value.producer()
        if node is None:
            if value.is_graph_input():
                raise _UnexpectedFormError
            return value
        if value.const_value is not None or node.op_type == "Constant":
            return value
        inputs = self._inputs(node)
        if inputs == list(node.inputs):
            return value
        copy = ir.node(
            node.op_type,
            inputs,
            dict(node.attributes),
            domain=node.domain,
            num_outputs=len(node.outputs),
            name=node.name,
        )
        self.nodes.append(copy)
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            new.type = old.type
            self._copies[old] = new
        return self._copies[value]

    def reshape_to_index(self, sampled: ir.Value) -> ir.Value:
        """Reshape [N, Q, H] to [R, B, Q, H]."""
        sizes = self._add("Shape", [self._index])
        return self._add(
            "Reshape", [sampled, self._add("Concat", [sizes, self._add("Shape", [sampled], {"start": 2})], {"axis": 0})]
        )

    def _inputs(self, node: ir.Node) -> list[ir.Value | None]:
        """Return the inputs of the copy of `node`. Raises _UnexpectedFormError."""
        inputs = list(node.inputs)
        first = inputs[0]
        if node.domain not in ("", TRACED_DOMAIN) or first is None:
            raise _UnexpectedFormError
        if node.op_type == "Attention":
            mask = inputs[3] if len(inputs) == 4 else None
            if mask is None:
                raise _UnexpectedFormError
            return [self.of(first), *inputs[1:3], self._gathered_mask(mask)]
        if node.op_type == "RotaryEmbedding":
            return [self.of(first), *(self._gathered(angle) for angle in inputs[1:] if angle is not None)]
        if node.op_type == "Reshape" and _keeps_two_axes(inputs[1]):
            return [self.of(first), inputs[1]]
        if _is_rowwise(node):
            return [None if each is None else self.of(each) for each in inputs]
        raise _UnexpectedFormError

    def _gathered(self, rows: ir.Value) -> ir.Value:
        """Gather [N, Q, channels] from [N, W, channels]."""
        size = self._add("Shape", [rows], {"start": 2})
        flat = self._add("Reshape", [rows, self._add("Concat", [self._constant([-1]), size], {"axis": 0})])
        gathered = self._add("Gather", [flat, self._by_window], {"axis": 0})
        gathered.type = rows.type
        return gathered

    def _gathered_mask(self, mask: ir.Value) -> ir.Value:
        """Gather [N, 1, Q, P + W] from [N, 1, W, P + W]."""
        one = self._constant([1])
        return self._add("Unsqueeze", [self._gathered(self._add("Squeeze", [mask, one])), one])

    def _constant(self, numbers: list[int]) -> ir.Value:
        return self._add("Constant", [], {"value_ints": numbers})

    def _add(self, operator: str, inputs: list[ir.Value], attributes: dict[str, Any] | None = None) -> ir.Value:
        node = ir.node(operator, inputs, attributes or {}, name=f"wanted/{operator}")
        self.nodes.append(node)
        return node.outputs[0]


def _gather_of_sampled(graph: ir.Graph) -> ir.Node | None:
    """Return the node that gathers the sampled rows after the layers, or None."""
    index = next((value for value in graph.inputs if value.name == LOGITS_INDEX), None)
    sums = [use.node for use in index.uses() if use.node.op_type == "Add"] if index is not None else []
    gathers = [use.node for each in sums for use in each.outputs[0].uses() if use.node.op_type == "Gather"]
    return gathers[0] if len(gathers) == 1 else None


def _is_rowwise(node: ir.Node) -> bool:
    """Return True if each row of the node's outputs depends only on the same row of its inputs."""
    if node.op_type in _ROWWISE:
        return True
    if node.op_type == "Transpose":
        return list(node.attributes["perm"].as_ints()) == _HEADS_TRANSPOSE
    if node.op_type in _ALONG_LAST_AXIS:
        axis = node.attributes.get("axis")
        return axis is not None and axis.as_int() == -1
    axes = {"ReduceSum": 1, "Slice": 3, "Unsqueeze": 1}.get(node.op_type)
    return axes is not None and len(node.inputs) > axes and _constant_ints(node.inputs[axes]) in _LAST_AXES


def _constant_ints(value: ir.Value | None) -> list[int] | None:
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if tensor is None else [int(each) for each in tensor.numpy().reshape(-1)]


def _keeps_two_axes(target: ir.Value | None) -> bool:
    """Return True if a Reshape to the constant `target` keeps its first two axes."""
    shape = _constant_ints(target)
    return shape is not None and shape[:2] == [0, 0]

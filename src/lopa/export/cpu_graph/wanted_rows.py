"""A pass that computes, behind the last layer's keys and values, only the rows whose statistics are wanted.

Keys and values are needed of all rows of the window: attention reads them and the caller commits them. Queries,
attention, products and MLP of the last layer make each row of the row itself and of keys and values, so the rows are
gathered in front of them, and no more behind. No number changes but by the order of sums.

N = requests x branches, W window rows, Q wanted rows, P prefix rows, H hidden size. Does not know any weight's value.
"""

from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common

from lopa.runtime.contract import LOGITS_INDEX
from lopa.runtime.contract.model_part import ModelPart

_ONE_ROW_EACH = {
    "Abs",
    "Add",
    "Cast",
    "DequantizeLinear",
    "Div",
    "MatMul",
    "Max",
    "Mul",
    "QuantizeLinear",
    "RMSNormalization",
    "ReduceMax",
    "Sigmoid",
}
"""Operators that, as our layers have them, make a row [.., channels] of the same row, weights and constants."""
_BETWEEN_ROWS_AND_HEADS = [0, 2, 1, 3]
"""How [N, W, heads, D] and [N, heads, W, D] become each other."""


class WantedRowsPass(ir.passes.InPlacePass):
    """Gathers the wanted rows in front of the last layer of `part`, where that makes statistics."""

    def __init__(self, part: ModelPart) -> None:
        super().__init__()
        self._part = part

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Leaves a graph alone whose last layer is not written as expected."""
        norm = model.graph.initializers.get(f"layers.{self._part.end - 1}.attention_norm.weight")
        gather = _gather_of_wanted(model.graph)
        if norm is None or gather is None:
            return ir.passes.PassResult(model, modified=False)
        rows, behind, index = next(iter(norm.uses())).node.inputs[0], gather.inputs[0], gather.inputs[1]
        flat = behind.producer() if behind is not None else None
        if rows is None or index is None or flat is None or flat.op_type != "Reshape" or flat.inputs[0] is None:
            return ir.passes.PassResult(model, modified=False)
        copied = _WantedCopies(rows, index)
        try:
            wanted = copied.of(flat.inputs[0])
        except _OtherFormError:
            return ir.passes.PassResult(model, modified=False)
        result = gather.outputs[0]
        shaped = copied.shaped_as_index(wanted)
        gather.prepend(copied.nodes)
        shaped.name, shaped.shape, shaped.type = f"{result.name}/wanted", result.shape, result.type
        ir.convenience.replace_all_uses_with(result, shaped)
        model.graph.remove(gather, safe=True)
        common.RemoveUnusedNodesPass()(model)
        common.NameFixPass()(model)
        return ir.passes.PassResult(model, modified=True)


class _OtherFormError(Exception):
    """The last layer has something that cannot be told to make each row of itself."""


class _WantedCopies:
    """Copies of nodes that compute [N, Q, ..] where the originals compute [N, W, ..]."""

    def __init__(self, rows: ir.Value, index: ir.Value) -> None:
        """`rows` [N, W, H] are gathered; `index` int64 [R, B, Q] counts the rows of all windows together."""
        self.nodes: list[ir.Node] = []
        """In order, none of them in the graph yet."""
        self._index = index
        self._count = self._add("Shape", [index], {"start": 2})
        self._by_window = self._add(
            "Reshape", [index, self._add("Concat", [self._constant([-1]), self._count], {"axis": 0})]
        )
        self._copies: dict[ir.Value, ir.Value] = {rows: self._gathered(rows)}

    def of(self, value: ir.Value) -> ir.Value:
        """What is `value` of the wanted rows; itself, if it does not depend on rows.

        Raises _OtherFormError for what is not written as expected.
        """
        if value in self._copies:
            return self._copies[value]
        node = value.producer()
        if node is None:
            if value.is_graph_input():
                raise _OtherFormError
            return value
        if value.const_value is not None or node.op_type == "Constant":
            return value
        inputs = self._inputs(node)
        if inputs == list(node.inputs):
            return value
        copy = ir.node(node.op_type, inputs, dict(node.attributes), domain=node.domain, name=node.name)
        copy.outputs[0].type = value.type
        self.nodes.append(copy)
        self._copies[value] = copy.outputs[0]
        return copy.outputs[0]

    def shaped_as_index(self, wanted: ir.Value) -> ir.Value:
        """[N, Q, H] -> [R, B, Q, H]"""
        sizes = self._add("Shape", [self._index])
        return self._add(
            "Reshape", [wanted, self._add("Concat", [sizes, self._add("Shape", [wanted], {"start": 2})], {"axis": 0})]
        )

    def _inputs(self, node: ir.Node) -> list[ir.Value | None]:
        """Those of the copy of `node`. Raises _OtherFormError."""
        inputs = list(node.inputs)
        first = inputs[0]
        if node.domain or len(node.outputs) != 1 or first is None:
            raise _OtherFormError
        if node.op_type == "Attention":
            mask = inputs[3] if len(inputs) == 4 else None
            if mask is None:
                raise _OtherFormError
            return [self.of(first), *inputs[1:3], self._gathered_mask(mask)]
        if node.op_type == "RotaryEmbedding":
            return [self.of(first), *(self._gathered(angle) for angle in inputs[1:] if angle is not None)]
        if node.op_type == "Reshape" and _keeps_two_axes(inputs[1]):
            return [self.of(first), inputs[1]]
        if node.op_type in _ONE_ROW_EACH or (
            node.op_type == "Transpose" and list(node.attributes["perm"].as_ints()) == _BETWEEN_ROWS_AND_HEADS
        ):
            return [None if each is None else self.of(each) for each in inputs]
        raise _OtherFormError

    def _gathered(self, rows: ir.Value) -> ir.Value:
        """[N, W, channels] -> [N, Q, channels]"""
        size = self._add("Shape", [rows], {"start": 2})
        flat = self._add("Reshape", [rows, self._add("Concat", [self._constant([-1]), size], {"axis": 0})])
        gathered = self._add("Gather", [flat, self._by_window], {"axis": 0})
        gathered.type = rows.type
        return gathered

    def _gathered_mask(self, mask: ir.Value) -> ir.Value:
        """[N, 1, W, P + W] -> [N, 1, Q, P + W]"""
        one = self._constant([1])
        return self._add("Unsqueeze", [self._gathered(self._add("Squeeze", [mask, one])), one])

    def _constant(self, numbers: list[int]) -> ir.Value:
        return self._add("Constant", [], {"value_ints": numbers})

    def _add(self, operator: str, inputs: list[ir.Value], attributes: dict[str, Any] | None = None) -> ir.Value:
        node = ir.node(operator, inputs, attributes or {}, name=f"wanted/{operator}")
        self.nodes.append(node)
        return node.outputs[0]


def _gather_of_wanted(graph: ir.Graph) -> ir.Node | None:
    """The node that takes the wanted rows of all rows behind the layers, if the graph has one."""
    asked = next((value for value in graph.inputs if value.name == LOGITS_INDEX), None)
    sums = [use.node for use in asked.uses() if use.node.op_type == "Add"] if asked is not None else []
    gathers = [use.node for each in sums for use in each.outputs[0].uses() if use.node.op_type == "Gather"]
    return gathers[0] if len(gathers) == 1 else None


def _keeps_two_axes(target: ir.Value | None) -> bool:
    """Whether a Reshape to the constant `target` leaves its first two axes as they are."""
    tensor = ir.convenience.get_const_tensor(target) if target is not None else None
    return tensor is not None and list(tensor.numpy()[:2]) == [0, 0]

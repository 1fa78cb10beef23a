"""Operators of each dialect for the experts of sparse layers.

Standard graphs sort rows by expert, and have one product per expert and matrix. Every chosen pair of a row and an
expert is computed once, for any choice. Experts without rows compute products with zero rows. All names of a layer's
nodes start with the layer's name, and joined_experts restores the single node.

In the portable dialect every expert computes every row, and weights of 0 remove what was not chosen. All shapes are
known without values. The last products of all experts are one product with their stacked matrices, which also adds
them up. No second copy of a matrix is stored. Work and weights read are E / k times those of chosen rows.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from lopa.export.graph.expert_layer import (
    ExpertLayer,
    ExpertMatrix,
    ExpertsPass,
    LayerForm,
    LayerNodes,
    part_of_expert,
    reshaped,
    stacked_from_part,
)
from lopa.export.graph.experts import EXPERTS_OPERATOR, TRACED_DOMAIN
from lopa.export.graph.quantize_pass import initializer, replace_value
from lopa.runtime.bundle.manifest import Dialect


class MaskedLayer(LayerForm):
    """Form of products of all rows, in floating point."""

    def replace(self) -> None:
        """Replace the layer's node. Raises PassError for quantized experts, which the dialect does not have."""
        layer, nodes = self.layer, self.nodes
        if layer.gate.scales is not None:
            raise ir.passes.PassError(f"{layer.name} has quantized experts, which are not portable")
        experts, size, hidden = layer.down.shape
        gate, up = _products(layer, nodes, layer.gate, "gate"), _products(layer, nodes, layer.up, "up")
        inner = nodes.activated(gate, up, plain=layer.dtype)
        split = nodes.add("Reshape", [inner, nodes.ints(0, 0, experts, size)], "split")
        weighted = nodes.add("Mul", [split, _weights_of_experts(layer, nodes)], "weighted")
        joined = nodes.add("Reshape", [weighted, nodes.ints(0, 0, experts * size)], "joined")
        down = nodes.matrix([reshaped(layer.down.values, (experts * size, hidden))], "down", {})
        nodes.finish(nodes.add("MatMul", [joined, down], "down"))


def _products(layer: ExpertLayer, nodes: LayerNodes, matrix: ExpertMatrix, name: str) -> ir.Value:
    """Return the products of all rows with every expert's matrix, [R, S, E x I]."""
    products = []
    for expert in range(layer.experts):
        weight = nodes.matrix([part_of_expert(matrix.values, expert)], f"{name}.{expert}", {})
        products.append(nodes.add("MatMul", [layer.rows, weight], f"{name}.{expert}"))
    return nodes.add("Concat", products, name, {"axis": 2})


def _weights_of_experts(layer: ExpertLayer, nodes: LayerNodes) -> ir.Value:
    """Return the weight of every expert, 0 if it was not chosen, [R, S, E, 1] in the graph's type."""
    last = nodes.ints(3)
    ids = nodes.add("Unsqueeze", [layer.ids, last], "ids")
    chosen = nodes.add("Equal", [ids, nodes.constant("numbers", np.arange(layer.experts))], "is_chosen")
    weights = nodes.add("Unsqueeze", [layer.weights, last], "weights")
    of_places = nodes.add("Where", [chosen, weights, nodes.constant("zero", np.zeros(1, np.float32))], "masked_weights")
    of_experts = nodes.add("ReduceSum", [of_places, nodes.ints(2)], "weights_of_experts", {"keepdims": 0})
    narrow = nodes.cast(of_experts, ir.DataType.FLOAT, layer.dtype, "weights.narrowed")
    return nodes.add("Unsqueeze", [narrow, last], "factors")


_PARTS = "rows_of_experts"
_ROWS, _IDS, _WEIGHTS = "rows", "ids", "weights"
_RESULTS = "narrowed", "sum"
"""Names of the nodes that use the layer's inputs, and of the last one, by preference."""


@dataclass(frozen=True, eq=False)
class _Factor:
    """First factors of the experts' products."""

    parts: list[ir.Value]
    """Rows of every expert."""
    scales: ir.Value | None
    """Scales [pairs, 1] of rounded rows; None for rows that are not rounded."""


class SplitLayer(LayerForm):
    """Form of sorted rows and products of single experts."""

    def replace(self) -> None:
        """Replace the layer's node. The weighted sum is float32, as are all values of int8 and FP8 experts."""
        layer, nodes = self.layer, self.nodes
        flat = nodes.add("Reshape", [layer.rows, nodes.ints(-1, layer.hidden_size)], _ROWS)
        ids = nodes.add("Reshape", [layer.ids, nodes.ints(-1)], _IDS)
        pairs = nodes.add("Shape", [ids], "pairs")
        order = self._ascending(ids, pairs, "order")
        per_row = nodes.add("Shape", [layer.ids], "experts_per_row", {"start": 2})
        row_of_pair = nodes.add("Div", [order, per_row], "row_of_pair")
        chosen = nodes.add("Equal", [ids, nodes.numbers(layer.experts, 2)], "is_chosen")
        counts = nodes.add(
            "ReduceSum",
            [nodes.add("Cast", [chosen], "chosen", {"to": ir.DataType.INT64}), nodes.ints(1)],
            "counts",
            {"keepdims": 0},
        )
        factor = self._factor(flat, row_of_pair, counts, _PARTS)
        inner = nodes.activated(self._product(factor, layer.gate, "gate"), self._product(factor, layer.up, "up"))
        outputs = self._product(self._factor(inner, None, counts, "inner"), layer.down, "down")
        self._weighted_sum(outputs, self._ascending(order, pairs, "places"))

    def _ascending(self, values: ir.Value, count: ir.Value, name: str) -> ir.Value:
        """Return the indices that sort `values`."""
        attributes = {"axis": -1, "largest": 0, "sorted": 1}
        return self.nodes.add_many("TopK", [values, count], name, attributes, outputs=2)[1]

    def _factor(self, rows: ir.Value, chosen: ir.Value | None, counts: ir.Value, name: str) -> _Factor:
        """Return the rows of every expert, rounded for int8 and FP8. `chosen` are the sorted pairs' rows, or None."""
        nodes, scales, zero = self.nodes, None, list[ir.Value]()
        if self.layer.gate.rounds_rows:
            rows.type = ir.TensorType(ir.DataType.FLOAT if chosen is None else self.layer.dtype)
            rows, scales = self.rounding.integers_of_rows(nodes.node, rows)
            zero = self.rounding.one_and_zero
        if self.layer.gate.is_fp8:  # Gather and Split do not take it
            rows = nodes.add("DequantizeLinear", [rows, *zero], f"{name}.widened")
        if chosen is not None:
            rows = nodes.add("Gather", [rows, chosen], f"{name}.sorted")
            scales = None if scales is None else nodes.add("Gather", [scales, chosen], f"{name}.scales")
        parts = nodes.add_many("Split", [rows, counts], name, {"axis": 0}, outputs=self.layer.experts)
        if scales is None or self.layer.gate.is_fp8:
            return _Factor(list(parts), scales)
        widened = [
            nodes.add("DequantizeLinear", [part, *zero], f"{name}.widened.{expert}")
            for expert, part in enumerate(parts)
        ]
        return _Factor(widened, scales)

    def _product(self, factor: _Factor, matrix: ExpertMatrix, name: str) -> ir.Value:
        """Return the products of every expert's rows and matrix, one below the other."""
        attributes = {"axis": 1 if matrix.rounds_rows and not matrix.is_fp8 else 0}
        if matrix.scales is not None and not matrix.rounds_rows:
            attributes["block_size"] = matrix.block
        nodes, products = self.nodes, []
        for expert, part in enumerate(factor.parts):
            tensors = [part_of_expert(tensor, expert) for tensor in matrix.tensors]
            weight = nodes.matrix(tensors, f"{name}.{expert}", attributes)
            weight = nodes.with_inputs_first(matrix, weight, f"{name}.{expert}", (1, 0))
            products.append(nodes.add("MatMul", [part, weight], f"{name}.{expert}"))
        product = nodes.add("Concat", products, name, {"axis": 0})
        return product if factor.scales is None else nodes.add("Mul", [product, factor.scales], f"{name}.scaled")

    def _weighted_sum(self, outputs: ir.Value, places: ir.Value) -> None:
        """Add up the outputs [pairs, H] of every row. `places` are the places of the pairs in `outputs`."""
        layer, nodes = self.layer, self.nodes
        of_rows = nodes.add("Gather", [outputs, places], "outputs")
        if not layer.gate.rounds_rows:
            of_rows = nodes.cast(of_rows, layer.dtype, ir.DataType.FLOAT, "outputs.float32")
        shape = nodes.add(
            "Concat", [nodes.add("Shape", [layer.ids], "shape"), nodes.ints(layer.hidden_size)], "split", {"axis": 0}
        )
        split = nodes.add("Reshape", [of_rows, shape], "outputs_of_rows")
        weighted = nodes.add(
            "Mul", [split, nodes.add("Unsqueeze", [layer.weights, nodes.ints(3)], _WEIGHTS)], "weighted"
        )
        total = nodes.add("ReduceSum", [weighted, nodes.ints(2)], "sum", {"keepdims": 0})
        nodes.finish(nodes.cast(total, ir.DataType.FLOAT, layer.dtype, "narrowed"))


def join_experts(model: ir.Model) -> bool:
    """Restore, in place, the single node of every layer that SplitLayer replaced. Return True if there is one."""
    nodes = {node.name: node for node in model.graph if node.name is not None}
    layers = [name.removesuffix(f"/{_PARTS}") for name in nodes if name.endswith(f"/{_PARTS}")]
    for layer in layers:
        _join(model, {name: node for name, node in nodes.items() if name.startswith(f"{layer}/")}, layer)
    if layers:
        model.graph.opset_imports[TRACED_DOMAIN] = 1
    return bool(layers)


def _join(model: ir.Model, nodes: dict[str, ir.Node], layer: str) -> None:
    """Replace the nodes of one layer."""
    experts = len(nodes[f"{layer}/{_PARTS}"].outputs)
    inputs = [nodes[f"{layer}/{name}"].inputs[0] for name in (_ROWS, _IDS, _WEIGHTS)]
    obsolete: list[ir.Value] = []
    for name in ("gate", "up", "down"):
        weights = [nodes[f"{layer}/{name}.{expert}"].inputs[1] for expert in range(experts)]
        parts = [_stored(weight) for weight in weights]
        for first in parts[0]:
            assert isinstance(first.const_value, ir.ExternalTensor)  # the parser's model has no values
            inputs.append(initializer(model, stacked_from_part(first.const_value, experts)))
        obsolete += [value for part in parts for value in part]
    result = next(nodes[f"{layer}/{name}"] for name in _RESULTS if f"{layer}/{name}" in nodes)
    node = ir.node(EXPERTS_OPERATOR, inputs, domain=TRACED_DOMAIN, name=f"{layer}/{EXPERTS_OPERATOR}")
    result.prepend(node)
    replace_value(node.outputs[0], result.outputs[0])
    model.graph.remove(nodes.values(), safe=True)
    for value in obsolete:
        model.graph.initializers.pop(value.name or "")


def _stored(weight: ir.Value | None) -> list[ir.Value]:
    """Return the initializers of an expert's matrix: the values, and scales if they are quantized."""
    producer = None if weight is None else weight.producer()
    if producer is not None and producer.op_type == "Transpose":
        return _stored(producer.inputs[0])
    values = [weight] if producer is None else producer.inputs
    return [value for value in values if value is not None]


def with_expert_operators(model: ir.Model, dialect: Dialect, *, gelu: bool = False) -> ir.Model:
    """Return `model` with operators of the dialect in place of the nodes of experts. Dense models stay unchanged.

    With `gelu`, experts have its approximation by tanh in place of silu.

    Raises onnx_ir.passes.PassError for experts whose matrices are not in the weights file, and for quantized experts in
    the portable dialect.
    """
    return ExpertsPass(SplitLayer if dialect == "standard" else MaskedLayer, gelu=gelu)(model).model

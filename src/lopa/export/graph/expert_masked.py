"""Experts of the portable dialect: every expert computes every row, and weights of 0 remove what was not chosen.

All shapes are known without values. The last products of all experts are one product with their stacked matrices, which
also adds them up. No second copy of a matrix is stored. Work and weights read are E / k times those of chosen rows.
"""

import numpy as np
import onnx_ir as ir

from lopa.export.graph.expert_layer import (
    ExpertLayer,
    ExpertMatrix,
    ExpertsPass,
    LayerNodes,
    part_of_expert,
    reshaped,
)
from lopa.export.graph.quantize_pass import RoundedProducts


class MaskedExpertsPass(ExpertsPass):
    """Pass that replaces the nodes of experts, in floating point, by products of all rows."""

    def replace(self, layer: ExpertLayer, nodes: LayerNodes, rounding: RoundedProducts) -> None:  # noqa: ARG002
        """Replace the node of one layer. Raises PassError for quantized experts, which the dialect does not have."""
        if layer.gate.scales is not None:
            raise ir.passes.PassError(f"{layer.name} has quantized experts, which are not portable")
        _replace(layer, nodes)


def _replace(layer: ExpertLayer, nodes: LayerNodes) -> None:
    """Replace the node of one layer."""
    experts, size, hidden = layer.down.shape
    inner = nodes.activated(_products(layer, nodes, layer.gate, "gate"), _products(layer, nodes, layer.up, "up"))
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

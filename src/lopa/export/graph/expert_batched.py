"""Experts as batched products of all rows with stacked matrices.

Every expert computes every row, and weights of 0 remove what was not chosen. The form has few nodes.
lopa.export.tensorrt uses it, because TensorRT builds and launches at least one kernel per product.
"""

import numpy as np
import onnx_ir as ir

from lopa.export.graph.expert_layer import ExpertMatrix, LayerForm, reshaped


class BatchedLayer(LayerForm):
    """Form of batched products."""

    def replace(self) -> None:
        """Replace the layer's node."""
        layer, nodes = self.layer, self.nodes
        flat = nodes.add("Reshape", [layer.rows, nodes.ints(1, -1, layer.hidden_size)], "rows")
        flat.type = ir.TensorType(layer.dtype)
        summed = self._sum_of_rounded(flat) if layer.gate.rounds_rows else self._sum(flat)
        nodes.finish(nodes.add("Reshape", [summed, nodes.add("Shape", [layer.rows], "shape")], "result"))

    def _sum(self, flat: ir.Value) -> ir.Value:
        """Return the weighted sum [rows, H]. The last product of all experts adds their outputs up."""
        layer, nodes = self.layer, self.nodes
        inner = nodes.activated(*self._products(flat, (layer.gate, "gate"), (layer.up, "up")))
        weights = nodes.cast(self._weights_of_experts(), ir.DataType.FLOAT, layer.dtype, "weights.narrowed")
        weighted = nodes.add("Mul", [inner, weights], "weighted")
        by_row = nodes.add("Transpose", [weighted], "by_row", {"perm": [1, 0, 2]})
        experts, size, hidden = layer.down.shape
        joined = nodes.add("Reshape", [by_row, nodes.ints(-1, experts * size)], "joined")
        tensors = [reshaped(layer.down.values, (experts * size, hidden))]
        attributes = {"axis": 0}
        if layer.down.scales is not None:
            tensors.append(reshaped(layer.down.scales, (experts * size // layer.down.block, hidden)))
            attributes["block_size"] = layer.down.block
        return nodes.add("MatMul", [joined, nodes.matrix(tensors, "down", attributes)], "down")

    def _sum_of_rounded(self, flat: ir.Value) -> ir.Value:
        """Return the weighted sum [rows, H] of int8 or FP8 experts, whose rounded rows keep their outputs apart."""
        layer, nodes = self.layer, self.nodes
        inner = nodes.activated(*self._rounded_products(flat, (layer.gate, "gate"), (layer.up, "up")))
        inner.type = ir.TensorType(ir.DataType.FLOAT)
        (outputs,) = self._rounded_products(inner, (layer.down, "down"))
        weighted = nodes.add("Mul", [outputs, self._weights_of_experts()], "weighted")
        total = nodes.add("ReduceSum", [weighted, nodes.ints(0)], "sum", {"keepdims": 0})
        return nodes.cast(total, ir.DataType.FLOAT, layer.dtype, "narrowed")

    def _products(self, rows: ir.Value, *matrices: tuple[ExpertMatrix, str]) -> list[ir.Value]:
        """Return the products [E, rows, outputs] with matrices in floating point or int4."""
        found = []
        for matrix, name in matrices:
            attributes = {} if matrix.scales is None else {"axis": 1, "block_size": matrix.block}
            weight = self.nodes.matrix(matrix.tensors, name, attributes)
            found.append(self.nodes.add("MatMul", [rows, weight], name))
        return found

    def _rounded_products(self, rows: ir.Value, *matrices: tuple[ExpertMatrix, str]) -> list[ir.Value]:
        """Return the products [E, rows, outputs] of rounded rows with int8 or FP8 matrices.

        An expert's scales follow the product, because DequantizeLinear takes no scales for two of three axes.
        """
        nodes = self.nodes
        integers, scales = self.rounding.integers_of_rows(nodes.node, rows)
        rounded = nodes.add("DequantizeLinear", [integers, *self.rounding.one_and_zero], f"{matrices[0][1]}.rows")
        found = []
        for matrix, name in matrices:
            if matrix.scales is None:
                raise ir.passes.PassError(f"{matrix.values.name} has no scales")
            stored = nodes.matrix([matrix.values], name, {})
            one = self.rounding.one_and_zero[0]
            weight = nodes.add("DequantizeLinear", [stored, one], f"{name}.weight")
            weight = nodes.with_inputs_first(matrix, weight, name, (0, 2, 1))
            product = nodes.add("MatMul", [rounded, weight], name)
            scaled = nodes.add("Mul", [product, scales], f"{name}.scaled")
            experts, _, outputs = matrix.shape
            of_columns = nodes.matrix([reshaped(matrix.scales, (experts, 1, outputs))], name, {})
            found.append(nodes.add("Mul", [scaled, of_columns], f"{name}.columns"))
        return found

    def _weights_of_experts(self) -> ir.Value:
        """Return the weight of every expert and row, 0 if it was not chosen, float32 [E, rows, 1]."""
        layer, nodes = self.layer, self.nodes
        ids, weights = (
            nodes.add("Unsqueeze", [nodes.add("Flatten", [value], f"{name}.flat", {"axis": 2}), nodes.ints(0)], name)
            for value, name in ((layer.ids, "ids"), (layer.weights, "weights"))
        )
        chosen = nodes.add("Equal", [ids, nodes.numbers(layer.experts, 3)], "is_chosen")
        zero = nodes.constant("zero", np.zeros(1, np.float32))
        masked = nodes.add("Where", [chosen, weights, zero], "masked_weights")
        return nodes.add("ReduceSum", [masked, nodes.ints(2)], "weights_of_experts", {"keepdims": 1})

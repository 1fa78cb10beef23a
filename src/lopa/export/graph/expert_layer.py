"""Experts of one sparse layer in a graph, and the nodes that replace them.

A stacked matrix [E, inputs, outputs] is one record in the weights file. The matrices of its experts are parts of this
record, so graphs of any form share the file.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from lopa.export.graph.experts import TRACED_DOMAIN, expert_nodes
from lopa.export.graph.quantize_pass import (
    AROUND_128,
    E4M3,
    RoundedProducts,
    initializer,
    replace_value,
    shared_constant,
)

_QUANTIZED_INPUTS = 9
"""Number of inputs of a node with quantized matrices."""


@dataclass(frozen=True)
class ExpertMatrix:
    """Matrices of all experts in the weights file."""

    values: ir.ExternalTensor
    """Values, [E, inputs, outputs], floating point, int8 or int4, or [E, outputs, inputs] in FP8."""
    scales: ir.ExternalTensor | None
    """Scales, [E, outputs] for int8 and FP8, and [E, inputs / block, outputs] for int4; None in floating point."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of experts, inputs and outputs."""
        experts, inputs, outputs = self.values.shape.numpy()
        return (experts, outputs, inputs) if self.is_fp8 else (experts, inputs, outputs)

    @property
    def is_fp8(self) -> bool:
        """True for FP8 values."""
        return self.values.dtype == ir.DataType.FLOAT8E4M3FN

    @property
    def rounds_rows(self) -> bool:
        """True for int8 and FP8, whose products have rounded rows."""
        return self.is_fp8 or self.values.dtype == ir.DataType.INT8

    @property
    def block(self) -> int:
        """Number of inputs that share an int4 scale."""
        if self.scales is None:
            raise ir.passes.PassError(f"{self.values.name} has no scales")
        return self.shape[1] // self.scales.shape.numpy()[1]

    @property
    def tensors(self) -> list[ir.ExternalTensor]:
        """Values and scales."""
        return [self.values] if self.scales is None else [self.values, self.scales]


@dataclass(frozen=True, eq=False)
class ExpertLayer:
    """Operands of the node of a layer's experts (lopa.export.graph.experts)."""

    name: str
    """Prefix of the names of the layer's nodes, e.g. layers.3.mlp.experts."""
    dtype: ir.DataType
    """The graph's type."""
    rows: ir.Value
    """Rows [N, W, H] of the graph's type."""
    ids: ir.Value
    """Numbers of the chosen experts, int64 [N, W, k]."""
    weights: ir.Value
    """Factors of the chosen experts' outputs, float32 [N, W, k]."""
    gate: ExpertMatrix
    up: ExpertMatrix
    down: ExpertMatrix

    @property
    def experts(self) -> int:
        """Number of experts."""
        return self.gate.shape[0]

    @property
    def hidden_size(self) -> int:
        """Size H of a row."""
        return self.gate.shape[1]


def layer_from_node(node: ir.Node) -> ExpertLayer:
    """Return the operands of a node of experts. Raises PassError for matrices that are not in the weights file."""
    rows, ids, weights, *matrices = node.inputs
    dtype = node.outputs[0].dtype
    if rows is None or ids is None or weights is None or dtype is None:
        raise ir.passes.PassError(f"{node.name} lacks rows, ids, weights or a type")
    tensors = [_external(node, value) for value in matrices]
    if len(node.inputs) == _QUANTIZED_INPUTS:
        gate, up, down = (ExpertMatrix(tensors[i], tensors[i + 1]) for i in (0, 2, 4))
    else:
        gate, up, down = (ExpertMatrix(tensor, None) for tensor in tensors)
    return ExpertLayer((node.name or "").rpartition("/")[0] or "experts", dtype, rows, ids, weights, gate, up, down)


def _external(node: ir.Node, value: ir.Value | None) -> ir.ExternalTensor:
    tensor = None if value is None else value.const_value
    if not isinstance(tensor, ir.ExternalTensor):
        raise ir.passes.PassError(f"{node.name} has a matrix outside of the weights file: {value}")
    return tensor


def part_of_expert(stacked: ir.ExternalTensor, expert: int) -> ir.ExternalTensor:
    """Return the tensor of one expert, the part `expert` of the record of `stacked` [E, ...]."""
    experts, *shape = stacked.shape.numpy()
    length = (stacked.length or 0) // experts
    return _in_file(stacked, f"{stacked.name}.{expert}", (stacked.offset or 0) + expert * length, length, shape)


def reshaped(tensor: ir.ExternalTensor, shape: Sequence[int]) -> ir.ExternalTensor:
    """Return the record of `tensor` with another shape."""
    return _in_file(tensor, tensor.name, tensor.offset or 0, tensor.length or 0, shape)


def stacked_from_part(first: ir.ExternalTensor, experts: int) -> ir.ExternalTensor:
    """Return the record of all experts from the part of expert 0."""
    length = experts * (first.length or 0)
    return _in_file(first, first.name.removesuffix(".0"), first.offset or 0, length, (experts, *first.shape.numpy()))


def _in_file(like: ir.ExternalTensor, name: str, offset: int, length: int, shape: Sequence[int]) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        location=like.location,
        offset=offset,
        length=length,
        dtype=like.dtype,
        shape=ir.Shape(shape),
        name=name,
        base_dir=like.base_dir,
    )


class LayerNodes:
    """New nodes in place of the node of a layer's experts."""

    def __init__(self, model: ir.Model, node: ir.Node, name: str, *, gelu: bool = False) -> None:
        """Prepare nodes before `node`. With `gelu`, experts have it in place of silu."""
        self.model, self._gelu = model, gelu
        self._node = node
        self._name = name

    @property
    def node(self) -> ir.Node:
        """The node that the new ones precede."""
        return self._node

    def add(
        self, operator: str, inputs: Sequence[ir.Value], name: str, attributes: Mapping[str, Any] | None = None
    ) -> ir.Value:
        """Add a node with one output, and return the output. `name` follows the layer's name."""
        return self.add_many(operator, inputs, name, attributes, outputs=1)[0]

    def add_many(
        self,
        operator: str,
        inputs: Sequence[ir.Value],
        name: str,
        attributes: Mapping[str, Any] | None = None,
        *,
        outputs: int,
    ) -> Sequence[ir.Value]:
        """Add a node with several outputs, and return them."""
        node = ir.node(operator, inputs, attributes or {}, num_outputs=outputs, name=f"{self._name}/{name}")
        self._node.prepend(node)
        for number, value in enumerate(node.outputs):
            value.name = f"{node.name}.{number}" if outputs > 1 else node.name
        return node.outputs

    def cast(self, value: ir.Value, dtype: ir.DataType | None, to: ir.DataType | None, name: str) -> ir.Value:
        """Return `value` of the type `dtype` in the type `to`."""
        return value if dtype == to else self.add("Cast", [value], name, {"to": to})

    def ints(self, *numbers: int) -> ir.Value:
        """Return a constant int64 vector."""
        key = ".".join(str(number).replace("-", "minus") for number in numbers)
        return self.constant(f"ints.{key}", np.array(numbers, np.int64))

    def constant(self, key: str, array: npt.NDArray[Any]) -> ir.Value:
        """Return a constant that layers share under the name `key`."""
        return shared_constant(self.model, f"experts.{key}", array)

    def numbers(self, experts: int, axes: int) -> ir.Value:
        """Return the numbers of the experts, int64 [E, 1, ..] with `axes` axes."""
        return self.constant(f"numbers.{axes}", np.arange(experts).reshape(-1, *[1] * (axes - 1)))

    def matrix(self, tensors: Sequence[ir.TensorProtocol], name: str, attributes: Mapping[str, Any]) -> ir.Value:
        """Add initializers for values and, if quantized, scales. Return the values in floating point.

        `attributes` are those of DequantizeLinear.
        """
        stored = [initializer(self.model, tensor) for tensor in tensors]
        return stored[0] if len(stored) == 1 else self.add("DequantizeLinear", stored, f"{name}.weight", attributes)

    def with_inputs_first(self, matrix: ExpertMatrix, weight: ir.Value, name: str, axes: Sequence[int]) -> ir.Value:
        """Return `weight`, values of `matrix` or of an expert, as [.., inputs, outputs]. `axes` swaps its last axes."""
        return self.add("Transpose", [weight], f"{name}.transposed", {"perm": axes}) if matrix.is_fp8 else weight

    def activated(self, gate: ir.Value, up: ir.Value, *, plain: ir.DataType | None = None) -> ir.Value:
        """Return silu(gate) * up, or gelu(gate) * up. With `plain`, their type, gelu is x * sigmoid(a x + b x^3)."""
        if self._gelu and plain is not None:
            first = math.sqrt(8 / math.pi)
            a, b = (
                self.constant(f"gelu.{name}", np.array(number, plain.numpy()))
                for name, number in (("linear", first), ("cubic", 0.044715 * first))
            )
            cubic = self.add("Mul", [self.add("Mul", [gate, gate], "square"), b], "cubic")
            inner = self.add("Mul", [self.add("Add", [cubic, a], "factor"), gate], "inner")
            gelu = self.add("Mul", [gate, self.add("Sigmoid", [inner], "sigmoid")], "gelu")
            return self.add("Mul", [gelu, up], "activated")
        if self._gelu:
            return self.add("Mul", [self.add("Gelu", [gate], "gelu", {"approximate": "tanh"}), up], "activated")
        sigmoid = self.add("Sigmoid", [gate], "sigmoid")
        return self.add("Mul", [self.add("Mul", [gate, sigmoid], "silu"), up], "activated")

    def finish(self, result: ir.Value) -> None:
        """Use `result` in place of the output of the replaced node, and remove this node and its initializers."""
        replace_value(result, self._node.outputs[0])
        matrices = [value for value in self._node.inputs[3:] if value is not None]
        self.model.graph.remove(self._node, safe=True)
        for value in matrices:
            if value.is_initializer() and not value.uses():
                self.model.graph.initializers.pop(value.name or "")


@dataclass(frozen=True, eq=False)
class LayerForm(ABC):
    """Form of the nodes that replace one layer's node. Each form is a subclass."""

    layer: ExpertLayer
    nodes: LayerNodes
    rounding: RoundedProducts
    """Rounding of the rows of int8 and FP8 experts."""

    @abstractmethod
    def replace(self) -> None:
        """Replace the layer's node."""


class ExpertsPass(ir.passes.InPlacePass):
    """Pass that replaces the nodes of experts by nodes of a form, one layer at a time."""

    def __init__(self, form: type[LayerForm], *, gelu: bool = False) -> None:
        super().__init__()
        self._form, self._gelu = form, gelu

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes."""
        nodes = expert_nodes(model)
        for node in nodes:
            layer = layer_from_node(node)
            rounding = RoundedProducts(model, E4M3 if layer.gate.is_fp8 else AROUND_128)
            self._form(layer, LayerNodes(model, node, layer.name, gelu=self._gelu), rounding).replace()
        model.graph.opset_imports.pop(TRACED_DOMAIN, None)
        return ir.passes.PassResult(model, modified=bool(nodes))

"""Search and replacement of nodes, and weights that the twin takes side by side as one input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from lopa.export.graph.quantize_pass import replace_value
from lopa.runtime.bundle.manifest import FusedTensor

DOMAIN = "lopa.cuda"


class OtherFormError(Exception):
    """A graph differs from those that lopa.export.graph.module traces to."""


def producer(value: ir.Value | None, operator: str, domain: str = "") -> ir.Node | None:
    """Return the node that computes `value` if it is this operator, otherwise None."""
    node = None if value is None else value.producer()
    return node if node is not None and (node.domain, node.op_type) == (domain, operator) else None


def source(value: ir.Value | None, *operators: str) -> ir.Value:
    """Return the value from which these operators, last first, compute `value`: the first input of each.

    Raises OtherFormError if others compute it.
    """
    for operator in operators:
        node = producer(value, operator)
        expect(node is not None)
        value = None if node is None else node.inputs[0]
    if value is None:
        raise OtherFormError
    return value


def only_use(value: ir.Value, operator: str) -> ir.Node:
    """Return the node that uses `value`. Raises OtherFormError unless it is the only one, and this operator."""
    node = only_consumer(value, operator)
    if node is None:
        raise OtherFormError
    return node


def only_consumer(value: ir.Value, operator: str) -> ir.Node | None:
    """Return the node that uses `value` if it is the only one, and this standard operator, otherwise None."""
    uses = [use.node for use in value.uses()]
    return producer(uses[0].outputs[0], operator) if len(uses) == 1 and not value.is_graph_output() else None


def expect(holds: bool) -> None:
    """Raise OtherFormError unless the condition holds."""
    if not holds:
        raise OtherFormError


def has(node: ir.Node, **attributes: float) -> bool:
    """Return True if the attributes have these values. An absent attribute counts as 0."""
    return all(
        (node.attributes[name].value if name in node.attributes else 0) == value for name, value in attributes.items()
    )


def constant_ints(value: ir.Value | None) -> list[int] | None:
    """Return the numbers of a constant, or None."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else [int(number) for number in tensor.numpy().reshape(-1)]


def insert(
    before: ir.Node,
    operator: str,
    inputs: Sequence[ir.Value | None],
    replaced: Sequence[ir.Value | None],
    attributes: Mapping[str, float] | None = None,
    *,
    domain: str = DOMAIN,
) -> list[ir.Value]:
    """Insert a node before another, and return its outputs. They take the places of `replaced`; None is a new value."""
    name = f"{(before.name or '').rpartition('/')[0]}/{operator}".removeprefix("/")
    node = ir.node(operator, inputs, attributes or {}, domain=domain, num_outputs=len(replaced), name=name)
    before.prepend(node)
    for new, old in zip(node.outputs, replaced, strict=True):
        if old is not None:
            replace_value(new, old)
    return list(node.outputs)


@dataclass(frozen=True)
class FusedInputs:
    """Inputs of the twin that stand for several tensors of the bundle."""

    records: list[FusedTensor] = field(default_factory=list)
    values: list[ir.Value] = field(default_factory=list)

    def join(self, groups: Sequence[Sequence[ir.Value | None]], label: str) -> list[ir.Value] | None:
        """Return an input for each group, with its parts side by side: layers.0.attention.qkv.weight for the label
        "qkv".

        Return None unless all parts are in the weights file and those of a group have one form.
        """
        stored = [[None if part is None else part.const_value for part in parts] for parts in groups]
        tensors = [[each for each in parts if isinstance(each, ir.ExternalTensor)] for parts in stored]
        if tensors != stored or any(len({_form(tensor) for tensor in parts}) > 1 for parts in tensors):
            return None
        names = [(parts[0].name or "").rsplit(".", 2) for parts in tensors]
        return [
            self._add(parts, f"{module}.{label}.{kind}")
            for parts, (module, _, kind) in zip(tensors, names, strict=True)
        ]

    def stored_bytes(self, weight: ir.Value) -> ir.Value:
        """Return an input with the bytes of a matrix."""
        assert isinstance(weight.const_value, ir.ExternalTensor)
        return self._add([weight.const_value], f"{weight.name}_bytes")

    def _add(self, parts: Sequence[ir.ExternalTensor], name: str) -> ir.Value:
        dtype, axis, sizes = parts[0].dtype, _axis(parts[0]), list(parts[0].shape.numpy())
        sizes[axis] = sum(part.shape.numpy()[axis] for part in parts)
        if dtype == ir.DataType.INT4:
            sizes[-1] //= 2
        self.records.append(FusedTensor(name=name, parts=[part.name or "" for part in parts], axis=axis))
        stored = ir.TensorType(ir.DataType.UINT8 if dtype in QUANTIZED else dtype)
        self.values.append(ir.Value(name=name, shape=ir.Shape(sizes), type=stored))
        return self.values[-1]

    def product(self, products: Sequence[ir.Value | None], label: str) -> ir.Value | None:
        """Return one product in place of `products`, which have the same rows, or None if `join` does."""
        nodes = [node for each in products if each is not None and (node := each.producer()) is not None]
        operators = {(node.domain, node.op_type) for node in nodes}
        if len(nodes) < len(products) or len(operators) > 1:
            return None
        rows = _ROW_INPUTS.get(operators.pop(), 0)
        if rows == 0 or len({node.inputs[:rows] for node in nodes}) > 1:
            return None
        joined = self.join(list(zip(*(node.inputs[rows:] for node in nodes), strict=True)), label)
        if joined is None:
            return None
        first = nodes[0]
        inputs, outputs = [*first.inputs[:rows], *joined], [None] * len(first.outputs)
        made = insert(first, first.op_type, inputs, outputs, numbers(first), domain=first.domain)[0]
        made.type = first.outputs[0].type
        return made


_ROW_INPUTS = {("", "MatMul"): 1, (DOMAIN, "Int4Product"): 1, (DOMAIN, "ScaledProduct"): 2}
"""Number of inputs of products that are their rows. The others are matrices and scales."""
QUANTIZED = (ir.DataType.INT8, ir.DataType.INT4, ir.DataType.FLOAT8E4M3FN)
"""Types that a twin takes as bytes."""


def numbers(node: ir.Node) -> dict[str, float]:
    """Return the attributes."""
    return {name: attribute.value for name, attribute in node.attributes.items()}


def _axis(tensor: ir.ExternalTensor) -> int:
    """Return the axis of the outputs, along which tensors are joined."""
    return 0 if tensor.dtype == ir.DataType.FLOAT8E4M3FN else len(tensor.shape) - 1


def _form(tensor: ir.ExternalTensor) -> tuple[object, ...]:
    """Return what tensors that are joined have in common."""
    shape, axis = tensor.shape.numpy(), _axis(tensor)
    return tensor.dtype, *shape[:axis], *shape[axis + 1 :]

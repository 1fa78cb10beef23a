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
        stored = [[part.const_value for part in parts if part is not None] for parts in groups]
        tensors = [[each for each in parts if isinstance(each, ir.ExternalTensor)] for parts in stored]
        if any(len(found) < len(parts) for found, parts in zip(tensors, groups, strict=True)):
            return None
        if any(len({_form(tensor) for tensor in parts}) > 1 for parts in tensors):
            return None
        return [self._add(parts, ".".join(_labelled(parts[0].name or "", label))) for parts in tensors]

    def stored_bytes(self, weight: ir.Value) -> ir.Value:
        """Return an input with the bytes of a matrix."""
        assert isinstance(weight.const_value, ir.ExternalTensor)
        return self._add([weight.const_value], f"{weight.name}_bytes")

    def _add(self, parts: Sequence[ir.ExternalTensor], name: str) -> ir.Value:
        axis, shape = _axis(parts[0]), parts[0].shape.numpy()
        sizes = [*shape[:axis], sum(part.shape.numpy()[axis] for part in parts), *shape[axis + 1 :]]
        dtype = parts[0].dtype
        if dtype == ir.DataType.INT4:
            sizes[-1] //= 2
        dtype = ir.DataType.UINT8 if dtype in _QUANTIZED else dtype
        self.records.append(FusedTensor(name=name, parts=[part.name or "" for part in parts], axis=axis))
        self.values.append(ir.Value(name=name, shape=ir.Shape(sizes), type=ir.TensorType(dtype)))
        return self.values[-1]

    def product(self, products: Sequence[ir.Value | None], label: str) -> ir.Value | None:
        """Return one product in place of `products`, which have the same rows, or None if `join` does."""
        nodes = [node for each in products if each is not None and (node := each.producer()) is not None]
        if len(nodes) < len(products) or len({(node.domain, node.op_type) for node in nodes}) > 1:
            return None
        name = nodes[0].op_type
        if (nodes[0].domain, name) == (DOMAIN, "ScaleRows"):
            column_scales, row_scales = [node.inputs[2] for node in nodes], {node.inputs[1] for node in nodes}
            inner = self._product([node.inputs[0] for node in nodes], label, [column_scales])
            if inner is None or len(row_scales) > 1:
                return None
            scaled = insert(nodes[0], name, [inner[0], nodes[0].inputs[1], inner[1][0]], [None])
            scaled[0].type = nodes[0].outputs[0].type
            return scaled[0]
        made = self._product(products, label, [])
        return None if made is None else made[0]

    def _product(
        self, products: Sequence[ir.Value | None], label: str, others: Sequence[Sequence[ir.Value | None]]
    ) -> tuple[ir.Value, list[ir.Value]] | None:
        """Return one product of the same rows with joined matrices, and the other groups joined, or None."""
        nodes = [node for each in products if each is not None and (node := each.producer()) is not None]
        operators = {(node.domain, node.op_type) for node in nodes}
        is_product = all("Product" in name if domain == DOMAIN else name == "MatMul" for domain, name in operators)
        if len(nodes) < len(products) or len({node.inputs[0] for node in nodes}) > 1 or not is_product:
            return None
        groups = list(zip(*(node.inputs[1:] for node in nodes), strict=True))
        joined = None if len(operators) > 1 else self.join([*groups, *others], label)
        if joined is None:
            return None
        first = nodes[0]
        replaced = [None] * len(first.outputs)
        attributes = {name: attribute.value for name, attribute in first.attributes.items()}
        inputs = [first.inputs[0], *joined[: len(groups)]]
        made = insert(first, first.op_type, inputs, replaced, attributes, domain=first.domain)[0]
        made.type = first.outputs[0].type
        return made, joined[len(groups) :]


_QUANTIZED = (ir.DataType.INT8, ir.DataType.INT4, ir.DataType.FLOAT8E4M3FN)
"""Types that a twin takes as bytes."""


def _axis(tensor: ir.ExternalTensor) -> int:
    """Return the axis of the outputs, along which tensors are joined."""
    return 0 if tensor.dtype == ir.DataType.FLOAT8E4M3FN else len(tensor.shape) - 1


def _form(tensor: ir.ExternalTensor) -> tuple[object, ...]:
    """Return what tensors that are joined have in common."""
    shape, axis = tensor.shape.numpy(), _axis(tensor)
    return tensor.dtype, *shape[:axis], *shape[axis + 1 :]


def _labelled(name: str, label: str) -> tuple[str, str, str]:
    """Return the parts of a name with another name of the module's part."""
    module, _, kind = name.rsplit(".", 2)
    return module, label, kind

"""Search and replacement of nodes, and weights that the twin takes side by side as one input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from lopa.export.graph.quantize_pass import replace_value
from lopa.runtime.bundle.manifest import FusedTensor

DOMAIN = "lopa.cuda"


class OtherFormError(Exception):
    """A graph differs from those that lopa.export.graph.module traces to."""


def producer(value: ir.Value | None, operator: str) -> ir.Node | None:
    """Return the node that computes `value` if it is this standard operator, otherwise None."""
    node = None if value is None else value.producer()
    return node if node is not None and (node.domain, node.op_type) == ("", operator) else None


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
    uses = [use.node for use in value.uses()]
    expect(len(uses) == 1 and producer(uses[0].outputs[0], operator) is not None)
    return uses[0]


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

    def join(self, parts: Sequence[ir.Value | None], label: str) -> ir.Value | None:
        """Return an input with `parts` side by side, e.g. layers.0.attention.qkv.weight for the label "qkv".

        Return None unless all parts are in the weights file and have one type.
        """
        tensors = [None if part is None else part.const_value for part in parts]
        stored = [tensor for tensor in tensors if isinstance(tensor, ir.ExternalTensor)]
        forms = {(tensor.dtype, *tensor.shape.numpy()[:-1]) for tensor in stored}
        if len(stored) < len(parts) or len(forms) > 1:
            return None
        module, _, kind = (stored[0].name or "").rsplit(".", 2)
        name, (*rows, _) = f"{module}.{label}.{kind}", stored[0].shape.numpy()
        shape = ir.Shape([*rows, sum(tensor.shape.numpy()[-1] for tensor in stored)])
        self.records.append(FusedTensor(name=name, parts=[tensor.name or "" for tensor in stored], axis=len(rows)))
        self.values.append(ir.Value(name=name, shape=shape, type=ir.TensorType(stored[0].dtype)))
        return self.values[-1]

    def product(self, products: Sequence[ir.Value | None], label: str) -> ir.Value | None:
        """Return one product in place of `products`, which have the same first factor, or None if `join` does."""
        nodes = [node for each in products if (node := producer(each, "MatMul")) is not None]
        if len(nodes) < len(products) or len({node.inputs[0] for node in nodes}) > 1:
            return None
        weight = self.join([node.inputs[1] for node in nodes], label)
        if weight is None:
            return None
        node = ir.node("MatMul", [nodes[0].inputs[0], weight], name=f"{weight.name}/MatMul".replace(".weight", ""))
        nodes[0].prepend(node)
        node.outputs[0].type = nodes[0].outputs[0].type
        return node.outputs[0]

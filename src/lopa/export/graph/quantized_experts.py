"""Pass that gives quantized matrices to the node of a sparse layer's experts."""

from collections.abc import Mapping

import onnx_ir as ir

from lopa.export.graph.experts import EXPERTS_OPERATOR, TRACED_DOMAIN
from lopa.export.graph.quantize_pass import QuantizedMatrix, initializer

_FIRST_MATRIX = 3
"""Number of inputs before the matrices: rows, ids and weights."""


def expert_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the nodes of experts (lopa.export.graph.experts) in their order."""
    return [node for node in model.graph if node.domain == TRACED_DOMAIN and node.op_type == EXPERTS_OPERATOR]


class QuantizedExpertsPass(ir.passes.InPlacePass):
    """Pass that replaces the inputs gate, up and down of experts by (integers, scales) of each, if `matrices` has them.

    Integers are int8 or int4 [E, inputs, outputs]; scales are [E, outputs] or [E, inputs / block, outputs].
    """

    def __init__(self, matrices: Mapping[str, QuantizedMatrix]) -> None:
        super().__init__()
        self._matrices = matrices

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the inputs."""
        nodes = expert_nodes(model)
        modified = [self._quantize(model, node) for node in nodes]
        return ir.passes.PassResult(model, modified=any(modified))

    def _quantize(self, model: ir.Model, node: ir.Node) -> bool:
        """Give quantized matrices to one node. Raises PassError if only some of its matrices are quantized."""
        names = [value.name for value in node.inputs[_FIRST_MATRIX:] if value is not None and value.name is not None]
        found = [self._matrices[name] for name in names if name in self._matrices]
        if not found:
            return False
        if len(found) < len(names):
            raise ir.passes.PassError(f"{node.name} has matrices of two kinds: {names}")
        inputs = list(node.inputs[:_FIRST_MATRIX])
        result = node.outputs[0]
        for name, matrix in zip(names, found, strict=True):
            model.graph.initializers.pop(name)
            inputs += [initializer(model, matrix.integers), initializer(model, matrix.scales)]
        quantized = ir.node(node.op_type, inputs, domain=node.domain, name=node.name)
        new = quantized.outputs[0]
        new.name, new.shape, new.type = result.name, result.shape, result.type
        node.prepend(quantized)
        ir.convenience.replace_all_uses_with(result, new, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        return True

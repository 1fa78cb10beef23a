"""Pass that replaces nodes by the functions of domain `lopa` (standard dialect only).

It runs last, on graphs whose attention and head have the form that lopa.export.graph.module traces to. Results do not
change, because the functions' bodies are the replaced nodes.
"""

import onnx_ir as ir
from onnx_ir.passes import common

from lopa.export.graph.plugin_functions import BRANCH_ATTENTION, DOMAIN, TOKEN_STATISTICS, functions_of_plugin
from lopa.runtime.bundle.network import HEAD
from lopa.runtime.contract import ENTROPY, LOGITS, PREFIX_MASK, TEMPERATURE, TOPK_IDS, TOPK_LOGPROBS, WINDOW_MASK


def with_plugins(model: ir.Model) -> ir.Model:
    """Return the model with plugins.

    The token statistics are not replaced in a graph without a head, with logits as an output, or with a quantized head.
    Raises onnx_ir.passes.PassError for an attention of an unexpected form.
    """
    passes = ir.passes.Sequential(
        PluginsPass(), common.RemoveUnusedNodesPass(), common.TopologicalSortPass(), common.NameFixPass()
    )
    return passes(model).model


def plugins_of(model: ir.Model) -> list[str]:
    """Return the names of the plugins in the graph, sorted."""
    return sorted({node.op_type for node in model.graph if node.domain == DOMAIN})


class PluginsPass(ir.passes.InPlacePass):
    """Pass that replaces every Attention and its prefix by BranchAttention, and the head by TokenStatistics."""

    def requires(self, model: ir.Model) -> None:
        """Raise PreconditionError unless every Attention reads a request's expanded prefix and then the window."""
        unexpected = [node.name for node in _attentions(model.graph) if _past_and_new(node) is None]
        if unexpected:
            raise ir.passes.PreconditionError(f"attention without a prefix in front of its window: {unexpected}")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes. A later pass removes nodes that become unused."""
        inputs = {value.name: value for value in model.graph.inputs}
        for attention in _attentions(model.graph):
            found = _past_and_new(attention)
            assert found is not None  # ensured by `requires`
            past_key, key, past_value, value = found
            masks = [inputs[WINDOW_MASK], inputs[PREFIX_MASK]]
            arguments = [attention.inputs[0], key, value, past_key, past_value, *masks]
            _replace(
                attention,
                ir.node(
                    BRANCH_ATTENTION,
                    arguments,
                    {"plugin_namespace": DOMAIN},
                    domain=DOMAIN,
                    name=attention.name,
                ),
                [attention.outputs[0]],
            )
            model.graph.remove(attention, safe=True)
        names = [BRANCH_ATTENTION]
        head = _head_product(model.graph)
        if head is not None:
            names.append(TOKEN_STATISTICS)
            outputs = {value.name: value for value in model.graph.outputs}
            statistics = [outputs[name] for name in (TOPK_IDS, TOPK_LOGPROBS, ENTROPY)]
            arguments = [head.inputs[0], head.inputs[1], inputs[TEMPERATURE]]
            _replace(
                head, ir.node(TOKEN_STATISTICS, arguments, domain=DOMAIN, num_outputs=3, name=head.name), statistics
            )
        for function in (function for name in names for function in functions_of_plugin(name)):
            model.functions[function.identifier()] = function
        model.graph.opset_imports[DOMAIN] = 1
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """Raise PostconditionError if an Attention remains outside of functions."""
        left = [node.name for node in _attentions(model.graph)]
        if left:
            raise ir.passes.PostconditionError(f"attention not replaced: {left}")


def _attentions(graph: ir.Graph) -> list[ir.Node]:
    return [node for node in graph if node.op_type == "Attention" and not node.domain]


def _past_and_new(attention: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value] | None:
    """Return the past and the new keys, then the past and the new values; None for an unexpected form."""
    key, value = (_past_and_new_rows(rows) for rows in attention.inputs[1:3])
    return None if key is None or value is None else (*key, *value)


def _past_and_new_rows(rows: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
    """Return the values past and new of Concat(Reshape(Expand(Unsqueeze(past))), new); None for an unexpected form."""
    joined = rows.producer() if rows is not None else None
    if joined is None or joined.op_type != "Concat" or len(joined.inputs) != 2:
        return None
    past, new = joined.inputs
    for operator in ("Reshape", "Expand", "Unsqueeze"):
        node = past.producer() if past is not None else None
        if node is None or node.op_type != operator:
            return None
        past = node.inputs[0]
    return None if past is None or new is None else (past, new)


def _head_product(graph: ir.Graph) -> ir.Node | None:
    """Return the head's product with the vocabulary, or None if anything except the statistics uses it."""
    weight = graph.initializers.get(HEAD)
    products = [use.node for use in weight.uses() if use.node.op_type == "MatMul"] if weight is not None else []
    with_logits = any(value.name == LOGITS for value in graph.outputs)
    return products[0] if products and not with_logits else None


def _replace(before: ir.Node, new: ir.Node, outputs: list[ir.Value]) -> None:
    """Insert `new` before the node `before`, and use its outputs in place of `outputs`, which become unused."""
    before.prepend(new)
    for added, old in zip(new.outputs, outputs, strict=True):
        name = old.name
        added.shape, added.type = old.shape, old.type
        old.name = f"{name}/replaced"
        added.name = name
        ir.convenience.replace_all_uses_with(old, added, replace_graph_outputs=True)

"""Pass that replaces nodes by the functions of domain `lopa` (standard dialect only).

It runs last, on graphs whose statistics have the form that lopa.export.graph.module traces to. Results do not change,
because the functions' bodies are the replaced nodes.
"""

import onnx_ir as ir
from onnx_ir.passes import common

from lopa.export.graph.plugin_functions import DOMAIN, TOKEN_STATISTICS, plugin_functions
from lopa.runtime.contract import ENTROPY, TEMPERATURE, TOPK_IDS, TOPK_LOGPROBS


def with_plugins(model: ir.Model) -> ir.Model:
    """Return the model with plugins.

    A graph without a head, a first stage, has none. Raises onnx_ir.passes.PassError for statistics of an unexpected
    form.
    """
    passes = ir.passes.Sequential(
        PluginsPass(), common.RemoveUnusedNodesPass(), common.TopologicalSortPass(), common.NameFixPass()
    )
    return passes(model).model


def plugins_of(model: ir.Model) -> list[str]:
    """Return the names of the plugins in the graph, sorted."""
    return sorted({node.op_type for node in model.graph if node.domain == DOMAIN})


class PluginsPass(ir.passes.InPlacePass):
    """Pass that replaces the statistics of the logits by TokenStatistics."""

    def requires(self, model: ir.Model) -> None:
        """Raise PreconditionError if there are statistics, but not those of logits divided by the temperature."""
        outputs = {value.name: value for value in model.graph.outputs}
        if TOPK_IDS in outputs and _logits(outputs[TOPK_IDS]) is None:
            raise ir.passes.PreconditionError(f"{TOPK_IDS} are not of logits divided by the temperature")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes. A later pass removes nodes that become unused."""
        outputs = {value.name: value for value in model.graph.outputs}
        if TOPK_IDS not in outputs:
            return ir.passes.PassResult(model, modified=False)
        logits = _logits(outputs[TOPK_IDS])
        assert logits is not None  # ensured by `requires`
        (temperature,) = [value for value in model.graph.inputs if value.name == TEMPERATURE]
        node = ir.node(TOKEN_STATISTICS, [logits, temperature], domain=DOMAIN, num_outputs=3, name=TOKEN_STATISTICS)
        model.graph.append(node)
        for added, name in zip(node.outputs, (TOPK_IDS, TOPK_LOGPROBS, ENTROPY), strict=True):
            old = outputs[name]
            added.shape, added.type = old.shape, old.type
            old.name = f"{name}/replaced"
            added.name = name
            ir.convenience.replace_all_uses_with(old, added, replace_graph_outputs=True)
        for function in plugin_functions():
            model.functions[function.identifier()] = function
        model.graph.opset_imports[DOMAIN] = 1
        return ir.passes.PassResult(model, modified=True)


def _logits(topk_ids: ir.Value) -> ir.Value | None:
    """Return the logits of TopK(Div(Cast(logits), temperature)), with or without Cast; None for an unexpected form."""
    value: ir.Value | None = topk_ids
    for operator in ("TopK", "Div"):
        node = value.producer() if value is not None else None
        if node is None or node.op_type != operator:
            return None
        value = node.inputs[0]
    node = value.producer() if value is not None else None
    return node.inputs[0] if node is not None and node.op_type == "Cast" else value

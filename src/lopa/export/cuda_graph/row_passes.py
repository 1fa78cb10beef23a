"""Passes that replace what surrounds attention: norms, gated products, experts, statistics, and the shapes of rows."""

import numpy as np
import onnx_ir as ir

from lopa.export.cuda_graph.nodes import (
    FusedInputs,
    OtherFormError,
    constant_ints,
    expect,
    has,
    insert,
    producer,
    source,
)
from lopa.export.graph.experts import TRACED_DOMAIN, expert_nodes
from lopa.export.graph.quantize_pass import shared_constant
from lopa.runtime.contract import (
    DRAWN_IDS,
    ENTROPY,
    INPUT_IDS,
    LOGITS_INDEX,
    POSITION_IDS,
    TEMPERATURE,
    TOP_K,
    TOPK_IDS,
    TOPK_LOGPROBS,
    UNIFORM,
)
from lopa.runtime.contract.rotary import ROTARY_INPUTS


class FlatRowsPass(ir.passes.InPlacePass):
    """Pass that takes packed rows, [N], and keeps them in one list, [1, N, H].

    It moves the final norm before the choice of the sampled rows, because the norm then includes the last addition.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes. Raises OtherFormError."""
        inputs = {value.name: value for value in model.graph.inputs}
        for name in {POSITION_IDS, *ROTARY_INPUTS} & inputs.keys():
            for reshape in _users(inputs[name], "Reshape"):  # each row has an angle
                reshape.outputs[0].replace_all_uses_with(inputs[name])
        for reshape in _users(inputs[INPUT_IDS], "Reshape"):
            reshape.replace_input_with(1, shared_constant(model, "rows.one_list", np.array([1, -1])))
        for concat in [node for node in model.graph if node.op_type == "Concat" and len(node.inputs) > 1]:
            first, window, *others = concat.inputs  # [R x B, W, ..]
            of_window = producer(window, "Shape")
            if constant_ints(first) == [-1] and of_window is not None and has(of_window, start=2, end=3):
                sizes = [number for each in others for number in constant_ints(each) or ()]
                concat.outputs[0].replace_all_uses_with(_ints(model, 1, -1, *sizes))
        (offset,) = _users(inputs[LOGITS_INDEX], "Add")
        (gather,) = _users(offset.outputs[0], "Gather")
        (norm,) = _users(gather.outputs[0], "RMSNormalization")
        flat = producer(gather.inputs[0], "Reshape")
        if flat is None or not has(gather, axis=0):
            raise OtherFormError
        rows, normed = source(gather.inputs[0], "Reshape"), norm.outputs[0]
        normed.replace_all_uses_with(gather.outputs[0])
        norm.replace_input_with(0, rows)
        flat.replace_input_with(0, normed)
        gather.replace_input_with(1, inputs[LOGITS_INDEX])
        return ir.passes.PassResult(model, modified=True)


def _users(value: ir.Value, operator: str) -> list[ir.Node]:
    return [use.node for use in value.uses() if producer(use.node.outputs[0], operator) is not None]


class DrawsPass(ir.passes.InPlacePass):
    """Pass that lets the nodes that draw tokens have [1, 1, Q, V] and [1, 1, Q] of a list of sampled rows. They are
    traced for [R, B, Q, V]. The statistics and the soft embeddings are computed of a list."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes. Raises OtherFormError."""
        uniform = {value.name: value for value in model.graph.inputs}[UNIFORM]
        drawn = {value.name: value for value in model.graph.outputs}[DRAWN_IDS]
        softmax = next(node for node in reversed(model.graph) if node.op_type == "Softmax")
        tempered, last = producer(softmax.inputs[0], "Div"), drawn.producer()
        divisor = producer(None if tempered is None else tempered.inputs[1], "Reshape")
        if divisor is None or last is None:
            raise OtherFormError
        divisor.replace_input_with(1, _ints(model, -1, 1))
        nodes = _nodes_before(last, softmax)
        for rows in (softmax.outputs[0], uniform):
            users = [use for use in rows.uses() if use.node in nodes]
            expect(bool(users))
            (windows,) = insert(users[0].node, "Unsqueeze", [rows, _ints(model, 0, 1)], [None], domain="")
            for node, place in users:
                node.replace_input_with(place, windows)
        squeezed = ir.node("Squeeze", [drawn, _ints(model, 0, 1)])
        model.graph.append(squeezed)
        name, drawn.name = drawn.name, f"{drawn.name}.windows"
        squeezed.outputs[0].name, squeezed.outputs[0].type, squeezed.outputs[0].shape = name, drawn.type, drawn.shape
        model.graph.outputs[list(model.graph.outputs).index(drawn)] = squeezed.outputs[0]
        return ir.passes.PassResult(model, modified=True)


def _nodes_before(last: ir.Node, first: ir.Node) -> set[ir.Node]:
    """Return the nodes from which `last` is computed, and itself, without `first` and what is before it."""
    found, waiting = {last}, [last]
    while waiting:
        for node in {value.producer() for value in waiting.pop().inputs if value is not None} - {None, first} - found:
            assert node is not None
            found.add(node)
            waiting.append(node)
    return found


def _ints(model: ir.Model, *numbers: int) -> ir.Value:
    return shared_constant(model, f"rows.{'.'.join(map(str, numbers))}", np.array(numbers))


class NormsPass(ir.passes.InPlacePass):
    """Pass that replaces RMSNormalization by RmsNorm, and by SkipRmsNorm after a residual addition."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes."""
        norms = [node for node in model.graph if node.op_type == "RMSNormalization" and not node.domain]
        for node in norms:
            expect(has(node, axis=-1, stash_type=1))
            rows, weight = node.inputs
            attributes = {"epsilon": node.attributes["epsilon"].as_float()}
            added = producer(rows, "Add")
            if added is None:
                insert(node, "RmsNorm", [rows, weight], [node.outputs[0]], attributes)
            else:
                results = [node.outputs[0], added.outputs[0]]
                insert(node, "SkipRmsNorm", [*added.inputs, weight], results, attributes)
        return ir.passes.PassResult(model, modified=bool(norms))


class SwiGluPass(ir.passes.InPlacePass):
    """Pass that replaces silu(gate) * up and gelu(gate) * up by SwiGlu. The products of gate and up become one if they
    have one type."""

    def __init__(self, fused: FusedInputs) -> None:
        super().__init__()
        self._fused = fused

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes."""
        modified = False
        for node in tuple(model.graph):
            gelu = producer(node.inputs[0], "Gelu") if node.op_type == "Mul" else None
            silu = producer(node.inputs[0], "Mul") if node.op_type == "Mul" else None
            sigmoid = None if silu is None else producer(silu.inputs[1], "Sigmoid")
            if gelu is not None:
                expect(gelu.attributes["approximate"].as_string() == "tanh")
            elif silu is None or sigmoid is None or sigmoid.inputs[0] is not silu.inputs[0]:
                continue
            active = silu if gelu is None else gelu
            factors = [None if active is None else active.inputs[0], node.inputs[1]]
            fused = self._fused.product(factors, "gate_up")
            attributes = {} if gelu is None else {"gelu": 1}
            insert(node, "SwiGlu", factors if fused is None else [fused], [node.outputs[0]], attributes)
            modified = True
        return ir.passes.PassResult(model, modified=modified)


class FusedExpertsPass(ir.passes.InPlacePass):
    """Pass that replaces the nodes of experts (lopa.export.graph.experts) by the operator for their matrices' type."""

    def __init__(self, *, gelu: bool) -> None:
        super().__init__()
        self._attributes = {"gelu": 1} if gelu else {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes."""
        nodes = expert_nodes(model)
        for node in nodes:
            gate = node.inputs[3]
            assert gate is not None
            insert(node, _EXPERTS.get(gate.dtype, "Experts"), node.inputs, [node.outputs[0], None], self._attributes)
        model.graph.opset_imports.pop(TRACED_DOMAIN, None)
        return ir.passes.PassResult(model, modified=bool(nodes))


_EXPERTS: dict[ir.DataType | None, str] = {
    ir.DataType.INT4: "ExpertsInt4",
    ir.DataType.INT8: "ExpertsInt8",
    ir.DataType.FLOAT8E4M3FN: "ExpertsFp8",
}
"""Operators for quantized matrices."""


class TokenStatisticsPass(ir.passes.InPlacePass):
    """Pass that replaces what follows the head's product by TokenStatistics."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes. The logits stay an output if they are one. Raises OtherFormError."""
        outputs = {value.name: value for value in model.graph.outputs}
        best = outputs[TOPK_IDS].producer()
        tempered = None if best is None or best.op_type != "TopK" else producer(best.inputs[0], "Div")
        if tempered is None:
            raise OtherFormError
        logits, temperature = tempered.inputs[0], source(tempered.inputs[1], "Reshape")
        expect(temperature.name == TEMPERATURE and temperature.is_graph_input())
        if producer(logits, "Cast") is not None:
            logits = source(logits, "Cast")
        results = [outputs[name] for name in (TOPK_IDS, TOPK_LOGPROBS, ENTROPY)]
        insert(tempered, "TokenStatistics", [logits, temperature], [*results, None], {"candidates": TOP_K})
        return ir.passes.PassResult(model, modified=True)

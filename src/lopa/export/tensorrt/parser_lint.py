"""Rules that find what TensorRT's parser would reject in an ONNX graph, before a build takes minutes to fail.

The result depends only on the model and the table of operators (operators.json). Weights in external files are not
read. A rule may be stricter than the newest TensorRT. tests/export/tensorrt/test_rtx_lint.py compares the rules with a
real parser.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx.defs
import onnx.external_data_helper
import onnx.helper
import onnx.inliner
import onnx.numpy_helper

from lopa.export.graph.lint import LintedGraph, Violation
from lopa.runtime.errors import BadInputError

_TABLE = Path(__file__).with_name("operators.json")


class ParserOperator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One operator of ai.onnx."""

    types: str
    """Names of TensorProto.DataType that its data may have, separated by spaces."""
    limits: list[str] = []
    """Further conditions, for humans. lopa.export.tensorrt.parser_lint checks the conditions of exported operators."""

    def takes(self, type_name: str) -> bool:
        """Return True if data may have this type, e.g. BFLOAT16."""
        return type_name in self.types.split()


class ParserTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of operators.json."""

    source: str
    opsets: tuple[int, int]
    """Oldest and newest supported opset of ai.onnx."""
    max_axes: int
    """Maximum number of axes of a tensor."""
    operators: Mapping[str, ParserOperator]
    """Supported operators."""


@cache
def tensorrt_operators() -> ParserTable:
    """Return the table of operators.json."""
    return msgspec.json.decode(_TABLE.read_bytes(), type=ParserTable)


_DATA_INPUTS = {"Where": (1, 2), "Attention": (0, 1, 2)}
"""Inputs whose type the table describes. For other operators it describes the first input."""
_DATA_OUTPUTS = {"Constant", "ConstantOfShape"}
"""Operators whose output type the table describes."""
_QUANTIZED = "DequantizeLinear"
"""Operator whose types QuantizeLinear may output. uint8 is rejected, or read as int8 if its zero point is 0."""
_REMEDIES = {
    "MatMulInteger": "export the checkpoint in floating point (--quantize none)",
    "DynamicQuantizeLinear": "export the checkpoint in floating point (--quantize none)",
    "QLinearMatMul": "export the checkpoint in floating point (--quantize none)",
}
_FLOAT_BUNDLE = "export the checkpoint in floating point (--quantize none): scales of rows are not constant"
_OTHERWISE = "use operators that the parser supports instead"
_MAX_TOP_K = 3840
"""Maximum K of TopK in the builder. The parser has no limit."""
_NUMBERS = {"value", "value_int", "value_ints", "value_float", "value_floats"}
"""Attributes of a Constant with numbers."""


def refusals_of_model(model: onnx.ModelProto, table: ParserTable) -> list[Violation]:
    """Return everything that the parser rejects: first in the whole model, then rule by rule in the order of nodes.

    `model` may lack its external data. Functions are inlined, as the parser does.
    """
    graph = _Graph(onnx.inliner.inline_local_functions(model) if model.functions else model, table)
    return [refusal for rule in _RULES for refusal in rule(graph)]


def check_parser_accepts(model: onnx.ModelProto, name: str) -> None:
    """Raise BadInputError, with the first refusals, if TensorRT's parser is expected to reject the model."""
    found = refusals_of_model(model, tensorrt_operators())
    if found:
        raise BadInputError(
            f"TensorRT's parser rejects {name} at {len(found)} places: {'; '.join(map(str, found[:3]))}",
            expected="a graph of operators, types and shapes that the parser supports (docs/how-to/engines.md)",
            remedy=found[0].remedy,
        )


class _Graph(LintedGraph):
    """A model, with the properties that the rules query."""

    def __init__(self, model: onnx.ModelProto, table: ParserTable) -> None:
        super().__init__(model)
        self.table = table
        self.constants = dict(self.initializers)
        for node in self.nodes:
            if node.op_type == "Constant" and node.attribute[0].name in _NUMBERS:
                value = onnx.helper.get_attribute_value(node.attribute[0])
                made = isinstance(value, onnx.TensorProto)
                self.constants[node.output[0]] = value if made else onnx.numpy_helper.from_array(np.array(value))

    def refusal(self, rule: str, found: str, remedy: str, node: onnx.NodeProto, name: str | None = None) -> Violation:
        """Return a violation at `node` about its value `name`, by default its first input."""
        value = next(iter(node.input), "") if name is None else name
        return self.violation(rule, found, remedy, node=node, dtype=self.dtype(value), rank=self.rank(value))


def _opsets(graph: _Graph) -> Iterator[Violation]:
    oldest, newest = graph.table.opsets
    if not oldest <= graph.opset <= newest:
        yield graph.violation("opset", f"opset {graph.opset}", f"export it at an opset from {oldest} to {newest}")


def _operators(graph: _Graph) -> Iterator[Violation]:
    for node in graph.nodes:
        if node.domain not in ("", "ai.onnx") or node.op_type not in graph.table.operators:
            remedy = _REMEDIES.get(node.op_type, _OTHERWISE)
            found = f"{node.domain or 'ai.onnx'}::{node.op_type} is not supported"
            yield graph.refusal("operator", found, remedy, node)


def _types(graph: _Graph) -> Iterator[Violation]:
    for node in graph.nodes:
        operator = graph.table.operators.get(node.op_type)
        if operator is None:
            continue
        if node.op_type in _DATA_OUTPUTS:
            names = [node.output[0]]
        else:
            names = [node.input[index] for index in _DATA_INPUTS.get(node.op_type, (0,)) if index < len(node.input)]
        for name in names:
            dtype = graph.dtype(name)
            if dtype is None:
                found = f"the type of {name} cannot be inferred"
                yield graph.refusal("type", found, "give it a type", node, name)
            elif not operator.takes(dtype):
                found = f"{name} is {dtype}, expected one of {operator.types}"
                yield graph.refusal("type", found, "put a Cast in front of it", node, name)


def _output_types(graph: _Graph) -> Iterator[Violation]:
    """Check the output types of conversions, for which the table has the types of inputs."""
    for node in graph.nodes:
        table = graph.table.operators.get(_QUANTIZED if node.op_type == "QuantizeLinear" else node.op_type)
        if table is None or node.op_type not in ("Cast", "QuantizeLinear"):
            continue
        dtype = graph.dtype(node.output[0])
        if dtype is not None and not table.takes(dtype):
            found = f"{node.output[0]} is converted to {dtype}, expected one of {table.types}"
            yield graph.refusal("output type", found, "use another type", node, node.output[0])


def _one_type(graph: _Graph) -> Iterator[Violation]:
    """Check that operands have one type, since neither strongly typed networks nor ONNX convert implicitly."""
    for node in graph.nodes:
        first: dict[str, str] = {}
        for name, letter in zip(node.input, _type_variables_of_inputs(node, graph.opset), strict=False):
            dtype = graph.dtype(name) if name else None
            if dtype is not None and first.setdefault(letter, dtype) != dtype:
                found = f"{name} is {dtype}, another operand {first[letter]}"
                yield graph.refusal("operand types", found, "put a Cast in front of it", node, name)


def _type_variables_of_inputs(node: onnx.NodeProto, opset: int) -> Iterable[str]:
    """Return ONNX's type variables of the inputs, or none for other operators. Equal variables mean equal types."""
    if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type):
        return ()
    inputs = onnx.defs.get_schema(node.op_type, opset).inputs
    letters = ["T1" if node.op_type == "Attention" and each.name == "V" else each.type_str for each in inputs]
    variadic = bool(inputs) and inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    return itertools.chain(letters, itertools.repeat(letters[-1])) if variadic else letters


def _axes(graph: _Graph) -> Iterator[Violation]:
    for node in graph.nodes:
        for name in filter(None, (*node.input, *node.output)):
            rank = graph.rank(name)
            if rank is None:
                yield graph.refusal("axes", f"the axes of {name} cannot be inferred", "give it a shape", node, name)
            elif rank > graph.table.max_axes:
                found = f"{name} has {rank} axes, more than {graph.table.max_axes}"
                yield graph.refusal("axes", found, "fold some into one", node, name)


def _attention(graph: _Graph) -> Iterator[Violation]:
    for node in graph.nodes:
        if node.op_type != "Attention":
            continue
        for name in filter(None, node.input[:4]):
            if graph.rank(name) != 4:
                found = f"{name} has {graph.rank(name)} axes, expected 4"
                yield graph.refusal("attention", found, "reshape it to [batch, heads, rows, channels]", node, name)
        extra = [name for name in (*node.input[4:], *node.output[1:]) if name]
        if extra:
            found = f"uses {', '.join(extra)}"
            remedy = "concatenate the past outside of it, and use a mask for absent rows"
            yield graph.refusal("attention", found, remedy, node)
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        for name in ("softcap", "softmax_precision", "qk_matmul_output_mode"):
            if attributes.get(name):
                yield graph.refusal("attention", f"has the attribute {name}", "remove it", node)
        if not attributes.get("TRT_decomposable"):
            found = "is not marked TRT_decomposable, and float32 and small heads have no fused kernel"
            yield graph.refusal("attention", found, "set the attribute to 1", node)
        yield from _masks(graph, node, causal=bool(attributes.get("is_causal")))


def _masks(graph: _Graph, node: onnx.NodeProto, *, causal: bool) -> Iterator[Violation]:
    mask = node.input[3] if len(node.input) > 3 else ""
    if mask and causal:
        yield graph.refusal("attention", f"has {mask} and is_causal", "remove one of them", node, mask)
    if mask and graph.dtype(mask) not in ("BOOL", graph.dtype(node.input[0])):
        found = f"{mask} is {graph.dtype(mask)}, the query {graph.dtype(node.input[0])}"
        yield graph.refusal("attention", found, "use BOOL or the type of the query", node, mask)


def _constant_operands(graph: _Graph) -> Iterator[Violation]:
    for node in graph.nodes:
        axes_of = node.op_type in ("Squeeze", "Unsqueeze", "CumSum") or node.op_type.startswith("Reduce")
        if axes_of and len(node.input) > 1 and node.input[1] and node.input[1] not in graph.constants:
            yield graph.refusal(
                "constant operand", f"its axes {node.input[1]} are computed", "make them constant", node
            )
        if node.op_type == "Squeeze" and len(node.input) == 1:
            sizes = graph.sizes(node.input[0])
            if sizes is None or None in sizes:
                yield graph.refusal("constant operand", "has no axes, and its shape is dynamic", "give it axes", node)
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.input[1] not in graph.constants:
            yield graph.refusal("constant operand", f"its scale {node.input[1]} is computed", _FLOAT_BUNDLE, node)


def _positive_scales(graph: _Graph) -> Iterator[Violation]:
    """Check scales that are stored in the model itself."""
    for node in graph.nodes:
        tensor = graph.constants.get(node.input[1]) if node.op_type in ("QuantizeLinear", "DequantizeLinear") else None
        if tensor is None or onnx.external_data_helper.uses_external_data(tensor):
            continue
        if not (onnx.numpy_helper.to_array(tensor).astype(np.float32) > 0).all():
            found = f"{node.input[1]} is not above 0"
            yield graph.refusal("positive scale", found, "use a small scale for all-zero values", node, node.input[1])


def _zero_points(graph: _Graph) -> Iterator[Violation]:
    for node in graph.nodes:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or len(node.input) < 3 or not node.input[2]:
            continue
        tensor = graph.constants.get(node.input[2])
        if tensor is None or onnx.numpy_helper.to_array(tensor).any():
            yield graph.refusal("zero point", f"{node.input[2]} is not 0", "quantize without zero points", node)


def _single_cases(graph: _Graph) -> Iterator[Violation]:
    for node in graph.nodes:
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        if node.op_type == "TopK":
            count = graph.constants.get(node.input[1])
            known = None if count is None else int(onnx.numpy_helper.to_array(count).reshape(-1)[0])
            if attributes.get("sorted", 1) != 1 or (known is not None and known > _MAX_TOP_K):
                found = f"K is {known} and sorted {attributes.get('sorted', 1)}"
                yield graph.refusal("top k", found, f"use sorted 1 and K up to {_MAX_TOP_K}", node)
        if node.op_type == "RotaryEmbedding" and len(node.input) > 3 and graph.dtype(node.input[3]) != "INT64":
            yield graph.refusal("rotary positions", "position_ids is not INT64", "cast it", node, node.input[3])


_RULES: tuple[Callable[[_Graph], Iterator[Violation]], ...] = (
    _opsets,
    _operators,
    _types,
    _output_types,
    _one_type,
    _axes,
    _attention,
    _constant_operands,
    _positive_scales,
    _zero_points,
    _single_cases,
)

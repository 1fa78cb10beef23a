"""Rules of the portable dialect (docs/concepts/contract.md), checked for every node of an ONNX graph.

The result depends only on the model and a table of operators. ascend_operators.json is the table of Ascend's ATC and
names its source. Values in external files are not read. Subgraphs are not checked, because an operator with a subgraph
is itself a violation.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.shape_inference

from lopa.export.graph.portable_passes import OPSET, QUANTIZED_OPSET
from lopa.runtime.errors import CheckFailedError

_ASCEND = Path(__file__).with_name("ascend_operators.json")


_DEFAULT_OPSET = 17
"""Opset of a model that does not import ai.onnx."""


@dataclass(frozen=True)
class Violation:
    """One place that breaks a rule."""

    rule: str
    """Short name of the rule, the same for all its violations."""
    node: str
    """Name of the node, input, output or constant; empty for the model as a whole."""
    operator: str
    """Operator of the node; empty if the violation is not at a node."""
    opset: int
    """The model's ai.onnx opset."""
    rank: int | None
    """Number of axes of the value in question; None if it is unknown or irrelevant."""
    found: str
    remedy: str

    def __str__(self) -> str:
        place = " ".join(part for part in (self.operator, self.node) if part) or "model"
        rank = "" if self.rank is None else f", {self.rank} axes"
        return f"{place} (opset {self.opset}{rank}): {self.found}; {self.remedy}"


@cache
def ascend_operators() -> dict[str, frozenset[int]]:
    """Return the opsets at which ATC's ONNX parser registers each operator, by "domain::operator"."""
    operators: dict[str, str] = json.loads(_ASCEND.read_bytes())["operators"]
    return {name: _numbers(ranges) for name, ranges in operators.items()}


def _numbers(ranges: str) -> frozenset[int]:
    """Return the numbers of ranges, e.g. 8, 12, 13, .., 18 for "8,12-18"."""
    pairs = [part.split("-") for part in ranges.split(",")]
    return frozenset(number for pair in pairs for number in range(int(pair[0]), int(pair[-1]) + 1))


MAX_AXES = 4
ALLOWED = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Reciprocal", "Neg", "Exp", "Log", "Sin", "Cos", "Sigmoid"),
        *("Cast", "Concat", "Slice", "Split", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Gather", "Where"),
        *("Equal", "Less", "Greater", "And", "Or", "Not", "MatMul", "Softmax", "ArgMax", "Tanh"),
        *("ReduceMax", "ReduceMean", "ReduceSum"),
        # For sums of whole numbers, which are exact (lopa.export.graph.canvas_draw).
        "CumSum",
        # Without TopK the contract's 8 candidates would take 8 rounds of ReduceMax, ArgMax and a mask over the whole
        # vocabulary. ATC registers it since opset 8.
        "TopK",
    }
)
_DECOMPOSE = "write it with plain operators (products, Softmax, ReduceMean, Sqrt, Slice, Concat)"
_CONSTANT_SHAPE = "derive every shape from shapes of the inputs: Reshape with 0 and -1, masks and positions as inputs"
_REMEDIES = {
    "Attention": _DECOMPOSE,
    "RMSNormalization": _DECOMPOSE,
    "RotaryEmbedding": _DECOMPOSE,
    "LayerNormalization": _DECOMPOSE,
    "Gelu": _DECOMPOSE,
    "Einsum": "write it as Transpose, Reshape and MatMul",
    "Constant": "make it an initializer",
    "Identity": "remove it",
    "Pad": "write it as Slice and Concat",
    "If": "export only the branch that is used",
    "Loop": "unroll it",
    "Scan": "unroll it",
    "Gemm": "write it as MatMul and Add",
    "IsNaN": "keep values finite instead",
    "GatherND": "fold the axes into one and use Gather",
    "ScatterND": "output the new rows and copy them outside of the graph",
    "ScatterElements": "output the new rows and copy them outside of the graph",
    "QuantizeLinear": "export in floating point and quantize with ATC's tools",
    "DequantizeLinear": "export in floating point and quantize with ATC's tools",
    "MatMulInteger": "export in floating point and quantize with ATC's tools",
    **dict.fromkeys(("Shape", "Size", "Range", "Expand", "Tile", "ConstantOfShape"), _CONSTANT_SHAPE),
    **dict.fromkeys(("NonZero", "Unique", "Compress"), "its output size depends on values: use masks instead"),
}
# Operands that determine the output's shape, by operator.
_SHAPE_OPERANDS = {
    "Reshape": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "ReduceSum": (1,),
    "TopK": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "Pad": (1,),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
}
# Outputs that are int64 in ONNX and int32 in ATC.
_INDEX_OUTPUTS = {"TopK": 1, "ArgMax": 0, "ArgMin": 0}


def violations_of_model(model: onnx.ModelProto, *, quantized: bool = False) -> list[Violation]:
    """Return every violation: first of the whole model, then of the nodes in their order.

    `model` may lack its external data. Shapes are inferred here. Those in the model are only hints. `quantized`: allow
    the form of quantized bundles, which ATC does not read. It has opset 21, and second factors of
    products may be initializers behind DequantizeLinear.
    """
    graph = _Graph(model, quantized=quantized)
    return [violation for rule in _RULES for violation in rule(graph)]


def check_portable(model: onnx.ModelProto, name: str, *, quantized: bool = False) -> None:
    """Raise CheckFailedError, with the first violations, if Ascend's ATC is expected to reject the model.

    `quantized`: allow quantized matrices, as in `violations_of_model`.
    """
    found = violations_of_model(model, quantized=quantized)
    if found:
        raise CheckFailedError(
            f"{name} breaks {len(found)} rules of the portable dialect: {'; '.join(map(str, found[:3]))}",
            expected="a graph that compilers of the portable dialect can read",
            remedy="this is a bug of the exporter: please report it with this message",
        )


class _Graph:
    """A model, with or without its external data, and the properties that the rules query."""

    def __init__(self, model: onnx.ModelProto, *, quantized: bool) -> None:
        self.model = model
        self.nodes = model.graph.node
        self.opset = max((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=0)
        self.initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self.quantized = quantized
        self.expected_opset = QUANTIZED_OPSET if quantized else OPSET

    @cached_property
    def _sizes(self) -> dict[str, list[int | None]]:
        """Inferred size of every axis of the values with a known number of axes, None for a dynamic axis."""
        inferred = onnx.shape_inference.infer_shapes(_with_unique_imports(self.model)).graph
        shapes = {
            value.name: value.type.tensor_type.shape
            for value in (*inferred.input, *inferred.value_info, *inferred.output)
            if value.type.tensor_type.HasField("shape")
        }
        sizes: dict[str, list[int | None]] = {
            name: [axis.dim_value if axis.HasField("dim_value") else None for axis in shape.dim]
            for name, shape in shapes.items()
        }
        return sizes | {name: list(tensor.dims) for name, tensor in self.initializers.items()}

    def sizes(self, name: str) -> list[int | None] | None:
        """Return the size of every axis, None for a dynamic one; None if the number of axes is unknown."""
        return self._sizes.get(name)

    def rank(self, name: str) -> int | None:
        """Return the number of axes; None if unknown."""
        sizes = self.sizes(name)
        return None if sizes is None else len(sizes)

    def violation(
        self,
        rule: str,
        found: str,
        remedy: str,
        *,
        node: onnx.NodeProto | None = None,
        name: str = "",
        rank: int | None = None,
    ) -> Violation:
        """Return a violation at `node` or at the value `name`. Without both it concerns the whole model."""
        operator = "" if node is None else node.op_type
        place = name if node is None else node.name or next(iter(node.output), "")
        return Violation(rule, place, operator, self.opset, rank, found, remedy)

    @cached_property
    def constants(self) -> set[str]:
        """Names of values that depend only on constants: initializers, and outputs of nodes that read only these."""
        found = set(self.initializers)
        for node in self.nodes:
            if all(name in found for name in node.input if name):
                found.update(node.output)
        return found

    @cached_property
    def dequantized(self) -> set[str]:
        """Names of quantized matrices as floats: outputs of DequantizeLinear of initializers, and their casts."""
        found: set[str] = set()
        for node in self.nodes if self.quantized else ():
            if (node.op_type == "DequantizeLinear" and all(name in self.initializers for name in node.input)) or (
                node.op_type == "Cast" and node.input[0] in found
            ):
                found.update(node.output)
        return found


def _with_unique_imports(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy for shape inference, which rejects a domain that is imported twice or never."""
    versions = dict.fromkeys((node.domain for node in model.graph.node), 1) | {"": _DEFAULT_OPSET}
    versions |= {each.domain: each.version for each in model.opset_import}
    versions[""] = max(versions[""], versions.pop("ai.onnx", 0))  # both names mean the standard domain
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.opset_import[:]
    copy.opset_import.extend(onnx.helper.make_opsetid(domain, version) for domain, version in versions.items())
    return copy


def _opset_imports(graph: _Graph) -> Iterator[Violation]:
    imports = [(each.domain or "ai.onnx", each.version) for each in graph.model.opset_import]
    if imports != [("ai.onnx", graph.expected_opset)]:
        found = "imports " + (", ".join(f"{domain} {version}" for domain, version in imports) or "no opset")
        yield graph.violation("opset import", found, f"import only ai.onnx {graph.expected_opset}")
    for function in graph.model.functions:
        yield graph.violation("opset import", "is a function", "inline it", name=f"{function.domain}::{function.name}")


def _operators(graph: _Graph) -> Iterator[Violation]:
    for node in graph.nodes:
        if node.op_type == "DequantizeLinear" and set(node.output) <= graph.dequantized:
            continue
        full_name = f"{node.domain or 'ai.onnx'}::{node.op_type}"
        opsets = ascend_operators().get(full_name)
        remedy = _REMEDIES.get(node.op_type, "use operators of the dialect instead")
        if not opsets:
            yield graph.violation("unregistered operator", f"{full_name} is not registered", remedy, node=node)
        elif node.domain or node.op_type not in ALLOWED:
            found = f"{full_name} is registered, but not in the dialect"
            yield graph.violation("operator to avoid", found, remedy, node=node)
        elif graph.opset not in opsets and not graph.quantized:
            found = f"{full_name} is registered at opsets {min(opsets)} to {max(opsets)} only"
            yield graph.violation("unregistered opset", found, f"export it in opset {OPSET}", node=node)
        if any(attribute.name == "select_last_index" and attribute.i for attribute in node.attribute):
            yield graph.violation("operator to avoid", "select_last_index is 1", "leave it 0", node=node)


def _ranks_and_sizes(graph: _Graph) -> Iterator[Violation]:
    producers = {name: node for node in graph.nodes for name in node.output if name}
    values = [*(value.name for value in graph.model.graph.input), *graph.initializers, *producers]
    for name in values:
        node, rank = producers.get(name), graph.rank(name)
        if rank is not None and rank > MAX_AXES:
            remedy = f"fold axes until there are {MAX_AXES}"
            yield graph.violation("rank", f"{name} has {rank} axes", remedy, node=node, name=name, rank=rank)
        sizes = graph.sizes(name)
        if name not in graph.initializers and sizes is not None and 0 in sizes:
            found = f"{name} has the shape {sizes}"
            yield graph.violation("empty axis", found, "remove it", node=node, name=name, rank=rank)


def _shapes_from_data(graph: _Graph) -> Iterator[Violation]:
    for node in graph.nodes:
        operands = [node.input[i] for i in _SHAPE_OPERANDS.get(node.op_type, ()) if i < len(node.input)]
        computed = [name for name in operands if name and name not in graph.constants]
        unknown = [name for name in node.output if name and graph.rank(name) is None]
        if computed:
            found = f"its shape comes from {', '.join(computed)}"
            yield graph.violation("data-dependent shape", found, _CONSTANT_SHAPE, node=node)
        elif unknown and all(graph.rank(name) is not None for name in node.input if name):
            found = f"the shape of {', '.join(unknown)} cannot be inferred"
            yield graph.violation("data-dependent shape", found, _CONSTANT_SHAPE, node=node)


def _weights_of_products(graph: _Graph) -> Iterator[Violation]:
    rule, remedy = "weight of a product", "store it [inputs, outputs] as an initializer and make it the second input"
    for node in graph.nodes:
        if node.op_type != "MatMul" or not any(name in graph.constants for name in node.input):
            continue
        first, second = node.input
        rank = graph.rank(first if first in graph.constants else second)
        if first in graph.constants:
            yield graph.violation(rule, f"the constant {first} is its first input", remedy, node=node, rank=rank)
        elif second not in graph.initializers and second not in graph.dequantized:
            yield graph.violation(rule, f"{second} is computed from constants", remedy, node=node, rank=rank)
        elif rank != 2:
            yield graph.violation(rule, f"the constant {second} has {rank} axes", remedy, node=node, rank=rank)


def _infinite_constants(graph: _Graph) -> Iterator[Violation]:
    constants = {
        node.output[0]: attribute.t
        for node in graph.nodes
        if node.op_type in ("Constant", "ConstantOfShape")
        for attribute in node.attribute
        if attribute.HasField("t")
    }
    for name, tensor in (graph.initializers | constants).items():
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            continue
        numbers = onnx.numpy_helper.to_array(tensor)
        if numbers.dtype.kind in "iub" or all(map(math.isfinite, numbers.reshape(-1).tolist())):
            continue
        remedy = "use a finite number that fits float16, e.g. -1e4 in a mask"
        found = f"{name} has values that are not finite"
        yield graph.violation("infinite constant", found, remedy, name=name, rank=numbers.ndim)


def _index_types(graph: _Graph) -> Iterator[Violation]:
    consumers = Counter(name for node in graph.nodes if node.op_type != "Cast" for name in node.input)
    consumers.update(value.name for value in graph.model.graph.output)
    for node in graph.nodes:
        index = _INDEX_OUTPUTS.get(node.op_type)
        if index is not None and index < len(node.output) and consumers[node.output[index]]:
            found = f"its indices {node.output[index]} are used without a Cast: int64 in ONNX, int32 in ATC (E89999)"
            yield graph.violation("index type", found, "put a Cast after it", node=node)


_RULES: tuple[Callable[[_Graph], Iterator[Violation]], ...] = (
    _opset_imports,
    _operators,
    _ranks_and_sizes,
    _shapes_from_data,
    _weights_of_products,
    _infinite_constants,
    _index_types,
)

"""Base of the graph linters: a model with inferred types, and the violations that rules report.

Values in external files are not read.
"""

from dataclasses import dataclass
from functools import cached_property

import onnx
import onnx.helper
import onnx.shape_inference

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
    dtype: str | None
    """Type of the value in question, e.g. BFLOAT16; None if it is unknown or irrelevant."""
    rank: int | None
    """Number of axes of the value; None if it is unknown or irrelevant."""
    found: str
    remedy: str

    def __str__(self) -> str:
        place = " ".join(part for part in (self.operator, self.node) if part) or "model"
        facts = [f"opset {self.opset}", *([self.dtype] if self.dtype else [])]
        facts += [] if self.rank is None else [f"{self.rank} axes"]
        return f"{place} ({', '.join(facts)}): {self.found}; {self.remedy}"


class LintedGraph:
    """A model, with or without its external data, and the queries of rules."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.nodes = model.graph.node
        self.opset = max((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=0)
        self.initializers = {tensor.name: tensor for tensor in model.graph.initializer}

    @cached_property
    def types(self) -> dict[str, onnx.TypeProto.Tensor]:
        """Inferred types and shapes of the values, as far as they are known.

        The types and shapes in the model are only hints.
        """
        inferred = onnx.shape_inference.infer_shapes(_with_unique_imports(self.model)).graph
        values = (*inferred.input, *inferred.value_info, *inferred.output)
        initializers = {
            name: onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims).tensor_type
            for name, tensor in self.initializers.items()
        }
        return {value.name: value.type.tensor_type for value in values} | initializers

    def dtype(self, name: str) -> str | None:
        """Return the type, e.g. BFLOAT16; None if unknown."""
        known = name in self.types and self.types[name].elem_type
        return onnx.TensorProto.DataType.Name(self.types[name].elem_type) if known else None

    def sizes(self, name: str) -> list[int | None] | None:
        """Return the size of every axis, None for a dynamic one; None if the number of axes is unknown."""
        if name not in self.types or not self.types[name].HasField("shape"):
            return None
        return [axis.dim_value if axis.HasField("dim_value") else None for axis in self.types[name].shape.dim]

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
        dtype: str | None = None,
        rank: int | None = None,
    ) -> Violation:
        """Return a violation at `node` or at the value `name`. Without both it concerns the whole model."""
        operator = "" if node is None else node.op_type
        place = name if node is None else node.name or next(iter(node.output), "")
        return Violation(rule, place, operator, self.opset, dtype, rank, found, remedy)


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

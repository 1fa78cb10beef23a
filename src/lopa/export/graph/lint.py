"""What rules find in an ONNX graph, place by place. Knows no rule: each dialect has its own, and its own table.

Values in external files are not read.
"""

from dataclasses import dataclass
from functools import cached_property

import onnx
import onnx.helper
import onnx.shape_inference

_USUAL_OPSET = 17
"""Taken where a model imports no ai.onnx at all."""


@dataclass(frozen=True)
class Violation:
    """One place that breaks a rule."""

    rule: str
    """A short name, the same for all places that break the same rule."""
    node: str
    """The node's name, or that of an input, an output or a constant; empty for the model as a whole."""
    operator: str
    """Empty where the place is no node."""
    opset: int
    """The model's ai.onnx opset."""
    dtype: str | None
    """Of the value that is meant, e.g. BFLOAT16; None where that says nothing or is not known."""
    rank: int | None
    """Its axes; None as `dtype`."""
    found: str
    mend: str
    """What to do."""

    def __str__(self) -> str:
        place = " ".join(part for part in (self.operator, self.node) if part) or "model"
        facts = [f"opset {self.opset}", *([self.dtype] if self.dtype else [])]
        facts += [] if self.rank is None else [f"{self.rank} axes"]
        return f"{place} ({', '.join(facts)}): {self.found}; {self.mend}"


class LintedGraph:
    """A model, which may be without its external data, with what rules ask of it."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.nodes = model.graph.node
        self.opset = max((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=0)
        self.initializers = {tensor.name: tensor for tensor in model.graph.initializer}

    @cached_property
    def types(self) -> dict[str, onnx.TypeProto.Tensor]:
        """Type and shape of the values of which any is known. Inferred; what the model says itself is only a help."""
        inferred = onnx.shape_inference.infer_shapes(_with_one_import_each(self.model)).graph
        values = (*inferred.input, *inferred.value_info, *inferred.output)
        made = {
            name: onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims).tensor_type
            for name, tensor in self.initializers.items()
        }
        return {value.name: value.type.tensor_type for value in values} | made

    def dtype(self, name: str) -> str | None:
        """E.g. BFLOAT16; None if unknown."""
        known = name in self.types and self.types[name].elem_type
        return onnx.TensorProto.DataType.Name(self.types[name].elem_type) if known else None

    def sizes(self, name: str) -> list[int | None] | None:
        """Of every axis, None for a dynamic one; None if not even their number is known."""
        if name not in self.types or not self.types[name].HasField("shape"):
            return None
        return [axis.dim_value if axis.HasField("dim_value") else None for axis in self.types[name].shape.dim]

    def rank(self, name: str) -> int | None:
        """The number of axes; None if unknown."""
        sizes = self.sizes(name)
        return None if sizes is None else len(sizes)

    def violation(
        self,
        rule: str,
        found: str,
        mend: str,
        *,
        node: onnx.NodeProto | None = None,
        name: str = "",
        dtype: str | None = None,
        rank: int | None = None,
    ) -> Violation:
        """At `node`, or at the value `name`, or at the model as a whole."""
        operator = "" if node is None else node.op_type
        place = name if node is None else node.name or next(iter(node.output), "")
        return Violation(rule, place, operator, self.opset, dtype, rank, found, mend)


def _with_one_import_each(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy for shape inference, which refuses a model with a domain that is imported twice or never."""
    versions = dict.fromkeys((node.domain for node in model.graph.node), 1) | {"": _USUAL_OPSET}
    versions |= {each.domain: each.version for each in model.opset_import}
    versions[""] = max(versions[""], versions.pop("ai.onnx", 0))  # two names of one domain
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.opset_import[:]
    copy.opset_import.extend(onnx.helper.make_opsetid(domain, version) for domain, version in versions.items())
    return copy

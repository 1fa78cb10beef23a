"""Inputs and outputs that a graph must have for its manifest: names, types and shapes (docs/concepts/contract.md).

They are described with dynamic axes, as in the graph, and as arrays of one forward. Callers pass in the values that an
opened graph reports.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lopa.runtime import contract
from lopa.runtime.bundle.manifest import GraphTwin, Manifest
from lopa.runtime.contract import TOP_K, stored_dtype
from lopa.runtime.contract.model_part import HIDDEN, NEXT_HIDDEN, ModelPart
from lopa.runtime.contract.portable_form import PAST, portable_input_names
from lopa.runtime.contract.rotary import ROTARY_INPUTS
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.errors import BadInputError

_IN_ONNX = {"float32": "float"}
"""ONNX names of types that differ from numpy and the manifest."""
_MAX_SHOWN_NAMES = 3
"""Maximum number of names in an error."""
_IDS, _BOOL, _FLOAT = "int64", "bool", "float32"


class GraphValue(Protocol):
    """An input or output as ONNX Runtime describes it."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def type(self) -> str: ...  # noqa: D102

    @property
    def shape(self) -> Sequence[Any]: ...  # noqa: D102


@dataclass(frozen=True)
class ArrayForm:
    """Shape and type of one input or output in a forward."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """Type as returned by stored_dtype."""

    @property
    def size(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class ValueForm:
    """Type name and axes of one input or output. A fixed axis is a number, a dynamic axis is a letter."""

    type: str
    axes: tuple[int | str, ...]

    def matches(self, value: GraphValue) -> bool:
        """Return True if `value` has this type and these fixed axes, and dynamic axes elsewhere."""
        return (
            value.type == self._type_in_onnx
            and len(value.shape) == len(self.axes)
            and all(
                found == axis if isinstance(axis, int) else not isinstance(found, int)
                for axis, found in zip(self.axes, value.shape, strict=True)
            )
        )

    def __str__(self) -> str:
        return f"{self._type_in_onnx} [{', '.join(map(str, self.axes))}]"

    @property
    def _type_in_onnx(self) -> str:
        return f"tensor({_IN_ONNX.get(self.type, self.type)})"


def inputs_of_graph(manifest: Manifest, part: ModelPart) -> dict[str, ValueForm]:
    """Return all inputs of the graph of `part` in the manifest's dialect, in order. A portable graph is always the
    whole model.
    """
    with_rotary = manifest.rotary is not None
    if manifest.dialect == "portable":
        forms = _portable_forms(manifest, part)
        return {name: forms[name] for name in portable_input_names(with_rotary=with_rotary, has_canvas=part.has_canvas)}
    forms = _standard_forms(manifest, part)
    return {name: forms[name] for name in part.input_names(with_rotary=with_rotary)}


def inputs_of_twin(manifest: Manifest, part: ModelPart, twin: GraphTwin | None) -> dict[str, ValueForm]:
    """Return all inputs of a twin of the graph of `part`, or of the graph itself, in order.

    A twin for CUDA has N packed rows, of which Q are sampled. C, A and S are any sizes (docs/concepts/contract.md).
    """
    if twin is None or twin.provider != "cuda":
        return inputs_of_graph(manifest, part)
    positions = {contract.POSITION_IDS: ValueForm(_IDS, ("N",))}
    canvas = {
        contract.IS_CANVAS: ValueForm(_BOOL, ("N",)),
        contract.SOFT_EMBEDDINGS: ValueForm(manifest.dtype, ("N", manifest.dimensions.hidden_size)),
        contract.UNIFORM: ValueForm(_FLOAT, ("Q",)),
    }
    return {
        contract.INPUT_IDS: ValueForm(_IDS, ("N",)),
        **(positions if manifest.rotary is None else _rotary(("N",), manifest.dimensions.rotary_size)),
        contract.SAMPLED_ROWS: ValueForm(_IDS, ("Q",)),
        contract.TEMPERATURE: ValueForm(_FLOAT, ("Q",)),
        **({} if manifest.dimensions.canvas is None else canvas),
        contract.CACHE: ValueForm(manifest.dtype, ("C",)),
        contract.ATTENTION_WORK: ValueForm("int32", ("A",)),
        contract.ATTENTION_SCRATCH: ValueForm(_FLOAT, ("S",)),
        **{
            each.name: ValueForm(each.dtype(manifest.tensors), tuple(each.shape(manifest.tensors)))
            for each in twin.fused
        },
    }


def outputs_of_twin(manifest: Manifest, part: ModelPart, twin: GraphTwin | None) -> dict[str, ValueForm]:
    """Return all outputs of a twin of the graph of `part`, or of the graph itself, in order."""
    if twin is None or twin.provider != "cuda":
        return outputs_of_graph(manifest, part)
    sizes = manifest.dimensions
    new_rows = ValueForm(manifest.dtype, ("N", sizes.cache_heads, sizes.cache_head_size))
    forms = {
        **_statistics(("Q",), sizes.vocab_size),
        contract.DRAWN_IDS: ValueForm(_IDS, ("Q",)),
        contract.NEXT_SOFT_EMBEDDINGS: ValueForm(manifest.dtype, ("Q", sizes.hidden_size)),
        **dict.fromkeys(part.window_names, new_rows),
    }
    return {name: forms[name] for name in part.output_names(with_logits=manifest.with_logits)}


def outputs_of_graph(manifest: Manifest, part: ModelPart) -> dict[str, ValueForm]:
    """Return all outputs of the graph of `part` in the manifest's dialect, in order."""
    forms = (_portable_forms if manifest.dialect == "portable" else _standard_forms)(manifest, part)
    return {name: forms[name] for name in part.output_names(with_logits=manifest.with_logits)}


def arrays_of_values(forms: Mapping[str, ValueForm], sizes: Sizes) -> dict[str, ArrayForm]:
    """Return the arrays of `forms` in a forward of these sizes, by the same names."""
    r, b, w = sizes.requests, sizes.branches, sizes.window
    lengths = {
        "R": r,
        "B": b,
        "W": w,
        "P": sizes.prefix,
        "Q": sizes.wanted,
        "S": b * w,
        "M": r * b * sizes.wanted,
    }
    return arrays_of_lengths(forms, lengths)


def arrays_of_lengths(forms: Mapping[str, ValueForm], lengths: Mapping[str, int]) -> dict[str, ArrayForm]:
    """Return the arrays of `forms` with these `lengths` of dynamic axes, by the same names."""
    arrays: dict[ValueForm, ArrayForm] = {}
    for form in set(forms.values()):  # all layers share the same few forms
        # An axis such as "2 x R" is a product.
        axes = (
            (lengths[each] if each in lengths else int(each) for each in str(axis).split(" x ")) for axis in form.axes
        )
        arrays[form] = ArrayForm(tuple(map(math.prod, axes)), stored_dtype(form.type))
    return {name: arrays[form] for name, form in forms.items()}


def find_mismatch(found: Sequence[GraphValue], expected: Mapping[str, ValueForm]) -> tuple[str, str] | None:
    """Return the first mismatch between `found` and `expected` as two texts, or None. Both must have the same names."""
    for value in found:
        form = expected[value.name]
        if not form.matches(value):
            shape = ", ".join("?" if axis is None else str(axis) for axis in value.shape)
            return f"{value.name} {value.type} [{shape}]", f"{value.name} {form}"
    return None


def check_signature(
    graph: Path,
    manifest: Manifest,
    part: ModelPart,
    inputs: Sequence[GraphValue],
    outputs: Sequence[GraphValue],
    twin: GraphTwin | None = None,
) -> None:
    """Raise BadInputError unless `inputs` and `outputs` of the opened file `graph` match the contract.

    With `twin`, the file is this twin of the graph.

    The manifest determines names, types and shapes. This ensures that arrays bound later fit, and that the manifest
    does not contradict the graph.
    """
    for what, found, expected in (
        ("inputs", inputs, inputs_of_twin(manifest, part, twin)),
        ("outputs", outputs, outputs_of_twin(manifest, part, twin)),
    ):
        others = sorted({value.name for value in found} ^ set(expected))
        if others:
            more = f" and {len(others) - _MAX_SHOWN_NAMES} more" if len(others) > _MAX_SHOWN_NAMES else ""
            raise BadInputError(
                f"the {what} of {graph} do not match its manifest: {others[:_MAX_SHOWN_NAMES]}{more}",
                expected=f"the {what} of contract version {manifest.contract} in the {manifest.dialect} dialect",
                remedy="export the checkpoint again",
            )
        difference = find_mismatch(found, expected)
        if difference is not None:
            raise BadInputError(
                f"{graph} has the mismatched {what[:-1]} {difference[0]}",
                expected=f"{difference[1]}, as its manifest requires",
                remedy="export the checkpoint again",
            )


def _standard_forms(manifest: Manifest, part: ModelPart) -> dict[str, ValueForm]:
    sizes, row = manifest.dimensions, manifest.dtype
    window, sampled = ("R", "B", "W"), ("R", "B", "Q")
    hidden = ValueForm(_FLOAT, (2, *window, sizes.hidden_size))
    past = ValueForm(row, ("R", sizes.cache_heads, "P", sizes.cache_head_size))
    new_rows = ValueForm(row, ("R", "B", sizes.cache_heads, "W", sizes.cache_head_size))
    return {
        contract.INPUT_IDS: ValueForm(_IDS, window),
        HIDDEN: hidden,
        contract.POSITION_IDS: ValueForm(_IDS, window),
        **_rotary(window, sizes.rotary_size),
        contract.WINDOW_MASK: ValueForm(_BOOL, (*window, "W")),
        contract.PREFIX_MASK: ValueForm(_BOOL, ("R", "P")),
        contract.LOGITS_INDEX: ValueForm(_IDS, sampled),
        contract.TEMPERATURE: ValueForm(_FLOAT, ("R",)),
        contract.IS_CANVAS: ValueForm(_BOOL, window),
        contract.ATTENTION_START: ValueForm(_IDS, window),
        contract.SOFT_EMBEDDINGS: ValueForm(row, (*window, sizes.hidden_size)),
        contract.UNIFORM: ValueForm(_FLOAT, sampled),
        contract.DRAWN_IDS: ValueForm(_IDS, sampled),
        contract.NEXT_SOFT_EMBEDDINGS: ValueForm(row, (*sampled, sizes.hidden_size)),
        **dict.fromkeys(part.past_names, past),
        NEXT_HIDDEN: hidden,
        **_statistics(sampled, sizes.vocab_size),
        **dict.fromkeys(part.window_names, new_rows),
    }


def _portable_forms(manifest: Manifest, part: ModelPart) -> dict[str, ValueForm]:
    """Return the forms with S = B x W rows per request and M sampled positions in total."""
    sizes, row = manifest.dimensions, manifest.dtype
    mask = (2, "S") if part.has_canvas else (1, 1)
    return {
        contract.INPUT_IDS: ValueForm(_IDS, ("R", "S")),
        contract.POSITION_IDS: ValueForm(_IDS, ("R", "S")),
        **_rotary(("R", "S"), sizes.rotary_size),
        contract.WINDOW_MASK: ValueForm(_FLOAT, ("R", mask[0], "S", "S")),
        contract.PREFIX_MASK: ValueForm(_FLOAT, ("R", *mask, "P")),
        contract.LOGITS_INDEX: ValueForm(_IDS, ("M",)),
        contract.TEMPERATURE: ValueForm(_FLOAT, ("M", 1)),
        contract.IS_CANVAS: ValueForm(_BOOL, ("R", "S")),
        contract.SOFT_EMBEDDINGS: ValueForm(row, ("R", "S", sizes.hidden_size)),
        contract.UNIFORM: ValueForm(_FLOAT, ("M",)),
        contract.DRAWN_IDS: ValueForm(_IDS, ("M",)),
        contract.NEXT_SOFT_EMBEDDINGS: ValueForm(row, ("M", sizes.hidden_size)),
        PAST: ValueForm(row, (2 * sizes.layers, f"{sizes.cache_heads} x R", "P", sizes.cache_head_size)),
        **_statistics(("M",), sizes.vocab_size),
        **dict.fromkeys(part.window_names, ValueForm(row, ("R", sizes.cache_heads, "S", sizes.cache_head_size))),
    }


def _rotary(rows: tuple[str, ...], rotary_size: int) -> dict[str, ValueForm]:
    return dict.fromkeys(ROTARY_INPUTS, ValueForm(_FLOAT, (*rows, rotary_size // 2)))


def _statistics(sampled: tuple[str, ...], vocab_size: int) -> dict[str, ValueForm]:
    return {
        contract.TOPK_IDS: ValueForm(_IDS, (*sampled, TOP_K)),
        contract.TOPK_LOGPROBS: ValueForm(_FLOAT, (*sampled, TOP_K)),
        contract.ENTROPY: ValueForm(_FLOAT, sampled),
        contract.LOGITS: ValueForm(_FLOAT, (*sampled, vocab_size)),
    }

"""What a graph's inputs and outputs must be for its manifest: names, types and shapes (docs/concepts/contract.md).

As the graph has them, with dynamic axes, and as arrays of one forward. Knows no engine: what an opened graph says of
itself is handed in.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lopa.runtime import contract
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import TOP_K
from lopa.runtime.contract.model_part import HIDDEN, NEXT_HIDDEN, ModelPart
from lopa.runtime.contract.portable_form import PAST, portable_input_names
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.contract.stored_floats import stored_dtype
from lopa.runtime.errors import BadInputError

_IN_ONNX = {"float32": "float"}
"""Types whose names in ONNX differ from numpy's and the manifest's."""
_SHOWN = 3
"""Names in an error."""
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
    """One input or output in a forward."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """As stored_dtype gives it."""

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class ValueForm:
    """One input or output: its type by name, and its axes: a number where it is fixed, letters where it is dynamic."""

    type: str
    axes: tuple[int | str, ...]

    def is_of(self, value: GraphValue) -> bool:
        """Whether `value` has this type, these fixed axes, and dynamic axes elsewhere."""
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
    """All inputs of the graph of `part` in the manifest's dialect, in order; a portable one is always whole."""
    if manifest.dialect == "portable":
        forms = _portable_forms(manifest, part)
        return {name: forms[name] for name in portable_input_names()}
    forms = _standard_forms(manifest, part)
    return {name: forms[name] for name in part.input_names}


def outputs_of_graph(manifest: Manifest, part: ModelPart) -> dict[str, ValueForm]:
    """All outputs, likewise."""
    forms = (_portable_forms if manifest.dialect == "portable" else _standard_forms)(manifest, part)
    return {name: forms[name] for name in part.output_names(with_logits=manifest.with_logits)}


def arrays_of_values(forms: Mapping[str, ValueForm], sizes: Sizes) -> dict[str, ArrayForm]:
    """What `forms` are in a forward of these sizes, by the same names."""
    r, b, w = sizes.requests, sizes.branches, sizes.window
    of = {"R": r, "B": b, "W": w, "P": sizes.prefix, "Q": sizes.wanted, "S": b * w, "M": r * b * sizes.wanted}
    arrays: dict[ValueForm, ArrayForm] = {}
    for form in set(forms.values()):  # few: all layers have the same
        # An axis such as "2 x R" is a product.
        axes = ((of[each] if each in of else int(each) for each in str(axis).split(" x ")) for axis in form.axes)
        arrays[form] = ArrayForm(tuple(map(math.prod, axes)), stored_dtype(form.type))
    return {name: arrays[form] for name, form in forms.items()}


def difference_of_values(found: Sequence[GraphValue], expected: Mapping[str, ValueForm]) -> tuple[str, str] | None:
    """What `found` has that is not as expected, and what that should be; None when all is. The names are the same."""
    for value in found:
        form = expected[value.name]
        if not form.is_of(value):
            shape = ", ".join("?" if axis is None else str(axis) for axis in value.shape)
            return f"{value.name} {value.type} [{shape}]", f"{value.name} {form}"
    return None


def check_signature(
    graph: Path, manifest: Manifest, part: ModelPart, inputs: Sequence[GraphValue], outputs: Sequence[GraphValue]
) -> None:
    """Raise BadInputError unless `inputs` and `outputs`, of the opened file `graph`, are exactly those of the contract.

    The manifest says which. They are compared by name, type and shape, so that what is bound later fits, and nothing in
    the manifest is believed that the graph contradicts.
    """
    for what, found, expected in (
        ("inputs", inputs, inputs_of_graph(manifest, part)),
        ("outputs", outputs, outputs_of_graph(manifest, part)),
    ):
        others = sorted({value.name for value in found} ^ set(expected))
        if others:
            more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
            raise BadInputError(
                f"{graph} has other {what} than its manifest says: {others[:_SHOWN]}{more}",
                expected=f"the {what} of contract version {contract.CONTRACT_VERSION} in the {manifest.dialect} "
                "dialect",
                remedy="export the checkpoint again",
            )
        difference = difference_of_values(found, expected)
        if difference is not None:
            raise BadInputError(
                f"{graph} has among its {what} {difference[0]}",
                expected=f"{difference[1]}, as its manifest makes it",
                remedy="export the checkpoint again",
            )


def _standard_forms(manifest: Manifest, part: ModelPart) -> dict[str, ValueForm]:
    sizes, row = manifest.dimensions, manifest.dtype
    window, wanted = ("R", "B", "W"), ("R", "B", "Q")
    hidden = ValueForm(_FLOAT, (2, *window, sizes.hidden_size))
    past = ValueForm(row, ("R", sizes.kv_heads, "P", sizes.head_size))
    new_rows = ValueForm(row, ("R", "B", sizes.kv_heads, "W", sizes.head_size))
    return {
        contract.INPUT_IDS: ValueForm(_IDS, window),
        HIDDEN: hidden,
        contract.POSITION_IDS: ValueForm(_IDS, window),
        contract.WINDOW_MASK: ValueForm(_BOOL, (*window, "W")),
        contract.PREFIX_MASK: ValueForm(_BOOL, ("R", "P")),
        contract.LOGITS_INDEX: ValueForm(_IDS, wanted),
        contract.TEMPERATURE: ValueForm(_FLOAT, ("R",)),
        **dict.fromkeys(part.past_names, past),
        NEXT_HIDDEN: hidden,
        **_statistics(wanted, sizes.vocab_size),
        **dict.fromkeys(part.window_names, new_rows),
    }


def _portable_forms(manifest: Manifest, part: ModelPart) -> dict[str, ValueForm]:
    """S = B x W rows of a request, M wanted rows in all."""
    sizes, row = manifest.dimensions, manifest.dtype
    return {
        contract.INPUT_IDS: ValueForm(_IDS, ("R", "S")),
        contract.POSITION_IDS: ValueForm(_IDS, ("R", "S")),
        contract.WINDOW_MASK: ValueForm(_FLOAT, ("R", 1, "S", "S")),
        contract.PREFIX_MASK: ValueForm(_FLOAT, ("R", 1, 1, "P")),
        contract.LOGITS_INDEX: ValueForm(_IDS, ("M",)),
        contract.TEMPERATURE: ValueForm(_FLOAT, ("M", 1)),
        PAST: ValueForm(row, (2 * sizes.layers, f"{sizes.kv_heads} x R", "P", sizes.head_size)),
        **_statistics(("M",), sizes.vocab_size),
        **dict.fromkeys(part.window_names, ValueForm(row, ("R", sizes.kv_heads, "S", sizes.head_size))),
    }


def _statistics(wanted: tuple[str, ...], vocab_size: int) -> dict[str, ValueForm]:
    return {
        contract.TOPK_IDS: ValueForm(_IDS, (*wanted, TOP_K)),
        contract.TOPK_LOGPROBS: ValueForm(_FLOAT, (*wanted, TOP_K)),
        contract.ENTROPY: ValueForm(_FLOAT, wanted),
        contract.LOGITS: ValueForm(_FLOAT, (*wanted, vocab_size)),
    }

"""What a graph's inputs and outputs must be for its manifest: names, types and shapes (docs/contract.md).

Knows no engine: what an opened graph says of itself is handed in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lopa.runtime import contract
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import TOP_K
from lopa.runtime.contract.model_part import HIDDEN, NEXT_HIDDEN, ModelPart
from lopa.runtime.contract.portable_form import PAST, portable_input_names

_TYPES = {"float32": "float", "float16": "float16", "bfloat16": "bfloat16"}
"""As ONNX calls them, by the manifest's names."""
_IDS, _BOOL, _FLOAT = "tensor(int64)", "tensor(bool)", "tensor(float)"


class GraphValue(Protocol):
    """An input or output as ONNX Runtime describes it."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def type(self) -> str: ...  # noqa: D102

    @property
    def shape(self) -> Sequence[Any]: ...  # noqa: D102


@dataclass(frozen=True)
class ValueForm:
    """One input or output: its ONNX type, and its axes: a number where it is fixed, a name where it is dynamic."""

    type: str
    axes: tuple[int | str, ...]

    def is_of(self, value: GraphValue) -> bool:
        """Whether `value` has this type, these fixed axes, and dynamic axes elsewhere."""
        return (
            value.type == self.type
            and len(value.shape) == len(self.axes)
            and all(
                found == axis if isinstance(axis, int) else not isinstance(found, int)
                for axis, found in zip(self.axes, value.shape, strict=True)
            )
        )

    def __str__(self) -> str:
        return f"{self.type} [{', '.join(map(str, self.axes))}]"


def inputs_of_graph(manifest: Manifest, part: ModelPart) -> dict[str, ValueForm]:
    """All inputs of the graph of `part` in the manifest's dialect; a portable one is always whole."""
    portable = manifest.dialect == "portable"
    return {
        name: form
        for name, form in (_portable_forms if portable else _standard_forms)(manifest, part).items()
        if name in (portable_input_names() if portable else part.input_names)
    }


def outputs_of_graph(manifest: Manifest, part: ModelPart) -> dict[str, ValueForm]:
    """All outputs, likewise."""
    forms = (_portable_forms if manifest.dialect == "portable" else _standard_forms)(manifest, part)
    return {name: forms[name] for name in part.output_names(with_logits=manifest.with_logits)}


def difference_of_values(found: Sequence[GraphValue], expected: Mapping[str, ValueForm]) -> tuple[str, str] | None:
    """What `found` has that is not as expected, and what that should be; None when all is. The names are the same."""
    for value in found:
        form = expected[value.name]
        if not form.is_of(value):
            shape = ", ".join("?" if axis is None else str(axis) for axis in value.shape)
            return f"{value.name} {value.type} [{shape}]", f"{value.name} {form}"
    return None


def _standard_forms(manifest: Manifest, part: ModelPart) -> dict[str, ValueForm]:
    sizes, row = manifest.dimensions, f"tensor({_TYPES[manifest.dtype]})"
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
    sizes, row = manifest.dimensions, f"tensor({_TYPES[manifest.dtype]})"
    return {
        contract.INPUT_IDS: ValueForm(_IDS, ("R", "S")),
        contract.POSITION_IDS: ValueForm(_IDS, ("R", "S")),
        contract.WINDOW_MASK: ValueForm(_FLOAT, ("R", 1, "S", "S")),
        contract.PREFIX_MASK: ValueForm(_FLOAT, ("R", 1, 1, "P")),
        contract.LOGITS_INDEX: ValueForm(_IDS, ("M",)),
        contract.TEMPERATURE: ValueForm(_FLOAT, ("M", 1)),
        PAST: ValueForm(row, (2 * sizes.layers, "R x Hkv", "P", sizes.head_size)),
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

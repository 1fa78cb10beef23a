"""Consecutive layers of a model as a separate graph, described by its inputs and outputs.

The stages of a pipeline are such parts. The part with all layers is the whole model and has the signature of the
contract. This module handles names, no arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lopa.runtime import contract
from lopa.runtime.contract.rotary import with_rotary_names

HIDDEN = "hidden"
"""float32 [2, R, B, W, H]: two addends whose sum is the hidden state after the previous layers. It is an input of every
part but the first. The next part adds them, so that the sum is rounded as in the whole graph
(lopa.export.graph.module).
"""
NEXT_HIDDEN = "next_hidden"
"""float32 [2, R, B, W, H]: the same addends after this part's layers. It is an output of every part but the last."""


@dataclass(frozen=True)
class ModelPart:
    """Layers `first` to `end` (exclusive) of a model with `layers` layers.

    The first part also has the embedding. The last also has the final norm, the vocabulary projection and the
    statistics.
    """

    first: int
    end: int
    layers: int
    has_canvas: ClassVar[bool] = False
    """True for contract 2."""

    @property
    def is_first(self) -> bool:
        """True if the input is token ids, False if it is hidden states."""
        return self.first == 0

    @property
    def is_last(self) -> bool:
        """True if the output is statistics, False if it is hidden states."""
        return self.end == self.layers

    @property
    def cache_arrays(self) -> slice:
        """Slice that selects these layers' arrays from a whole model's prefix, in the order of contract.past_names."""
        return slice(2 * self.first, 2 * self.end)

    @property
    def past_names(self) -> Sequence[str]:
        """Names of these layers' prefix inputs, numbered as in the whole model."""
        return contract.past_names(self.layers)[self.cache_arrays]

    @property
    def window_names(self) -> Sequence[str]:
        """Names of the outputs with these layers' new key and value rows."""
        return contract.window_names(self.layers)[self.cache_arrays]

    def input_names(self, *, with_rotary: bool = False) -> list[str]:
        """Return the names of all inputs, in order. With `with_rotary`, the graph takes cosines and sines."""
        source = contract.INPUT_IDS if self.is_first else HIDDEN
        last_inputs = [contract.LOGITS_INDEX, contract.TEMPERATURE] if self.is_last else []
        names = [
            *(source, contract.POSITION_IDS, contract.WINDOW_MASK, contract.PREFIX_MASK),
            *(*last_inputs, *self.past_names),
        ]
        return with_rotary_names(names) if with_rotary else names

    def output_names(self, *, with_logits: bool) -> list[str]:
        """Return the names of all outputs, in order. `with_logits` must match the bundle."""
        if not self.is_last:
            return [NEXT_HIDDEN, *self.window_names]
        statistics = [contract.TOPK_IDS, contract.TOPK_LOGPROBS, contract.ENTROPY]
        return [*statistics, *self.window_names, *([contract.LOGITS] if with_logits else [])]


class CanvasModel(ModelPart):
    """All layers of a model of contract 2, with the names of its further inputs and outputs."""

    has_canvas = True

    def input_names(self, *, with_rotary: bool = False) -> list[str]:
        """Return the names of all inputs, in order."""
        names = super().input_names(with_rotary=with_rotary)
        place = names.index(contract.TEMPERATURE) + 1
        return [*names[:place], *contract.CANVAS_INPUTS, *names[place:]]

    def output_names(self, *, with_logits: bool) -> list[str]:
        """Return the names of all outputs, in order. `with_logits` must match the bundle."""
        names = super().output_names(with_logits=with_logits)
        place = names.index(contract.ENTROPY) + 1
        return [*names[:place], *contract.CANVAS_OUTPUTS, *names[place:]]


def whole_model(layers: int, *, has_canvas: bool = False) -> ModelPart:
    """Return the part that has all layers. With `has_canvas` it has contract 2."""
    return (CanvasModel if has_canvas else ModelPart)(0, layers, layers)

"""A run of consecutive layers as a graph of its own: what goes in and what comes out. Knows names, no arrays.

A pipeline's stages are such parts; the whole model is the part of all layers, with the signature of the contract.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lopa.runtime import contract

HIDDEN = "hidden"
"""float32 [2, R, B, W, H]: two parts, whose sum the window's rows are behind the layers before; the input of every part
but the first. The sum is left to whoever goes on: it is rounded as in the whole graph (lopa.export.graph.module)."""
NEXT_HIDDEN = "next_hidden"
"""float32 [2, R, B, W, H]: the same behind this part's layers; the output of every part but the last."""


@dataclass(frozen=True)
class ModelPart:
    """Layers `first` to `end` (not included) of a model of `layers`.

    The first part has the embedding too, the last the final norm, the product with the vocabulary and the statistics.
    """

    first: int
    end: int
    layers: int

    @property
    def is_first(self) -> bool:
        """Whether token ids go in, and not hidden rows."""
        return self.first == 0

    @property
    def is_last(self) -> bool:
        """Whether statistics come out, and not hidden rows."""
        return self.end == self.layers

    @property
    def cache_arrays(self) -> slice:
        """Of the arrays of a whole model's prefix, in the order of contract.past_names, those of these layers."""
        return slice(2 * self.first, 2 * self.end)

    @property
    def past_names(self) -> Sequence[str]:
        """Prefix inputs of these layers; they keep the whole model's numbers."""
        return contract.past_names(self.layers)[self.cache_arrays]

    @property
    def window_names(self) -> Sequence[str]:
        """Outputs with the new rows of these layers."""
        return contract.window_names(self.layers)[self.cache_arrays]

    @property
    def input_names(self) -> list[str]:
        """All inputs, in order."""
        source = contract.INPUT_IDS if self.is_first else HIDDEN
        wanted = [contract.LOGITS_INDEX, contract.TEMPERATURE] if self.is_last else []
        return [
            *(source, contract.POSITION_IDS, contract.WINDOW_MASK, contract.PREFIX_MASK),
            *(*wanted, *self.past_names),
        ]

    def output_names(self, *, with_logits: bool) -> list[str]:
        """All outputs, in order; `with_logits` as the bundle has it."""
        if not self.is_last:
            return [NEXT_HIDDEN, *self.window_names]
        statistics = [contract.TOPK_IDS, contract.TOPK_LOGPROBS, contract.ENTROPY]
        return [*statistics, *self.window_names, *([contract.LOGITS] if with_logits else [])]


def whole_model(layers: int) -> ModelPart:
    """All layers."""
    return ModelPart(0, layers, layers)

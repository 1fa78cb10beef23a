"""The constants of a decode: params, strategy and the model's special tokens."""

from dataclasses import dataclass
from functools import cached_property

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.errors import FieldError
from lopa.runtime.options import DecodingParams
from lopa.runtime.strategy import Strategy, strategy_from_name
from lopa.runtime.strategy.installed import checked_strategy


@dataclass(frozen=True)
class Context:
    """The values that stay constant over all rounds of one request."""

    params: DecodingParams
    strategy: Strategy
    mask_token: int
    ends: tuple[int, ...]
    """Tokens that end the decode: those of the request, and with stop_at_eos the model's."""
    prediction_shift: int
    vocab_size: int
    expand_token: int | None = None
    """Token that stands for two masked positions; None if the model has none."""
    holes_grow: bool = False
    """True if the expand token may be written, because it lengthens the holes."""

    @cached_property
    def unwritten(self) -> tuple[int, ...]:
        """Tokens that are never written: outside reference mode the mask token, and the expand token unless holes
        grow.
        """
        if self.params.reference:
            return ()
        if self.expand_token is None or self.holes_grow:
            return (self.mask_token,)
        return (self.mask_token, self.expand_token)


def context_from_model(params: DecodingParams, model: Manifest) -> Context:
    """Return the context in which `model` decodes a request by `params`.

    Raises BadInputError for editing with rows that predict the next position.
    """
    tokens = model.special_tokens
    check_editing(params, model.prediction_shift)
    return Context(
        params,
        checked_strategy(strategy_from_name(params.strategy), model.dimensions.vocab_size),
        tokens.mask,
        (*(tokens.ends if params.stop_at_eos else ()), *params.stop_token_ids),
        model.prediction_shift,
        model.dimensions.vocab_size,
        expand_token=tokens.expand,
    )


def check_editing(params: DecodingParams, prediction_shift: int) -> None:
    """Raise BadInputError for a parameters that edits tokens of a model whose rows predict the next position.

    Such a row has not been trained to predict a position whose token it attends to.
    """
    if params.edits and prediction_shift:
        raise FieldError(
            "editing_threshold",
            "cannot use editing_threshold for a model whose rows predict the next position",
            expected="a model whose rows predict their own positions, e.g. LLaDA2.1",
            remedy="remove editing_threshold",
        )

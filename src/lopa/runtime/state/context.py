"""The constants of a decode: plan, strategy and the model's special tokens."""

from dataclasses import dataclass
from typing import Protocol

from lopa.runtime.plan import DecodingPlan
from lopa.runtime.strategy import Strategy, strategy_from_name


class ModelSizes(Protocol):
    """Model dimensions that a decode needs."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""


class SpecialTokenIds(Protocol):
    """Special token ids that a decode needs."""

    @property
    def mask(self) -> int:
        """Token of masked positions."""

    @property
    def pad(self) -> int:
        """Token of padding rows."""

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end an answer."""


class Model(Protocol):
    """The properties of a model that a decode needs. A bundle's manifest implements it."""

    @property
    def dimensions(self) -> ModelSizes:
        """Model dimensions."""

    @property
    def special_tokens(self) -> SpecialTokenIds:
        """Special token ids."""

    @property
    def prediction_shift(self) -> int:
        """1 if a row predicts the next position, 0 if its own."""


@dataclass(frozen=True)
class Context:
    """The values that stay constant over all rounds of one request."""

    plan: DecodingPlan
    strategy: Strategy
    mask_token: int
    pad_token: int
    ends: tuple[int, ...]
    """Tokens that end the answer; empty with stop_at_eos off."""
    prediction_shift: int
    vocab_size: int


def context_from_model(plan: DecodingPlan, model: Model) -> Context:
    """Return the context in which `model` decodes a request by `plan`."""
    tokens = model.special_tokens
    return Context(
        plan,
        strategy_from_name(plan.strategy),
        tokens.mask,
        tokens.pad,
        tokens.ends if plan.stop_at_eos else (),
        model.prediction_shift,
        model.dimensions.vocab_size,
    )

"""What every function of a decode is given beside its state: the plan, the strategy, the model's special tokens."""

from dataclasses import dataclass
from typing import Protocol

from lopa.runtime.plan import DecodingPlan
from lopa.runtime.strategy import Strategy, strategy_from_name


class Dimensions(Protocol):
    """Sizes of a model."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""


class SpecialTokens(Protocol):
    """Token ids with a meaning for the decoder."""

    @property
    def mask(self) -> int:
        """Stands at masked positions."""

    @property
    def pad(self) -> int:
        """Fills rows that nothing sees."""

    @property
    def ends(self) -> tuple[int, ...]:
        """Ids that end an answer."""


class Model(Protocol):
    """What a decode knows of its model; a bundle's manifest is one."""

    @property
    def dimensions(self) -> Dimensions:
        """Its sizes."""

    @property
    def special_tokens(self) -> SpecialTokens:
        """Its special tokens."""

    @property
    def prediction_shift(self) -> int:
        """1: the statistics of a row are about the next position; 0: about its own."""


@dataclass(frozen=True)
class Context:
    """What holds for all rounds of one request."""

    plan: DecodingPlan
    strategy: Strategy
    mask_token: int
    pad_token: int
    ends: tuple[int, ...]
    """Tokens that end the answer; none with stop_at_eos off."""
    prediction_shift: int
    vocab_size: int


def context_from_model(plan: DecodingPlan, model: Model) -> Context:
    """Return the context of a request that `model` decodes by `plan`."""
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

"""Outcome of one prompt with one configuration, the source of all figures."""

from dataclasses import dataclass

from lopa.bench.eval_set import EvalItem
from lopa.bench.quality.variants import Variant
from lopa.runtime.requests.result import GenerationResult


@dataclass(frozen=True)
class DecodeOutcome:
    """Outcome of one prompt decoded with one configuration."""

    right: bool | None
    """True for a correct answer, or None if it is not scored here."""
    steps: int
    """Number of forwards. The published scripts count one more, a round without a forward."""
    tokens: int
    """Generated tokens up to and including the first end-of-text."""
    generated_positions: int
    """All generated positions, as counted by the paper."""
    seconds: float
    limit: float | None = None
    """Upper bound of the accuracy in this number of steps (EvalItem.limit), or None if unknown."""


Configuration = tuple[Variant, bool]
"""A variant, and True for reference mode."""
Outcomes = dict[Configuration, list[DecodeOutcome]]
"""Outcomes by configuration, one per prompt."""


@dataclass(frozen=True)
class KeptOutcome:
    """Stored outcome with its identification."""

    prompt: str
    """Digest of the prompt and its decoding settings."""
    config: str
    """Name of the configuration."""
    options: str
    """Digest of its options."""
    outcome: DecodeOutcome
    text: str | None = None
    """Answer, for prompts with a task_id."""


def outcome_from_result(item: EvalItem, result: GenerationResult, *, drawn: bool = False) -> DecodeOutcome:
    """Return the outcome of the answer to `item`. Sampled answers (`drawn`) have their own accuracy bounds."""
    return DecodeOutcome(
        right=item.is_right(result.text) if item.verdict else None,
        steps=result.steps,
        tokens=result.tokens,
        generated_positions=result.generated_positions,
        seconds=result.seconds,
        limit=item.limit(result.steps, drawn=drawn),
    )

"""The outcome of one prompt with one configuration: all that figures are made of."""

from dataclasses import dataclass

from lopa.bench.eval_set import EvalItem
from lopa.bench.quality.variants import Variant
from lopa.runtime.requests.result import GenerationResult


@dataclass(frozen=True)
class Outcome:
    """One prompt decoded with one configuration."""

    right: bool | None
    """None where the answer is not scored here."""
    steps: int
    """Forward rounds. The published scripts count one more, a round that makes no call."""
    tokens: int
    """Generated ids up to and including the first end-of-text."""
    window_tokens: int
    """All generated positions, which is what the paper counts."""
    seconds: float
    limit: float | None = None
    """The best chance of a right answer that decides independently, in so many steps (EvalItem.limit); None where it is
    not known."""


Configuration = tuple[Variant, bool]
"""A variant, and whether it runs as published."""
Outcomes = dict[Configuration, list[Outcome]]
"""One outcome for each prompt."""


@dataclass(frozen=True)
class KeptOutcome:
    """An outcome as it is stored, and found again."""

    prompt: str
    """Digest of the prompt with all that is asked of it."""
    config: str
    """Name of the configuration."""
    options: str
    """Digest of its options."""
    outcome: Outcome
    text: str | None = None
    """The answer, of a prompt with a task_id."""


def outcome_from_result(item: EvalItem, result: GenerationResult, *, drawn: bool = False) -> Outcome:
    """Return the outcome of the answer to `item`; answers whose tokens were `drawn` have limits of their own."""
    return Outcome(
        right=item.is_right(result.text) if item.verdict else None,
        steps=result.steps,
        tokens=result.tokens,
        window_tokens=result.window_tokens,
        seconds=result.seconds,
        limit=item.limit(result.steps, drawn=drawn),
    )

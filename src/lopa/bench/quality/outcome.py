"""What one configuration made of one prompt, as far as figures are made of it."""

from dataclasses import dataclass

from lopa.bench.eval_set import EvalItem
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


def outcome_from_result(item: EvalItem, result: GenerationResult, *, drawn: bool = False) -> Outcome:
    """Of the answer to `item`; `drawn`: its tokens were drawn, which has limits of its own."""
    return Outcome(
        right=item.is_right(result.text) if item.verdict else None,
        steps=result.steps,
        tokens=result.tokens,
        window_tokens=result.window_tokens,
        seconds=result.seconds,
        limit=item.limit(result.steps, drawn=drawn),
    )

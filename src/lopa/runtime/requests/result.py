"""Events and result of a request."""

from dataclasses import dataclass, field
from typing import Literal

from lopa.runtime.decoding.decoding import StopReason
from lopa.runtime.plan import DecodingPlan
from lopa.runtime.plan.renamed_options import warn_renamed


@dataclass(frozen=True)
class GenerationResult:
    """The answer to one prompt, with statistics of its decode.

    `tokens` counts ids up to and including the first end of text, `window_tokens` all generated positions as in the
    paper, and `steps` forward rounds. `token_ids` are the ids that `tokens` counts; in reference mode all generated
    positions. `text` ends before an end of text or a stop string. `seconds` is wall time. `seed` and `branches` are the
    values in effect, and `plan` has the value of every option.

    `logprobs`, if requested, are natural logarithms of probabilities, one for each of `token_ids`. They are computed at
    the temperature and before top_k and top_p, in the step that unmasked the token or proposed it as a lookahead token.
    NaN stands for a position that reference mode left masked.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    steps: int
    tokens: int
    window_tokens: int
    tokens_per_forward: float
    stop_reason: StopReason
    seconds: float
    plan: DecodingPlan = field(compare=False, repr=False)
    seed: int = 0
    branches: int | Literal["auto"] = 1
    logprobs: tuple[float, ...] | None = None
    reused_rows: int = field(default=0, compare=False)
    """Prompt rows found in the store instead of computed, which depends on earlier requests."""


@dataclass(frozen=True)
class TextEvent:
    """New final text, which follows the text of earlier events."""

    text: str


@dataclass(frozen=True)
class DraftEvent:
    """The whole answer after a step, with the character ░ for each masked position. It may still change."""

    step: int
    text: str
    unmasked: int = 0
    """Number of unmasked positions. It falls when positions behind an end of text are dropped."""

    @property
    def decided(self) -> int:
        """Former name of `unmasked`."""
        warn_renamed("decided", "unmasked")
        return self.unmasked


@dataclass(frozen=True)
class DoneEvent:
    """The last event, with the result."""

    result: GenerationResult


Event = TextEvent | DraftEvent | DoneEvent

"""What a request gives back: events while it is decoded, a result at its end."""

from dataclasses import dataclass, field
from typing import Literal

from lopa.runtime.decoding.decoding import StopReason
from lopa.runtime.plan import DecodingPlan


@dataclass(frozen=True)
class GenerationResult:
    """The answer to one prompt and what it took.

    `tokens` counts ids up to and including the first end-of-text, `window_tokens` all generated positions as the paper
    does; `steps` counts forward rounds. `token_ids` are the ids that `tokens` counts; in reference mode all generated
    positions. `text` ends before an end-of-text or a stop string. `seconds` is wall time. `seed` and `branches` are
    those that were used, also where the config left them open, and `plan` has every option with the value that held.

    `logprobs`, if they were asked for, are natural logarithms, one for each of `token_ids`: the probability that the
    model (at the temperature, before top_k and top_p) gave the token in the step that decided it, a lookahead token's
    in the step that proposed it. NaN stands for a position that reference mode left undecided.
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
    """Rows of the prompt that were found instead of computed: what was there before decides it, not the request."""


@dataclass(frozen=True)
class TextEvent:
    """Text that can no longer change, behind what was sent before."""

    text: str


@dataclass(frozen=True)
class DraftEvent:
    """The whole answer as it stands after a step, undecided positions shown as a light block; may still change."""

    step: int
    text: str
    decided: int = 0
    """Positions. Fewer than after the step before where those behind an end-of-text were dropped."""


@dataclass(frozen=True)
class DoneEvent:
    """The last event."""

    result: GenerationResult


Event = TextEvent | DraftEvent | DoneEvent

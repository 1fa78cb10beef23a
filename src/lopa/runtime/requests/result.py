"""Events and result of a request."""

from dataclasses import dataclass, field
from typing import Literal

from lopa.runtime.contract.row_statistics import TokenLogprob
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.answer_state import StopReason
from lopa.runtime.state.choice_scores import ChoiceScores


@dataclass(frozen=True)
class GenerationResult:
    """The answer to one prompt, with statistics of its decode.

    `tokens` counts ids up to and including the first end of text, `generated_positions` all of them as in the paper,
    and `steps` forward rounds. `token_ids` are the ids that `tokens` counts; in reference mode all generated
    positions, unless a limit ended the answer. `text` ends before an end of text or a stop string. `seconds` is wall
    time. `seed` and `branches` are the values in effect, and `params` has the value of every option.

    `logprobs`, if requested, are natural logarithms of probabilities, one for each of `token_ids`. They are computed at
    the temperature and before top_k and top_p, in the step that unmasked the token or proposed it as a lookahead token.
    NaN stands for a position that reference mode left masked. `top_logprobs`, if requested, are the best candidates
    of the same step for each token, the most probable first. `scores` are the probabilities of the request's choices.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    steps: int
    tokens: int
    generated_positions: int
    tokens_per_forward: float
    stop_reason: StopReason
    seconds: float
    params: DecodingParams = field(compare=False, repr=False)
    seed: int = 0
    branches: int | Literal["auto"] = 1
    logprobs: tuple[float, ...] | None = None
    cached_tokens: int = field(default=0, compare=False)
    """Prompt rows found in the prefix cache instead of computed, which depends on earlier requests."""
    stop_string: str | None = None
    """Text of `stop` that ended the answer, or None."""
    top_logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None
    """Empty for a token that no forward proposed."""
    scores: ChoiceScores | None = None
    """None without choices, and if the request ended before all of them were scored."""
    holes: tuple[str, ...] | None = None
    """Text of each hole that was begun, from left to right; None without holes. `text` then reaches from the first hole
    to the last one, and `token_ids` are those of the holes."""
    filled_text: str | None = None
    """The given text with its holes filled; None without holes."""
    draft_probability: float | None = None
    """Mean probability of the tokens that `anytime` wrote, from the last forward; None if it wrote none."""


@dataclass(frozen=True)
class TextEvent:
    """New final text, which follows the text of earlier events."""

    text: str
    markup: tuple[int, ...] = ()
    """Offsets in `text` at which an added token of the tokenizer begins, such as <tool_call>. The same characters made
    of other tokens are ordinary text."""


@dataclass(frozen=True)
class DraftEvent:
    """The whole answer after a step, with the character ░ for each masked position. It may still change."""

    step: int
    text: str
    unmasked: int = 0
    """Number of unmasked positions. It falls when positions behind an end of text are dropped."""
    token_ids: tuple[int | None, ...] = ()
    """Ids of all generated positions, None for masked ones. With holes: from the first hole to the last one."""
    start: int = 0
    """Position of the first of them in the sequence, as in the step's records."""


@dataclass(frozen=True)
class DoneEvent:
    """The last event, with the result."""

    result: GenerationResult


Event = TextEvent | DraftEvent | DoneEvent

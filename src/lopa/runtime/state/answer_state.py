"""The answer of a request after a round: its final text, its holes, and why decoding stopped."""

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import numpy as np

from lopa.runtime.contract import Bool, Float32, Int64
from lopa.runtime.contract.row_statistics import TokenLogprob
from lopa.runtime.state.choice_scores import ChoiceScores
from lopa.runtime.strategy import Candidates
from lopa.runtime.text.encoded_holes import EncodedHoles

StopReason = Literal["eos", "length", "stop_string", "time_limit", "step_limit", "cancelled", "choice"]


class AnswerState(NamedTuple):
    """The answer of a request after a round."""

    tokens: Int64
    """[positions]: token ids of the prompt and the answer, with the mask token at masked positions."""
    unmasked: Bool
    """[positions]: True for unmasked positions."""
    start: int
    """First position of the answer."""
    end: int
    """End of the generated positions, exclusive."""
    final: int
    """Number of generated positions whose tokens no later round changes, up to an end of text."""
    stop_reason: StopReason | None
    """None while decoding goes on."""
    generated_positions: int
    """Maximum number of generated positions so far; the paper counts these."""
    token_logprobs: Float32 | None = None
    """[positions]: log-probabilities of unmasked tokens, NaN for other positions; None if not requested."""
    recorded: Callable[[Iterable[int], Iterable[bool]], list[tuple[TokenLogprob, ...]]] | None = None
    """Returns the best candidates of positions whose tokens are known; None if not requested."""
    holes: EncodedHoles | None = None
    """The holes at their current length: the longest one until the first round has chosen; None without holes."""
    returns_generated: bool = False
    """True if the result has every generated position instead of the final ones, as in reference mode."""
    drafted: Candidates | None = None
    """[n]: tokens that were written at masked positions after a limit had ended the decode."""
    pads: int = 0
    """Padding among the final tokens of canvases, which tokens per forward do not count."""
    scores: ChoiceScores | None = None
    """Probabilities of given choices; None while they are unknown, and for a decode."""

    @property
    def committed(self) -> Int64:
        """Final generated ids, including an end of text that ends the answer.

        With holes they reach from the first hole to the last one, or to the first masked position.
        """
        return self.tokens[self.start : self.start + self.final]

    @property
    def generated(self) -> Int64:
        """Every generated position, masked ones as the mask token. With holes, given tokens are among them."""
        return self.tokens[self.start : self.end]

    @property
    def logprobs(self) -> Float32 | None:
        """Log-probabilities of `generated`, NaN for masked ones, or None if not requested."""
        return None if self.token_logprobs is None else self.token_logprobs[self.start :]

    @property
    def top_logprobs(self) -> list[tuple[TokenLogprob, ...]] | None:
        """Best candidates of `generated`, none for masked ones, or None if not requested."""
        if self.recorded is None or self.logprobs is None:
            return None
        return self.recorded(range(self.start, len(self.tokens)), ~np.isnan(self.logprobs))

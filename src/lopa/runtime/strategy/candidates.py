"""One candidate token for each position that was asked about, with what the rules look at. Knows arrays only."""

from dataclasses import dataclass

from lopa.runtime.contract import Float32, Int64
from lopa.runtime.sequence.row_statistics import Index


@dataclass(frozen=True)
class Candidates:
    """One candidate for each wanted row; all arrays of one shape, e.g. [B, Q]."""

    tokens: Int64
    probabilities: Float32
    confidences: Float32
    logprobs: Float32 | None = None
    """Of the tokens as the model said, before top_k and top_p; only where they are asked for."""
    entropies: Float32 | None = None
    """In nats, of the whole distribution or of what top_k and top_p kept; None in candidates that no forward made."""

    def __getitem__(self, index: Index) -> "Candidates":
        logprobs = None if self.logprobs is None else self.logprobs[index]
        entropies = None if self.entropies is None else self.entropies[index]
        return Candidates(self.tokens[index], self.probabilities[index], self.confidences[index], logprobs, entropies)

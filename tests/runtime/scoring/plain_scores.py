"""Probabilities of choices computed plainly: one forward of numpy per token, over the whole sequence, in float64 from
its logits."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tests.runtime.sequential import sequential

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import WindowBatch
from lopa.runtime.sessions.session import open_session


class PlainScores:
    """The masked model of a bundle with logits, and the rule of a canvas behind a prompt."""

    def __init__(
        self, bundle: Path, *, attention: str, block_size: int, absolute: bool, temperature: float = 1.0
    ) -> None:
        opened = Bundle.open(bundle)
        self._session = open_session(opened, "numpy", threads=None)
        self._mask, self._shift = opened.manifest.special_tokens.mask, opened.manifest.prediction_shift
        self._attention, self._size, self._absolute = attention, block_size, absolute
        self._temperature = temperature

    def logprobs(self, prompt: Sequence[int], choice: Sequence[int], longest: int) -> list[float]:
        """Return the log-probability of each token of `choice`, beside choices of at most `longest` tokens."""
        return [float(self.distribution(prompt, choice[:place], longest)[token]) for place, token in enumerate(choice)]

    def distribution(self, prompt: Sequence[int], written: Sequence[int], longest: int) -> np.ndarray:
        """Return the log-probabilities [V] of the token behind `prompt` and `written`."""
        end = len(prompt)
        while end < len(prompt) + longest or not self._begins_block(end, len(prompt)):
            end += 1
        tokens = [*prompt, *written, *[self._mask] * (end - len(prompt) - len(written))]
        sees = [[self._sees(row, column, len(prompt)) for column in range(end)] for row in range(end)]
        batch = WindowBatch(
            requests=(1,),
            input_ids=np.array([[tokens]]),
            position_ids=np.array([[range(end)]]),
            window_mask=np.array([[sees]]),
            logits_index=np.array([[[len(prompt) + len(written) - self._shift]]]),
            temperature=np.ones(1, np.float32),
        )
        logits = sequential(self._session).forward(batch).logits
        assert logits is not None
        scaled = logits[0, 0, 0].astype(np.float64) / self._temperature
        return scaled - np.logaddexp.reduce(scaled)

    def _begins_block(self, position: int, prompt: int) -> bool:
        return (position - (0 if self._absolute else prompt)) % self._size == 0

    def _sees(self, row: int, column: int, prompt: int) -> bool:
        if self._attention == "full":
            return True
        if self._attention == "causal":
            return column <= row
        return self._block(column, prompt) <= self._block(row, prompt)

    def _block(self, position: int, prompt: int) -> int:
        if self._absolute:
            return position // self._size
        return -1 if position < prompt else (position - prompt) // self._size

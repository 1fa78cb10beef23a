"""The `lopa` fields of a draft: the step's branches, and the tokens that changed, each with the step that wrote it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile, zip_longest
from typing import Any, NamedTuple, cast

import numpy as np

from lopa.runtime.decoding.step import Step
from lopa.runtime.requests.result import DraftEvent
from lopa.runtime.text.text_stream import TextStream
from lopa.runtime.text.tokenizer import Tokenizer


class WrittenToken(NamedTuple):
    """A token, and the step and branch that wrote it."""

    token: int
    step: int
    branch: int | None
    """Number of the lookahead branch, counted from 0; None for the anchor."""
    probability: float | None
    """None if no forward proposed the token."""


class _Record(NamedTuple):
    fields: Mapping[str, Any]
    written: Mapping[int, WrittenToken]
    places: Mapping[int, int] | None


@dataclass(frozen=True)
class StepRecords:
    """Records of the steps of all choices of one request."""

    _noted: dict[tuple[int, int], _Record] = field(default_factory=dict)

    def record(self, answer: int, step: Step) -> None:
        """Record a step of choice `answer`. The engine calls this."""
        fields = {"branch": step.winner, "branches": len(step.branches), "confidences": step.confidences}
        self._noted[answer, step.number] = _Record(fields, written_tokens(step), step.places)

    def of_step(self, answer: int, number: int) -> _Record:
        """Return the record of a step of choice `answer`."""
        return self._noted[answer, number]


def written_tokens(step: Step) -> dict[int, WrittenToken]:
    """Return the tokens that a step wrote, by position. The winner's lookahead token was proposed by the step before,
    and has that step's probability.
    """
    anchor = len(step.branches) - 1

    def written(token: int, branch: int, probability: float) -> WrittenToken:
        known = None if np.isnan(probability) else float(probability)
        return WrittenToken(int(token), step.number, None if branch == anchor else int(branch), known)

    found: dict[int, WrittenToken] = {}
    for look in (step.branches[step.winner].lookahead, step.last):
        if look is not None:
            found[look.position] = written(look.token, step.winner, look.probability)
    unmasked, edited = step.unmasked, step.edited
    unknown = np.full(len(unmasked), np.nan)
    probabilities = unknown if unmasked.probabilities is None else unmasked.probabilities
    for position, *own in zip(unmasked.positions, unmasked.tokens, step.unmasked_branches, probabilities, strict=True):
        found[int(position)] = written(*own)
    for position, token, probability in zip(edited.positions, edited.tokens, edited.probabilities, strict=True):
        found[int(position)] = written(token, step.winner, probability)
    return found


class DraftFields:
    """Fields of the drafts of one choice. Each draft has only the tokens that differ from the draft before it."""

    def __init__(self, records: StepRecords, answer: int, tokenizer: Tokenizer) -> None:
        self._records, self._answer, self._tokenizer = records, answer, tokenizer
        self._step = 0
        """Number of the last step whose record was read."""
        self._written: dict[int, WrittenToken] = {}
        self._sent: list[dict[str, Any] | None] = []
        self._begin: tuple[int, ...] = ()
        """Ids before the first masked position, whose texts are known. They rarely change."""
        self._begin_texts: list[str] = []
        self._stream = TextStream(tokenizer)

    def of_event(self, event: DraftEvent) -> dict[str, Any]:
        """Return the fields of a draft. A reader may have missed drafts; the steps between are read all the same."""
        for number in range(self._step + 1, event.step + 1):
            record = self._records.of_step(self._answer, number)
            self._written |= record.written
            if (places := record.places) is not None:
                self._written = {places[at]: token for at, token in self._written.items() if at in places}
        self._step = event.step
        tokens = [
            None if text is None else self._token(event.start + index, event.token_ids[index], text)
            for index, text in enumerate(self._texts(event.token_ids))
        ]
        changed = [
            {"index": index, **(new or {"text": None})}
            for index, (old, new) in enumerate(zip_longest(self._sent, tokens))
            if old != new and index < len(tokens)
        ]
        self._sent = tokens
        return {
            "draft": event.text,
            "step": event.step,
            "unmasked": event.unmasked,
            **self._records.of_step(self._answer, event.step).fields,
            "positions": len(tokens),
            "tokens": changed,
        }

    def _token(self, position: int, token: int | None, text: str) -> dict[str, Any]:
        """Return what is known of a token. Given tokens, and those that a grammar forces, were written by no step."""
        written = self._written.get(position)
        if written is None or written.token != token:
            return {"text": text}
        return {"text": text, "step": written.step, "branch": written.branch, "probability": written.probability}

    def _texts(self, ids: Sequence[int | None]) -> list[str | None]:
        """Return the text of each token, None for masked positions. A character of several tokens is the last one's."""
        begin = tuple(cast(Iterable[int], takewhile(lambda each: each is not None, ids)))
        if begin[: len(self._begin)] != self._begin:
            self._begin, self._begin_texts, self._stream = (), [], TextStream(self._tokenizer)
        self._begin_texts += [self._stream.push([each]) for each in begin[len(self._begin) :]]
        self._begin = begin
        texts: list[str | None] = [*self._begin_texts]
        stream = None
        for each in ids[len(begin) :]:
            stream = None if each is None else stream or TextStream(self._tokenizer)
            texts.append(None if stream is None or each is None else stream.push([each]))
        return texts

"""The answer to one request during its decode: text, clock, events and result."""

import time

import numpy as np

from lopa.runtime.contract import Int64
from lopa.runtime.decoding.decoding import Decoding, Step, StopReason
from lopa.runtime.plan import DecodingPlan
from lopa.runtime.requests.result import DoneEvent, DraftEvent, Event, GenerationResult, TextEvent
from lopa.runtime.text.text_stream import TextStream
from lopa.runtime.text.tokenizer import Tokenizer

MASKED = "░"


class Answer:
    """Converter of a decode's rounds into events.

    Call `events_from_step` after every round, and `last_events` once the decode has stopped or is abandoned.
    """

    def __init__(
        self,
        decoding: Decoding,
        prompt_ids: Int64,
        plan: DecodingPlan,
        tokenizer: Tokenizer,
        *,
        drafts: bool,
        submitted: float,
        reused_rows: int = 0,
    ) -> None:
        """Store the arguments. The result's seconds count from `submitted`, a time on time.perf_counter's clock.

        `reused_rows` is passed on to the result.
        """
        self._decoding = decoding
        self._prompt_ids, self._plan = prompt_ids, plan
        self._tokenizer, self._drafts = tokenizer, drafts
        self._submitted, self._reused_rows = submitted, reused_rows
        self._time_limit = time.perf_counter() + plan.time_limit
        self._stream = TextStream(tokenizer, plan.stop)
        self._text: list[str] = []
        self._pushed = 0
        self.first_text_seconds: float | None = None
        """Seconds from submission to the first text; None before it."""

    @property
    def _ended(self) -> bool:
        """True if decoding has ended."""
        return self._decoding.stop_reason is not None

    def events_from_step(self, step: Step) -> list[Event]:
        """Return the events of a round: text that became final, and a draft if requested. This may end the request."""
        events = self._new_text()
        if self._drafts:
            unmasked = np.count_nonzero(self._decoding.anchor.unmasked[self._decoding.prompt_length :])
            events.append(DraftEvent(step.number, self._draft(), int(unmasked)))
        if self._stream.stopped is not None:
            self._decoding.stop("stop_string")
        elif not self._ended and time.perf_counter() >= self._time_limit:
            self._decoding.stop("time_limit")
        return events

    def last_events(self, reason: StopReason) -> list[Event]:
        """Return the rest of the text and the result, with stop reason `reason`. It may be called only once. If no
        round ran, the text consists of the tokens that the grammar forces.
        """
        events = [*self._new_text(), *self._text_events(self._stream.finish())]
        return [*events, DoneEvent(self._result("stop_string" if self._stream.stopped is not None else reason))]

    def _new_text(self) -> list[Event]:
        """Return the text that became final since the last call."""
        committed = self._decoding.committed()
        events = self._text_events(self._stream.push(committed[self._pushed :].tolist()))
        self._pushed = len(committed)
        return events

    def _text_events(self, text: str) -> list[Event]:
        if not text:
            return []
        if self.first_text_seconds is None:
            self.first_text_seconds = time.perf_counter() - self._submitted
        self._text.append(text)
        return [TextEvent(text)]

    def _draft(self) -> str:
        """Return the answer so far, with the character ░ for each masked position."""
        ids = self._decoding.generated()
        unmasked = self._decoding.anchor.unmasked[self._decoding.prompt_length :]
        edges = np.flatnonzero(np.diff(unmasked.astype(np.int8))) + 1
        runs = zip(np.split(ids, edges), np.split(unmasked, edges), strict=True)
        return "".join(
            self._tokenizer.decode(run.tolist()) if is_unmasked.all() else MASKED * len(run)
            for run, is_unmasked in runs
        )

    def _result(self, stop_reason: StopReason) -> GenerationResult:
        decoding = self._decoding
        # ids up to the end of the stop string, if one ended the answer
        answer = decoding.committed()[: None if self._stream.stopped is None else self._stream.token_count]
        ids = decoding.generated() if self._plan.reference else answer
        logprobs = decoding.logprobs()
        return GenerationResult(
            prompt_ids=tuple(self._prompt_ids.tolist()),
            token_ids=tuple(ids.tolist()),
            text="".join(self._text),
            steps=decoding.steps,
            tokens=len(answer),
            window_tokens=decoding.window_tokens,
            tokens_per_forward=len(answer) / decoding.steps if decoding.steps else 0.0,
            stop_reason=stop_reason,
            seconds=time.perf_counter() - self._submitted,
            plan=self._plan,
            seed=self._plan.seed,
            branches="auto" if self._plan.auto_branches else self._plan.branches,
            logprobs=None if logprobs is None else tuple(logprobs[: len(ids)].tolist()),
            reused_rows=self._reused_rows,
        )

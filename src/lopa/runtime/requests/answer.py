"""The answer to one request during its decode: text, clock, events and result."""

import time
from bisect import bisect_left

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.decoding.decoding import Decoding, Step, StopReason
from lopa.runtime.plan import DecodingPlan
from lopa.runtime.requests.filled_holes import FilledHoles, HoleText
from lopa.runtime.requests.result import DoneEvent, DraftEvent, Event, GenerationResult, TextEvent
from lopa.runtime.scoring.scoring import Scoring
from lopa.runtime.text.encoded_holes import EncodedHoles
from lopa.runtime.text.text_stream import TextStream
from lopa.runtime.text.tokenizer import Tokenizer

MASKED = "░"


class Answer:
    """Converter of a decode's rounds into events.

    Call `events_from_step` after every round, and `last_events` once the decode has stopped or is abandoned.
    """

    def __init__(
        self,
        decoding: Decoding | Scoring,
        prompt_ids: Int64,
        plan: DecodingPlan,
        tokenizer: Tokenizer,
        *,
        drafts: bool,
        submitted: float,
        reused_rows: int = 0,
        hole_ends: tuple[int, ...] = (),
    ) -> None:
        """Store the arguments. The result's seconds count from `submitted`, a time on time.perf_counter's clock.

        `reused_rows` is passed on to the result. If the decode fills holes, the text reaches from the first hole to the
        last one. The tokens `hole_ends` end a hole.
        """
        self._decoding = decoding
        self._prompt_ids, self._plan = prompt_ids, plan
        self._tokenizer, self._drafts = tokenizer, drafts
        self._submitted, self._reused_rows = submitted, reused_rows
        self._hole_ends = hole_ends
        self._hole_texts: tuple[HoleText, ...] = ()
        """Text of each hole that is begun, after the last round."""
        self._time_limit = time.perf_counter() + plan.time_limit
        self._stream = TextStream(tokenizer, () if plan.has_choices else plan.stop)
        self._text: list[str] = []
        self._characters = 0
        """Number of characters in `_text`."""
        self._pushed = 0
        self.first_text_seconds: float | None = None
        """Seconds from submission to the first text; None before it."""

    @property
    def _holes(self) -> FilledHoles | None:
        """The holes with their current length; None without holes."""
        if not isinstance(self._decoding, Decoding) or not isinstance(self._decoding.holes, EncodedHoles):
            return None
        return FilledHoles(self._decoding.holes, self._hole_ends)

    @property
    def _ended(self) -> bool:
        """True if decoding has ended."""
        return self._decoding.stop_reason is not None

    def events_from_step(self, step: Step | None) -> list[Event]:
        """Return the events of a round: text that became final, and a draft if requested. This may end the request.

        A scoring request has no `step`, and no drafts.
        """
        events = self._new_text()
        if self._drafts and step is not None and isinstance(self._decoding, Decoding):
            ids = self._decoding.generated()
            unmasked = self._decoding.anchor.unmasked[self._decoding.prompt_length :][: len(ids)]
            shown = unmasked if self._holes is None else self._decoding.anchor.unmasked[self._holes.positions]
            events.append(DraftEvent(step.number, self._draft(ids, unmasked), int(np.count_nonzero(shown))))
        if self._stopped is not None:
            self._decoding.stop("stop_string")
        elif not self._ended and time.perf_counter() >= self._time_limit:
            self._decoding.stop("time_limit")
        elif not self._ended and self._decoding.steps >= self._plan.max_forwards:
            self._decoding.stop("step_limit")
        return events

    def last_events(self, reason: StopReason) -> list[Event]:
        """Return the rest of the text and the result, with stop reason `reason`. It may be called only once. If no
        round ran, the text consists of the tokens that the grammar forces.
        """
        if self._plan.anytime and reason in ("time_limit", "step_limit") and isinstance(self._decoding, Decoding):
            self._decoding.write_draft()
        events = [*self._new_text(), *self._text_events(self._stream.finish())]
        return [*events, DoneEvent(self._result("stop_string" if self._stopped is not None else reason))]

    def _new_text(self) -> list[Event]:
        """Return the text that became final since the last call."""
        if self._holes is not None and isinstance(self._decoding, Decoding):
            anchor = self._decoding.anchor
            self._hole_texts = self._holes.texts(anchor.tokens, anchor.unmasked, self._tokenizer, self._plan.stop)
            return self._text_events(self._holes.span_text(self._hole_texts)[self._characters :])
        committed = self._decoding.committed()
        events = self._text_events(self._stream.push(committed[self._pushed :].tolist()))
        self._pushed = len(committed)
        return events

    @property
    def _stopped(self) -> str | None:
        """Stop string that ended the text, or None."""
        if self._holes is None:
            return self._stream.stopped
        return self._hole_texts[0].stop if self._hole_texts else None

    def _text_events(self, text: str) -> list[Event]:
        if not text:
            return []
        if self.first_text_seconds is None:
            self.first_text_seconds = time.perf_counter() - self._submitted
        self._text.append(text)
        begin, self._characters = self._characters, self._characters + len(text)
        offsets = self._stream.markup
        count = bisect_left(offsets, self._characters)
        markup, offsets[:count] = tuple(each - begin for each in offsets[:count]), ()
        return [TextEvent(text, markup)]

    def _draft(self, ids: Int64, unmasked: Bool) -> str:
        """Return the answer so far, with the character ░ for each masked position."""
        edges = np.flatnonzero(np.diff(unmasked.astype(np.int8))) + 1
        runs = zip(np.split(ids, edges), np.split(unmasked, edges), strict=True)
        return "".join(
            self._tokenizer.decode(run.tolist()) if is_unmasked.all() else MASKED * len(run)
            for run, is_unmasked in runs
        )

    def _result(self, stop_reason: StopReason) -> GenerationResult:
        decoding, texts = self._decoding, self._hole_texts
        if stop_reason == "length" and texts and all(hole.has_end for hole in texts):
            stop_reason = "eos"
        # ids up to the end of the stop string, if one ended the answer
        answer = decoding.committed()[: None if self._stream.stopped is None else self._stream.token_count]
        ids = decoding.generated() if self._plan.reference else answer
        logprobs, top_logprobs = decoding.logprobs(), decoding.top_logprobs()
        if self._holes is not None:
            own = self._holes.positions - decoding.prompt_length
            own = own[own < len(answer)]
            ids = answer = answer[own]
            logprobs = None if logprobs is None else logprobs[own]
            top_logprobs = None if top_logprobs is None else [top_logprobs[each] for each in own]
        drafted = decoding.drafted if isinstance(decoding, Decoding) else None
        return GenerationResult(
            prompt_ids=tuple((self._prompt_ids if self._holes is None else self._holes.encoded.ids).tolist()),
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
            stop_string=self._stopped,
            top_logprobs=None if top_logprobs is None else tuple(top_logprobs[: len(ids)]),
            scores=decoding.scores if isinstance(decoding, Scoring) else None,
            holes=None if self._holes is None else tuple(hole.text for hole in texts),
            filled_text=None if self._holes is None else self._holes.whole_text(texts),
            draft_probability=None
            if drafted is None or not len(drafted.tokens)
            else float(drafted.probabilities.mean()),
        )

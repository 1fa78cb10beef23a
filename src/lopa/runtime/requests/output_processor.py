"""Output of one request during its rounds: text, clock, events and result."""

import time
from bisect import bisect_left

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.decoding.step import Step
from lopa.runtime.requests.filled_holes import FilledHoles, HoleText
from lopa.runtime.requests.result import DoneEvent, DraftEvent, Event, GenerationResult, TextEvent
from lopa.runtime.requests.running_loop import RequestLoop
from lopa.runtime.state.answer_state import AnswerState, StopReason
from lopa.runtime.text.text_stream import TextStream
from lopa.runtime.text.tokenizer import Tokenizer

MASKED = "░"


class OutputProcessor:
    """Converter of a loop's rounds into events.

    Call `events_from_step` after every round, and `last_events` once the decode has stopped or is abandoned.
    """

    def __init__(
        self,
        loop: RequestLoop,
        prompt_ids: Int64,
        tokenizer: Tokenizer,
        *,
        drafts: bool,
        submitted: float,
        hole_ends: tuple[int, ...] = (),
    ) -> None:
        """Store the arguments. The result's seconds count from `submitted`, a time on time.perf_counter's clock.

        If the loop fills holes, the text reaches from the first hole to the last one. The tokens `hole_ends` end a
        hole.
        """
        self._loop, self._params = loop, loop.params
        self._prompt_ids, self._tokenizer, self._drafts = prompt_ids, tokenizer, drafts
        self._submitted = submitted
        self._hole_ends = hole_ends
        self._hole_texts: tuple[HoleText, ...] = ()
        """Text of each hole that is begun, after the last round."""
        self._time_limit = time.perf_counter() + loop.params.time_limit
        self._stream = TextStream(tokenizer, () if loop.params.has_choices else loop.params.stop)
        self._text: list[str] = []
        self._characters = 0
        """Number of characters in `_text`."""
        self._pushed = 0
        self.first_text_seconds: float | None = None
        """Seconds from submission to the first text; None before it."""

    @property
    def _holes(self) -> FilledHoles | None:
        """The holes with their current length; None without holes."""
        holes = self._loop.answer.holes
        return None if holes is None else FilledHoles(holes, self._hole_ends)

    def events_from_step(self, step: Step | None) -> list[Event]:
        """Return the events of a round: text that became final, and a draft if requested. This may end the request.

        A scoring request has no `step`, and no drafts.
        """
        answer = self._loop.answer
        events = self._new_text(answer)
        if self._drafts and step is not None:
            unmasked = answer.unmasked[answer.start : answer.end]
            shown = unmasked if self._holes is None else answer.unmasked[self._holes.positions]
            draft = self._draft(answer.generated, unmasked)
            known = zip(answer.generated.tolist(), unmasked.tolist(), strict=True)
            ids = tuple(token if is_unmasked else None for token, is_unmasked in known)
            events.append(DraftEvent(step.number, draft, int(np.count_nonzero(shown)), ids, answer.start))
        if self._stopped is not None:
            self._loop.stop("stop_string")
        elif answer.stop_reason is not None:
            pass
        elif time.perf_counter() >= self._time_limit:
            self._loop.stop("time_limit")
        elif self._loop.steps >= self._params.max_forwards:
            self._loop.stop("step_limit")
        return events

    def last_events(self, reason: StopReason, cached_tokens: int) -> list[Event]:
        """Return the rest of the text and the result, with stop reason `reason`. It may be called only once. If no
        round ran, the text consists of the tokens that the grammar forces. `cached_tokens` is passed on to the result.
        """
        if self._params.anytime and reason in ("time_limit", "step_limit"):
            self._loop.write_draft()
        events = [*self._new_text(self._loop.answer), *self._text_events(self._stream.finish())]
        reason = "stop_string" if self._stopped is not None else reason
        return [*events, DoneEvent(self._result(self._loop.answer, reason, cached_tokens))]

    def _new_text(self, answer: AnswerState) -> list[Event]:
        """Return the text of `answer` that became final since the last call."""
        holes = self._holes
        if holes is not None:
            self._hole_texts = holes.texts(answer.tokens, answer.unmasked, self._tokenizer, self._params.stop)
            return self._text_events(holes.span_text(self._hole_texts)[self._characters :])
        if answer.final == self._pushed:
            return []
        text = self._stream.push(answer.committed[self._pushed :].tolist())
        self._pushed = answer.final
        return self._text_events(text)

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

    def _result(self, answer: AnswerState, stop_reason: StopReason, cached_tokens: int) -> GenerationResult:
        texts, holes, steps = self._hole_texts, self._holes, self._loop.steps
        if stop_reason == "length" and texts and all(hole.has_end for hole in texts):
            stop_reason = "eos"
        # ids up to the end of the stop string, if one ended the answer
        final = answer.committed[: None if self._stream.stopped is None else self._stream.token_count]
        ids = answer.generated if answer.returns_generated else final
        logprobs, top_logprobs = answer.logprobs, answer.top_logprobs
        if holes is not None:
            own = holes.positions - answer.start
            own = own[own < len(final)]
            ids = final = final[own]
            logprobs = None if logprobs is None else logprobs[own]
            top_logprobs = None if top_logprobs is None else [top_logprobs[each] for each in own]
        drafted = answer.drafted
        return GenerationResult(
            prompt_ids=tuple((self._prompt_ids if holes is None else holes.encoded.ids).tolist()),
            token_ids=tuple(ids.tolist()),
            text="".join(self._text),
            steps=steps,
            tokens=len(final),
            generated_positions=answer.generated_positions,
            tokens_per_forward=(len(final) - answer.pads) / steps if steps else 0.0,
            stop_reason=stop_reason,
            seconds=time.perf_counter() - self._submitted,
            params=self._params,
            seed=self._params.seed,
            branches="auto" if self._params.auto_branches else self._params.branches,
            logprobs=None if logprobs is None else tuple(logprobs[: len(ids)].tolist()),
            cached_tokens=cached_tokens,
            stop_string=self._stopped,
            top_logprobs=None if top_logprobs is None else tuple(top_logprobs[: len(ids)]),
            scores=answer.scores,
            holes=None if holes is None else tuple(hole.text for hole in texts),
            filled_text=None if holes is None else holes.whole_text(texts),
            draft_probability=None
            if drafted is None or not len(drafted.tokens)
            else float(drafted.probabilities.mean()),
        )

"""Outputs of a model: a text by output name, empty for outputs without a value. This module has no side effects."""

import json
from collections.abc import Mapping, Sequence

from lopa.runtime.requests.result import DoneEvent, DraftEvent, Event, GenerationResult, TextEvent
from lopa.serve.openai.answer import (
    SHAPES,
    TextOfIds,
    finish_reason_from_result,
    logprobs_from_result,
    ours_of_result,
    usage_of_results,
)
from lopa.serve.openai.options import COMPLETIONS
from lopa.serve.triton.config_text import DRAFT, FINISH, LOGPROBS, OUTPUT, OUTPUTS, USAGE

Outputs = Mapping[str, str]


def outputs_from_events(events: Sequence[Event], text_of_ids: TextOfIds) -> Outputs:
    """Return the outputs of a stream part: new committed text, the newest draft, and at the end how it ended."""
    last = events[-1]
    return {
        **dict.fromkeys(OUTPUTS, ""),
        OUTPUT: "".join(event.text for event in events if isinstance(event, TextEvent)),
        DRAFT: next((event.text for event in reversed(events) if isinstance(event, DraftEvent)), ""),
        **(_end(last.result, text_of_ids) if isinstance(last, DoneEvent) else {}),
    }


def outputs_from_result(result: GenerationResult, text_of_ids: TextOfIds) -> Outputs:
    """Return the outputs of a complete answer."""
    return {**dict.fromkeys(OUTPUTS, ""), OUTPUT: result.text, **_end(result, text_of_ids)}


def _end(result: GenerationResult, text_of_ids: TextOfIds) -> Outputs:
    usage = {**usage_of_results([result]), "lopa": ours_of_result(result)}
    logprobs = logprobs_from_result(SHAPES[COMPLETIONS], result, text_of_ids)
    return {
        FINISH: finish_reason_from_result(result),
        USAGE: json.dumps(usage),
        **({} if logprobs is None else {LOGPROBS: json.dumps(logprobs)}),
    }

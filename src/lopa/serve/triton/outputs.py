"""Outputs of a model: a text by output name, empty for outputs without a value. This module has no side effects."""

import json
from collections.abc import Mapping, Sequence

from lopa.runtime.requests.result import DoneEvent, DraftEvent, Event, GenerationResult, TextEvent
from lopa.serve.openai.body_options import COMPLETIONS
from lopa.serve.openai.response_shapes import (
    SHAPES,
    DecodeIds,
    finish_reason_from_result,
    logprobs_from_result,
    lopa_fields_from_result,
    usage_from_result,
)
from lopa.serve.triton.config_text import DRAFT, FINISH, LOGPROBS, OUTPUT, OUTPUTS, USAGE

Outputs = Mapping[str, str]


def outputs_from_events(events: Sequence[Event], decode_ids: DecodeIds) -> Outputs:
    """Return the outputs of a stream part: new committed text, the newest draft, and at the end how it ended."""
    last = events[-1]
    return {
        **dict.fromkeys(OUTPUTS, ""),
        OUTPUT: "".join(event.text for event in events if isinstance(event, TextEvent)),
        DRAFT: next((event.text for event in reversed(events) if isinstance(event, DraftEvent)), ""),
        **(_end(last.result, decode_ids) if isinstance(last, DoneEvent) else {}),
    }


def outputs_from_result(result: GenerationResult, decode_ids: DecodeIds) -> Outputs:
    """Return the outputs of a complete answer."""
    return {**dict.fromkeys(OUTPUTS, ""), OUTPUT: result.text, **_end(result, decode_ids)}


def _end(result: GenerationResult, decode_ids: DecodeIds) -> Outputs:
    usage = {**usage_from_result(result), "lopa": lopa_fields_from_result(result)}
    logprobs = logprobs_from_result(SHAPES[COMPLETIONS], result, decode_ids)
    return {
        FINISH: finish_reason_from_result(result),
        USAGE: json.dumps(usage),
        **({} if logprobs is None else {LOGPROBS: json.dumps(logprobs)}),
    }

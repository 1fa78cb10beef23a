"""Reply of /v1/score."""

import time
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive

from lopa.runtime.requests.result import GenerationResult
from lopa.serve.answering.complete_results import await_choices
from lopa.serve.answering.service import Service
from lopa.serve.answering.submission import submission_of_request
from lopa.serve.http.api_error import ApiError
from lopa.serve.http.request_log import HEADER, request_number, set_request_id
from lopa.serve.openai.body_config import choice_errors
from lopa.serve.openai.body_options import SCORES
from lopa.serve.openai.response_shapes import fields_of_scores
from lopa.serve.protocols.answer_request import AnswerRequest


async def score_reply(service: Service, requested: AnswerRequest, receive: Receive) -> Response | None:
    """Return the reply to a request for scores, or None after the client disconnected.

    Raises as `answer` does, FieldError for choices that cannot be scored, and ApiError 408 after the deadline.
    """
    name = f"score-{request_number()}"
    headers = {HEADER: set_request_id(name)}
    submission = await submission_of_request(service, requested, None, receive)
    if submission is None:
        return None
    with choice_errors(requested.options):
        answers = await await_choices(submission, service.decode_ids, receive)
    if answers is None:
        return None
    (answer,) = answers
    service.metrics.answered(SCORES, answer.finish_reason)
    return JSONResponse({**_head(service, name), **_fields_of_result(answer.result)}, headers=headers)


def _head(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "score",
        "created": int(time.time()),
        "model": service.name,
        "system_fingerprint": service.fingerprint,
    }


def _fields_of_result(result: GenerationResult) -> dict[str, Any]:
    if result.scores is None:
        raise ApiError(408, "the time limit passed before all choices had scores", "server_error", code="timeout")
    tokens = len(result.prompt_ids)
    usage = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens, "lopa": {"steps": result.steps}}
    return {**fields_of_scores(result.scores), "usage": usage}

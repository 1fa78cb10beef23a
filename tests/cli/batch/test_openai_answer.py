"""Answers to lines of OpenAI's batch files."""

from pathlib import Path
from typing import Any

from lopa.cli.batch.openai_line import OpenAIAnswerFormat, identity_of_openai_answer, request_from_openai_line
from lopa.cli.batch.prompt_lines import RawLine
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig, resolve
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.result import DoneEvent, GenerationResult

LINE: dict[str, Any] = {
    "custom_id": "a",
    "url": "/v1/chat/completions",
    "body": {"messages": [{"role": "user", "content": "2 + 2?"}]},
}


def test_an_answer_names_its_line(tiny_bundle: Path) -> None:
    manifest = Bundle.open(tiny_bundle).manifest
    requested = request_from_openai_line(LINE, "bundle", {})
    answers = OpenAIAnswerFormat(RawLine(12, b"", "abc"), "a", LINE["url"], manifest, str, requested)
    plan = resolve(GenerationConfig())
    result = GenerationResult((1, 2), (5, 6), "text", 1, 2, 2, 2.0, "length", 0.5, plan, logprobs=(-0.5, float("nan")))
    handle = RequestHandle()
    handle.put_events([DoneEvent(result)])
    good, bad = answers.from_handles([handle]), answers.from_error(BadInputError("x", expected="y", remedy="z"))
    assert identity_of_openai_answer(good) == identity_of_openai_answer(bad) == (12, "abc")
    body = good["response"]["body"]
    assert (body["object"], body["model"]) == ("chat.completion", "bundle")
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "text", "refusal": None}
    assert choice["finish_reason"] == "length"
    assert choice["lopa"]["steps"] == body["usage"]["lopa"]["steps"] == 1  # where the server has it
    assert [each["logprob"] for each in choice["logprobs"]["content"]] == [-0.5, None]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (2, 2)
    assert bad["response"]["body"]["error"]["param"] == "messages"
    for other in ({"id": "batch_req_x_y", "custom_id": ""}, {"id": 5}, {"line": 1}):
        assert identity_of_openai_answer(other) is None

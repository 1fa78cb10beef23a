"""Answers to lines of OpenAI's batch files."""

import json
from pathlib import Path
from typing import Any

from tests.cli.command import lopa_export

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
    assert [each["logprob"] for each in choice["logprobs"]["content"]] == [-0.5, None]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (2, 2)
    assert bad["response"]["body"]["error"]["param"] == "messages"
    for other in ({"id": "batch_req_x_y", "custom_id": ""}, {"id": 5}, {"line": 1}):
        assert identity_of_openai_answer(other) is None


def test_an_invalid_length_is_reported_by_the_field_of_the_line(tiny_bundle: Path, tmp_path: Path) -> None:
    bodies: list[dict[str, Any]] = [
        {"prompt": "2 + 2", "max_tokens": 5000},
        {"prompt": "2 + 2", "max_completion_tokens": 0},
        {"prompt": [5] * 2045, "max_tokens": 8},
        {"prompt": 5, "max_tokens": 8},
        {"prompt": "2 + 2", "max_tokens": 8},
    ]
    (tmp_path / "in.jsonl").write_text(
        "".join(
            json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}) + "\n"
            for number, body in enumerate(bodies)
        )
    )
    done = lopa_export("generate", tiny_bundle, "--prompts", tmp_path / "in.jsonl")
    responses = [json.loads(line)["response"] for line in done.stdout.splitlines()]
    assert [each["status_code"] for each in responses] == [400, 400, 400, 400, 200]
    errors = [each["body"]["error"] for each in responses[:4]]
    assert [error["param"] for error in errors] == ["max_tokens", "max_completion_tokens", "prompt", "prompt"]
    assert [error["code"] for error in errors] == ["context_length_exceeded", None, "context_length_exceeded", None]
    assert [error["message"].partition("\n")[0] for error in errors[:3]] == [
        "max_tokens is 5000, but this model has 2048 positions for prompt and answer together (prompt: 5)",
        "invalid max_completion_tokens 0",
        "the prompt has 2045 tokens, but this model has 2048 positions for prompt and answer together (max_tokens: 8)",
    ]
    assert all("max_new_tokens" not in error["message"] for error in errors)

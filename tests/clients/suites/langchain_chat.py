"""Tests of langchain's models with a server without tools. test_python.py runs them.

They run in the clients' environment. From this project they get only the URL and the expected answers.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from langchain_openai import ChatOpenAI, OpenAI

EXPECTED: dict[str, Any] = json.loads(Path(os.environ["EXPECTED"]).read_text(encoding="utf-8"))
SERVER = {"model": "tiny", "base_url": f"{EXPECTED['url']}/v1", "api_key": "none", "max_retries": 0}


@pytest.fixture
def chat() -> ChatOpenAI:
    return ChatOpenAI(**SERVER, max_tokens=64)


def test_answer_equals_the_decoder_s(chat: ChatOpenAI) -> None:
    answer = chat.invoke(EXPECTED["question"])
    assert answer.content == EXPECTED["whole"]["text"]
    assert answer.response_metadata["finish_reason"] == EXPECTED["whole"]["finish_reason"]
    assert answer.usage_metadata is not None
    used = (answer.usage_metadata["input_tokens"], answer.usage_metadata["output_tokens"])
    assert used == (EXPECTED["whole"]["prompt_tokens"], EXPECTED["whole"]["tokens"])


def test_stream_joins_to_the_answer(chat: ChatOpenAI) -> None:
    chunks = list(chat.stream(EXPECTED["question"]))
    assert "".join(str(chunk.content) for chunk in chunks) == EXPECTED["whole"]["text"]


def test_lopa_options_in_extra_body() -> None:
    chat = ChatOpenAI(**SERVER, max_tokens=64, extra_body={"lopa": {"branches": 4}})
    answer = chat.invoke(EXPECTED["question"])
    assert answer.content == EXPECTED["branched"]["text"]
    assert answer.response_metadata["token_usage"]["lopa"]["steps"] == EXPECTED["branched"]["steps"]


def test_text_model_completes() -> None:
    model = OpenAI(**SERVER, max_tokens=64, temperature=0)
    assert model.invoke(EXPECTED["prompts"][0]) == EXPECTED["completed"][0]["text"]
    assert "".join(model.stream(EXPECTED["prompts"][0])) == EXPECTED["completed"][0]["text"]

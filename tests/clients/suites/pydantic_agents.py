"""Agents of pydantic-ai with an OpenAI model, text only. test_python.py runs them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

EXPECTED: dict[str, Any] = json.loads(Path(os.environ["EXPECTED"]).read_text(encoding="utf-8"))


@pytest.fixture
def agent() -> Agent:
    provider = OpenAIProvider(base_url=f"{EXPECTED['url']}/v1", api_key="none")
    return Agent(OpenAIChatModel("tiny", provider=provider), model_settings={"max_tokens": 64})


async def test_agent_answer_equals_the_decoder_s(agent: Agent) -> None:
    answer = await agent.run(EXPECTED["question"])
    assert answer.output == EXPECTED["whole"]["text"]
    used = (answer.usage.input_tokens, answer.usage.output_tokens)
    assert used == (EXPECTED["whole"]["prompt_tokens"], EXPECTED["whole"]["tokens"])


async def test_agent_stream_joins_to_the_answer(agent: Agent) -> None:
    async with agent.run_stream(EXPECTED["question"]) as streamed:
        parts = [part async for part in streamed.stream_text(delta=True, debounce_by=None)]
    assert "".join(parts) == EXPECTED["whole"]["text"]
    assert len(parts) > 1


async def test_agent_lopa_options_in_extra_body(agent: Agent) -> None:
    settings: Any = {"extra_body": {"lopa": {"branches": 4}}}
    assert (await agent.run(EXPECTED["question"], model_settings=settings)).output == EXPECTED["branched"]["text"]


async def test_agent_tools_are_rejected_by_name(agent: Agent) -> None:
    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    with pytest.raises(ModelHTTPError) as error:
        await agent.run(EXPECTED["question"])
    body: Any = error.value.body
    assert (error.value.status_code, body["param"]) == (400, "tools")

"""Agents of pydantic-ai with real tools, over the three protocols of a server with tools. test_python.py runs them."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelRetry, NativeOutput
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelMessage,
    ModelResponse,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

EXPECTED: dict[str, Any] = json.loads(Path(os.environ["EXPECTED"]).read_text(encoding="utf-8"))
URL, QUESTION = EXPECTED["url"], EXPECTED["question"]
OPENAI = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
MODELS: dict[str, Callable[[], Model]] = {
    "chats": lambda: OpenAIChatModel("tiny", provider=OPENAI),
    "responses": lambda: OpenAIResponsesModel("tiny", provider=OPENAI),
    "messages": lambda: AnthropicModel(
        "tiny",
        provider=AnthropicProvider(base_url=URL, api_key="none"),
        profile={"supports_json_schema_output": True},  # unknown models have none by default
    ),
}
QUIET: dict[str, Any] = {
    "chats": {"openai_reasoning_effort": "none"},
    "responses": {"openai_reasoning_effort": "none"},
    "messages": {"anthropic_thinking": {"type": "disabled"}},
}
"""Settings without reasoning, by protocol."""
THOUGHTFUL: dict[str, Any] = {
    "chats": {"openai_reasoning_effort": "high", "extra_body": {"thinking_token_budget": 8}},
    "responses": {"openai_reasoning_effort": "high", "extra_body": {"thinking_token_budget": 8}},
    "messages": {"anthropic_thinking": {"type": "enabled", "budget_tokens": 8}},
}
Digits = Annotated[int, Field(ge=0, le=99)]


class Answer(BaseModel):
    """Structured answer of an agent."""

    value: Digits
    unit: Literal["candies", "baskets"]


class Kind(BaseModel):
    """Structured answer without ranges, which pydantic-ai leaves out of schemas for Anthropic's API."""

    unit: Literal["candies", "baskets"]


@dataclass
class ByStep(AbstractCapability[Any]):
    """Choice of tools by step, since the toy calls no tool by its own choice."""

    choices: tuple[Any, ...]

    def get_model_settings(self) -> Any:
        return lambda ctx: {"tool_choice": self.choices[min(ctx.run_step, len(self.choices)) - 1]}


@pytest.fixture(params=MODELS)
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def calculating(protocol: str, done: list[Any], *choices: Any, **options: Any) -> Agent[Any, Any]:
    """Return an agent with a calculator that writes its calculations to `done`."""
    settings: Any = {"max_tokens": 80, "temperature": 0.0, **QUIET[protocol]}
    # The toy's answer is sometimes empty, and pydantic-ai asks again for a text.
    agent = Agent(MODELS[protocol](), model_settings=settings, capabilities=[ByStep(choices)], retries=5, **options)

    @agent.tool_plain
    def calculate(operation: Literal["add", "subtract"], a: Digits, b: Digits) -> int:
        """Add or subtract two numbers."""
        assert 0 <= a <= 99
        assert 0 <= b <= 99
        done.append(a + b if operation == "add" else a - b)
        return int(done[-1])

    return agent


def parts_of_type(messages: list[ModelMessage], kind: type[Any]) -> list[Any]:
    return [part for message in messages for part in message.parts if isinstance(part, kind)]


def check_pairs(messages: list[ModelMessage], done: list[Any]) -> None:
    """Check that each call has one result, by its id, and that the results are those of the real calculations."""
    calls, results = parts_of_type(messages, ToolCallPart), parts_of_type(messages, ToolReturnPart)
    assert [each.tool_call_id for each in results] == [each.tool_call_id for each in calls]
    assert len({each.tool_call_id for each in calls}) == len(calls)
    assert [each.content for each in results if each.tool_name == "calculate"] == done


async def test_tools_are_called_and_results_go_back(protocol: str) -> None:
    done: list[Any] = []
    agent = calculating(protocol, done, "required", "required", "none")
    answer = await agent.run(QUESTION)
    messages = answer.all_messages()
    responses = [each for each in messages if isinstance(each, ModelResponse)]
    called = "stop" if protocol == "responses" else "tool_call"  # pydantic-ai reads a response's status only
    assert [each.finish_reason for each in responses[:2]] == [called] * 2
    assert len(done) >= 2
    check_pairs(messages, done)
    used = [each.usage.input_tokens for each in responses]
    assert used[0] < used[1] < used[2]
    assert isinstance(answer.output, str)


async def test_a_streamed_run_equals_the_whole_one(protocol: str) -> None:
    done: list[Any] = []
    agent = calculating(protocol, done, "required", "required", "none")
    whole = await agent.run(QUESTION)
    again = done.copy()
    done.clear()
    async with agent.run_stream_events(QUESTION) as events:
        seen = [event async for event in events]
    assert done == again
    called = [event.part for event in seen if isinstance(event, FunctionToolCallEvent)]
    results = [event.part for event in seen if isinstance(event, FunctionToolResultEvent)]
    assert [each.tool_call_id for each in results] == [each.tool_call_id for each in called]
    assert [each.content for each in results] == done
    assert seen[-1].result.output == whole.output


async def test_a_failed_call_goes_back_too(protocol: str) -> None:
    settings: Any = {"max_tokens": 80, "temperature": 0.0, **QUIET[protocol]}
    chosen = ByStep((["spell"], ["spell"], ["final_result"]))
    agent = Agent(MODELS[protocol](), output_type=Answer, model_settings=settings, capabilities=[chosen], retries=5)
    done: list[str] = []

    @agent.tool_plain
    def spell(letter: Literal["a", "b"]) -> str:
        """Fail once."""
        done.append(letter)
        if len(done) == 1:
            raise ModelRetry("not this letter")
        return letter

    messages = (await agent.run(QUESTION)).all_messages()
    calls, results = (
        [each for each in parts_of_type(messages, kind) if each.tool_name == "spell"]
        for kind in (ToolCallPart, ToolReturnPart)
    )
    assert [each.tool_call_id for each in results] == [each.tool_call_id for each in calls]
    assert [each.outcome for each in results] == ["retried"] + ["success"] * (len(done) - 1)
    assert [each.content for each in results[1:]] == done[1:]
    assert len(done) >= 2


async def test_structured_output_by_a_tool_after_calls(protocol: str) -> None:
    done: list[Any] = []
    agent = calculating(protocol, done, ["calculate"], ["calculate"], ["final_result"], output_type=Answer)
    answer = await agent.run(QUESTION)
    assert isinstance(answer.output, Answer)
    assert len(done) >= 2
    assert len(parts_of_type(answer.all_messages(), ToolCallPart)) == len(done) + 1


async def test_structured_output_by_a_schema(protocol: str) -> None:
    settings: Any = {"max_tokens": 80, "temperature": 0.0, **QUIET[protocol]}
    agent = Agent(MODELS[protocol](), output_type=NativeOutput(Answer), model_settings=settings)
    assert isinstance((await agent.run(QUESTION)).output, Answer)


def thoughts(messages: list[ModelMessage]) -> list[str]:
    """Return the texts of reasoning. Those of responses are raw, since they are no summaries."""
    parts = parts_of_type(messages, ThinkingPart)
    return [each.content or "".join((each.provider_details or {}).get("raw_content", ())) for each in parts]


async def test_reasoning_is_a_part_of_its_own_and_goes_back(protocol: str) -> None:
    settings: Any = {"max_tokens": 80, "temperature": 0.0, **THOUGHTFUL[protocol]}
    agent = Agent(MODELS[protocol](), output_type=NativeOutput(Kind), model_settings=settings)
    first = await agent.run(QUESTION)
    (thought,) = thoughts(first.all_messages())
    assert thought
    async with agent.run_stream(QUESTION) as streamed:
        output = [part async for part in streamed.stream_output(debounce_by=None)][-1]
    assert output == first.output
    assert thoughts(streamed.all_messages()) == [thought]
    second = await agent.run("And now?", message_history=first.all_messages())
    assert second.usage.input_tokens > first.usage.input_tokens

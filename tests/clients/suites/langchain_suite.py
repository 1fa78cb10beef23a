"""Suite of langchain for chat models over the three protocols of a server with tools. test_python.py runs it.

It runs in the clients' environment. From this project it gets only the URL.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

URL: str = json.loads(Path(os.environ["EXPECTED"]).read_text(encoding="utf-8"))["url"]
MODEL = {"model": "tiny", "api_key": "none", "max_retries": 0, "max_tokens": 100}
OPENAI = {**MODEL, "base_url": f"{URL}/v1"}
_OTHER = "The arguments have to be the question's 3, and the toy may write another number."
IMPOSSIBLE = {
    "test_tool_calling": _OTHER,
    "test_tool_calling_async": _OTHER,
    "test_bind_runnables_as_tools": "The argument must not be empty, and the toy may write an empty string.",
    "test_double_messages_conversation": "The text must not be empty, and the toy's answer may be.",
    "test_agent_loop": "The model has to call a tool by its own choice, which the toy never learned.",
    "test_unicode_tool_call_integration": "The arguments have to have Chinese letters, which the toy never learned.",
}
"""Tests of what a trained model knows, with the reason why the toy may fail. Only an xfail mark may change a test."""


def mark_impossible(suite: type[Any]) -> type[Any]:
    """Mark the tests of IMPOSSIBLE in a suite, which otherwise run as they are.

    By chance the toy passes some of them. An error of the server still fails them.
    """
    for name, reason in IMPOSSIBLE.items():
        mark = pytest.mark.xfail(reason=reason, raises=AssertionError)
        setattr(suite, name, mark(_inherited(suite, name)))
    return suite


def _inherited(suite: type[Any], name: str) -> Any:
    """Return a method that calls the inherited test. A mark must not change langchain's own function."""
    if name.endswith("_async"):

        async def run_async(self: Any, model: BaseChatModel) -> None:
            await getattr(super(suite, self), name)(model)

        return run_async

    def run(self: Any, model: BaseChatModel) -> None:
        getattr(super(suite, self), name)(model)

    return run


class Tools(ChatModelIntegrationTests):
    """Suite with tools, and without media that a text model lacks."""

    @property
    def has_tool_calling(self) -> bool:
        return True

    @property
    def has_tool_choice(self) -> bool:
        return True

    @property
    def has_structured_output(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True


@mark_impossible
class TestChats(Tools):
    """ChatOpenAI over chat completions, with structured output by tools."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**OPENAI, "stream_usage": True}

    @property
    def structured_output_kwargs(self) -> dict[str, Any]:
        return {"method": "function_calling"}


@mark_impossible
class TestResponses(Tools):
    """ChatOpenAI over responses, with structured output by a schema."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**OPENAI, "use_responses_api": True}


@mark_impossible
class TestMessages(Tools):
    """ChatAnthropic over messages."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**MODEL, "base_url": URL}

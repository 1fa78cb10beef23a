"""Agent loops of 20 turns with real tools, by unmodified clients over each protocol, which validate every field.

After each turn the prompt of the next request is rendered here, from what the client received, by the bundle's own
template. The server must have counted as many tokens: results went back, and nothing was lost.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.serve.servers import WAIT, Server

from lopa.runtime import Decoder

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")
httpx = pytest.importorskip("httpx2")
pytestmark = [pytest.mark.clients, pytest.mark.slow]
TURNS = 20
PROMPT_TOKENS = 1400
"""Prompt length from which the agent forgets its oldest turns, as the toy has 2048 positions."""
MAX_TOKENS = 130
"""Longest answer. A call takes about 100 tokens of the toy."""
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
_TITLE = {"type": "string", "enum": ["a", "b", "c"]}


def _schema(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS = {
    "calculate": _schema(operation={"type": "string", "enum": ["add", "multiply"]}, a=_NUMBER, b=_NUMBER),
    "write_note": _schema(title=_TITLE, text={"type": "string", "maxLength": 8}),
    "read_note": _schema(title=_TITLE),
    "list_notes": _schema(),
}


class Tools:
    """A calculator and a store of notes."""

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}
        self.used: list[str] = []

    def run(self, name: str, arguments: dict[str, Any]) -> str:
        """Return the result of a call. Raises KeyError for a note that was never written."""
        self.used.append(name)
        assert arguments.keys() == SCHEMAS[name]["properties"].keys()
        if name == "calculate":
            a, b = arguments["a"], arguments["b"]
            return str(a + b if arguments["operation"] == "add" else a * b)
        if name == "write_note":
            self.notes[arguments["title"]] = arguments["text"]
            return "written"
        if name == "read_note":
            return self.notes[arguments["title"]]
        return ",".join(sorted(self.notes))


@dataclass(frozen=True)
class Call:
    """Call that a client received."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Received:
    """Answer that a client received."""

    text: str
    reasoning: str
    calls: list[Call]
    prompt_tokens: int

    def message(self) -> dict[str, Any]:
        """Return the answer as a message of the chat template."""
        made: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            made["reasoning_content"] = self.reasoning
        if self.calls:
            functions = [{"name": each.name, "arguments": json.loads(each.arguments)} for each in self.calls]
            made["tool_calls"] = [{"type": "function", "function": each} for each in functions]
        return made


@dataclass
class Agent(ABC):
    """Client with its history, in the client's own form."""

    client: Any
    history: list[Any] = field(default_factory=list)
    definitions: ClassVar[list[dict[str, Any]]] = [
        {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
        for name, schema in SCHEMAS.items()
    ]
    """Tools in the form of the chat template."""

    def say(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    @abstractmethod
    def ask(self, choice: str, seed: int) -> Received:
        """Send the history with a choice: required, none or a tool's name. Append the answer as it came."""

    @abstractmethod
    def give(self, results: list[tuple[Call, str, bool]]) -> None:
        """Append the results of calls, each with True for a failure."""


class Chats(Agent):
    """Chat completions with openai."""

    def ask(self, choice: str, seed: int) -> Received:
        answer = self.client.chat.completions.create(
            model="tiny",
            messages=self.history,
            tools=self.definitions,
            tool_choice={"type": "function", "function": {"name": choice}} if choice in SCHEMAS else choice,
            max_tokens=MAX_TOKENS,
            temperature=0.8,
            seed=seed,
        )
        message = answer.choices[0].message
        self.history.append(message.to_dict())
        calls = [Call(each.id, each.function.name, each.function.arguments) for each in message.tool_calls or ()]
        reasoning = getattr(message, "reasoning", None) or ""
        return Received(message.content or "", reasoning, calls, answer.usage.prompt_tokens)

    def give(self, results: list[tuple[Call, str, bool]]) -> None:
        self.history += [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text, _ in results]


class Responses(Agent):
    """Responses with openai, streamed."""

    tools: ClassVar[list[dict[str, Any]]] = [
        {"type": "function", "name": name, "parameters": schema, "strict": True} for name, schema in SCHEMAS.items()
    ]

    def ask(self, choice: str, seed: int) -> Received:
        chosen = {"type": "function", "name": choice} if choice in SCHEMAS else choice
        fields = {"model": "tiny", "input": self.history, "tools": self.tools, "tool_choice": chosen}
        with self.client.responses.create(
            **fields, max_output_tokens=MAX_TOKENS, temperature=0.8, extra_body={"seed": seed}, stream=True
        ) as stream:
            *_, last = stream
        answer = last.response
        self.history += [each.to_dict() for each in answer.output]
        calls = [
            Call(each.call_id, each.name, each.arguments) for each in answer.output if each.type == "function_call"
        ]
        thoughts = [part.text for each in answer.output if each.type == "reasoning" for part in each.content]
        return Received(answer.output_text, "".join(thoughts), calls, answer.usage.input_tokens)

    def give(self, results: list[tuple[Call, str, bool]]) -> None:
        self.history += [
            {"type": "function_call_output", "call_id": call.id, "output": text} for call, text, _ in results
        ]


class Messages(Agent):
    """Messages with anthropic, streamed."""

    tools: ClassVar[list[dict[str, Any]]] = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
    definitions: ClassVar[list[dict[str, Any]]] = [
        {"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()
    ]

    def ask(self, choice: str, seed: int) -> Received:
        kinds = {"required": "any", "none": "none"}
        chosen = {"type": "tool", "name": choice} if choice in SCHEMAS else {"type": kinds[choice]}
        with self.client.messages.stream(
            model="tiny",
            messages=self.history,
            tools=self.tools,
            tool_choice=chosen,
            max_tokens=MAX_TOKENS,
            extra_body={"temperature": 0.8, "lopa": {"seed": seed}},
        ) as stream:
            answer = stream.get_final_message()
        self.history.append({"role": "assistant", "content": [each.to_dict() for each in answer.content]})
        texts = [each.text for each in answer.content if each.type == "text"]
        thoughts = [each.thinking for each in answer.content if each.type == "thinking"]
        calls = [
            Call(each.id, each.name, json.dumps(each.input, ensure_ascii=False, separators=(",", ":")))
            for each in answer.content
            if each.type == "tool_use"
        ]
        used = answer.usage.input_tokens + answer.usage.cache_read_input_tokens
        return Received("".join(texts), "".join(thoughts), calls, used)

    def give(self, results: list[tuple[Call, str, bool]]) -> None:
        blocks = [
            {"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": failed}
            for call, text, failed in results
        ]
        self.history.append({"role": "user", "content": blocks})


@pytest.fixture(params=[("tool_server", "text_bundle"), ("token_server", "token_bundle")], ids=["text", "tokens"])
def served(request: pytest.FixtureRequest) -> tuple[Server, Path]:
    """Return a server and its bundle."""
    server, bundle = map(request.getfixturevalue, request.param)
    return server, bundle


@contextmanager
def agent_of_kind(kind: type[Agent], url: str) -> Iterator[Agent]:
    """Yield an agent whose client validates every field."""
    made, path = (anthropic.Anthropic, "") if kind is Messages else (openai.OpenAI, "/v1")
    http = httpx.Client(timeout=WAIT, trust_env=False)
    with made(
        base_url=f"{url}{path}", api_key="none", max_retries=0, http_client=http, _strict_response_validation=True
    ) as client:
        yield kind(client)


@pytest.mark.parametrize("kind", [Chats, Responses, Messages])
def test_twenty_turns_with_real_tools(served: tuple[Server, Path], kind: type[Agent]) -> None:
    server, bundle = served
    tools, ids, chat = Tools(), set[str](), list[dict[str, Any]]()
    starts: list[tuple[int, int]] = []
    with Decoder.open(bundle, threads=1) as decoder, agent_of_kind(kind, server.url) as agent:

        def ask(choice: str, seed: int) -> Received:
            """Ask the server. Check the prompt that it read, and the ids that it gave."""
            rendered = decoder.tokenizer.chat(chat, tools=agent.definitions)
            received = agent.ask(choice, seed)
            assert received.prompt_tokens == len(rendered), chat
            for call in received.calls:
                assert call.id not in ids
                ids.add(call.id)
            chat.append(received.message())
            return received

        for turn in range(TURNS):
            starts.append((len(agent.history), len(chat)))
            question = f"Turn {turn}: use a tool."
            agent.say(question)
            chat.append({"role": "user", "content": question})
            # The toy would often use one tool only.
            received = ask([*SCHEMAS, "required"][turn % 5], turn)
            assert received.calls
            results = []
            for call in received.calls:
                try:
                    results.append((call, tools.run(call.name, json.loads(call.arguments)), False))
                except KeyError as error:
                    results.append((call, f"no note {error}", True))
            agent.give(results[::-1])  # in another order than the calls: ids pair them
            for call, text, failed in results:
                shown = f"Error: {text}" if failed and isinstance(agent, Messages) else text
                chat.append({"role": "tool", "tool_call_id": call.id, "content": shown})
            received = ask("none", turn)
            assert not received.calls
            if received.prompt_tokens > PROMPT_TOKENS:
                (own, rendered) = starts[len(starts) // 2]
                del agent.history[:own], chat[:rendered]
                starts = [(a - own, b - rendered) for a, b in starts[len(starts) // 2 :]]
    assert len(tools.used) >= TURNS
    assert set(tools.used) == SCHEMAS.keys()

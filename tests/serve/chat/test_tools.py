"""Tools of a body, formats of calls by chat template, and the grammar of forced calls."""

import json
import random
from typing import Any

import jsonschema
import pytest

from lopa.runtime.chat.answer_grammar import answer_grammar
from lopa.runtime.chat.call_format import FORMATS, format_from_template
from lopa.runtime.chat.tool_definition import MAX_TOOLS, tools_from_body
from lopa.runtime.errors import BadInputError, FieldError
from lopa.serve.chat.call_parser import CallParser, ToolCall

llguidance = pytest.importorskip("llguidance")
_NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
    "required": ["v"],
}
_SCHEMAS: dict[str, dict[str, Any] | None] = {
    "now": None,
    "get": {
        "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer"}},
        "required": ["city"],
    },
    "get_now": {"type": "object", "properties": {"kind": {"enum": ["a", "b </tool_call>", 3]}}, "required": ["kind"]},
    "chain": {"$defs": {"node": _NODE}, "type": "object", "properties": {"first": {"$ref": "#/$defs/node"}}},
}


def _tool(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


_TOOLS = [_tool(name, schema) for name, schema in _SCHEMAS.items()]


def _draw(grammar: str, seed: int) -> str:
    """Return a random text of a grammar, over single bytes."""
    tokenizer = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    chance, text = random.Random(seed), b""
    while len(text) < 2000 and not matcher.is_stopped():
        bits = matcher.compute_bitmask()
        allowed = [each for each in range(128) if bits[each >> 3] >> (each & 7) & 1 and each >= 9]
        if matcher.is_accepting() and (not allowed or chance.random() < 0.5):
            break
        closing = [each for each in allowed if each in b'"}']
        byte = chance.choice(closing if closing and chance.random() < 0.4 else allowed)
        assert matcher.consume_tokens([byte])
        text += bytes([byte])
    return text.decode()


@pytest.mark.parametrize("written", [name for name, each in FORMATS.items() if each.is_json])
def test_forced_calls_are_valid_and_parsed_back(written: str) -> None:
    request = tools_from_body({"tools": _TOOLS, "tool_choice": "required"})
    assert request is not None
    grammar = answer_grammar(request, FORMATS[written], None, "none", lambda _: False)
    seen: set[str] = set()
    complete = 0
    for seed in range(200):
        text = _draw(grammar, seed)
        parser = CallParser(FORMATS[written], list(_SCHEMAS))
        parts = [*parser.feed(text), *parser.end()]
        if len(text) >= 2000:
            continue
        complete += 1
        assert parts, text
        for call in parts:
            assert isinstance(call, ToolCall), text
            seen.add(call.name)
            schema = next(each.parameters for each in request.tools if each.name == call.name)
            jsonschema.validate(json.loads(call.arguments), schema)
    assert seen == set(_SCHEMAS)
    assert complete > 150


def test_a_named_tool_is_the_only_one_and_called_once() -> None:
    request = tools_from_body({"tools": _TOOLS, "tool_choice": {"type": "function", "function": {"name": "get"}}})
    assert request is not None
    assert (request.choice, request.allowed, request.parallel) == ("required", {"get"}, False)
    grammar = answer_grammar(request, FORMATS["hermes"], None, "none", lambda _: True)
    assert grammar.startswith("start: call\n")
    assert "call: <tool_call>" in grammar
    assert '"get_now' not in grammar


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"tools": [_tool("x")] * (MAX_TOOLS + 1)}, "tools", "at most 128 tools"),
        ({"tools": [_tool("a b")]}, "tools", "'a b'"),
        ({"tools": [_tool("x"), _tool("x")]}, "tools", "two tools are named x"),
        ({"tools": [_tool("x", {"type": "array"})]}, "tools", "'array'"),
        ({"tools": [_tool("x")], "tool_choice": "any"}, "tool_choice", "'any'"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "no tools"),
        (
            {"tools": [_tool("x")], "tool_choice": {"type": "function", "function": {"name": "y"}}},
            "tool_choice",
            "names the tool 'y'",
        ),
        ({"tools": [_tool("x")], "parallel_tool_calls": 1}, "parallel_tool_calls", "parallel_tool_calls"),
    ],
)
def test_bad_tools_are_refused_by_field(body: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(FieldError, match=message) as error:
        tools_from_body(body)
    assert error.value.param == param


@pytest.mark.parametrize("body", [{}, {"tools": []}, {"tool_choice": "none"}, {"tool_choice": "auto"}])
def test_no_tools_to_call(body: dict[str, Any]) -> None:
    assert tools_from_body(body) is None


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% if tools %}<tool_call>\n{{ x }}{% endif %}", "hermes"),
        ("{% if tools %}{{ tools | tojson }} <|start_header_id|>ipython{% endif %}", "llama3"),
        ("{% if tools %}{{ tools | tojson }}{% endif %}", "json"),
    ],
)
def test_the_format_is_recognised(template: str, name: str) -> None:
    assert format_from_template(template).name == name


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages }}", "has no tools"),
        ("<tool_call>\n<function=x>", "qwen3-coder"),
        ("{{ tools }}[TOOL_CALLS]", "mistral"),
        ("{{ tools }}<｜tool▁calls▁begin｜>", "deepseek"),
    ],
)
def test_other_formats_are_refused_by_name(template: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        format_from_template(template)

"""Grammars of answers: which beginnings they allow and which answers they accept, for marks as text and as tokens."""

import pytest

from lopa.runtime.chat.answer_grammar import Reasoning, answer_grammar, json_expression
from lopa.runtime.chat.call_format import FORMATS
from lopa.runtime.chat.tool_definition import ToolRequest, tools_from_body
from lopa.runtime.grammar.byte_order import SYMBOLS
from lopa.runtime.grammar.llguidance_library import byte_tokenizer, library, matcher

pytest.importorskip("llguidance")
_MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
_INTEGER = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
_ADD = '{"name": "add", "arguments": {"a": 1}}'
_CALL = f"<tool_call>\n{_ADD}\n</tool_call>"
_ANSWER = json_expression('{"type": "object", "properties": {"x": {"type": "null"}}, "required": ["x"]}')


def _tools(choice: str = "auto", *, parallel: bool = True, strict: bool = False) -> ToolRequest:
    functions = [{"name": "add", "parameters": _INTEGER, "strict": strict}, {"name": "now"}]
    body = {"tools": [{"type": "function", "function": each} for each in functions], "tool_choice": choice}
    found = tools_from_body({**body, "parallel_tool_calls": parallel})
    assert found is not None
    return found


def _outcome(grammar: str, text: str, *, tokens: bool) -> str:
    """Return "accepted", "begun" if more must follow, or "refused"."""
    written = text.encode()
    for symbol, mark in zip(SYMBOLS, _MARKS, strict=False):
        written = written.replace(mark.encode(), bytes([symbol])) if tokens else written
    names = tuple(mark.encode() for mark in _MARKS)
    used = matcher(byte_tokenizer(names), library().grammar_from("grammar", grammar))
    if used.try_consume_tokens(list(written)) != len(written):
        return "refused"
    return "accepted" if used.is_accepting() else "begun"


_OPTIONAL = [
    ("", "accepted"),
    ("Hello <b> 1 < 2", "accepted"),
    ("Hello\n<tool_call>\n", "begun"),
    (f"Hello\n{_CALL}", "accepted"),
    (f"{_CALL}\n{_CALL}", "accepted"),
    (_CALL[:-14], "begun"),
    ('<tool_call>\n{"name": "sub', "refused"),
    ('<tool_call>\n{"name": "add", "arguments": {"b', "refused"),
    (f"{_CALL} and more", "refused"),
]
_REQUIRED = [("", "begun"), ("Hello", "refused"), (_CALL, "accepted"), (f"{_CALL}\n{_CALL}", "accepted")]
_THOUGHT = [
    ("Hm", "begun"),
    ("Hm <tool_call", "begun"),
    (f"Hm</think>\n\n{_CALL}", "accepted"),
    (f"Hm</think>{_CALL}", "accepted"),
    ('Hm</think>\n<tool_call>\n{"name": "sub', "refused"),
]


@pytest.mark.parametrize("tokens", [False, True], ids=["text", "tokens"])
@pytest.mark.parametrize(
    ("choice", "reasoning", "text", "outcome"),
    [
        *(("auto", "none", *case) for case in _OPTIONAL),
        *(("required", "none", *case) for case in _REQUIRED),
        *(("auto", "open", *case) for case in _THOUGHT),
        *(("required", "open", *case) for case in _THOUGHT),
        ("auto", "open", "Hm</think>\n\nOk", "accepted"),
        ("required", "open", "Hm</think>\n\nOk", "refused"),
        ("required", "open", f"Hm\n{_CALL}", "begun"),
        *(("required", "possible", f"<think>{text}", outcome) for text, outcome in _THOUGHT),
        ("required", "possible", _CALL, "accepted"),
        ("auto", "possible", "<think>Hm</think>Ok", "accepted"),
        ("auto", "possible", "Ok", "accepted"),
    ],
)
def test_answers_with_calls(choice: str, reasoning: Reasoning, text: str, outcome: str, tokens: bool) -> None:
    if tokens and text == "Hm <tool_call":
        pytest.skip("a token is written whole")
    grammar = answer_grammar(_tools(choice), FORMATS["hermes"], None, reasoning, lambda _: tokens)
    if tokens and (choice, reasoning, text) == ("required", "open", f"Hm\n{_CALL}"):
        outcome = "refused"  # free text contains no token that a grammar names
    assert _outcome(grammar, text, tokens=tokens) == outcome


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("", "accepted"),
        ("Hello", "accepted"),
        ('{"answer": 4}', "accepted"),
        ('{"name": "add", "size": 1', "accepted"),
        ('{"name": "adder", "parameters": 1', "accepted"),
        ('{"name": "add", "parameters": {"a": 1}}', "accepted"),
        ('{"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}', "accepted"),
        ('{"name": "add", "parameters": {"b', "refused"),
        ('{"name": "add", "parameters": 1', "refused"),
        ('{"name": "add", "parameters": {"a": 1}} ok', "refused"),
    ],
)
def test_calls_without_marks_are_the_whole_answer(text: str, outcome: str) -> None:
    grammar = answer_grammar(_tools(), FORMATS["llama3"], None, "none", lambda _: False)
    assert _outcome(grammar, text, tokens=False) == outcome


@pytest.mark.parametrize("tokens", [False, True])
def test_one_call_if_they_are_not_parallel(tokens: bool) -> None:
    for choice in ("auto", "required"):
        grammar = answer_grammar(_tools(choice, parallel=False), FORMATS["hermes"], None, "none", lambda _: tokens)
        assert _outcome(grammar, _CALL, tokens=tokens) == "accepted"
        assert _outcome(grammar, f"{_CALL}\n<tool_call>", tokens=tokens) == "refused"


@pytest.mark.parametrize("tokens", [False, True])
def test_a_call_or_the_structured_answer_and_nothing_else(tokens: bool) -> None:
    grammar = answer_grammar(_tools(), FORMATS["hermes"], _ANSWER, "none", lambda _: tokens)
    for text, outcome in (("", "begun"), ('{"x": null}', "accepted"), (_CALL, "accepted"), ("Hello", "refused")):
        assert _outcome(grammar, text, tokens=tokens) == outcome
    only = answer_grammar(None, None, _ANSWER, "open", lambda _: tokens)
    for text, outcome in (('Hm</think>\n\n{"x": null}', "accepted"), ("Hm</think>no", "refused"), ("Hm", "begun")):
        assert _outcome(only, text, tokens=tokens) == outcome


@pytest.mark.parametrize("name", ["a.b-c_1", "x" * 64])
@pytest.mark.parametrize("written", [name for name, each in FORMATS.items() if each.is_json])
def test_names_are_written_as_they_are(name: str, written: str) -> None:
    found = tools_from_body({"tools": [{"type": "function", "function": {"name": name}}]})
    grammar = answer_grammar(found, FORMATS[written], None, "none", lambda _: False)
    call = f'{{"name": "{name}", "{FORMATS[written].arguments}": {{}}}}'
    text = f"<tool_call>\n{call}\n</tool_call>" if FORMATS[written].opening else call
    assert _outcome(grammar, text, tokens=False) == "accepted"
    other = text.replace(": {}", ": 3")
    assert _outcome(grammar, other, tokens=False) == "refused"

"""Answers split into text and calls: every way to cut the text into pieces gives the same parts."""

import pytest

from lopa.runtime.chat.call_format import FORMATS
from lopa.serve.chat.call_parser import CallParser, CallPart, ToolCall

_HERMES = FORMATS["hermes"]
_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
_ADD = ToolCall("add", '{"a": 1, "b": 2}')
_NASTY = {
    "a call alone": (_CALL, [_ADD]),
    "text first": (f"I add.\n{_CALL}", ["I add.", _ADD]),
    "two calls": (f"{_CALL}\n{_CALL}", [_ADD, _ADD]),
    "behind a thought": (f"a</think>\n{_CALL}", ["a</think>", _ADD]),
    "no arguments": ('<tool_call>\n{"name": "now"}\n</tool_call>', [ToolCall("now", "{}")]),
    "numbers beyond any type": (
        '<tool_call>{"name": "add", "arguments": {"a": 9.017e62190, "b": [-1E+400, 12345678901234567890]}}</tool_call>',
        [ToolCall("add", '{"a": 9.017e62190, "b": [-1E+400, 12345678901234567890]}')],
    ),
    "a number that is not JSON": (
        '<tool_call>{"name": "add", "arguments": {"a": 01}}</tool_call>',
        ['<tool_call>{"name": "add", "arguments": {"a": 01}}</tool_call>'],
    ),
    "a mark in a string": (
        '<tool_call>{"name": "add", "arguments": {"a": "</tool_call> \\" <tool_call>"}}</tool_call>',
        [ToolCall("add", '{"a": "</tool_call> \\" <tool_call>"}')],
    ),
    "cut off": ('Well <tool_call>\n{"name": "add", "arg', ['Well <tool_call>\n{"name": "add", "arg']),
    "unknown tool": (
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        ['<tool_call>{"name": "rm", "arguments": {}}</tool_call>'],
    ),
    "arguments that are a list": (
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        ['<tool_call>{"name": "add", "arguments": [1]}</tool_call>'],
    ),
    "not JSON": ("<tool_call>{oops}</tool_call>", ["<tool_call>{oops}</tool_call>"]),
    "a call behind a broken one": (
        f'<tool_call>{{"name": "add</tool_call>{_CALL}',
        ['<tool_call>{"name": "add</tool_call>', _ADD],
    ),
    "text behind": (f"{_CALL}\nDone.", [_ADD, "Done."]),
    "half a mark": ("1 <tool_cal 2", ["1 <tool_cal 2"]),
    "nothing": ("", []),
}


def _parts(text: str, cuts: tuple[int, ...], written: str = "hermes") -> list[CallPart]:
    parser = CallParser(FORMATS[written], ("add", "now"))
    found: list[CallPart] = []
    for start, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
        found += parser.feed(text[start:end])
    found += parser.end()
    joined: list[CallPart] = []
    for part in found:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return [part.strip() if isinstance(part, str) else part for part in joined]


@pytest.mark.parametrize("name", _NASTY)
def test_every_cut_gives_the_same_parts(name: str) -> None:
    text, expected = _NASTY[name]
    assert _parts(text, ()) == expected
    for cut in range(len(text)):
        assert _parts(text, (cut,)) == expected, cut
    assert _parts(text, tuple(range(1, len(text)))) == expected


def test_text_is_not_held_back() -> None:
    parser = CallParser(_HERMES, ("add",))
    assert parser.feed("Hello <b>you</b>, 1 < 2") == ["Hello <b>you</b>, 1 < 2"]
    assert parser.feed(" and <to") == [" and"]
    assert "".join(map(str, [*parser.feed("p>"), *parser.end()])) == " <top>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "add", "parameters": {"a": 1}}', [ToolCall("add", '{"a": 1}')]),
        ('<|python_tag|>{"name": "now", "parameters": {}}', [ToolCall("now", "{}")]),
        (
            '{"name": "add", "parameters": {"a": "; }"}}; {"name": "now", "parameters": {}}',
            [ToolCall("add", '{"a": "; }"}'), ToolCall("now", "{}")],
        ),
        ('{"answer": 4}', ['{"answer": 4}']),
        ('{"name": "add", "parameters": {}} as I said', ['{"name": "add", "parameters": {}} as I said']),
        ("The set {1, 2}", ["The set {1, 2}"]),
        ('{"name": "add", "param', ['{"name": "add", "param']),
    ],
)
def test_calls_without_marks_are_the_whole_answer(text: str, expected: list[CallPart]) -> None:
    assert _parts(text, (), "llama3") == expected
    assert _parts(text, tuple(range(1, len(text))), "llama3") == expected


def test_deeply_nested_arguments_are_text() -> None:
    text = '<tool_call>{"name": "add", "arguments": {"a": ' + "[" * 100_000 + "}}</tool_call>"
    assert _parts(text, ()) == [text]

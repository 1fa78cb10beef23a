"""Answers split into reasoning, text and calls: every way to cut the text into events gives the same parts."""

import re

import pytest

from lopa.runtime.chat.call_format import FORMATS
from lopa.runtime.chat.prepared_chat import AnswerForm
from lopa.runtime.requests.result import TextEvent
from lopa.serve.chat.answer_parser import AnswerParser, Part, ReasoningText, merged_parts
from lopa.serve.chat.call_parser import ToolCall

_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
_ADD = ToolCall("add", '{"a": 1}')
_MARKS = re.compile("</?tool_call>|</?think>")
_NAMES = frozenset({"add", "now"})


def _form(reasoning: str, *, tokens: bool, calls: bool = True) -> AnswerForm:
    return AnswerForm(
        reasoning=reasoning,  # type: ignore[arg-type]
        reasoning_marks_are_tokens=tokens,
        calls=FORMATS["hermes"] if calls else None,
        call_marks_are_tokens=tokens,
        names=_NAMES,
    )


def _parts(text: str, cuts: tuple[int, ...], form: AnswerForm) -> tuple[Part, ...]:
    """Return the parts of `text`, cut into events. Marks are tokens: their event says where they begin."""
    parser, found = AnswerParser(form), list[Part]()
    marks = [each.start() for each in _MARKS.finditer(text)] if form.reasoning_marks_are_tokens else []
    for start, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
        found += parser.feed(TextEvent(text[start:end], tuple(m - start for m in marks if start <= m < end)))
    return merged_parts([*found, *parser.end()])


_CASES = {
    "reasoning, then text": ("open", "Let me see.\n</think>\n\nIt is 3.", (ReasoningText("Let me see."), "It is 3.")),
    "reasoning, then a call": ("open", f"I add.</think>\n{_CALL}", (ReasoningText("I add."), _ADD)),
    "reasoning, text and two calls": (
        "open",
        f"Hm</think>\n\nI add.\n{_CALL}\n{_CALL}",
        (ReasoningText("Hm"), "I add.", _ADD, _ADD),
    ),
    "no reasoning in the end": ("open", "</think>Yes", ("Yes",)),
    "cut in the reasoning": ("open", "I think that ", (ReasoningText("I think that"),)),
    "the model opens it again": ("open", "<think>\nHm\n</think>\n\nOk", (ReasoningText("Hm"), "Ok")),
    "the model opens it": ("possible", "\n<think>\nHm\n</think>\n\nOk", (ReasoningText("Hm"), "Ok")),
    "the model does not open it": ("possible", "  Ok, <b>then</b>.", ("  Ok, <b>then</b>.",)),
    "a call at once": ("possible", _CALL, (_ADD,)),
    "a call inside of reasoning": ("open", f"Hm\n{_CALL}", (ReasoningText("Hm"), _ADD)),
    "white space only": ("possible", "  \n", ("  \n",)),
    "nothing": ("possible", "", ()),
    "less than a mark": ("possible", "<thi", ("<thi",)),
    "no model that reasons": ("none", "1 < 2 and 2 > 1", ("1 < 2 and 2 > 1",)),
}


@pytest.mark.parametrize("tokens", [False, True], ids=["marks are text", "marks are tokens"])
@pytest.mark.parametrize("name", _CASES)
def test_every_cut_gives_the_same_parts(name: str, tokens: bool) -> None:
    reasoning, text, expected = _CASES[name]
    form = _form(reasoning, tokens=tokens)
    inside = {p for each in _MARKS.finditer(text) for p in range(each.start() + 1, each.end())} if tokens else set()
    places = [cut for cut in range(1, len(text)) if cut not in inside]
    assert _parts(text, (), form) == expected
    for cut in places:
        assert _parts(text, (cut,), form) == expected, cut
    assert _parts(text, tuple(places), form) == expected


def test_the_same_characters_made_of_other_tokens_are_text() -> None:
    """Check that a model that copies a user's text opens no call and ends no reasoning with it."""
    copied = f"You wrote {_CALL}</think> and"
    for reasoning, expected in (("none", (copied,)), ("open", (ReasoningText(copied),))):
        parser = AnswerParser(_form(reasoning, tokens=True))
        parts = [part for each in copied for part in parser.feed(TextEvent(each))]
        assert merged_parts([*parts, *parser.end()]) == expected


def test_a_mark_inside_of_arguments_is_part_of_them() -> None:
    text = '<tool_call>{"name": "add", "arguments": {"a": "<tool_call></tool_call>"}}</tool_call>'
    expected = (ToolCall("add", '{"a": "<tool_call></tool_call>"}'),)
    for tokens in (False, True):
        assert _parts(text, (), _form("none", tokens=tokens)) == expected


def test_reasoning_streams_at_once() -> None:
    parser = AnswerParser(_form("open", tokens=False))
    assert parser.feed(TextEvent("I see")) == [ReasoningText("I see")]
    assert parser.feed(TextEvent(" that ")) == [ReasoningText(" that")]
    assert parser.feed(TextEvent("a </thi")) == [ReasoningText(" a")]
    assert parser.feed(TextEvent("ng> ")) == [ReasoningText(" </thing>")]


def test_text_without_tools_is_not_searched_for_calls() -> None:
    form = AnswerForm(reasoning="possible")
    assert _parts(_CALL, (), form) == (_CALL,)
    assert not form.is_plain
    assert AnswerForm().is_plain

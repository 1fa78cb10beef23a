"""Gemma's calls and reasoning: in every cut, against the parser of Gemma 4's answers that transformers has."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from tests.chat_bundles import FIRST_FREE_ID, with_tokenizer_files
from tests.runtime.text.chat_templates import TEMPLATES
from transformers.cli.serving.utils import _RESPONSE_TEMPLATE_FALLBACKS, ResponseParser

from lopa import BadInputError, Chat, Decoder
from lopa.runtime.bundle import Bundle
from lopa.runtime.chat.call_format import FORMATS, format_from_template
from lopa.runtime.chat.prepared_chat import AnswerForm
from lopa.runtime.requests.result import TextEvent
from lopa.runtime.text.text_stream import TextStream
from lopa.runtime.text.tokenizer import CHANNEL, Tokenizer
from lopa.serve.chat.answer_parser import AnswerParser, Part, ReasoningText, merged_parts
from lopa.serve.chat.call_parser import ToolCall
from lopa.serve.protocols.choice import count_reasoning_tokens

QUOTE = '<|"|>'
MARKS = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", QUOTE, "<|tool>", "<tool|>")
_TOKEN = re.compile("|".join(map(re.escape, MARKS)))
_TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
_QUESTION: Any = {"role": "user", "content": f"{MARKS[2]}call:add{{}}{MARKS[3]} 1+1="}


def _form(*, tokens: bool) -> AnswerForm:
    return AnswerForm("possible", CHANNEL, tokens, FORMATS["gemma"], tokens, frozenset({"add", "now-2"}))


def _parts(text: str, cuts: list[int], *, tokens: bool) -> tuple[Part, ...]:
    parser, found = AnswerParser(_form(tokens=tokens)), list[Part]()
    marks = [each.start() for each in _TOKEN.finditer(text)] if tokens else []
    for start, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
        found += parser.feed(TextEvent(text[start:end], tuple(m - start for m in marks if start <= m < end)))
    return merged_parts([*found, *parser.end()])


def _written(value: Any) -> str:
    """Return a value as Gemma's template writes it."""
    if isinstance(value, str):
        return f"{QUOTE}{value}{QUOTE}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_written(each)}" for key, each in value.items()) + "}"
    return "[" + ",".join(map(_written, value)) + "]" if isinstance(value, list) else json.dumps(value)


def _random_value(draw: random.Random, depth: int = 3) -> Any:
    kind = draw.randrange(7 if depth else 5)
    if kind == 0:
        return "".join(draw.choices('ab "\\{}[],:\n<|>é🙂', k=draw.randrange(8)))
    if kind < 5:
        return [True, None, draw.randrange(-9, 99), draw.random() * 1e3][kind - 1]
    if kind == 5:
        return [_random_value(draw, depth - 1) for _ in range(draw.randrange(3))]
    return {draw.choice("xyz") + str(n): _random_value(draw, depth - 1) for n in range(draw.randrange(4))}


def test_random_calls_are_read_as_transformers_reads_them() -> None:
    draw = random.Random(0)
    for _ in range(300):
        arguments = {f"k{n}": _random_value(draw) for n in range(draw.randrange(4))}
        thought, before = draw.choice(["", "<|channel>thought\nI see.\n<channel|>"]), draw.choice(["", "Hello.\n"])
        text = f"{thought}{before}<|tool_call>call:add{_written(arguments)}<tool_call|>"
        parser = ResponseParser(_RESPONSE_TEMPLATE_FALLBACKS[("gemma4",)], prefix="<|turn>model\n")
        parser.feed(text)
        theirs, _ = parser.finalize()
        for tokens in (False, True):
            inside = {p for m in _TOKEN.finditer(text) for p in range(m.start() + 1, m.end())} if tokens else set()
            places = [cut for cut in range(1, len(text)) if cut not in inside]
            parts = _parts(text, sorted(draw.sample(places, draw.randrange(len(places)))), tokens=tokens)
            (call,) = [part for part in parts if isinstance(part, ToolCall)]
            function = theirs["tool_calls"][0]["function"]
            assert (call.name, json.loads(call.arguments)) == (function["name"], function["arguments"])
            assert json.loads(call.arguments) == arguments
            others = [part for part in parts if not isinstance(part, ToolCall)]
            assert others == [*([ReasoningText("I see.")] if thought else []), *([before.strip()] if before else [])]


@pytest.mark.parametrize("tokens", [False, True], ids=["marks are text", "marks are tokens"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|tool_call>call:now-2{}<tool_call|><|tool_call>call:add{a:1}<tool_call|>",
         (ToolCall("now-2", "{}"), ToolCall("add", '{"a":1}'))),
        (f"<|tool_call>call:add{{a:{QUOTE}<tool_call|>{QUOTE}}}<tool_call|>",
         (ToolCall("add", '{"a":"<tool_call|>"}'),)),
        ("<|channel>thought\nHm <|tool_call>call:add{}<tool_call|>", (ReasoningText("Hm"), ToolCall("add", "{}"))),
        ("<|channel>thought\n<channel|>Yes", ("Yes",)),
        ("<|channel>other\n", ("<|channel>other\n",)),
        ('<|tool_call>call:add{"a":1,b:"x, y: z", "c" : 2}<tool_call|>',
         (ToolCall("add", '{"a":1,"b":"x, y: z", "c" : 2}'),)),
        *((f"<|tool_call>{wrong}<tool_call|>", (f"<|tool_call>{wrong}<tool_call|>",)) for wrong in
          ("call:other{}", "add{}", "call:add", "call:add{a:1", "call:add{a:b}", "call:add{}{}", "call:add{},b:2",
           '{"name": "add", "arguments": {}}', "call:add{a:{b:1}}}", "call:add[1]", f"call:add{{a:{QUOTE}x}}")),
    ],
)  # fmt: skip
def test_other_answers(text: str, expected: tuple[Part, ...], tokens: bool) -> None:
    assert _parts(text, [], tokens=tokens) == expected
    if not tokens:
        assert _parts(text, list(range(1, len(text))), tokens=False) == expected


@pytest.fixture(scope="module")
def gemma_bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the toy with Gemma's special tokens and a template in its style."""

    def add(tokenizer: dict[str, Any]) -> dict[str, Any]:
        pattern = tokenizer["added_tokens"][-1] | {"special": True}
        added = [{**pattern, "id": FIRST_FREE_ID + n, "content": text} for n, text in enumerate(MARKS)]
        return tokenizer | {"added_tokens": tokenizer["added_tokens"] + added}

    copy = tmp_path_factory.mktemp("gemma") / "bundle"
    return with_tokenizer_files(tiny_bundle, copy, lambda s: s | {"chat_template": TEMPLATES["gemma4"]}, add)


def test_special_tokens_of_calls_and_reasoning_are_shown(gemma_bundle: Path) -> None:
    tokenizer = Tokenizer.open(Bundle.open(gemma_bundle))
    answer = f"<|channel>thought\nI add.<channel|>Yes.<|tool_call>call:add{{a:{QUOTE}1{QUOTE}}}<tool_call|><tool|>"
    ids = tokenizer.encode(answer, add_bos=False, special_tokens=True)
    assert tokenizer.decode(ids) == answer.removesuffix("<tool|>"), "other special tokens stay hidden"
    stream, parser, parts = TextStream(tokenizer), AnswerParser(_form(tokens=True)), list[Part]()
    for each in ids:
        begun, text = len(stream.markup), stream.push([each])
        parts += parser.feed(TextEvent(text, (0,) * (len(stream.markup) - begun)))
    assert merged_parts([*parts, *parser.end()]) == (ReasoningText("I add."), "Yes.", ToolCall("add", '{"a":"1"}'))
    behind = next(n for n in range(len(ids)) if "<channel|>" in tokenizer.decode(ids[:n]))
    assert count_reasoning_tokens(ids, tokenizer.decode, "possible", CHANNEL) == behind


def test_marks_in_messages_stay_text(gemma_bundle: Path) -> None:
    tokenizer = Tokenizer.open(Bundle.open(gemma_bundle))
    ids = tokenizer.chat([{"role": "user", "content": "".join(MARKS)}])
    assert {FIRST_FREE_ID + n for n in range(len(MARKS))}.isdisjoint(ids)
    ids = tokenizer.chat([_QUESTION], tools=[_TOOL])
    assert ids.count(FIRST_FREE_ID + MARKS.index("<|tool>")) == 1
    assert FIRST_FREE_ID + MARKS.index("<|tool_call>") not in ids


def test_the_format_is_known_and_no_grammar_is_made_of_it(gemma_bundle: Path) -> None:
    assert format_from_template(TEMPLATES["gemma4"]) == FORMATS["gemma"]
    with Decoder.open(gemma_bundle, ["numpy"]) as decoder:
        assert decoder.generate(Chat([_QUESTION], tools=[_TOOL]), max_new_tokens=8).tokens, "no grammar"
        for chat, options in (
            (Chat([_QUESTION], tools=[_TOOL], tool_choice="required"), {}),
            (Chat([_QUESTION], tools=[_TOOL]), {"regex": "[0-9]+"}),
        ):
            with pytest.raises(BadInputError, match="calls have the format gemma"):
                decoder.generate(chat, max_new_tokens=8, **options)
        with pytest.raises(BadInputError, match=r"reasoning_budget for a model .* <channel\|>"):
            decoder.generate(Chat([_QUESTION]), reasoning_budget=4, max_new_tokens=8)
        open_chat = Chat([_QUESTION], chat_template_kwargs={"opened": True})
        with pytest.raises(BadInputError, match=r"ends with <\|channel>thought"):
            decoder.generate(open_chat, regex="[0-9]+", max_new_tokens=8)
        assert re.fullmatch("[0-9]+", decoder.generate(Chat([_QUESTION]), regex="[0-9]+", max_new_tokens=8).text)

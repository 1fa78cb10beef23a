"""Grammar of a chat's answer: reasoning, then text, tool calls or structured output (llguidance's Lark).

Text is free until a call opens. From there the tool's schema holds. A mark such as <tool_call> is a token in some
tokenizers and text in others. A grammar names a token without quotes, and free text never contains it. Where a mark is
text, a lazy rule ends the free text at the mark.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from lopa.runtime.chat.call_format import CallFormat
from lopa.runtime.chat.chat import Chat, requested_tools
from lopa.runtime.chat.tool_definition import Tool, ToolRequest
from lopa.runtime.errors import BadInputError, GrammarRefusedError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.exact_schema import exact_schema
from lopa.runtime.grammar.grammar_source import option_error, rule_of_error
from lopa.runtime.options import GRAMMARS
from lopa.runtime.text.tokenizer import CLOSING, OPENING

Reasoning = Literal["none", "possible", "open"]
"""Reasoning of an answer: the model has none, the answer may begin with <think>, or the prompt ended with it."""
_TEXT = "/(?s:.*)/"
_BLANK = "/\\n{0,2}/"
IsToken = Callable[[str], bool]
"""Function that returns whether a mark is a single token."""


def answer_grammar(
    tools: ToolRequest | None,
    written: CallFormat | None,
    answer: str | None,
    reasoning: Reasoning,
    is_token: IsToken,
) -> str:
    """Return the grammar of an answer.

    Args:
        tools: Tools that it may or must call, or None.
        written: Format of the calls, if there are tools.
        answer: Lark expression of an answer without calls, or None for any text.
        reasoning: Reasoning before the answer.
        is_token: Whether a mark is a single token, which a grammar names without quotes.
    """
    rules = [f"TEXT: {_TEXT}"]
    if tools is None or written is None:
        body = "TEXT" if answer is None else "answer"
    else:
        calls = _calls(tools, written)
        rules += _call_rules(tools, written, is_token)
        if tools.choice == "required":
            body = calls
        elif answer is not None:
            body = f"({calls} | answer)"
        else:
            body, more = _text_or_calls(tools, written, is_token)
            rules += more
    if answer is not None:
        rules.append(f"answer: {answer}")
    if reasoning != "none":
        thought, more = _thought(is_token)
        rules += more
        gap = "" if body.startswith(("TEXT", "(TEXT")) else f"{_BLANK} "
        before = thought if reasoning == "open" else f"({_mark(OPENING, is_token)} {thought} {gap})?"
        body = f"{before} {gap}{body}" if reasoning == "open" else f"{before} {body}"
    return "\n".join((f"start: {body}", *rules)) + "\n"


@contextmanager
def chat_grammar_errors(prompt: object, config: GenerationConfig, grammar: str | None) -> Iterator[None]:
    """Turn an error about the `grammar` of a chat's answer into one about the tool or the option of `config` in it."""
    try:
        yield
    except GrammarRefusedError as error:
        rule, message = rule_of_error(error, grammar or "")
        if not isinstance(prompt, Chat) or config.grammar is not None or not rule.startswith(("answer", "call_")):
            raise
        tools = requested_tools(prompt)
        if tools is None or rule == "answer":
            param = next(name for name in GRAMMARS if getattr(config, name) is not None)
            made = option_error(param, getattr(config, param), message)
        else:
            tool, param = tools.callable_tools[int(rule.removeprefix("call_"))], "tools"
            made = option_error("json_schema", json.dumps(tool.parameters), message)
            made = made.with_received(f"tool {tool.name}: {made.received}").with_remedy("correct the tool's parameters")
        refused = GrammarRefusedError(made.received, expected=made.expected, remedy=made.remedy)
        refused.param = param
        raise refused from error


def json_expression(schema: str, *, lenient: bool = False) -> str:
    """Return the Lark expression of a JSON value with the schema `schema`, given as text.

    With `lenient` the schema's features that grammars lack are ignored, otherwise they raise BadInputError.
    """
    return "%json " + exact_schema(schema, lenient=lenient)


def _calls(tools: ToolRequest, written: CallFormat) -> str:
    return f"call ({json.dumps(written.separator)} call)*" if tools.parallel else "call"


def _call_rules(tools: ToolRequest, written: CallFormat, is_token: IsToken) -> list[str]:
    callable_tools = tools.callable_tools
    one_call = " | ".join(f"call_{number}" for number in range(len(callable_tools)))
    if written.opening:
        opening, closing = _mark(written.opening, is_token), _mark(written.closing, is_token)
        call = f'call: {opening} "\\n" ({one_call}) "\\n" {closing}'
    else:
        call = f"call: {one_call}"
    # Each tool's schema is a root of its own, since a $ref is relative to its schema.
    return [call, *(_call_rule(number, tool, written) for number, tool in enumerate(callable_tools))]


def _call_rule(number: int, tool: Tool, written: CallFormat) -> str:
    try:
        schema = json_expression(json.dumps(tool.parameters), lenient=not tool.strict)
    except BadInputError as error:
        raise error.with_received(f"tool {tool.name}: {error.received}") from error
    return f'call_{number}: {json.dumps(_head(tool, written))} {schema} "}}"'


def _head(tool: Tool, written: CallFormat) -> str:
    """Return the text of a call before its arguments."""
    return f'{{"name": {json.dumps(tool.name)}, "{written.arguments}": '


def _text_or_calls(tools: ToolRequest, written: CallFormat, is_token: IsToken) -> tuple[str, list[str]]:
    """Return an expression of free text that calls may follow, and its rules."""
    if not written.opening:
        # An answer with calls is a list of calls and nothing else. Any other text is free.
        names = "|".join(_escaped(json.dumps(each.name)) for each in tools.callable_tools)
        begin = f'\\{{"name": ({names}), "{written.arguments}": '
        return f"(OTHER | {_calls(tools, written)})", [f"OTHER: {_TEXT} & ~/(?s:{begin}.*)/"]
    if is_token(written.opening):
        return f"TEXT ({_calls(tools, written)})?", []
    one_call = " | ".join(f"call_{number}" for number in range(len(tools.callable_tools)))
    more = f" ({json.dumps(written.separator)} call)*" if tools.parallel else ""
    opened = f"opening ({one_call}) {json.dumps(chr(10) + written.closing)}{more}"
    return f"(TEXT | {opened})", [f"opening[lazy]: /(?s:.*){_escaped(written.opening)}\\n/"]


def _thought(is_token: IsToken) -> tuple[str, list[str]]:
    """Return an expression of reasoning with the mark behind it, and its rules."""
    if is_token(CLOSING):
        return f"TEXT {CLOSING}", []
    return "thought", [f"thought[lazy]: /(?s:.*){_escaped(CLOSING)}/"]


def _mark(text: str, is_token: IsToken) -> str:
    return text if is_token(text) else json.dumps(text)


def _escaped(text: str) -> str:
    """Return a regular expression of Lark that matches `text`."""
    return "".join(f"\\{each}" if each in "\\/.+*?()|[]{}^$#&-~" else each for each in text)

"""Prompt of a chat, the grammar of its answer and the form in which it is read, from template, tools and options."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from lopa.runtime.decoder import Decoder
from lopa.runtime.engine import Engine
from lopa.runtime.errors import (
    BadInputError,
    ChoicesRefusedError,
    GrammarRefusedError,
    MissingBackendError,
    TemplateArgumentError,
)
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.llguidance_library import lark_from_regex
from lopa.runtime.grammar.schema_patterns import check_set_operations
from lopa.runtime.plan import GRAMMARS
from lopa.runtime.text.reasoning_marks import CLOSING, OPENING
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.serve.chat.answer_grammar import Reasoning, answer_grammar, json_expression
from lopa.serve.chat.answer_parser import AnswerForm
from lopa.serve.chat.call_format import CallFormat, format_from_template
from lopa.serve.chat.chat_options import has_reasoning, kwargs_for_template
from lopa.serve.openai.body_config import GrammarUnsupportedError
from lopa.serve.openai.body_options import MESSAGES
from lopa.serve.openai.field_error import FieldError, field_errors
from lopa.serve.protocols.answer_request import AnswerRequest

_TOOLS = "tools"


@dataclass(frozen=True)
class ChatAnswer:
    """Prompt of a chat, and the answer that it may have."""

    ids: list[int]
    config: GenerationConfig
    """Options of the request, with the grammar of its answer."""
    form: AnswerForm


def chat_answer(
    engine: Engine | Decoder, requested: AnswerRequest, config: GenerationConfig, call_format: CallFormat | None
) -> ChatAnswer:
    """Return the prompt of a chat and its answer.

    `call_format` is the operator's choice of a format, or None to recognise it from the template. Raises BadInputError
    for messages that the template rejects, and FieldError for tools that template, tokenizer or options do not allow.
    Choices are scored directly behind the prompt; ChoicesRefusedError says why that is not possible.
    """
    chat, tokenizer = requested.chat, engine.tokenizer
    template, calls = _template(engine, requested), None
    if chat.callable_tools is not None:
        with field_errors(_TOOLS):
            calls = call_format or format_from_template(template)
            _check_visible(tokenizer, calls.opening, calls.closing)
    ids = chat_prompt(engine, requested, config)
    form = AnswerForm(
        reasoning=_reasoning(tokenizer, template, ids),
        reasoning_marks_are_tokens=_is_token(tokenizer, CLOSING),
        calls=calls,
        call_marks_are_tokens=calls is not None and bool(calls.opening) and _is_token(tokenizer, calls.opening),
        names=frozenset() if calls is None else frozenset(each.name for each in _callable(requested)),
    )
    if config.choices is not None:
        _check_scored_directly(form)
        return ChatAnswer(ids, config, AnswerForm())
    return ChatAnswer(ids, _config_with_grammar(engine, requested, config, form), form)


def _check_scored_directly(form: AnswerForm) -> None:
    """Raise ChoicesRefusedError unless the answer follows the prompt directly, as a choice is scored."""
    wrong = None
    if form.calls is not None:
        wrong = "tools", "no tools, since the answer is one of the choices", "remove tools, or set tool_choice to none"
    elif form.reasoning == "open":
        wrong = (
            "a chat template that opens the reasoning",
            "a prompt that the answer follows directly",
            'turn reasoning off, e.g. "chat_template_kwargs": {"enable_thinking": false}',
        )
    if wrong is not None:
        raise ChoicesRefusedError(f"cannot combine choices with {wrong[0]}", expected=wrong[1], remedy=wrong[2])


def chat_prompt(engine: Engine | Decoder, requested: AnswerRequest, config: GenerationConfig) -> list[int]:
    """Return the token IDs of a chat's prompt. Raises as `chat_answer` does for messages and variables."""
    chat = requested.chat
    tools = None if chat.tools is None else [each.definition for each in chat.tools.tools]
    with field_errors(_TOOLS):
        # Marking and rendering takes far longer than this check.
        engine.tokenizer.check_length(sum(len(msgspec.json.encode(each).decode()) for each in tools or ()))
    param = requested.param_name(chat.reasons_param)
    messages, begun = _begun_answer(requested)
    try:
        ids = engine.prompt_from_messages(
            messages,
            special_tokens=config.special_tokens,
            tools=tools,
            chat_template_kwargs=kwargs_for_template(chat, _template(engine, requested), param=param),
        )
    except TemplateArgumentError as error:
        raise FieldError(error.argument, error.received, expected=error.expected, remedy=error.remedy) from error
    if begun is None:
        return ids
    if config.has_grammar or begun.get("reasoning_content") or engine.tokenizer.is_in_reasoning(ids):
        received = "the last message is the assistant's, and cannot be continued with structured output or thinking"
        raise BadInputError(received, expected="a user's message at the end", remedy="remove one of these")
    return ids + engine.tokenizer.encode(begun["content"], add_bos=False, special_tokens=bool(config.special_tokens))


def _begun_answer(requested: AnswerRequest) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return the messages before the answer, and the message that it continues: Anthropic's last one with text."""
    *messages, last = requested.messages
    if requested.endpoint != MESSAGES or last["role"] != "assistant" or last.get("tool_calls"):
        return requested.messages, None
    return messages, last


def _template(engine: Engine | Decoder, requested: AnswerRequest) -> str:
    return engine.tokenizer.chat_template(with_tools=requested.chat.tools is not None)


@contextmanager
def tool_grammar_errors(requested: AnswerRequest) -> Iterator[None]:
    """Turn errors of the grammar that the tools make into errors of the field `tools`."""
    try:
        yield
    except GrammarRefusedError as error:
        if requested.chat.callable_tools is None:
            raise
        raise FieldError(
            _TOOLS,
            f"the grammar of the tools is not usable: {error.received}",
            expected=error.expected,
            remedy="simplify the schemas of the tools, or raise the number of tokens",
        ) from error


def _callable(requested: AnswerRequest) -> tuple[Any, ...]:
    tools = requested.chat.callable_tools
    return () if tools is None else tools.callable_tools


def _reasoning(tokenizer: Tokenizer, template: str, ids: list[int]) -> Reasoning:
    if tokenizer.is_in_reasoning(ids):
        return "open"
    if not has_reasoning(template) or tokenizer.is_behind_reasoning(ids) or tokenizer.hides(CLOSING):
        return "none"
    return "possible"


def _is_token(tokenizer: Tokenizer, mark: str) -> bool:
    return tokenizer.control_token(mark) is not None


def _check_visible(tokenizer: Tokenizer, *marks: str) -> None:
    hidden = next((mark for mark in marks if mark and tokenizer.hides(mark)), None)
    if hidden is not None:
        raise BadInputError(
            f"the tokenizer of this model marks {hidden} as special, so that answers do not show it",
            expected=f"a tokenizer whose token {hidden} is not special",
            remedy='export the checkpoint again with "special": false for this token in tokenizer.json',
        )


def _config_with_grammar(
    engine: Engine | Decoder, requested: AnswerRequest, config: GenerationConfig, form: AnswerForm
) -> GenerationConfig:
    """Return `config` with the grammar of the answer: reasoning, calls and structured output.

    Calls that are not required need no grammar. If library, tokenizer or options exclude grammars, such answers are
    only read.
    """
    tools = requested.chat.callable_tools
    given = next((name for name in GRAMMARS if getattr(config, name) is not None), None)
    if tools is None and (given is None or form.reasoning == "none"):
        return config
    param = _param(requested, given)
    if not engine.has_grammars:
        if given is None and tools is not None and tools.choice == "auto":
            return config
        raise GrammarUnsupportedError
    with field_errors(param):
        answer = None if given is None else _expression(given, getattr(config, given), tools is not None)
        text = answer_grammar(tools, form.calls, answer, form.reasoning, lambda mark: _is_token(engine.tokenizer, mark))
        if tools is None:
            return _with_grammar(engine, config, text)
        try:
            made = _with_grammar(engine, config, text)
            engine.plan(made)
        except BadInputError as error:
            if given is None and tools.choice == "auto" and _is_excluded(engine, config):
                return config
            raise error.with_received(f"tools make a grammar of the answer: {error.received}") from error
        return made


def _param(requested: AnswerRequest, given: str | None) -> str:
    if requested.chat.callable_tools is not None:
        return _TOOLS
    return requested.options.params.get(given or "", requested.param)


def _with_grammar(engine: Engine | Decoder, config: GenerationConfig, text: str) -> GenerationConfig:
    return engine.config(replace(config, json_schema=None, regex=None), grammar=text)


def _is_excluded(engine: Engine | Decoder, config: GenerationConfig) -> bool:
    """Return whether the options of a request exclude any grammar."""
    try:
        engine.plan(_with_grammar(engine, config, "start: /(?s:.*)/"))
    except BadInputError:
        return True
    return False


def _expression(option: str, text: str, with_tools: bool) -> str:
    """Return the Lark expression of an option's answer, as a part of a larger grammar."""
    if option == "json_schema":
        return json_expression(text)
    if option == "regex":
        check_set_operations(text)
        try:
            return lark_from_regex(text).strip()
        except MissingBackendError:
            raise
        except Exception as error:  # the library's parser
            raise BadInputError(
                f"regex is invalid: {error}", expected="a regular expression of Rust's regex crate", remedy="correct it"
            ) from error
    other = "tools" if with_tools else f"the reasoning that this model's chat template opens with {OPENING}"
    raise BadInputError(
        f"cannot combine a grammar with {other}",
        expected="a JSON schema or a regular expression",
        remedy="use one of them, or remove tools" if with_tools else "use one of them, or switch reasoning off",
    )

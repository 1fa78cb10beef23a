"""Token IDs of a chat, the grammar of its answer and the form in which the answer is read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from lopa.runtime.chat.answer_grammar import Reasoning, answer_grammar, json_expression
from lopa.runtime.chat.call_format import CallFormat, format_from_template
from lopa.runtime.chat.chat import REASONING, Chat, has_reasoning, requested_tools
from lopa.runtime.errors import BadInputError, ChoicesRefusedError, FieldError, MissingBackendError, field_errors
from lopa.runtime.generation_config import GenerationConfig, ResolvedOptions
from lopa.runtime.grammar.llguidance_library import lark_from_regex
from lopa.runtime.grammar.request_grammars import RequestGrammars
from lopa.runtime.grammar.schema_patterns import check_set_operations
from lopa.runtime.options import GRAMMARS
from lopa.runtime.text.chat_template import text_from_content
from lopa.runtime.text.tokenizer import THINK, Tokenizer

_TOOLS = "tools"


@dataclass(frozen=True)
class AnswerForm:
    """Form in which the answers of one request are read."""

    reasoning: Reasoning = "none"
    reasoning_marks: tuple[str, str] = THINK
    reasoning_marks_are_tokens: bool = False
    calls: CallFormat | None = None
    """Format of calls, or None if the answer makes none."""
    call_marks_are_tokens: bool = False
    names: frozenset[str] = frozenset()
    """Names of the tools that may be called."""

    @property
    def is_plain(self) -> bool:
        """True if the answer is text only."""
        return self.reasoning == "none" and self.calls is None


PLAIN = AnswerForm()


class PreparedChat(NamedTuple):
    """Prompt of a chat, and the answer that it may have."""

    ids: list[int]
    resolved: ResolvedOptions
    """Options of the request, with the grammar of its answer."""
    form: AnswerForm


Resolve = Callable[[GenerationConfig], ResolvedOptions]
"""Function that returns the value of every option. Raises BadInputError for an invalid combination."""


def prepare_chat(
    chat: Chat, config: GenerationConfig, tokenizer: Tokenizer, grammars: RequestGrammars, resolve: Resolve
) -> PreparedChat:
    """Return the prompt of a chat and its answer.

    Raises BadInputError for messages that the template rejects, and FieldError for tools, reasoning and variables that
    template, tokenizer or options do not allow. Choices are scored directly behind the prompt; ChoicesRefusedError says
    why that is not possible.
    """
    calls, tools = None, requested_tools(chat) if chat.may_call else None
    template = _template(tokenizer, chat)
    if tools is not None:
        with field_errors(_TOOLS):
            calls = chat.call_format or format_from_template(template)
            _check_visible(tokenizer, calls.opening, calls.closing)
    ids = ids_from_chat(tokenizer, chat, config)
    form = AnswerForm(
        reasoning=_reasoning(tokenizer, template, ids),
        reasoning_marks=tokenizer.reasoning_marks,
        reasoning_marks_are_tokens=_is_token(tokenizer, tokenizer.reasoning_marks[1]),
        calls=calls,
        call_marks_are_tokens=calls is not None and bool(calls.opening) and _is_token(tokenizer, calls.opening),
        names=frozenset(() if tools is None else (each.name for each in tools.callable_tools)),
    )
    if config.choices is not None:
        _check_scored_directly(form)
        return PreparedChat(ids, resolve(config), PLAIN)
    given = next((name for name in GRAMMARS if getattr(config, name) is not None), None)
    is_free = given is None and (tools is None or tools.choice == "auto")  # calls that are not required need no grammar
    has_grammar = grammars.are_supported and (calls is None or calls.is_json)
    if (tools is None and (given is None or form.reasoning == "none")) or (is_free and not has_grammar):
        return PreparedChat(ids, resolve(config), form)
    _check_marks(form)
    _ = grammars.vocabulary  # raises without llguidance
    with field_errors(_TOOLS if tools is not None else given or _TOOLS):
        reasoning = form.reasoning if form.reasoning_marks == THINK else "none"
        answer = None if given is None else _expression(given, getattr(config, given), tools is not None)
        text = answer_grammar(tools, calls, answer, reasoning, lambda mark: _is_token(tokenizer, mark))
        try:
            return PreparedChat(ids, resolve(_with_grammar(config, text)), form)
        except BadInputError as error:
            if is_free and not _allows_grammar(config, resolve):  # such answers are only read
                return PreparedChat(ids, resolve(config), form)
            if tools is None:
                raise
            raise error.with_received(f"tools make a grammar of the answer: {error.received}") from error


def ids_from_chat(tokenizer: Tokenizer, chat: Chat, config: GenerationConfig) -> list[int]:
    """Return the token IDs of a chat's prompt. Raises as `prepare_chat` does for messages and variables."""
    tools = requested_tools(chat)
    definitions = None if tools is None else [each.definition for each in tools.tools]
    with field_errors(_TOOLS):
        # Marking and rendering takes far longer than this check.
        tokenizer.check_length(sum(len(msgspec.json.encode(each).decode()) for each in definitions or ()))
    messages, begun = _begun_answer(chat)
    ids = tokenizer.chat(
        messages,
        special_tokens=config.special_tokens,
        tools=definitions,
        chat_template_kwargs=chat.template_kwargs(_template(tokenizer, chat)),
    )
    if begun is None:
        return ids
    if config.has_grammar or begun.get("reasoning_content") or tokenizer.is_in_reasoning(ids):
        received = "the last message is the assistant's, and cannot be continued with structured output or thinking"
        raise BadInputError(received, expected="a user's message at the end", remedy="remove one of these")
    text = text_from_content(begun["content"])
    return ids + tokenizer.encode(text, add_bos=False, special_tokens=config.special_tokens)


def _begun_answer(chat: Chat) -> tuple[list[Mapping[str, Any]], Mapping[str, Any] | None]:
    """Return the messages before the answer, and the message that it continues: the assistant's last one with text."""
    messages = list(chat.messages)
    last: Mapping[str, Any] = messages[-1] if messages and chat.continues else {}
    if last.get("role") != "assistant" or last.get("tool_calls") or last.get("content") is None:
        return messages, None
    return messages[:-1], last


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


def _template(tokenizer: Tokenizer, chat: Chat) -> str:
    return tokenizer.chat_template(with_tools=requested_tools(chat) is not None)


def _reasoning(tokenizer: Tokenizer, template: str, ids: list[int]) -> Reasoning:
    if tokenizer.is_in_reasoning(ids):
        return "open"
    if (
        not has_reasoning(template)
        or tokenizer.is_behind_reasoning(ids)
        or tokenizer.hides(tokenizer.reasoning_marks[1])
    ):
        return "none"
    return "possible"


def _is_token(tokenizer: Tokenizer, mark: str) -> bool:
    return mark in tokenizer.added_texts.values()


def _check_visible(tokenizer: Tokenizer, *marks: str) -> None:
    hidden = next((mark for mark in marks if mark and tokenizer.hides(mark)), None)
    if hidden is not None:
        raise BadInputError(
            f"the tokenizer of this model marks {hidden} as special, so that answers do not show it",
            expected=f"a tokenizer whose token {hidden} is not special",
            remedy="remove tools",
            operator='export the checkpoint again with "special": false for this token in tokenizer.json',
        )


def _check_marks(form: AnswerForm) -> None:
    """Raise FieldError for calls and reasoning that a grammar cannot write."""
    if form.calls is not None and not form.calls.is_json:
        received = f"an answer with a grammar, and tools whose calls have the format {form.calls.name}"
        expected, remedy = "tool_choice auto without structured output", "remove tool_choice, or the structured output"
        raise FieldError(_TOOLS, received, expected=expected, remedy=remedy)
    if form.reasoning == "open" and form.reasoning_marks != THINK:
        received = f"a prompt that ends with {form.reasoning_marks[0]}, and an answer with a grammar"
        raise FieldError(REASONING, received, expected="no reasoning", remedy="turn reasoning off")


def _with_grammar(config: GenerationConfig, text: str) -> GenerationConfig:
    return replace(config, json_schema=None, regex=None, grammar=text)


def _allows_grammar(config: GenerationConfig, resolve: Resolve) -> bool:
    """Return whether the options of a request allow any grammar."""
    try:
        resolve(_with_grammar(config, "start: /(?s:.*)/"))
    except BadInputError:
        return False
    return True


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
    other = "tools" if with_tools else f"the reasoning that this model's chat template opens with {THINK[0]}"
    raise BadInputError(
        f"cannot combine a grammar with {other}",
        expected="a JSON schema or a regular expression",
        remedy="use one of them, or remove tools" if with_tools else "use one of them, or switch reasoning off",
    )

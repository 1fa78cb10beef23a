"""One complete answer of a reply: its result and its parts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lopa.runtime.chat.answer_grammar import Reasoning
from lopa.runtime.chat.prepared_chat import AnswerForm
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.result import GenerationResult, TextEvent
from lopa.runtime.text.tokenizer import THINK
from lopa.serve.chat.answer_parser import AnswerParser, Part, ReasoningText, merged_parts
from lopa.serve.chat.call_parser import ToolCall
from lopa.serve.openai.response_shapes import finish_reason_from_result

DecodeIds = Callable[[list[int]], str]


@dataclass(frozen=True)
class Choice:
    """One complete answer."""

    result: GenerationResult
    parts: tuple[Part, ...]
    """Reasoning, text and calls, in order. Neighbours of one kind are joined."""
    reasoning_tokens: int
    """Tokens up to the end of the reasoning."""

    @property
    def text(self) -> str:
        """Text without reasoning and calls."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def reasoning(self) -> str:
        """Text of the reasoning."""
        return "".join(part.text for part in self.parts if isinstance(part, ReasoningText))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Calls of tools."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def finish_reason(self) -> str:
        """OpenAI's finish_reason. An answer that was cut has the reason "length", even with calls."""
        reason = finish_reason_from_result(self.result)
        return "tool_calls" if self.calls and reason == "stop" else reason


def choice_from_handle(handle: RequestHandle, decode_ids: DecodeIds) -> Choice:
    """Return the choice of a request that has ended. Raises its error."""
    result, parser, parts = handle.result(0), AnswerParser(handle.form), list[Part]()
    if handle.form.is_plain:
        return choice_from_parts(result, [result.text] if result.text else [], handle.form, decode_ids)
    for event in handle.events_from(0)[0]:
        if isinstance(event, TextEvent):
            parts += parser.feed(event)
    return choice_from_parts(result, [*parts, *parser.end()], handle.form, decode_ids)


def choice_from_parts(result: GenerationResult, parts: list[Part], form: AnswerForm, decode_ids: DecodeIds) -> Choice:
    """Return the choice of a complete result."""
    tokens = count_reasoning_tokens(result.token_ids, decode_ids, form.reasoning, form.reasoning_marks)
    return Choice(result, merged_parts(parts), tokens)


def count_reasoning_tokens(
    ids: Sequence[int], decode_ids: DecodeIds, reasoning: Reasoning, marks: tuple[str, str] = THINK
) -> int:
    """Return the number of the first tokens that write the reasoning and its marks."""
    if reasoning == "none" or not ids:
        return 0
    if reasoning == "possible" and not decode_ids(list(ids)).lstrip().startswith(marks[0]):
        return 0
    if marks[1] not in decode_ids(list(ids)):
        return len(ids)
    low, high = 1, len(ids)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if marks[1] in decode_ids(list(ids[:middle])) else (middle + 1, high)
    return low

"""Replies of OpenAI's chats and completions. Fields that OpenAI lacks go into "lopa"."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from lopa.serve.chat.answer_parser import Part, ReasoningText
from lopa.serve.chat.call_parser import ToolCall
from lopa.serve.http.api_error import ApiError
from lopa.serve.openai.response_shapes import (
    SHAPES,
    choice_from_result,
    logprobs_from_result,
    lopa_fields_from_result,
)
from lopa.serve.protocols.choice import Choice
from lopa.serve.protocols.reply_format import DONE, ReplyContext, encode_event, token_counts


class OpenAIReply:
    """Reply to a chat or a completion."""

    def __init__(self, context: ReplyContext) -> None:
        self._context, self._shape = context, SHAPES[context.requested.endpoint]
        stream = context.requested.stream
        self._with_usage = stream is not None and stream.usage
        self._calls: dict[int, int] = {}
        """Number of calls so far, by choice."""

    @property
    def id(self) -> str:
        """ID of the reply. It is also the request ID in headers, unless the client sent one."""
        return self._shape.id + self._context.number

    def body(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Return the body of a reply that is not streamed."""
        written = [
            {**self._choice(index, choice), "lopa": lopa_fields_from_result(choice.result)}
            for index, choice in enumerate(choices)
        ]
        return {**self._head(self._shape.object), "choices": written, "usage": self._usage(choices)}

    def begin(self, count: int, prompt_tokens: int) -> bytes:  # noqa: ARG002
        """Return the first event of each choice, if the endpoint sends one or the client wants its prompt."""
        first = self._shape.first
        if self._context.requested.echo:
            return b"".join(self._chunk(index, self._shape.part(self._prompt(index))) for index in range(count))
        return b"" if first is None else b"".join(self._chunk(index, first) for index in range(count))

    def _prompt(self, index: int) -> str:
        """Return the text of the prompt of a choice."""
        requested = self._context.requested
        prompt = requested.prompts[index // requested.copies]
        return prompt if isinstance(prompt, str) else self._context.decode_ids(cast(list[int], prompt))

    def part(self, index: int, part: Part) -> bytes:
        """Return the event of a part. A call is complete in one event."""
        if isinstance(part, ToolCall):
            number = self._calls.get(index, 0)
            self._calls[index] = number + 1
            return self._chunk(index, {"delta": {"tool_calls": [{"index": number, **self._call(index, number, part)}]}})
        if isinstance(part, ReasoningText):
            return self._chunk(index, {"delta": _reasoning(part.text)})
        return self._chunk(index, self._shape.part(part))

    def draft(self, index: int, fields: Mapping[str, Any]) -> bytes:
        """Return the event of a draft, with an empty delta."""
        return self._chunk(index, {**self._shape.part(""), "lopa": fields})

    def choice_ended(self, index: int, choice: Choice) -> bytes:
        """Return the event with the finish reason."""
        end = {
            **self._shape.part(""),
            "logprobs": logprobs_from_result(self._shape, choice.result, self._context.decode_ids),
            "finish_reason": choice.finish_reason,
            "lopa": lopa_fields_from_result(choice.result),
        }
        return self._chunk(index, end)

    def end(self, choices: Sequence[Choice]) -> bytes:
        """Return the usage, if requested, and [DONE]."""
        usage = {**self._head(self._shape.chunk), "choices": [], "usage": self._usage(choices)}
        return (encode_event(usage) if self._with_usage else b"") + DONE

    def error(self, error: ApiError) -> bytes:
        """Return the event of an error, without [DONE]."""
        return encode_event(error.body)

    def _head(self, kind: str) -> dict[str, Any]:
        """Return the fields that begin the reply or a stream part; `kind` is its `object`."""
        return {
            "id": self.id,
            "object": kind,
            "created": self._context.created,
            "model": self._context.model,
            "system_fingerprint": self._context.fingerprint,
        }

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        written = choice_from_result(self._shape, index, choice.result, self._context.decode_ids)
        if "message" not in written:
            prompt = self._prompt(index) if self._context.requested.echo else ""
            return {**written, "text": prompt + written["text"]}
        message: dict[str, Any] = {**written["message"], "content": choice.text}
        if choice.reasoning:
            message |= _reasoning(choice.reasoning)
        if choice.calls:
            message["content"] = choice.text or None
            message["tool_calls"] = [self._call(index, number, call) for number, call in enumerate(choice.calls)]
        return {**written, "message": message, "finish_reason": choice.finish_reason}

    def _call(self, index: int, number: int, call: ToolCall) -> dict[str, Any]:
        return {
            "id": f"call_{self._context.call_id(index, number)}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }

    def _usage(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Return the usage object: tokens of all choices, steps and tokens per forward."""
        prompts, cached, tokens, reasoning = token_counts(choices, self._context.requested.copies)
        steps = sum(choice.result.steps for choice in choices)
        lopa_fields = {
            "steps": steps,
            "generated_positions": sum(choice.result.generated_positions for choice in choices),
            "tokens_per_forward": tokens / steps if steps else 0.0,
        }
        drafts = [each for choice in choices if (each := choice.result.draft_probability) is not None]
        if drafts:
            lopa_fields["draft_probability"] = sum(drafts) / len(drafts)
        return {
            "prompt_tokens": prompts,
            "completion_tokens": tokens,
            "total_tokens": prompts + tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
            "lopa": lopa_fields,
        }

    def _chunk(self, index: int, fields: Mapping[str, Any]) -> bytes:
        choice = {"index": index, "logprobs": None, "finish_reason": None, **fields}
        usage = {"usage": None} if self._with_usage else {}
        return encode_event({**self._head(self._shape.chunk), "choices": [choice], **usage})


def _reasoning(text: str) -> dict[str, str]:
    """Return the fields with reasoning. Clients read one of the two names."""
    return {"reasoning_content": text, "reasoning": text}

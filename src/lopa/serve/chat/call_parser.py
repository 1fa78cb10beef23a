"""Text of an answer, split into plain text and complete tool calls as it arrives.

A call is complete JSON of a known tool. Everything else stays text, so that nothing the model wrote is lost. This
module does not depend on grammars: it also reads answers that were decoded freely.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from lopa.runtime.chat.call_format import CallFormat
from lopa.runtime.text.text_stream import partial_mark_length
from lopa.serve.chat.reasoning_parser import token_mark, without_token_marks

_Object = dict[str, msgspec.Raw]
"""JSON object whose values are only checked. JSON allows numbers that no type here holds, such as 1e400."""
_MAX_RETRIES = 32
"""Maximum broken calls after which the rest of an answer is searched again for calls."""
_JSON_TEXT = r'"(?:[^"\\]|\\.)*"'
_BEFORE_BARE_CALL = "<|python_tag|>"
_BETWEEN_BARE_CALLS = " \n\t\r;"


@dataclass(frozen=True)
class ToolCall:
    """One complete call."""

    name: str
    arguments: str
    """Text of a JSON object, exactly as the model wrote it."""


CallPart = str | ToolCall


class CallParser:
    """Parser of one answer. White space around calls is dropped.

    Its input is marked text if marks are tokens (lopa.serve.chat.reasoning_parser).
    """

    def __init__(self, written: CallFormat, names: Collection[str], *, marks_are_tokens: bool = False) -> None:
        """Store the format of calls and the names of the tools."""
        self._written, self._names = written, frozenset(names)
        self._opening = token_mark(written.opening) if marks_are_tokens else written.opening
        self._closing = token_mark(written.closing) if marks_are_tokens else written.closing
        self._quote = written.quote if written.is_json or not marks_are_tokens else token_mark(written.quote)
        self._waiting = ""
        """Text that may still be part of a call."""
        self._is_behind_call = False
        """True until text follows a call. White space there is dropped."""
        quote = re.escape(self._quote)
        string = _JSON_TEXT if written.is_json else f"{quote}.*?{quote}"
        self._in_string_or_mark = re.compile(f"{string}|{re.escape(self._closing)}", re.DOTALL)
        self._searched = 0
        """Position in `_waiting` up to which no closing mark was found."""

    def feed(self, text: str) -> list[CallPart]:
        """Return the parts that are certain after `text`."""
        self._waiting += text
        return self._marked_parts() if self._opening else self._bare_text()

    def end(self) -> list[CallPart]:
        """Return the remaining parts at the end of the answer. A call that was cut off is text."""
        if not self._opening:
            return self._bare_calls()
        parts = self._marked_parts()
        for _ in range(_MAX_RETRIES):
            if not self._waiting.lstrip().startswith(self._opening):
                break
            end = self._waiting.index(self._opening) + len(self._opening)
            broken, self._waiting, self._searched = self._waiting[:end], self._waiting[end:], 0
            parts += [broken, *self._marked_parts()]
        rest, self._waiting = self._waiting, ""
        return parts + self._text(rest)

    def _marked_parts(self) -> list[CallPart]:
        opening, closing = self._opening, self._closing
        parts: list[CallPart] = []
        while (start := self._waiting.find(opening)) >= 0:
            end = self._end_of_call(start + len(opening))
            if end is None:
                before = self._waiting[:start].rstrip()
                self._waiting, self._searched = self._waiting[len(before) :], max(0, self._searched - len(before))
                return parts + self._text(before)
            before, written = self._waiting[:start], self._waiting[start:end]
            call = self._call(written[len(opening) : -len(closing)])
            if call is None:
                parts += self._text(before + written)
            else:
                parts += [*self._text(before.rstrip()), call]
                self._is_behind_call = True
            self._waiting, self._searched = self._waiting[end:], 0
        keep = partial_mark_length(self._waiting, [opening])
        # White space may precede a call, and is dropped then.
        keep = max(keep, len(self._waiting) - len(self._waiting[: len(self._waiting) - keep].rstrip()))
        cut = len(self._waiting) - keep
        before, self._waiting, self._searched = self._waiting[:cut], self._waiting[cut:], 0
        return parts + self._text(before)

    def _end_of_call(self, position: int) -> int | None:
        """Return the end of the first closing mark outside of a string, or None if it has not arrived."""
        position = max(position, self._searched)
        while (found := self._in_string_or_mark.search(self._waiting, position)) is not None:
            if found[0] == self._closing:
                inside = self._waiting.find(self._quote, position, found.start())
                return None if inside >= 0 else found.end()
            if self._waiting.find(self._quote, position) < found.start():
                return None
            position = self._searched = found.end()
        return None

    def _text(self, text: str) -> list[CallPart]:
        """Return `text` as a part, without the white space behind a call."""
        text = text.lstrip() if self._is_behind_call else text
        self._is_behind_call = self._is_behind_call and not text
        return [text] if text else []

    def _bare_text(self) -> list[CallPart]:
        """Return text at once if it cannot be a call. Calls without marks are known at the end only."""
        begin = self._waiting.lstrip()
        if not begin or begin[0] == "{" or _BEFORE_BARE_CALL.startswith(begin[: len(_BEFORE_BARE_CALL)]):
            return []
        text, self._waiting = self._waiting, ""
        return [text]

    def _bare_calls(self) -> list[CallPart]:
        """Return the calls that make up the whole answer, otherwise its text."""
        text, self._waiting = self._waiting, ""
        rest = text.strip().removeprefix(_BEFORE_BARE_CALL).lstrip()
        calls: list[CallPart] = []
        while rest:
            size = _object_size(rest)
            call = None if size is None else self._call(rest[:size])
            if call is None:
                return [text]
            calls.append(call)
            rest = rest[size:].lstrip(_BETWEEN_BARE_CALLS)
        return calls or ([text] if text else [])

    def _call(self, text: str) -> ToolCall | None:
        """Return the call that `text` writes, or None if it is none, or not a call of one of the tools."""
        try:
            name, written = self._fields(text) if self._written.is_json else self._fields_of_gemma(text)
            msgspec.json.decode(written, type=_Object)
        except (msgspec.DecodeError, KeyError, RecursionError, UnicodeError):
            return None
        if not isinstance(name, str) or name not in self._names:
            return None
        return ToolCall(name, written)

    def _fields(self, text: str) -> tuple[Any, str]:
        fields = msgspec.json.decode(without_token_marks(text), type=_Object)
        return msgspec.json.decode(fields["name"]), bytes(fields.get(self._written.arguments, b"{}")).decode()

    def _fields_of_gemma(self, text: str) -> tuple[str, str]:
        """Return the name in call:NAME{key:value}, and the arguments as JSON. They are no JSON if `text` is no call."""
        quote = re.escape(self._quote)
        head, opening, arguments = text.partition("{")
        call, _, name = head.strip().partition(":")
        parts = re.compile(rf"{quote}(.*?){quote}|{_JSON_TEXT}|(?:(?!{quote})[^{{}}\[\],:\"])+|.", re.DOTALL)

        def written(part: re.Match[str]) -> str:
            is_key = part.string.startswith(":", part.end()) and part[0].strip()[:1] not in ("", ":", '"')
            found = part[0].strip() if is_key and part[1] is None else part[1]
            return part[0] if found is None else msgspec.json.encode(without_token_marks(found)).decode()

        return name, without_token_marks(parts.sub(written, opening + arguments)) if call == "call" else ""


def _object_size(text: str) -> int | None:
    """Return the length of the JSON object that begins `text`, found by its brackets, or None if it does not end."""
    depth = 0
    for found in re.finditer(_JSON_TEXT + "|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.end() if text[0] == "{" else None
    return None

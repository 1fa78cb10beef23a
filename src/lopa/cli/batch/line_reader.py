"""Conversion of a line in a file of prompts to a request for a decoder. A bad line becomes its error."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from lopa.batch.plain_line import fields_of_result, id_of_line, options_of_prompt, parse_plain_line
from lopa.cli.batch.openai_line import OpenAIAnswerFormat, is_openai_line, request_from_openai_line
from lopa.cli.batch.prompt_lines import MAX_LINE_BYTES, ChatFormat, RawLine
from lopa.runtime.chat.chat import Chat
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import REQUEST_ERRORS, BadInputError, LopaError, errors_as_bad_input
from lopa.runtime.files.untrusted_input import object_from_json
from lopa.runtime.generation_config import GenerationConfig, ResolvedOptions
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.request import Prompt, Request
from lopa.serve.openai.body_options import LENGTH, BodyOptions
from lopa.serve.openai.body_requests import body_errors, options_of_body, requests_from_body
from lopa.serve.openai.request import AnswerRequest
from lopa.serve.protocols.answer_request import renamed_fields


@dataclass(frozen=True)
class PlainAnswerFormat:
    """The format of the answer to a line of this project's own format."""

    line: RawLine
    id: str | int | float | None = None
    prompt_ids: bool = True
    """True to include the token ids of the prompt."""

    def from_handles(self, handles: Sequence[RequestHandle]) -> dict[str, Any]:
        """Return the fields that identify the line, then the fields of its one result. Raises the request's error."""
        (handle,) = handles
        return {**self._names(), **fields_of_result(handle.result(0), prompt_ids=self.prompt_ids)}

    def from_error(self, error: LopaError) -> dict[str, Any]:
        """Return the fields that identify the line, and the error's text."""
        return {**self._names(), "error": str(error)}

    def _names(self) -> dict[str, Any]:
        named = {} if self.id is None else {"id": self.id}
        return {**named, "line": self.line.number, "request": self.line.digest}


_EXPECTED = 'a JSON object such as {"prompt": text}'
_REMEDY = "correct the line"


AnswerFormat = PlainAnswerFormat | OpenAIAnswerFormat
"""Writer of the answer to a line, from its requests that have ended or from an error."""


@dataclass(frozen=True)
class RequestLine:
    """A line of a file of prompts with its requests or error and the format of its answer."""

    line: RawLine
    requests: Sequence[Request | LopaError]
    format: AnswerFormat


@dataclass(frozen=True)
class LineReader:
    """Reader of the lines of a run, with the options of the command line."""

    decoder: Decoder
    options: Mapping[str, Any]
    """Options of the command line, by the names of GenerationConfig."""
    resolved: ResolvedOptions
    """Values of `options`, for lines that set no options."""
    chat: ChatFormat | None
    prompt_ids: bool
    """True to include the token ids of the prompt in results."""

    @property
    def decoded_with(self) -> bytes:
        """Digest of everything that determines an answer, except the line itself and a seed that it draws."""
        manifest = self.decoder.bundle.manifest
        bundle: dict[str, Any] = {record.path: record.sha256 for record in manifest.files}
        if manifest.defaults or manifest.chat_template is not None:
            bundle["manifest"] = [manifest.defaults, manifest.chat_template]
        if manifest.presets:
            presets = {name: preset.options for name, preset in manifest.presets.items()}
            bundle["presets"] = [self.resolved.preset, presets]
        chat = None if self.chat is None else asdict(self.chat)
        config = self.resolved.config.requested()
        return hashlib.sha256(json.dumps([bundle, config, chat], sort_keys=True).encode()).digest()

    def request_line(self, line: RawLine) -> RequestLine:
        """Return the requests of `line`, or its error, with the format of the answer."""
        answer_format: AnswerFormat = PlainAnswerFormat(line, prompt_ids=self.prompt_ids)
        try:
            with errors_as_bad_input("the line cannot be used", expected=_EXPECTED, remedy=_REMEDY):
                value = _object_of_line(line)
                if is_openai_line(value):
                    manifest, decode_ids = self.decoder.bundle.manifest, self.decoder.tokenizer.decode
                    identity = value.get("custom_id"), value.get("url")
                    unread = answer_format = OpenAIAnswerFormat(line, *identity, manifest, decode_ids)
                    defaults = {**manifest.defaults, **self.options}
                    model = self.decoder.bundle.path.resolve().name
                    found = request_from_openai_line(value, model, defaults)
                    answer_format = replace(unread, requested=found)
                    return RequestLine(line, self._requests(found), answer_format)
                answer_format = PlainAnswerFormat(line, id_of_line(value), prompt_ids=self.prompt_ids)
                prompt, options = parse_plain_line(value)
                config = self.resolved.config
                if options:
                    config = GenerationConfig.from_mapping(options_of_prompt(self.options, options))
                return RequestLine(line, [Request(self.prompt(prompt), config)], answer_format)
        except REQUEST_ERRORS as error:
            return RequestLine(line, [error], answer_format)

    def prompt(self, given: Prompt) -> Prompt:
        """Return a prompt as it is, or with --chat the chat of a text. Raises BadInputError for ids with --chat."""
        if self.chat is None or isinstance(given, Chat):
            return given
        if isinstance(given, str):
            return self.chat.chat(given)
        raise BadInputError(
            "prompt_ids with --chat",
            expected='a "prompt" for the chat template, or "messages"',
            remedy="replace prompt_ids, or omit --chat",
        )

    def _requests(self, requested: AnswerRequest) -> list[Request]:
        """Return the requests of a line of OpenAI's format."""
        options = BodyOptions(options_of_prompt(self.options, requested.options.values), requested.options.params)
        with renamed_fields(requested.names), body_errors(requested):
            found = requests_from_body(requested, options_of_body(self.decoder, options))
        shortens = requested.shortens and LENGTH not in self.options
        return [replace(each, shortens=shortens) for each in found]


def _object_of_line(line: RawLine) -> dict[str, Any]:
    if line.content is None:
        raise BadInputError(
            f"more than {MAX_LINE_BYTES} bytes in one line", expected="a shorter line", remedy="shorten the prompt"
        )
    return object_from_json(line.content, source="not a JSON object", expected=_EXPECTED, remedy=_REMEDY, unique=True)

"""Conversion of a line in a file of prompts to a request for a decoder. A bad line becomes its error."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lopa.batch.plain_line import AnswerFormat, ParsedLine, id_of_line, parse_plain_line
from lopa.cli.batch.openai_answer import OpenAIAnswerFormat
from lopa.cli.batch.openai_line import is_openai_line, parse_openai_line
from lopa.cli.batch.prompt_lines import MAX_LINE_BYTES, RawLine
from lopa.cli.batch.result_lines import PlainAnswerFormat
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import errors_as_bad_input, object_from_json
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.plan import GRAMMARS
from lopa.runtime.text.prompt_ids import Prompt, PromptRequest
from lopa.serve.openai.body_config import option_errors
from lopa.serve.openai.body_options import BodyOptions

_EXPECTED = 'a JSON object such as {"prompt": text}'
_REMEDY = "correct the line"


@dataclass(frozen=True)
class ChatFormat:
    """Conversion of a text into a chat, with an optional system message."""

    system: str | None = None

    def messages(self, text: str) -> list[dict[str, str]]:
        """Return `text` as a user's message, after the system message if there is one."""
        before = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*before, {"role": "user", "content": text}]


@dataclass(frozen=True)
class RequestLine:
    """A line of a file of prompts with its request or error and the format of its answer."""

    line: RawLine
    request: PromptRequest | BadInputError
    format: AnswerFormat


@dataclass(frozen=True)
class LineReader:
    """Reader of the lines of a run, with the options of the command line."""

    decoder: Decoder
    options: Mapping[str, Any]
    """Options of the command line, by the names of GenerationConfig."""
    config: GenerationConfig
    """Config from `options`, for lines that set no options."""
    chat: ChatFormat | None
    prompt_ids: bool
    """True to include the token ids of the prompt in results."""

    @property
    def decoded_with(self) -> bytes:
        """Digest of everything that determines an answer, except the line itself.

        A randomly drawn seed counts as no seed.
        """
        config = {**self.config.requested(), **{name: None for name, value in self.options.items() if value is None}}
        manifest = self.decoder.bundle.manifest
        bundle: dict[str, Any] = {record.path: record.sha256 for record in manifest.files}
        if manifest.defaults or manifest.chat_template is not None:
            bundle["manifest"] = [manifest.defaults, manifest.chat_template]
        if manifest.profiles:
            profiles = {name: profile.options for name, profile in manifest.profiles.items()}
            bundle["profiles"] = [self.decoder.profile_for(self.config), profiles]
        chat = None if self.chat is None else asdict(self.chat)
        return hashlib.sha256(json.dumps([bundle, config, chat], sort_keys=True).encode()).digest()

    def request_line(self, line: RawLine) -> RequestLine:
        """Return the request of `line`, or its error, with the format of the answer."""
        answer_format: AnswerFormat = PlainAnswerFormat(line, prompt_ids=self.prompt_ids)
        try:
            with errors_as_bad_input("the line cannot be used", expected=_EXPECTED, remedy=_REMEDY):
                value = _object_of_line(line)
                if is_openai_line(value):
                    bundle = self.decoder.bundle.path.resolve().name
                    answer_format = OpenAIAnswerFormat(line, value, bundle, self.decoder.tokenizer.decode)
                    return RequestLine(line, self._request(parse_openai_line(value)), answer_format)
                answer_format = PlainAnswerFormat(line, id_of_line(value), prompt_ids=self.prompt_ids)
                return RequestLine(line, self._request(parse_plain_line(value)), answer_format)
        except BadInputError as error:
            return RequestLine(line, error, answer_format)

    def prompt_of_text(self, text: str) -> Prompt:
        """Return `text` as it is, or with --chat the prompt of its chat."""
        return text if self.chat is None else self.decoder.prompt_from_messages(self.chat.messages(text))

    def _request(self, parsed: ParsedLine) -> PromptRequest:
        return PromptRequest(self._prompt(parsed), self._config(parsed))

    def _config(self, parsed: ParsedLine) -> GenerationConfig:
        options = parsed.options
        if not options:
            return self.config
        # An answer satisfies only one grammar, so a line's grammar replaces the command line's.
        own_grammar = any(name in options for name in GRAMMARS)
        usual = {name: value for name, value in self.options.items() if not own_grammar or name not in GRAMMARS}
        values = {**usual, "seed": self.config.seed, **options}
        if not parsed.params:
            return self.decoder.config(**values)
        with option_errors(self.decoder.config, BodyOptions(values, dict(parsed.params))):
            return self.decoder.config(**values)

    def _prompt(self, parsed: ParsedLine) -> Prompt:
        if parsed.messages is not None:
            return self.decoder.prompt_from_messages([dict(message) for message in parsed.messages])
        assert parsed.prompt is not None
        if self.chat is None or parsed.raw:
            return parsed.prompt
        if isinstance(parsed.prompt, str):
            return self.prompt_of_text(parsed.prompt)
        raise BadInputError(
            "prompt_ids with --chat",
            expected='a "prompt" for the chat template, or "messages"',
            remedy="replace prompt_ids, or omit --chat",
        )


def _object_of_line(line: RawLine) -> dict[str, Any]:
    if line.content is None:
        raise BadInputError(
            f"more than {MAX_LINE_BYTES} bytes in one line", expected="a shorter line", remedy="shorten the prompt"
        )
    return object_from_json(line.content, source="not a JSON object", expected=_EXPECTED, remedy=_REMEDY, unique=True)

"""From a line of a file of prompts to a request that a decoder takes. Never fails: a bad line holds its error."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lopa.cli.batch.asked_line import Answers, Asked, asked_of_line, id_of_line
from lopa.cli.batch.openai_answer import OpenAIAnswers
from lopa.cli.batch.openai_line import asked_of_openai_line, is_openai_line
from lopa.cli.batch.prompt_lines import MAX_LINE_BYTES, RawLine
from lopa.cli.batch.result_lines import PlainAnswers
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import object_from_json, refused_as_bad_input
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.plan import GRAMMARS
from lopa.runtime.text.prompt_ids import Prompt, PromptRequest
from lopa.serve.openai.config import errors_of_options
from lopa.serve.openai.options import BodyOptions

_EXPECTED = 'a JSON object such as {"prompt": text}'
_REMEDY = "correct the line"


@dataclass(frozen=True)
class ChatWrap:
    """Makes a chat of a text that is no chat yet."""

    system: str | None = None

    def messages(self, text: str) -> list[dict[str, str]]:
        """`text` as a user's message, behind the system's if there is one."""
        before = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*before, {"role": "user", "content": text}]


@dataclass(frozen=True)
class RequestLine:
    """A line of a file of prompts that is to be answered."""

    line: RawLine
    request: PromptRequest | BadInputError
    answers: Answers


@dataclass(frozen=True)
class LineReader:
    """What a run makes of its lines."""

    decoder: Decoder
    options: Mapping[str, Any]
    """Of the command line, by the names of GenerationConfig."""
    config: GenerationConfig
    """Made of them: what lines without options are decoded with."""
    chat: ChatWrap | None
    prompt_ids: bool
    """Whether results repeat the ids of their prompts."""

    @property
    def decoded_with(self) -> bytes:
        """A digest of all that an answer depends on beside its line; a seed that was drawn counts as no seed."""
        config = {**self.config.requested(), **{name: None for name, value in self.options.items() if value is None}}
        manifest = self.decoder.bundle.manifest
        bundle: dict[str, Any] = {record.path: record.sha256 for record in manifest.files}
        if manifest.defaults or manifest.chat_template is not None:
            bundle["manifest"] = [manifest.defaults, manifest.chat_template]
        chat = None if self.chat is None else asdict(self.chat)
        return hashlib.sha256(json.dumps([bundle, config, chat], sort_keys=True).encode()).digest()

    def request_line(self, line: RawLine) -> RequestLine:
        """What `line` asks for, or what is wrong with it, and how it is answered."""
        answers: Answers = PlainAnswers(line, prompt_ids=self.prompt_ids)
        try:
            with refused_as_bad_input("the line cannot be used", expected=_EXPECTED, remedy=_REMEDY):
                value = _object_of_line(line)
                if is_openai_line(value):
                    bundle = self.decoder.bundle.path.resolve().name
                    answers = OpenAIAnswers(line, value, bundle, self.decoder.tokenizer.decode)
                    return RequestLine(line, self._request(asked_of_openai_line(value)), answers)
                answers = PlainAnswers(line, id_of_line(value), prompt_ids=self.prompt_ids)
                return RequestLine(line, self._request(asked_of_line(value)), answers)
        except BadInputError as error:
            return RequestLine(line, error, answers)

    def prompt_of_text(self, text: str) -> Prompt:
        """A text as it is, or as a chat if that is asked for."""
        return text if self.chat is None else self.decoder.prompt_from_messages(self.chat.messages(text))

    def _request(self, asked: Asked) -> PromptRequest:
        return PromptRequest(self._prompt(asked), self._config(asked))

    def _config(self, asked: Asked) -> GenerationConfig:
        options = asked.options
        if not options:
            return self.config
        # An answer satisfies one grammar: a line's own takes the place of the command's.
        own_grammar = any(name in options for name in GRAMMARS)
        usual = {name: value for name, value in self.options.items() if not own_grammar or name not in GRAMMARS}
        values = {**usual, "seed": self.config.seed, **options}
        if not asked.params:
            return self.decoder.config(**values)
        with errors_of_options(self.decoder.config, BodyOptions(values, dict(asked.params))):
            return self.decoder.config(**values)

    def _prompt(self, asked: Asked) -> Prompt:
        if asked.messages is not None:
            return self.decoder.prompt_from_messages([dict(message) for message in asked.messages])
        assert asked.prompt is not None
        if self.chat is None or asked.raw:
            return asked.prompt
        if isinstance(asked.prompt, str):
            return self.prompt_of_text(asked.prompt)
        raise BadInputError(
            "prompt_ids with --chat",
            expected="a text to wrap, or messages",
            remedy="give the text, or leave --chat out",
        )


def _object_of_line(line: RawLine) -> dict[str, Any]:
    if line.content is None:
        raise BadInputError(
            f"more than {MAX_LINE_BYTES} bytes in one line", expected="a shorter line", remedy="shorten the prompt"
        )
    return object_from_json(line.content, source="not a JSON object", expected=_EXPECTED, remedy=_REMEDY)

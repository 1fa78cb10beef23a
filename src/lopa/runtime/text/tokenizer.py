"""Text to token IDs and back, with the tokenizer of a bundle. This module does not depend on decoding rules or stop
strings."""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Self

import numpy as np
import tokenizers

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import ROLES, SpecialTokens
from lopa.runtime.bundle.manifest_checks import find_role_errors
from lopa.runtime.checked_values import is_unicode, shown
from lopa.runtime.errors import BadInputError, PromptTooLongError, errors_as_bad_input
from lopa.runtime.files.untrusted_input import object_from_json
from lopa.runtime.text.chat_template import NO_KWARGS, RenderedChat, check_template, is_markup
from lopa.runtime.text.text_growth import TextGrowth
from lopa.runtime.text.tokenizer_text import tokenizer_from_text

OPENING, CLOSING = THINK = ("<think>", "</think>")
"""Marks before and behind the reasoning."""
CHANNEL = ("<|channel>thought", "<channel|>")
"""Marks of Gemma 4."""
_SHOWN = (*("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>"), '<|"|>')
"""Special tokens that answers show if the chat template writes them: marks of Gemma 4's reasoning and calls."""
TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
_LONG_TEXT = 1000
"""Characters from which other threads run while a text is encoded. It takes some microseconds per character."""
_TYPICAL_CHARACTERS = 16
"""Characters per token that a text may have before the longest token is looked up."""
_MAX_SHORTENING = 4
"""Factor by which a normalizer may shorten a text, by composing characters and merging white space."""
_REASONING_TOKENS = 32
"""Number of tokens at the end of a prompt in which <think> and the white space behind it lie."""

_Span = tuple[int, int, int]
"""ID, start and end of a special token in a text."""


class Tokenizer:
    """The tokenizer of one bundle."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        settings: Mapping[str, Any],
        bos: int | None,
        *,
        source: str,
        special: Collection[int] = (),
        positions: int | None = None,
    ) -> None:
        """Store the tokenizer. `backend` comes from tokenizer_from_text, `settings` from tokenizer_config.json.

        `source` names the bundle in errors. `special` are IDs that text never becomes, in addition to the special
        tokens of the tokenizer and of the chat template. Text that cannot fit into `positions` tokens is rejected
        before it is encoded.
        """
        self._backend = backend
        self._settings = settings
        self._bos = bos
        self._source = source
        self._positions = positions
        self._named = frozenset(special)

    @classmethod
    def open(cls, bundle: Bundle) -> Self:
        """Open the tokenizer of `bundle`, with the chat template of its manifest if there is one.

        A bundle that is signed by a trusted key may have any regular expression. Raises BadInputError when a file is
        missing or broken, or lacks the manifest's special tokens.
        """
        expected, remedy = "the tokenizer files that lopa-export onnx wrote", "export the checkpoint again"
        path, settings_path = bundle.file(TOKENIZER_NAME), bundle.file(TOKENIZER_CONFIG_NAME)
        text = bundle.content(TOKENIZER_NAME, expected=expected, remedy=remedy)
        settings_text = bundle.content(TOKENIZER_CONFIG_NAME, expected=expected, remedy=remedy)
        settings = object_from_json(settings_text, source=str(settings_path), expected="a JSON object", remedy=remedy)
        if bundle.manifest.chat_template is not None:
            settings = {**settings, "chat_template": bundle.manifest.chat_template}
        template = str(settings.get("chat_template"))
        backend = tokenizer_from_text(
            text,
            path,
            expected=expected,
            remedy=remedy,
            trusted=bool(bundle.signed),
            shown=_SHOWN if any(each in template for each in _SHOWN[:4]) else (),
        )
        named = bundle.manifest.special_tokens
        tokens = [*((name, getattr(named, name)) for name in ROLES), *(("stop", token) for token in named.stops)]
        unknown = [
            f"{name} {token}" for name, token in tokens if token is not None and backend.id_to_token(token) is None
        ]
        if unknown:
            raise BadInputError(
                f"{path} has no token for the manifest's {', '.join(unknown)}",
                expected="a tokenizer with the special tokens of the manifest",
                remedy=remedy,
            )
        special = [token for _, token in tokens if token is not None]
        positions = bundle.manifest.dimensions.max_positions
        opened = cls(backend, settings, named.bos, source=str(bundle.path), special=special, positions=positions)
        opened._check_roles(named)
        return opened

    def _check_roles(self, tokens: SpecialTokens) -> None:
        """Raise BadInputError if the tokenizer's special tokens differ from the manifest's."""
        ids = {name: self._backend.token_to_id(text) for name, text in special_token_texts(self._settings).items()}
        named = {name.removesuffix("_token"): number for name, number in ids.items() if number is not None}
        for received, expected in find_role_errors(tokens, named, self._backend.get_added_tokens_decoder()):
            raise BadInputError(
                f"the manifest of {self._source} has {received}",
                expected=expected,
                remedy="export the checkpoint again",
            )

    def definition(self) -> str:
        """Return the tokenizer as tokenizer.json, without padding and truncation."""
        with self._library_errors():
            return str(self._backend.to_str())

    @cached_property
    def joins_bytes(self) -> bool:
        """True if the text of IDs is the bytes of their tokens, one after another, whatever tokens are around them."""
        return isinstance(self._backend.decoder, tokenizers.decoders.ByteLevel)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """IDs of the special tokens, which `decode` skips."""
        return frozenset(i for i, token in self._backend.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def added_texts(self) -> dict[int, str]:
        """Texts by ID of the added tokens that are not special and that `decode` therefore shows.

        The chat template's markup comes before other tokens, and its closing marks come before the rest of it.
        """
        added = self._backend.get_added_tokens_decoder()
        shown = {each: added[each].content for each in added if not added[each].special and each not in self._named}
        marks = self._marks
        order = sorted(shown, key=lambda each: (each not in marks, not shown[each].startswith("</"), each))
        return {each: shown[each] for each in order}

    @cached_property
    def _marks(self) -> frozenset[int]:
        """IDs of the added tokens that the chat template writes, such as <tool_call>."""
        added = self._backend.get_added_tokens_decoder()
        return frozenset(
            number
            for number, token in added.items()
            if token.content in _SHOWN or any(is_markup(token.content, each) for each in self._templates)
        )

    @cached_property
    def _templates(self) -> Collection[str]:
        """Chat templates, with and without tools."""
        return {self.chat_template(with_tools=each) for each in (False, True)} if self.has_chat_template else ()

    @cached_property
    def reasoning_marks(self) -> tuple[str, str]:
        """Marks of the model's reasoning, if it reasons."""
        return CHANNEL if any(CHANNEL[1] in each for each in self._templates) else THINK

    @cached_property
    def _control_tokens(self) -> frozenset[int]:
        """IDs of control tokens, which plain text is never encoded as: special tokens and the chat template's markup.

        Many tokenizers do not mark <tool_call> or </think> as special, since answers show them.
        """
        added = self._backend.get_added_tokens_decoder()
        # A tokenizer may use an ordinary character for padding, which stays text.
        named = {each for each in self._named if each in added or len(self._backend.id_to_token(each) or "") > 1}
        return self.special_ids | self._marks | frozenset(named)

    def encode(self, prompt: str, *, add_bos: bool, special_tokens: bool = False) -> list[int]:
        """Return the token IDs of `prompt`. Texts of control tokens stay text, or become tokens with `special_tokens`.

        Control tokens are special tokens and tokens that the chat template writes. With `add_bos` the IDs begin with
        the bundle's beginning-of-text token, if it has one and the text does not begin with it. Raises BadInputError
        for text that is not Unicode (lone surrogates) or longer than the model's positions.
        """
        self._check_text(prompt)
        ids: list[int] = self._encoding(prompt).ids
        if not special_tokens and not self._control_tokens.isdisjoint(ids):
            ids = self._literal_ids(prompt)
        if not add_bos or self._bos is None or ids[:1] == [self._bos]:
            return ids
        return [self._bos, *ids]

    def token_spans(self, text: str) -> list[tuple[int, int, int]]:
        """Return each token of `text` without control tokens: its ID, and its characters from a start to an exclusive
        end. Raises BadInputError as `encode` does.
        """
        self._check_text(text)
        encoding = self._encoding(text, literal=True)
        return [(number, *span) for number, span in zip(encoding.ids, encoding.offsets, strict=True)]

    def _literal_ids(self, text: str) -> list[int]:
        """Return the token IDs of `text` without any control token."""
        encoding = self._encoding(text, literal=True)
        for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            # The model's vocabulary may contain a special token's text as a word, so split it. Unknown text stays.
            if number in self._control_tokens and end - start > 1 and number != self._unknown:
                return [*self._literal_ids(text[: start + 1]), *self._literal_ids(text[start + 1 :])]
        return list(encoding.ids)

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """The same tokenizer with special tokens as plain text, created on first use.

        It is a separate object, because settings must not change while other threads are encoding.
        """
        with self._library_errors():
            content = json.loads(self.definition())
            for token in content["added_tokens"]:
                token["special"] = token["special"] or token["id"] in self._control_tokens
            literal = tokenizers.Tokenizer.from_str(json.dumps(content))
            literal.encode_special_tokens = True
            return literal

    @cached_property
    def _unknown(self) -> int | None:
        """ID of the unknown token, or None."""
        model = json.loads(self.definition())["model"]
        text, number = model.get("unk_token"), model.get("unk_id")
        return number if text is None else self._backend.token_to_id(text)

    def _encoding(self, text: str, *, literal: bool = False) -> tokenizers.Encoding:
        with self._library_errors():
            backend = self._literal if literal else self._backend
            if len(text) < _LONG_TEXT:
                return backend.encode(text, add_special_tokens=False)
            # Only encode_batch lets other threads of Python run meanwhile.
            (encoding,) = backend.encode_batch([text], add_special_tokens=False)
            return encoding

    def _library_errors(self) -> AbstractContextManager[None]:
        """Return a context that turns failures of the tokenizers library, panics included, into BadInputError."""
        return errors_as_bad_input(
            "the bundle's tokenizer failed",
            expected="a tokenizer that accepts any text",
            operator="export the checkpoint again",
        )

    def decode(self, ids: Sequence[int], *, special_tokens: bool = False) -> str:
        """Return the text of `ids`, skipping unknown IDs and, unless requested, special tokens. Broken UTF-8 becomes
        U+FFFD."""
        with self._library_errors():
            return self._backend.decode(list(ids), skip_special_tokens=not special_tokens)

    def token_texts(self, ids: Sequence[int]) -> list[str | None]:
        """Return the vocabulary's text of each ID, as transformers' convert_ids_to_tokens does; None without one."""
        return [self._backend.id_to_token(each) for each in ids]

    def hides(self, text: str) -> bool:
        """Return whether `text` is a special token, which answers do not show."""
        added = self._backend.get_added_tokens_decoder()
        return any(token.special and token.content == text for token in added.values())

    def is_in_reasoning(self, ids: Sequence[int]) -> bool:
        """Return whether a prompt ends with <think>, so that its answer begins with reasoning."""
        return self._end_of_prompt(ids).endswith(self.reasoning_marks[0])

    def is_behind_reasoning(self, ids: Sequence[int]) -> bool:
        """Return whether a prompt ends with </think>, so that its answer has no reasoning."""
        return self._end_of_prompt(ids).endswith(self.reasoning_marks[1])

    def _end_of_prompt(self, ids: Sequence[int]) -> str:
        return self.decode(ids[-_REASONING_TOKENS:]).rstrip()

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        special_tokens: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] = NO_KWARGS,
    ) -> list[int]:
        """Return the token IDs of a chat by the bundle's template, up to the start of the answer. Raises as `chat_text`
        does.

        `tools` are definitions of functions in OpenAI's form, and `chat_template_kwargs` are further variables of the
        template.

        Only the template itself writes control tokens. Their texts in messages stay text, unless `special_tokens` is
        set. A chat without such texts is encoded as a whole.
        """
        chat = self._rendered_chat(messages, tools, chat_template_kwargs)
        text = chat.text
        ids, spans = self._ids_and_control_tokens(text)
        if special_tokens:
            return ids
        own = [place for run in _template_runs(chat.marks) for place in self._control_tokens_in(text, run)]
        return ids if own == spans else self._ids_with_control_tokens(text, own)

    def chat_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the text of a chat by the bundle's template, beginning-of-text included. `messages` have {"role",
        "content"}.

        Raises BadInputError for a bundle without a template, messages that the template rejects, and messages that are
        not Unicode.
        """
        return self._rendered_chat(messages).text

    def _rendered_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] = NO_KWARGS,
    ) -> RenderedChat:
        chat = RenderedChat(
            self.chat_template(with_tools=bool(tools)),
            messages,
            special_token_texts(self._settings),
            name="the bundle's chat template",
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
        )
        self._check_text(chat.text)
        return chat

    def _check_text(self, text: str) -> None:
        """Raise BadInputError for text that is too costly to encode, since encoding takes time in proportion to the
        text."""
        _check_unicode(text)
        self.check_length(len(text))
        with self._library_errors():
            self._growth.check(text)

    def check_length(self, characters: int) -> None:
        """Raise PromptTooLongError for a number of characters that no prompt of this model has."""
        if self._positions is not None and characters > self._positions * _TYPICAL_CHARACTERS:
            longest = self._positions * _MAX_SHORTENING * max(_TYPICAL_CHARACTERS, self._longest_token)
            if characters > longest:
                raise PromptTooLongError(
                    f"the text has {characters} characters",
                    expected=f"at most {longest} characters, as fit into the model's {self._positions} positions",
                    remedy="shorten the prompt",
                )

    @cached_property
    def _growth(self) -> TextGrowth:
        with self._library_errors():
            return TextGrowth(self._backend)

    @cached_property
    def _longest_token(self) -> int:
        """Characters of the longest token in the vocabulary."""
        return max(map(len, self._backend.get_vocab()), default=1)

    def _ids_and_control_tokens(self, text: str) -> tuple[list[int], list[_Span]]:
        """Return the IDs of `text` with control tokens, and the positions of the control tokens, without surrounding
        white space.
        """
        encoding = self._encoding(text)
        spans = []
        for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if number in self._control_tokens:
                spelt = text[start:end].strip() or text[start:end]
                begin = text.index(spelt, start)
                spans.append((number, begin, begin + len(spelt)))
        return list(encoding.ids), spans

    def _control_tokens_in(self, text: str, run: tuple[int, int]) -> list[_Span]:
        """Return the control tokens in the part `run` of `text`, encoded without the rest."""
        _, spans = self._ids_and_control_tokens(text[slice(*run)])
        return [(number, start + run[0], end + run[0]) for number, start, end in spans]

    def _ids_with_control_tokens(self, text: str, spans: Sequence[_Span]) -> list[int]:
        """Return the IDs of `text` with control tokens exactly at `spans`."""
        added = self._backend.get_added_tokens_decoder()
        ids: list[int] = []
        position = 0
        for number, start, end in spans:
            before, after = text[position:start], text[end:]
            if number in added and added[number].lstrip:
                before = before.rstrip()
            ids += [*self._literal_ids(before), number]
            swallowed = len(after) - len(after.lstrip()) if number in added and added[number].rstrip else 0
            position = end + swallowed
        return ids + self._literal_ids(text[position:])

    @property
    def has_chat_template(self) -> bool:
        """True if the bundle has a chat template."""
        try:
            self.chat_template()
        except BadInputError:
            return False
        return True

    def chat_template(self, *, with_tools: bool = False) -> str:
        """Return the only chat template, or the one named "default" of several.

        For a chat `with_tools` it is the one named "tool_use", if there is one. Raises BadInputError if there is none.
        """
        found = self._settings.get("chat_template")
        if isinstance(found, list):
            named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
            found = named.get("tool_use", named.get("default")) if with_tools else named.get("default")
        if not isinstance(found, str):
            raise BadInputError(
                "the bundle has no chat template",
                expected=f"a chat_template in {TOKENIZER_CONFIG_NAME}",
                remedy="use a plain prompt",
                operator="add a template: lopa-export edit BUNDLE --chat-template FILE, or --chat-template of serve",
            )
        return found

    def check_chat_template(self, name: str = "the given chat template") -> None:
        """Raise BadInputError unless there is a template that renders a user's message. `name` is for errors."""
        check_template(self.chat_template(), special_token_texts(self._settings), name=name)


def special_token_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of bos_token, eos_token and others from the content of tokenizer_config.json.

    A token is a string, or an object with `content`.
    """
    tokens: dict[str, str] = {}
    for name, value in settings.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


def _template_runs(marks: bytes) -> list[tuple[int, int]]:
    """Return the start and end of each run of zeros in `marks`: characters that the template wrote."""
    edges = np.flatnonzero(np.diff(np.frombuffer(b"\1" + marks + b"\1", np.uint8).astype(np.int8)))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def _check_unicode(text: str) -> None:
    if not is_unicode(text):
        raise BadInputError(
            f"prompt is not valid Unicode: {shown(text)}",
            expected="text that can be encoded as UTF-8",
            remedy="convert the input to UTF-8",
        )

"""Text to token ids and back, with the tokenizer of a bundle. Knows no decoding rule and no stop strings."""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Self

import numpy as np
import tokenizers

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import ROLES, SpecialTokens, reasons_against_roles
from lopa.runtime.checked_values import is_unicode, shown
from lopa.runtime.errors import BadInputError, PromptTooLongError
from lopa.runtime.files.untrusted_input import bytes_from_file, object_from_json, refused_as_bad_input
from lopa.runtime.template.text import marks_of
from lopa.runtime.text.chat_template import check_template, is_markup, text_from_messages
from lopa.runtime.text.text_growth import TextGrowth
from lopa.runtime.text.tokenizer_text import tokenizer_from_text

TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
_USUAL_CHARACTERS = 16
"""Of a token: what a text may have for each position before anybody looks how long tokens really are."""
_SHORTENED = 4
"""A normalizer may leave so little of a text: composed characters, white space run together."""

_Place = tuple[int, int, int]
"""A special token in a text: its id, where it begins and where it ends."""


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
        """`backend` is as tokenizer_from_text gives it, `settings` the content of tokenizer_config.json.

        `source` names the bundle in errors.

        `special` are ids that text never becomes, beside those of tokens that the tokenizer itself marks as special and
        of those that the chat template writes.
        Text that cannot become as few as `positions` tokens is refused unread.
        """
        self._backend = backend
        self._settings = settings
        self._bos = bos
        self._source = source
        self._positions = positions
        self._named = frozenset(special)

    @classmethod
    def open(cls, bundle: Bundle) -> Self:
        """The tokenizer of `bundle`, with the chat template of its manifest if that has one.

        Raises BadInputError when one of its files is missing or broken, or does not know the manifest's special tokens.
        """
        expected, remedy = "the tokenizer files that lopa-export onnx wrote", "export the checkpoint again"
        path, settings_path = bundle.file(TOKENIZER_NAME), bundle.file(TOKENIZER_CONFIG_NAME)
        text = bytes_from_file(path, expected=expected, remedy=remedy)
        backend = tokenizer_from_text(text, path, expected=expected, remedy=remedy)
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
        settings_text = bytes_from_file(settings_path, expected=expected, remedy=remedy)
        settings = object_from_json(settings_text, source=str(settings_path), expected="a JSON object", remedy=remedy)
        if bundle.manifest.chat_template is not None:
            settings = {**settings, "chat_template": bundle.manifest.chat_template}
        special = [token for _, token in tokens if token is not None]
        positions = bundle.manifest.dimensions.max_positions
        opened = cls(backend, settings, named.bos, source=str(bundle.path), special=special, positions=positions)
        opened._check_roles(named)
        return opened

    def _check_roles(self, tokens: SpecialTokens) -> None:
        """Raise BadInputError where the tokenizer has other special tokens than the manifest."""
        ids = {name: self._backend.token_to_id(text) for name, text in texts_of_special_tokens(self._settings).items()}
        named = {name.removesuffix("_token"): number for name, number in ids.items() if number is not None}
        for received, expected in reasons_against_roles(tokens, named, self._backend.get_added_tokens_decoder()):
            raise BadInputError(
                f"the manifest of {self._source} has {received}",
                expected=expected,
                remedy="export the checkpoint again",
            )

    def definition(self) -> str:
        """The tokenizer in the form of tokenizer.json, without padding and truncation."""
        with self._library():
            return str(self._backend.to_str())

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the special tokens, which `decode` leaves out."""
        return frozenset(i for i, token in self._backend.get_added_tokens_decoder().items() if token.special)

    @property
    def added_texts(self) -> dict[int, str]:
        """Texts by id of the added tokens that are not special, so that `decode` shows them.

        The chat template's marks come first, and of these the ones that close something.
        """
        added = self._backend.get_added_tokens_decoder()
        shown = {each: added[each].content for each in added if not added[each].special and each not in self._named}
        marks = self._marks
        order = sorted(shown, key=lambda each: (each not in marks, not shown[each].startswith("</"), each))
        return {each: shown[each] for each in order}

    @cached_property
    def _marks(self) -> frozenset[int]:
        """Added tokens that the chat template writes, such as <tool_call>."""
        template = self.chat_template() if self.has_chat_template else ""
        added = self._backend.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if is_markup(token.content, template))

    @cached_property
    def _never_text(self) -> frozenset[int]:
        """Control tokens, which text never becomes: special ones, and the marks of the chat template.

        Many tokenizers do not mark <tool_call> or </think> as special, since these are to be seen in answers.
        """
        added = self._backend.get_added_tokens_decoder()
        # A tokenizer may use an ordinary character for padding: that one stays what it is in text.
        named = {each for each in self._named if each in added or len(self._backend.id_to_token(each) or "") > 1}
        return self.special_ids | self._marks | frozenset(named)

    def encode(self, prompt: str, *, add_bos: bool, special_tokens: bool = False) -> list[int]:
        """Ids of `prompt`; the text of a control token is text, with `special_tokens` it becomes that token.

        Control tokens are the special ones and those that the bundle's chat template writes.

        With `add_bos` the beginning-of-text token comes first, if the bundle has one and the text does not begin with
        it already. Raises BadInputError for text that is not Unicode (lone surrogates), or that is longer than any that
        the model takes.
        """
        self._check_text(prompt)
        ids: list[int] = self._encoding(prompt).ids
        if not special_tokens and not self._never_text.isdisjoint(ids):
            ids = self._literal_ids(prompt)
        if not add_bos or self._bos is None or ids[:1] == [self._bos]:
            return ids
        return [self._bos, *ids]

    def _literal_ids(self, text: str) -> list[int]:
        """Ids of `text`, none of which is special."""
        encoding = self._encoding(text, literal=True)
        for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            # The model itself may know a special token's text as a word: cut, it is none. What it does not know stays.
            if number in self._never_text and end - start > 1 and number != self._unknown:
                return [*self._literal_ids(text[: start + 1]), *self._literal_ids(text[start + 1 :])]
        return list(encoding.ids)

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """The same tokenizer, to which special tokens are text; made when first needed.

        An object of its own: others may be encoding on other threads, where no setting can be changed meanwhile.
        """
        with self._library():
            content = json.loads(self.definition())
            for token in content["added_tokens"]:
                token["special"] = token["special"] or token["id"] in self._never_text
            literal = tokenizers.Tokenizer.from_str(json.dumps(content))
            literal.encode_special_tokens = True
            return literal

    @cached_property
    def _unknown(self) -> int | None:
        """The token that the model writes for a text that it does not know."""
        model = json.loads(self.definition())["model"]
        text, number = model.get("unk_token"), model.get("unk_id")
        return number if text is None else self._backend.token_to_id(text)

    def _encoding(self, text: str, *, literal: bool = False) -> tokenizers.Encoding:
        with self._library():
            return (self._literal if literal else self._backend).encode(text, add_special_tokens=False)

    def _library(self) -> AbstractContextManager[None]:
        """Around calls of the tokenizers library: a file that was taken may still make it panic at some text."""
        return refused_as_bad_input(
            f"the tokenizer of {self._source} fails",
            expected="a tokenizer that takes every text",
            remedy="export the checkpoint again",
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens and ids that the vocabulary lacks; broken UTF-8 becomes U+FFFD."""
        with self._library():
            return self._backend.decode(list(ids), skip_special_tokens=True)

    def chat(self, messages: Sequence[Mapping[str, Any]], *, special_tokens: bool = False) -> list[int]:
        """Ids of a chat by the bundle's template, up to where the answer begins; errors as for `chat_text`.

        Control tokens, special or not, are those that the template itself writes. What looks like one and has a
        character from a message is text, unless `special_tokens` asks for it. A chat without such texts has the ids of
        its whole text.
        """
        text = self._chat_text(messages)
        ids, places = self._ids_and_special_places(text)
        if special_tokens:
            return ids
        own = [place for run in _runs_of_template(marks_of(text)) for place in self._places_in(text, run)]
        return ids if own == places else self._ids_with_special_at(text, own)

    def chat_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Text of a chat ({"role", "content"} each) by the bundle's template, beginning-of-text included.

        Raises BadInputError when the bundle has no template, the template does not take these messages, or a message is
        no Unicode text.
        """
        return str(self._chat_text(messages))

    def _chat_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        text = text_from_messages(
            self.chat_template(), messages, texts_of_special_tokens(self._settings), source=self._source
        )
        self._check_text(text)
        return text

    def _check_text(self, text: str) -> None:
        """Raise BadInputError for what is not worth encoding, which takes time in proportion to the text."""
        _check_unicode(text)
        if self._positions is not None and len(text) > self._positions * _USUAL_CHARACTERS:
            longest = self._positions * _SHORTENED * max(_USUAL_CHARACTERS, self._longest_token)
            if len(text) > longest:
                raise PromptTooLongError(
                    f"a text of {len(text)} characters",
                    expected=f"at most {longest}, since no longer one fits into the model's {self._positions} positions",
                    remedy="shorten the prompt",
                )
        with self._library():
            self._growth.check(text)

    @cached_property
    def _growth(self) -> TextGrowth:
        with self._library():
            return TextGrowth(self._backend)

    @cached_property
    def _longest_token(self) -> int:
        """Characters of the longest token, as the vocabulary spells it."""
        return max(map(len, self._backend.get_vocab()), default=1)

    def _ids_and_special_places(self, text: str) -> tuple[list[int], list[_Place]]:
        """Ids of `text`, special tokens being tokens, and where those are; white space that they swallowed is not."""
        encoding = self._encoding(text)
        places = []
        for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if number in self._never_text:
                spelt = text[start:end].strip() or text[start:end]
                begin = text.index(spelt, start)
                places.append((number, begin, begin + len(spelt)))
        return list(encoding.ids), places

    def _places_in(self, text: str, run: tuple[int, int]) -> list[_Place]:
        """The special tokens of the part `run` of `text`, read without the rest."""
        _, places = self._ids_and_special_places(str(text)[slice(*run)])
        return [(number, start + run[0], end + run[0]) for number, start, end in places]

    def _ids_with_special_at(self, text: str, places: Sequence[_Place]) -> list[int]:
        """Ids of `text`, of which these places are special tokens and everything else is text."""
        added = self._backend.get_added_tokens_decoder()
        ids: list[int] = []
        position = 0
        for number, start, end in places:
            before, after = text[position:start], text[end:]
            if number in added and added[number].lstrip:
                before = before.rstrip()
            ids += [*self._literal_ids(str(before)), number]
            swallowed = len(after) - len(after.lstrip()) if number in added and added[number].rstrip else 0
            position = end + swallowed
        return ids + self._literal_ids(str(text[position:]))

    @property
    def has_chat_template(self) -> bool:
        """Whether there is a template for `chat` to put messages into."""
        try:
            self.chat_template()
        except BadInputError:
            return False
        return True

    def chat_template(self) -> str:
        """The only template, or of several named ones the one named "default".

        Raises BadInputError where there is none.
        """
        found = self._settings.get("chat_template")
        if isinstance(found, list):
            named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
            found = named.get("default")
        if not isinstance(found, str):
            raise BadInputError(
                f"{self._source} has no chat template",
                expected=f"a chat_template in {TOKENIZER_CONFIG_NAME}",
                remedy="give a plain prompt, or add a template: lopa-export edit BUNDLE --chat-template FILE",
            )
        return found

    def check_chat_template(self) -> None:
        """Raise BadInputError unless there is a template and it makes a prompt of a user's message."""
        check_template(
            self.chat_template(), texts_of_special_tokens(self._settings), name="the chat template that was given"
        )


def texts_of_special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of bos_token, eos_token and so on in the content of tokenizer_config.json.

    A token is written as its text or as an object with `content`.
    """
    tokens: dict[str, str] = {}
    for name, value in settings.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


def _runs_of_template(marks: bytes) -> list[tuple[int, int]]:
    """Beginnings and ends of the runs of zeros in `marks`: the characters that no message brought."""
    edges = np.flatnonzero(np.diff(np.frombuffer(b"\1" + marks + b"\1", np.uint8).astype(np.int8)))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def _check_unicode(text: str) -> None:
    if not is_unicode(text):
        raise BadInputError(
            f"a prompt that is not Unicode text: {shown(text)}",
            expected="text that can be written as UTF-8",
            remedy="convert the input to UTF-8",
        )

"""Text to token ids and back, with the tokenizer of a bundle. Knows no decoding rule and no stop strings."""

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import tokenizers

from lopa.runtime.bundle import Bundle
from lopa.runtime.chat_template import text_from_messages
from lopa.runtime.errors import BadInputError

TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"


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
    ) -> None:
        """`settings` is the content of tokenizer_config.json, `source` names the bundle in errors.

        `special` are ids that text never becomes, beside those of tokens that the tokenizer itself marks as special.
        """
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._settings = settings
        self._bos = bos
        self._source = source
        self._never_text = self.special_ids | frozenset(special)

    @classmethod
    def open(cls, bundle: Bundle) -> Self:
        """The tokenizer of `bundle`. Raises BadInputError when one of its files is missing or broken."""
        path = bundle.file(TOKENIZER_NAME)
        settings_path = bundle.file(TOKENIZER_CONFIG_NAME)
        try:
            backend = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
            settings = json.loads(settings_path.read_bytes())
        except Exception as error:  # the tokenizers library raises bare Exception
            raise BadInputError(
                f"{bundle.path} has no usable {TOKENIZER_NAME} and {TOKENIZER_CONFIG_NAME}: {error}",
                expected="the tokenizer files that lopa-export onnx wrote",
                remedy="export the checkpoint again",
            ) from error
        if not isinstance(settings, dict):
            raise BadInputError(
                f"{settings_path} holds no JSON object", expected="a JSON object", remedy="export the checkpoint again"
            )
        named = bundle.manifest.special_tokens
        special = [number for number in (named.mask, named.eos, named.bos, named.pad) if number is not None]
        return cls(backend, settings, named.bos, source=str(bundle.path), special=special)

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the special tokens, which `decode` leaves out."""
        return frozenset(i for i, token in self._backend.get_added_tokens_decoder().items() if token.special)

    def encode(self, prompt: str, *, add_bos: bool, special_tokens: bool = False) -> list[int]:
        """Ids of `prompt`; the text of a special token is text, with `special_tokens` it becomes that token.

        With `add_bos` the beginning-of-text token comes first, if the bundle has one and the text does not begin with
        it already. Raises BadInputError for text that is not Unicode (lone surrogates).
        """
        try:
            ids = self._backend.encode(prompt, add_special_tokens=False).ids
            if not special_tokens and not self._never_text.isdisjoint(ids):
                ids = self._literal_ids(prompt)
        except TypeError as error:
            raise BadInputError(
                f"a prompt that is not Unicode text: {prompt[:80]!r}",
                expected="text that can be written as UTF-8",
                remedy="convert the input to UTF-8",
            ) from error
        if not add_bos or self._bos is None or ids[:1] == [self._bos]:
            return ids
        return [self._bos, *ids]

    def _literal_ids(self, text: str) -> list[int]:
        """Ids of `text`, none of which is special."""
        encoding = self._literal.encode(text, add_special_tokens=False)
        for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            # The model itself may know a special token's text as a word: cut, it is none.
            if number in self._never_text and end - start > 1:
                return [*self._literal_ids(text[: start + 1]), *self._literal_ids(text[start + 1 :])]
        return list(encoding.ids)

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """The same tokenizer, to which special tokens are text; made when first needed.

        An object of its own: others may be encoding on other threads, where no setting can be changed meanwhile.
        """
        content = json.loads(self._backend.to_str())
        for token in content["added_tokens"]:
            token["special"] = token["special"] or token["id"] in self._never_text
        literal = tokenizers.Tokenizer.from_str(json.dumps(content))
        literal.encode_special_tokens = True
        return literal

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens and ids that the vocabulary lacks; broken UTF-8 becomes U+FFFD."""
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a chat by the bundle's template, up to where the answer begins; errors as for `chat_text`."""
        return self.encode(self.chat_text(messages), add_bos=False)

    def chat_text(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Text of a chat ({"role", "content"} each) by the bundle's template, beginning-of-text included.

        Raises BadInputError when the bundle has no template or the template does not take these messages.
        """
        return text_from_messages(self._chat_template(), messages, self._special_tokens(), source=self._source)

    @property
    def has_chat_template(self) -> bool:
        """Whether there is a template for `chat` to put messages into."""
        try:
            self._chat_template()
        except BadInputError:
            return False
        return True

    def _chat_template(self) -> str:
        """The only template, or of several named ones the one named "default"."""
        found = self._settings.get("chat_template")
        if isinstance(found, list):
            named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
            found = named.get("default")
        if not isinstance(found, str):
            raise BadInputError(
                f"{self._source} has no chat template",
                expected=f"a chat_template in {TOKENIZER_CONFIG_NAME}",
                remedy="give a plain prompt, or export a checkpoint that has a chat template",
            )
        return found

    def _special_tokens(self) -> dict[str, str]:
        """Texts of bos_token, eos_token and so on; a token is written as its text or as an object with `content`."""
        tokens: dict[str, str] = {}
        for name, value in self._settings.items():
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str):
                tokens[name] = text
        return tokens

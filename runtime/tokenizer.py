"""Text to token ids and back, with the tokenizer of a bundle. Knows no decoding rule and no stop strings."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec
import tokenizers

from lopa.runtime.bundle import Bundle
from lopa.runtime.chat_template import text_from_messages
from lopa.runtime.errors import BadInputError
from lopa.runtime.manifest import SpecialTokens
from lopa.runtime.untrusted_input import bytes_from_file, object_from_json, refused_as_bad_input

TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
_PROBE = "a text, 1"


class Tokenizer:
    """The tokenizer of one bundle."""

    def __init__(
        self, backend: tokenizers.Tokenizer, settings: Mapping[str, Any], bos: int | None, *, source: str
    ) -> None:
        """`settings` is the content of tokenizer_config.json, `source` names the bundle in errors."""
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._settings = settings
        self._bos = bos
        self._source = source

    @classmethod
    def open(cls, bundle: Bundle) -> Self:
        """The tokenizer of `bundle`.

        Raises BadInputError when one of its files is missing or broken, or does not know the manifest's special tokens.
        """
        expected, remedy = "the tokenizer files that lopa-export onnx wrote", "export the checkpoint again"
        path, settings_path = bundle.file(TOKENIZER_NAME), bundle.file(TOKENIZER_CONFIG_NAME)
        text = bytes_from_file(path, expected=expected, remedy=remedy)
        with refused_as_bad_input(f"{path} is not a tokenizer", expected=expected, remedy=remedy):
            backend = tokenizers.Tokenizer.from_str(text.decode("utf-8"))
            backend.encode(_PROBE, add_special_tokens=False)  # some broken files only fail here
            unknown = [
                f"{name} {token}"
                for name, token in msgspec.structs.asdict(bundle.manifest.special_tokens).items()
                if token is not None and backend.id_to_token(token) is None
            ]
        if unknown:
            raise BadInputError(
                f"{path} has no token for the manifest's {', '.join(unknown)}",
                expected="a tokenizer with the special tokens of the manifest",
                remedy=remedy,
            )
        settings_text = bytes_from_file(settings_path, expected=expected, remedy=remedy)
        settings = object_from_json(settings_text, source=str(settings_path), expected="a JSON object", remedy=remedy)
        opened = cls(backend, settings, bundle.manifest.special_tokens.bos, source=str(bundle.path))
        opened._check_roles(bundle.manifest.special_tokens)
        return opened

    def _check_roles(self, tokens: SpecialTokens) -> None:
        """Raise BadInputError where the tokenizer names another mask or beginning of text than the manifest.

        Only of these two has the tokenizer the last word in an export: config.json may give another end of text.
        """
        texts = self._special_tokens()
        for name in ("mask", "bos"):
            text, token = texts.get(f"{name}_token"), getattr(tokens, name)
            known = None if text is None else self._backend.token_to_id(text)
            if known is not None and known != token:
                raise BadInputError(
                    f"the manifest of {self._source} has special_tokens.{name} = {token}",
                    expected=f"{known}, the id of {name}_token in {TOKENIZER_CONFIG_NAME}",
                    remedy="export the checkpoint again",
                )

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the special tokens, which `decode` leaves out."""
        return frozenset(i for i, token in self._backend.get_added_tokens_decoder().items() if token.special)

    def encode(self, prompt: str, *, add_bos: bool) -> list[int]:
        """Ids of `prompt`; the text of a special token becomes that token.

        With `add_bos` the beginning-of-text token comes first, if the bundle has one and the text does not begin with
        it already. Raises BadInputError for text that is not Unicode (lone surrogates).
        """
        try:
            ids = self._backend.encode(prompt, add_special_tokens=False).ids
        except TypeError as error:
            raise BadInputError(
                f"a prompt that is not Unicode text: {prompt[:80]!r}",
                expected="text that can be written as UTF-8",
                remedy="convert the input to UTF-8",
            ) from error
        if not add_bos or self._bos is None or ids[:1] == [self._bos]:
            return ids
        return [self._bos, *ids]

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

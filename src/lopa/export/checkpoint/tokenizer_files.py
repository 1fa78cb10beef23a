"""Tokenizer of a checkpoint, converted to the tokenizer files of a bundle and the special token ids.

All files are read as data, with the meaning that AutoTokenizer of transformers gives them. Without a tokenizer.json the
tokenizer is made from vocab.json and merges.txt. No code of the checkpoint runs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lopa.export.checkpoint.added_tokens import added_tokens_from_checkpoint, check_ids, settings_with_special_tokens
from lopa.export.checkpoint.config import CONFIG_NAME, CheckpointConfig
from lopa.export.checkpoint.tokenizer_from_vocabulary import MERGES_NAME, VOCABULARY_NAME, tokenizer_from_vocabulary
from lopa.export.checkpoint.tokenizer_settings import check_tokenizer_settings
from lopa.export.json_file import json_object_from_file
from lopa.runtime.bundle.manifest import ROLES, SpecialTokens
from lopa.runtime.bundle.manifest_checks import find_role_errors, reasons_against_tokens
from lopa.runtime.errors import BadInputError, errors_as_bad_input
from lopa.runtime.files.untrusted_input import bytes_from_file
from lopa.runtime.text.chat_template import template_from_file
from lopa.runtime.text.tokenizer import Tokenizer as BundleTokenizer
from lopa.runtime.text.tokenizer_text import tokenizer_from_text

TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
CHAT_TEMPLATE_NAME = "chat_template.jinja"
_MORE_TEMPLATES = "additional_chat_templates"
_COPY_AGAIN = "copy the checkpoint again"
_TOKENIZER_FILE = "a file of the tokenizers library"
_MAX_SETTINGS_BYTES = 2**24
_MAX_TEMPLATE_BYTES = 2**20


@dataclass(frozen=True)
class TokenizerFiles:
    """Tokenizer files of the bundle, and the token ids that the decoder needs."""

    tokenizer: bytes
    """Content of tokenizer.json: the checkpoint's, with the tokens of its other files, or made from a vocabulary."""
    tokenizer_config: bytes
    """Content of tokenizer_config.json, including the chat template."""
    special_tokens: SpecialTokens
    assumed_mask: bool
    """True if no file names the mask token. Its id is then the default of the family's reference code."""
    adds_bos: bool = False
    """True if the tokenizer puts its beginning-of-text token before each text."""
    notes: tuple[str, ...] = ()
    """Warnings about entries that have no effect in the bundle."""


def tokenizer_files_from_checkpoint(
    checkpoint: Path, config: CheckpointConfig, chat_template: Path | None = None
) -> TokenizerFiles:
    """Read the tokenizer in the folder `checkpoint`. The file `chat_template` replaces the tokenizer's own.

    The beginning-of-text token comes from the tokenizer, because prompts are made with it. The others come from
    config.json, otherwise from the tokenizer. If neither names a mask token, the family identifies it by its text or
    its id.

    Raises BadInputError for a missing or broken tokenizer, for an invalid `chat_template`, and for token ids that are
    missing, contradictory or outside the vocabulary.
    """
    settings = settings_with_special_tokens(checkpoint, _settings_with_chat_template(checkpoint))
    if chat_template is not None:
        settings["chat_template"] = template_from_file(chat_template)
    path = checkpoint / TOKENIZER_NAME
    if path.is_file():
        text = bytes_from_file(path, expected=_TOKENIZER_FILE, remedy=_COPY_AGAIN)
        tokenizer = tokenizer_from_text(text, path, expected=_TOKENIZER_FILE, remedy=_COPY_AGAIN)
        own, listed = tokenizer.get_added_tokens_decoder(), repr(tokenizer.get_added_tokens_decoder())
        added = added_tokens_from_checkpoint(checkpoint, settings, tokenizer.get_vocab(), own)
        tokenizer.add_tokens([token for _, token in added])
        if repr(tokenizer.get_added_tokens_decoder()) != listed:
            added += tokenizer.get_added_tokens_decoder().items()
            text = tokenizer.to_str().encode("utf-8")
            tokenizer = tokenizer_from_text(text, path, expected=_TOKENIZER_FILE, remedy=_COPY_AGAIN)
            check_ids(added, tokenizer.get_vocab(), checkpoint)  # the library assigns ids again
        _check_vocabulary(tokenizer, config, path)
    else:
        tokenizer = _tokenizer_without_file(checkpoint, settings)
        text = tokenizer.to_str().encode("utf-8")
        _check_vocabulary(tokenizer, config, checkpoint)
        _check_config_ids(tokenizer, config, checkpoint)
    notes = check_tokenizer_settings(checkpoint, settings, tokenizer)
    first = _first_token(tokenizer, settings, path)
    special_tokens, assumed_mask = _special_tokens(config, tokenizer, settings, checkpoint, first)
    opened = BundleTokenizer(tokenizer, settings, None, source=str(checkpoint))
    try:
        if opened.has_chat_template:
            opened.check_chat_template(f"the chat template {chat_template or f'of {checkpoint}'}")
    except BadInputError as error:
        if chat_template is not None or error.__cause__ is None:  # one that fails says so in every chat
            raise
    return TokenizerFiles(
        tokenizer=text,
        tokenizer_config=json.dumps(settings, indent=2, ensure_ascii=False).encode("utf-8") + b"\n",
        special_tokens=special_tokens,
        assumed_mask=assumed_mask,
        adds_bos=first is not None,
        notes=notes,
    )


def _first_token(tokenizer: Tokenizer, settings: Mapping[str, Any], path: Path) -> int | None:
    """Return the token that the tokenizer puts before each text, or None.

    Raises BadInputError for a tokenizer that adds other tokens, which a prompt for diffusion must not have.
    """
    hints = {"expected": "at most a beginning-of-text token before the text", "remedy": f"correct {path.name}"}
    with errors_as_bad_input(f"the post_processor of {path} failed", **hints):
        plain, whole = (tokenizer.encode("a", add_special_tokens=each).ids for each in (False, True))
    added, bos = whole[: len(whole) - len(plain)], _id(tokenizer, settings, "bos")
    if whole != [*added, *plain] or len(added) > 1 or (added and bos not in (None, *added)):
        raise BadInputError(f"{path} adds tokens to a text: {plain} becomes {whole}; bos_token is {bos}", **hints)
    if not path.is_file():  # a tokenizer.json alone decides, as in transformers
        return bos if settings.get("add_bos_token") else None
    return added[0] if added else None


def _tokenizer_without_file(checkpoint: Path, settings: dict[str, Any]) -> Tokenizer:
    if not any((checkpoint / name).is_file() for name in (VOCABULARY_NAME, MERGES_NAME)):
        raise BadInputError(
            f"{checkpoint} has no {TOKENIZER_NAME}",
            expected=f"a checkpoint with a {TOKENIZER_NAME} (the format of the tokenizers library), or with the "
            f"{VOCABULARY_NAME} and {MERGES_NAME} of Qwen2's tokenizer",
            remedy="copy the tokenizer's files into the checkpoint; to convert a tokenizer of another format to "
            f"{TOKENIZER_NAME}: transformers.AutoTokenizer.from_pretrained(CHECKPOINT).save_pretrained(FOLDER)",
        )
    return tokenizer_from_vocabulary(checkpoint, settings)


def _check_config_ids(tokenizer: Tokenizer, config: CheckpointConfig, checkpoint: Path) -> None:
    """Raise BadInputError for an id in config.json that does not belong to a special token.

    One token may have several roles: Dream's bos is its eos.
    """
    added = tokenizer.get_added_tokens_decoder()
    for name, token_id in config.token_ids.items():
        if token_id not in added or not added[token_id].special:
            raise BadInputError(
                f"{checkpoint}: {name}_token_id {token_id} in {CONFIG_NAME} is not the id of a special token",
                expected=f"one of {sorted(i for i, token in added.items() if token.special)}",
                remedy=f"correct {CONFIG_NAME}, or copy the tokenizer that belongs to this checkpoint",
            )


def _check_vocabulary(tokenizer: Tokenizer, config: CheckpointConfig, path: Path) -> None:
    max_id = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if max_id >= config.dimensions.vocab_size:
        raise BadInputError(
            f"{path} has a token with the id {max_id}",
            expected=f"ids from 0 to {config.dimensions.vocab_size - 1} (vocab_size in {CONFIG_NAME})",
            remedy="copy the tokenizer that belongs to this checkpoint",
        )


def _settings_with_chat_template(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / TOKENIZER_CONFIG_NAME
    settings = json_object_from_file(path, remedy=_COPY_AGAIN, max_bytes=_MAX_SETTINGS_BYTES) if path.is_file() else {}
    more = sorted((checkpoint / _MORE_TEMPLATES).glob("*.jinja"))
    files = {"default": checkpoint / CHAT_TEMPLATE_NAME, **{path.stem: path for path in more}}
    given = settings.get("chat_template")
    found = {name: _template(path) for name, path in files.items() if path.is_file()} or given
    if isinstance(found, dict):
        listed = [{"name": name, "template": template} for name, template in found.items()]
        settings["chat_template"] = found["default"] if [*found] == ["default"] else listed
    return settings


def _template(path: Path) -> str:
    hints = {"expected": "a chat template in UTF-8", "remedy": _COPY_AGAIN}
    text = bytes_from_file(path, max=_MAX_TEMPLATE_BYTES, **hints)
    with errors_as_bad_input(str(path), **hints):
        return text.decode("utf-8")


def _special_tokens(
    config: CheckpointConfig, tokenizer: Tokenizer, settings: dict[str, Any], checkpoint: Path, first: int | None
) -> tuple[SpecialTokens, bool]:
    """Return the special tokens, and True if no file names the mask token. `first` is the one before each text."""
    from_config = config.token_ids if first is None else {**config.token_ids, "bos": first}
    from_tokenizer = {name: found for name in ROLES if (found := _id(tokenizer, settings, name)) is not None}
    expand = from_config.get(
        "expand", from_tokenizer.get("expand", _id_by_text(config.family.expand_tokens, tokenizer))
    )
    named = from_config.get("mask", from_tokenizer.get("mask", _id_by_text(config.family.mask_tokens, tokenizer)))
    mask = config.family.mask_id if named is None else named
    if mask is None:
        texts = "".join(f", or the token {text}" for text in config.family.mask_tokens)
        raise BadInputError(
            f"{checkpoint} names no mask token",
            expected=f"mask_token_id in {CONFIG_NAME}, or mask_token in {TOKENIZER_CONFIG_NAME}{texts}",
            remedy="add mask_token_id to config.json; an autoregressive checkpoint has none and cannot be used",
        )
    if mask != from_tokenizer.get("mask", mask):
        raise BadInputError(
            f"{checkpoint}: mask_token_id {mask} in {CONFIG_NAME}, but the tokenizer's mask token has the id "
            f"{from_tokenizer['mask']}",
            expected="the same mask token in both",
            remedy="correct mask_token_id, or copy the tokenizer that belongs to this checkpoint",
        )
    eos = from_config.get("eos", from_tokenizer.get("eos"))
    if eos is None:
        raise BadInputError(
            f"{checkpoint} names no end-of-text token",
            expected=f"eos_token_id in {CONFIG_NAME}, or eos_token in {TOKENIZER_CONFIG_NAME}",
            remedy="add eos_token_id to config.json",
        )
    tokens = SpecialTokens(
        mask=mask,
        eos=eos,
        pad=from_config.get("pad", from_tokenizer.get("pad", eos)),
        bos=from_tokenizer.get("bos", from_config.get("bos")),
        stops=[token for token in config.stops if token != eos],
        expand=expand,
    )
    for received, expected in (
        *reasons_against_tokens(tokens, config.dimensions.vocab_size),
        *find_role_errors(tokens, from_tokenizer, tokenizer.get_added_tokens_decoder()),
    ):
        raise BadInputError(
            f"{checkpoint}: {received}",
            expected=expected,
            remedy="copy the config.json and the tokenizer that belong to this checkpoint",
        )
    return tokens, named is None and config.dimensions.canvas is None


def _id_by_text(texts: tuple[str, ...], tokenizer: Tokenizer) -> int | None:
    """Return the id of the first added token whose text is one of `texts`."""
    added = {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items()}
    return next((added[text] for text in texts if text in added), None)


def _id(tokenizer: Tokenizer, settings: Mapping[str, Any], name: str) -> int | None:
    """Return the id of the token under `name`, e.g. mask_token, or None. It is a string or an object with `content`."""
    token = settings.get(f"{name}_token")
    content = token.get("content") if isinstance(token, dict) else token
    return tokenizer.token_to_id(content) if isinstance(content, str) else None

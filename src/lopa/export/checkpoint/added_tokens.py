"""Added tokens of a checkpoint without tokenizer.json, with the ids that its files assign.

The tokens are in tokenizer_config.json, added_tokens.json and special_tokens_map.json. This module assigns no ids.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from lopa.export.json_file import json_object_from_file
from lopa.runtime.errors import BadInputError

ADDED_TOKENS_NAME = "added_tokens.json"
SPECIAL_TOKENS_MAP_NAME = "special_tokens_map.json"
MAX_TOKEN_ID = 2**32 - 1
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_REMEDY = "copy the tokenizer's files again; they must come from one checkpoint"


def added_tokens_from_checkpoint(
    checkpoint: Path, settings: Mapping[str, Any], vocabulary: Mapping[str, int]
) -> list[tuple[int, AddedToken]]:
    """Return every added token with its id, by ascending id; `settings` is the content of tokenizer_config.json.

    A token is special if added_tokens_decoder marks it as special or if it has a role (eos_token and so on). Raises
    BadInputError for entries that are not tokens, for tokens with two ids or none, and for ids with two tokens. The
    tokens of `vocabulary` (vocab.json) count too.
    """
    roles = _role_tokens(checkpoint, settings)
    tokens = list(_tokens_from_decoder(settings, roles, checkpoint))
    listed = {(token_id, token.content) for token_id, token in tokens}
    # added_tokens.json has no flags, so added_tokens_decoder takes precedence for tokens in both.
    tokens += [pair for pair in _tokens_from_file(checkpoint, roles) if (pair[0], pair[1].content) not in listed]
    known = {token.content for _, token in tokens}
    for content in sorted(roles - known):
        if content not in vocabulary:
            raise BadInputError(
                f"{checkpoint} names the special token {content!r} without an id",
                expected="each special token in added_tokens_decoder (tokenizer_config.json), "
                f"{ADDED_TOKENS_NAME} or vocab.json",
                remedy=_REMEDY,
            )
        tokens.append((vocabulary[content], _token(checkpoint, content, special=True)))
    _check_ids(tokens, vocabulary, checkpoint)
    return sorted(tokens, key=lambda pair: pair[0])


def _role_tokens(checkpoint: Path, settings: Mapping[str, Any]) -> set[str]:
    path = checkpoint / SPECIAL_TOKENS_MAP_NAME
    sources = [settings]
    if path.is_file():
        sources.append(json_object_from_file(path, remedy=_REMEDY))
    return {content for source in sources for content in _contents(source)}


def _contents(source: Mapping[str, Any]) -> Iterable[str]:
    """Yield the texts of tokens. A token is written as its text or as an object with `content`."""
    values = [value for name, value in source.items() if name.endswith("_token")]
    for name in _LISTS:
        listed = source.get(name)
        values += listed if isinstance(listed, list) else []
    for value in values:
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str) and content:
            yield content


def _tokens_from_decoder(
    settings: Mapping[str, Any], roles: set[str], checkpoint: Path
) -> Iterable[tuple[int, AddedToken]]:
    decoder = settings.get("added_tokens_decoder", {})
    if not isinstance(decoder, dict):
        raise _not_a_token(checkpoint, f"added_tokens_decoder = {decoder!r}")
    for key, entry in decoder.items():
        flags = {name: entry[name] for name in _FLAGS if name in entry} if isinstance(entry, dict) else None
        is_id = key.isascii() and key.isdigit() and len(key) <= len(str(MAX_TOKEN_ID))
        if not is_id or flags is None or any(not isinstance(flag, bool) for flag in flags.values()):
            raise _not_a_token(checkpoint, f"added_tokens_decoder[{key!r}] = {entry!r}")
        content = entry.get("content")
        special = flags.pop("special", False) or content in roles
        yield int(key), _token(checkpoint, content, special=special, **flags)


def _tokens_from_file(checkpoint: Path, roles: set[str]) -> Iterable[tuple[int, AddedToken]]:
    path = checkpoint / ADDED_TOKENS_NAME
    if not path.is_file():
        return
    for content, token_id in json_object_from_file(path, remedy=_REMEDY).items():
        if not isinstance(token_id, int) or isinstance(token_id, bool):
            raise _not_a_token(checkpoint, f"{ADDED_TOKENS_NAME}: {content!r}: {token_id!r}")
        yield token_id, _token(checkpoint, content, special=content in roles)


def _token(checkpoint: Path, content: Any, **flags: bool) -> AddedToken:
    try:
        token = AddedToken(content, **flags)
    except (TypeError, UnicodeError) as error:  # not a string, or not valid Unicode
        raise _not_a_token(checkpoint, f"the added token {content!r}") from error
    if not token.content:
        raise _not_a_token(checkpoint, "an added token without text")
    return token


def _check_ids(tokens: Iterable[tuple[int, AddedToken]], vocabulary: Mapping[str, int], checkpoint: Path) -> None:
    ids = dict(vocabulary)
    owners = {token_id: content for content, token_id in vocabulary.items()}
    for token_id, token in tokens:
        content = token.content
        if not 0 <= token_id <= MAX_TOKEN_ID:
            raise _not_a_token(checkpoint, f"the added token {content!r} with the id {token_id}")
        if ids.setdefault(content, token_id) != token_id:
            raise BadInputError(
                f"{checkpoint} gives the token {content!r} the ids {ids[content]} and {token_id}",
                expected="one id for each token in all of the tokenizer's files",
                remedy=_REMEDY,
            )
        if owners.setdefault(token_id, content) != content:
            raise BadInputError(
                f"{checkpoint} gives the id {token_id} to the tokens {owners[token_id]!r} and {content!r}",
                expected="one token for each id in all of the tokenizer's files",
                remedy=_REMEDY,
            )


def _not_a_token(checkpoint: Path, received: str) -> BadInputError:
    return BadInputError(
        f"{checkpoint} has {received[:200]}",
        expected=f"ids from 0 to {MAX_TOKEN_ID}, each with a token's text and flags (true or false)",
        remedy=_REMEDY,
    )

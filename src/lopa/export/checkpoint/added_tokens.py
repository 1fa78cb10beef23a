"""Added tokens of a checkpoint's other files: tokenizer_config.json, added_tokens.json and special_tokens_map.json.

transformers adds them to the tokens of tokenizer.json or of vocab.json. The ids must be those that the files assign.
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
_DECODER = "added_tokens_decoder"
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTS = ("extra_special_tokens", "additional_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_REMEDY = "copy the tokenizer's files again; they must come from one checkpoint"


def settings_with_special_tokens(checkpoint: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of tokenizer_config.json with the special tokens of special_tokens_map.json.

    As in transformers the map counts only without added_tokens_decoder, and its tokens then replace those of the
    settings. Raises BadInputError for a map that is broken or has other entries.
    """
    path, made = checkpoint / SPECIAL_TOKENS_MAP_NAME, dict(settings)
    if any(name in made for name in _LISTS):
        made[_LISTS[0]] = made.get(_LISTS[0]) or made.get(_LISTS[1])
        made.pop(_LISTS[1], None)
    if _DECODER not in settings and path.is_file():
        for name, value in json_object_from_file(path, remedy=_REMEDY).items():
            if name not in _LISTS and not (name.endswith("_token") and isinstance(value, str | dict | None)):
                raise _not_a_token(checkpoint, f"{SPECIAL_TOKENS_MAP_NAME}: {name!r}: {value!r}")
            if name == _LISTS[0] and isinstance(value, list):
                made[name] = [*(made.get(name) or []), *value]
            elif name in _ROLES or (name not in made and not (name == _LISTS[1] and _LISTS[0] in made)):
                made[name] = value
    for name in (_LISTS[0], "model_specific_special_tokens"):
        if isinstance(made.get(name), dict):  # further tokens with a role, by its name
            made |= made.pop(name)
    return made


def added_tokens_from_checkpoint(
    checkpoint: Path,
    settings: Mapping[str, Any],
    vocabulary: Mapping[str, int],
    own: Mapping[int, AddedToken] | None = None,
) -> list[tuple[int | None, AddedToken]]:
    """Return the added tokens of the files with their ids, in the order in which transformers adds them.

    `settings` come from settings_with_special_tokens. added_tokens_decoder, or without it added_tokens.json, assigns
    ids. Special tokens that only have a role have the id of the `vocabulary`, and `own` are the added tokens of a
    tokenizer.json. With it, a special token may have no id: the library assigns the next one. Raises BadInputError for
    entries that are not tokens, for tokens with two ids or none, and for ids with two tokens.
    """
    extra, known = _extra_tokens(settings), {token.content: token for token in (own or {}).values()}
    names = [*_ROLES, *(name for name in settings if name.endswith("_token") and name not in _ROLES)]
    named = [settings.get(name) for name in names]
    special = set(_contents([*named, *extra] if own is None else named))
    tokens: list[tuple[int | None, AddedToken]] = []
    if _DECODER in settings:
        tokens += _tokens_from_decoder(settings, checkpoint)
    if _DECODER not in settings or own is None:
        roles = special if own is None else set(_contents([*named[: len(_ROLES)], *(settings.get(_LISTS[0]) or [])]))
        listed = {(number, token.content) for number, token in (*tokens, *(own or {}).items())}
        tokens += [pair for pair in _tokens_from_file(checkpoint, roles) if (pair[0], pair[1].content) not in listed]
    if _DECODER not in settings:
        tokens += (own or {}).items()
    for _, token in tokens:
        token.special = token.special or token.content in special or known.get(token.content, token).special
    tokens.sort(key=lambda pair: pair[0] or 0)
    present = known.keys() | {token.content for _, token in tokens}
    more = {content: value for value in (*named, *extra) for content in _contents([value]) if content not in present}
    for content, value in more.items():
        if own is None and content not in vocabulary:
            raise BadInputError(
                f"{checkpoint} names the special token {content!r} without an id",
                expected="each special token in added_tokens_decoder (tokenizer_config.json), "
                f"{ADDED_TOKENS_NAME} or vocab.json",
                remedy=_REMEDY,
            )
        flags = {name: value[name] for name in _FLAGS[:4] if name in value} if isinstance(value, dict) else {}
        tokens.append((vocabulary.get(content), _token(checkpoint, content, special=True, **flags)))
    check_ids(tokens, vocabulary, checkpoint)
    return tokens


def _extra_tokens(settings: Mapping[str, Any]) -> list[Any]:
    """Return the special tokens without a role. The newer of the two names takes precedence."""
    found = settings.get(_LISTS[0]) or settings.get(_LISTS[1])
    return found if isinstance(found, list) else []


def _contents(values: Iterable[Any]) -> Iterable[str]:
    """Yield the texts of tokens. A token is written as its text or as an object with `content`."""
    for value in values:
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str) and content:
            yield content


def _tokens_from_decoder(settings: Mapping[str, Any], checkpoint: Path) -> Iterable[tuple[int, AddedToken]]:
    decoder = settings.get(_DECODER, {})
    if not isinstance(decoder, dict):
        raise _not_a_token(checkpoint, f"added_tokens_decoder = {decoder!r}")
    for key, entry in decoder.items():
        flags = {name: entry[name] for name in _FLAGS if name in entry} if isinstance(entry, dict) else None
        is_id = key.isascii() and key.isdigit() and len(key) <= len(str(MAX_TOKEN_ID))
        if not is_id or flags is None or any(not isinstance(flag, bool) for flag in flags.values()):
            raise _not_a_token(checkpoint, f"added_tokens_decoder[{key!r}] = {entry!r}")
        yield int(key), _token(checkpoint, entry.get("content"), **flags)


def _tokens_from_file(checkpoint: Path, roles: set[str]) -> Iterable[tuple[int, AddedToken]]:
    path = checkpoint / ADDED_TOKENS_NAME
    if not path.is_file():
        return
    for content, token_id in json_object_from_file(path, remedy=_REMEDY).items():
        if not isinstance(token_id, int) or isinstance(token_id, bool):
            raise _not_a_token(checkpoint, f"{ADDED_TOKENS_NAME}: {content!r}: {token_id!r}")
        yield token_id, _token(checkpoint, content, special=content in roles, normalized=content not in roles)


def _token(checkpoint: Path, content: Any, **flags: bool) -> AddedToken:
    try:
        token = AddedToken(content, **flags)
    except (TypeError, UnicodeError) as error:  # not a string, or not valid Unicode
        raise _not_a_token(checkpoint, f"the added token {content!r}") from error
    if not token.content:
        raise _not_a_token(checkpoint, "an added token without text")
    return token


def check_ids(tokens: Iterable[tuple[int | None, AddedToken]], vocabulary: Mapping[str, int], checkpoint: Path) -> None:
    """Raise BadInputError unless each token has one id, also in `vocabulary`, and each id one token."""
    ids = dict(vocabulary)
    owners = {token_id: content for content, token_id in vocabulary.items()}
    for token_id, token in tokens:
        content = token.content
        if token_id is None:
            continue
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

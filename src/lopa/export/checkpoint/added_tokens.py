"""Added tokens of a checkpoint's other files: tokenizer_config.json, added_tokens.json and special_tokens_map.json.

transformers adds them to the tokens of tokenizer.json or of vocab.json. The ids must be those that the files assign.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

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
    if extra := _extra_tokens(settings):
        made[_LISTS[0]] = extra
    if _DECODER not in settings and path.is_file():
        for name, value in json_object_from_file(path, remedy=_REMEDY).items():
            if name not in _LISTS and not (name.endswith("_token") and isinstance(value, str | dict | None)):
                raise _not_a_token(checkpoint, f"{SPECIAL_TOKENS_MAP_NAME}: {name!r}: {value!r}")
            if name == _LISTS[0] and isinstance(value, list):
                made[name] = [*extra, *value]
            elif name in _ROLES or name not in made:
                made[name] = value
    if _LISTS[0] in made:
        made.pop(_LISTS[1], None)
    for name in (_LISTS[0], "model_specific_special_tokens"):
        if isinstance(made.get(name), dict):
            if other := next((each for each in made[name] if not each.endswith("_token")), None):
                raise _not_a_token(checkpoint, f"{name}: {other!r}, a name that does not end with _token")
            made |= made.pop(name)
    return made


def _extra_tokens(settings: Mapping[str, Any]) -> list[Any]:
    """Return the special tokens without a role. The newer of the two names takes precedence."""
    found = settings.get(_LISTS[0]) or settings.get(_LISTS[1])
    return found if isinstance(found, list) else []


def add_tokens_of_files(tokenizer: Tokenizer, checkpoint: Path, settings: Mapping[str, Any]) -> bool:
    """Add to the `tokenizer` of tokenizer.json what the other files name, as transformers does. Return True if any.

    added_tokens_decoder, or without it added_tokens.json, adds tokens; the decoder also replaces flags. Special tokens
    without an id become added tokens too. Raises BadInputError for entries that are not tokens, and for a token to
    which the files give two ids.
    """
    own = tokenizer.get_added_tokens_decoder()
    known = {token.content: token for token in own.values()}
    named = [settings.get(name) for name in sorted(settings, key=_role_order) if name.endswith("_token")]
    roles = {token.content: token for token in _role_tokens([*named, *_extra_tokens(settings)], checkpoint)}
    if _DECODER in settings:
        declared = list(_tokens_from_decoder(settings, set(), checkpoint))
    else:
        special = {*_contents([settings.get(name) for name in _ROLES]), *_contents(settings.get(_LISTS[0]) or [])}
        listed = _tokens_from_file(checkpoint, special)
        declared = [*((number, token) for number, token in listed if token.content not in known), *own.items()]
    texts, before = set(_contents(named)), repr(own)
    for _, token in declared:
        token.special = token.special or token.content in texts or getattr(known.get(token.content), "special", False)
    present = known.keys() | {token.content for _, token in declared}
    new = [token for content, token in roles.items() if content not in present]
    tokenizer.add_tokens([*(token for _, token in sorted(declared, key=lambda pair: pair[0])), *new])
    _check_ids(declared, tokenizer.get_vocab(), checkpoint)
    return repr(tokenizer.get_added_tokens_decoder()) != before


def _role_order(name: str) -> int:
    """Return the order in which transformers adds special tokens, which decides new ids."""
    return _ROLES.index(name) if name in _ROLES else len(_ROLES)


def _role_tokens(values: Iterable[Any], checkpoint: Path) -> Iterable[AddedToken]:
    """Yield the special tokens of `values`, written as texts or as objects with `content` and flags."""
    for value in values:
        for content in _contents([value]):
            flags = {name: value[name] for name in _FLAGS[:4] if name in value} if isinstance(value, dict) else {}
            yield _token(checkpoint, content, special=True, **flags)


def added_tokens_from_checkpoint(
    checkpoint: Path, settings: Mapping[str, Any], vocabulary: Mapping[str, int]
) -> list[tuple[int, AddedToken]]:
    """Return every added token with its id, by ascending id; `settings` is the content of tokenizer_config.json.

    A token is special if added_tokens_decoder marks it as special or if it has a role (eos_token and so on). Raises
    BadInputError for entries that are not tokens, for tokens with two ids or none, and for ids with two tokens. The
    tokens of `vocabulary` (vocab.json) count too.
    """
    roles = set(_contents([value for name, value in settings.items() if name.endswith("_token")]))
    roles.update(_contents(_extra_tokens(settings)))
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


def _contents(values: Iterable[Any]) -> Iterable[str]:
    """Yield the texts of tokens. A token is written as its text or as an object with `content`."""
    for value in values:
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str) and content:
            yield content


def _tokens_from_decoder(
    settings: Mapping[str, Any], roles: set[str], checkpoint: Path
) -> Iterable[tuple[int, AddedToken]]:
    decoder = settings.get(_DECODER, {})
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
        yield token_id, _token(checkpoint, content, special=content in roles, normalized=content not in roles)


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

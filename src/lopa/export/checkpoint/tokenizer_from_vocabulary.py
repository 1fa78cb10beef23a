"""Tokenizer from the vocab.json and merges.txt of a checkpoint without tokenizer.json.

Only Qwen2's byte-level BPE is supported, under the class names in `_QWEN2_CLASSES`. Files are read as data. The code
that auto_map names never runs, so a class that changes the algorithm under a known name goes unnoticed.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from lopa.export.checkpoint.added_tokens import MAX_TOKEN_ID, added_tokens_from_checkpoint
from lopa.export.json_file import json_object_from_file
from lopa.runtime.errors import BadInputError, errors_as_bad_input
from lopa.runtime.files.untrusted_input import bytes_from_file

VOCABULARY_NAME = "vocab.json"
MERGES_NAME = "merges.txt"
_QWEN2_CLASSES = ("DreamTokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast")

# Qwen2's split of text before merging. Alternatives in order: an English contraction, letters with one character before
# them, a single digit, other signs with the space before and the newlines after, newlines, spaces.
_PIECES = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
_COPY_AGAIN = f"copy {VOCABULARY_NAME} and {MERGES_NAME} again, both from the same checkpoint"


def tokenizer_from_vocabulary(checkpoint: Path, settings: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer of the folder `checkpoint`; `settings` is the content of its tokenizer_config.json.

    Its ids equal the ids of Qwen2Tokenizer in transformers, and added tokens keep the ids and flags of the files.
    Raises BadInputError for another tokenizer class, when one of the two files is missing or broken, and when they do
    not fit each other.
    """
    _check_kind(checkpoint, settings)
    vocabulary = _vocabulary(checkpoint / VOCABULARY_NAME)
    added = added_tokens_from_checkpoint(checkpoint, settings, vocabulary)
    contents = {token.content: token_id for token_id, token in added if token_id is not None}
    merges = _merges(checkpoint / MERGES_NAME, vocabulary)
    _check_tokens_have_merges(checkpoint / MERGES_NAME, vocabulary, merges, exempt=contents.keys())
    # Added tokens must be in the model's vocabulary too, because the library assigns ids from its length to tokens
    # outside it. No merge yields them, so the model never produces them for plain text.
    with errors_as_bad_input(
        f"{checkpoint}: {VOCABULARY_NAME} and {MERGES_NAME} do not form a tokenizer",
        expected="the vocabulary and the merges of a byte-level BPE",
        remedy=_COPY_AGAIN,
    ):
        tokenizer = Tokenizer(models.BPE(vocab={**vocabulary, **contents}, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([token for _, token in added])
    return tokenizer


def _check_kind(checkpoint: Path, settings: Mapping[str, Any]) -> None:
    kind = settings.get("tokenizer_class")
    if kind not in _QWEN2_CLASSES:
        raise BadInputError(
            f"{checkpoint} has no tokenizer.json, and its tokenizer_config.json has tokenizer_class = {kind!r}",
            expected=f"a tokenizer.json, or one of the classes {', '.join(_QWEN2_CLASSES)}",
            remedy="make a tokenizer.json with the checkpoint's own tokenizer and add it to the checkpoint; its code "
            "never runs here",
        )


def _vocabulary(path: Path) -> dict[str, int]:
    vocabulary = json_object_from_file(path, remedy=_COPY_AGAIN)
    for token, token_id in vocabulary.items():
        if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id <= MAX_TOKEN_ID:
            raise BadInputError(
                f"{path} gives the token {token!r} the id {token_id!r}",
                expected=f"whole numbers from 0 to {MAX_TOKEN_ID}",
                remedy=_COPY_AGAIN,
            )
    by_id = sorted(vocabulary.items(), key=lambda item: item[1])
    for (one, token_id), (other, next_id) in pairwise(by_id):
        if token_id == next_id:
            raise BadInputError(
                f"{path} gives the id {token_id} to the tokens {one!r} and {other!r}",
                expected="one token for each id",
                remedy=_COPY_AGAIN,
            )
    missing = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - vocabulary.keys())
    if missing:
        raise BadInputError(
            f"{path} lacks {len(missing)} of the 256 bytes, such as {missing[0]!r}",
            expected="the vocabulary of a byte-level BPE, with a token for each byte",
            remedy=_COPY_AGAIN,
        )
    return vocabulary


def _merges(path: Path, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the pairs in the order of the file, which is their rank."""
    merges = []
    for number, line in enumerate(_lines(path), start=1):
        parts = line.split()
        if not parts or (number == 1 and line.startswith("#version:")):
            continue
        if len(parts) != 2 or any(token not in vocabulary for token in (*parts, "".join(parts))):
            raise BadInputError(
                f"{path}, line {number}: {line[:80]!r}",
                expected=f"two tokens of {VOCABULARY_NAME} that form a third",
                remedy=_COPY_AGAIN,
            )
        merges.append((parts[0], parts[1]))
    return merges


def _lines(path: Path) -> list[str]:
    expected = f"{MERGES_NAME}, a text file in the folder of {VOCABULARY_NAME}"
    text = bytes_from_file(path, expected=expected, remedy=_COPY_AGAIN)
    with errors_as_bad_input(f"{path} is not UTF-8", expected=expected, remedy=_COPY_AGAIN):
        return text.decode("utf-8").split("\n")


def _check_tokens_have_merges(
    path: Path, vocabulary: Mapping[str, int], merges: list[tuple[str, str]], *, exempt: AbstractSet[str]
) -> None:
    """Raise BadInputError for tokens without a merge, a sign that merges.txt was cut off between two lines."""
    made = {first + second for first, second in merges}
    orphans = vocabulary.keys() - made - set(pre_tokenizers.ByteLevel.alphabet()) - exempt
    if orphans:
        example = min(orphans, key=lambda token: vocabulary[token])
        raise BadInputError(
            f"{path} has no merge for {len(orphans)} tokens of {VOCABULARY_NAME}, such as {example!r}",
            expected="a merge for every token longer than a byte",
            remedy=_COPY_AGAIN,
        )

"""Tokenizer of a checkpoint as transformers reads it, and texts that show how two tokenizers differ."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lopa.export.extra import export_extra_needed
from lopa.runtime.files.untrusted_input import errors_as_bad_input

_PIECES = (
    *("a", "The", "naïve", "e\u0301", "ﬁ", "Ｆull", "ß", "привет", "今天", "한국", "مرحبا", "👩‍👩‍👧", "🇩🇪", "\ue000"),
    *("1", "2345", "½", "²", "٣", "'s", "'RE", "n't", "'", "-", "...", "!?", "_", "▁", "Ġ", "<", "|>", '{"a":', "#"),
    *(" ", " ", "  ", "\t", "\n", "\n\n", "\r\n", "\u00a0", "\u3000", "\u2028", "\x85", "\ufeff", "\u200b"),
)
"""Pieces of text from all classes of characters that tokenizers treat separately."""
_RANDOM_TEXTS = 200


def auto_tokenizer(checkpoint: Path) -> Any:
    """Return AutoTokenizer of the folder `checkpoint` as it is, which runs no code of it.

    AutoTokenizer chooses the class by all files, also by model_type in config.json. A class that only the checkpoint's
    code has is replaced by the class of all tokenizer.json files, or by Qwen2's without such a file. Raises
    BadInputError for what transformers cannot read, and MissingBackendError if it is not installed.
    """
    with export_extra_needed("reading a tokenizer with transformers"):
        from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    with errors_as_bad_input(
        f"transformers cannot read the tokenizer of {checkpoint}",
        expected="tokenizer files that AutoTokenizer.from_pretrained accepts, for a class of the tokenizers library",
        remedy="copy the tokenizer's files again, or set tokenizer_class to PreTrainedTokenizerFast",
    ):
        has_file = (checkpoint / "tokenizer.json").is_file()
        try:
            found = AutoTokenizer.from_pretrained(checkpoint, **options)
        except ValueError as error:
            if has_file and "trust_remote_code" not in str(error):
                raise
            found = (PreTrainedTokenizerFast if has_file else Qwen2Tokenizer).from_pretrained(checkpoint, **options)
        found.backend_tokenizer  # noqa: B018 - classes of other libraries have none
        return found


def find_difference(tokenizer: Tokenizer, theirs: Any) -> str | None:
    """Return the first text that `tokenizer` and transformers' tokenizer encode or decode differently, or None."""
    backends = (tokenizer, theirs.backend_tokenizer)
    added = {token.content: 0 for each in backends for token in each.get_added_tokens_decoder().values()}
    for text in sample_texts(added):
        found, ids = tokenizer.encode(text, add_special_tokens=False), theirs(text, add_special_tokens=False).input_ids
        if found.ids != ids:
            return f"the text {text!r} becomes {found.ids}, in transformers {ids}"
        shown, expected = (each.decode(ids, skip_special_tokens=True) for each in (tokenizer, theirs))
        if shown != expected:
            return f"the ids {ids} become {shown!r}, in transformers {expected!r}"
    return None


def sample_texts(added: Iterable[str]) -> Iterator[str]:
    """Yield texts of all classes of characters, and with each token of `added` in several surroundings."""
    for token in added:
        yield from (token, f"a{token}b", f" a \n {token} \n b", f"{token}{token} {token}", token.upper(), token[:-1])
    draw = random.Random(0)
    for _ in range(_RANDOM_TEXTS):
        yield "".join(draw.choices(_PIECES, k=draw.randint(1, 12)))

"""Tokenizer of a checkpoint as transformers reads it, and texts that show how two tokenizers differ."""

import random
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lopa.export.checkpoint.config import CONFIG_NAME
from lopa.export.extra import export_extra_needed
from lopa.export.json_file import json_object_from_file
from lopa.runtime.errors import BadInputError, errors_as_bad_input

_PIECES = (
    *("a", "The", "naïve", "e\u0301", "ﬁ", "Ｆull", "ß", "привет", "今天", "한국", "مرحبا", "👩‍👩‍👧", "🇩🇪", "\ue000"),
    *("1", "2345", "½", "²", "٣", "'s", "'RE", "n't", "'", "-", "...", "!?", "_", "▁", "Ġ", "<", "|>", '{"a":', "#"),
    *(" ", " ", "  ", "\t", "\n", "\n\n", "\r\n", "\u00a0", "\u3000", "\u2028", "\x85", "\ufeff", "\u200b"),
)
"""Pieces of text from all classes of characters that tokenizers treat separately."""
_RANDOM_TEXTS = 200
_CHOOSING = ("model_type", "model_name", "tokenizer_class")
"""Entries of config.json by which AutoTokenizer chooses a class."""


def auto_tokenizer(checkpoint: Path) -> Any:
    """Return AutoTokenizer of the folder `checkpoint` as it is, which runs no code of it.

    AutoTokenizer chooses the class by all files, also by model_type in config.json. A class that only the checkpoint's
    code has is replaced by the class of all tokenizer.json files, or by Qwen2's without such a file. Raises
    BadInputError for what transformers cannot read, and MissingBackendError if it is not installed.
    """
    with export_extra_needed("reading a tokenizer with transformers"):
        from transformers import CONFIG_MAPPING, AutoTokenizer, PreTrainedConfig, Qwen2Tokenizer
        from transformers import PreTrainedTokenizerFast as AnyClass
    values = json_object_from_file(checkpoint / CONFIG_NAME, remedy="copy the checkpoint again")
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    reading = errors_as_bad_input(
        f"transformers cannot read the tokenizer of {checkpoint}",
        expected="tokenizer files that AutoTokenizer.from_pretrained accepts, for a class of the tokenizers library",
        remedy="copy the tokenizer's files again, or set tokenizer_class to PreTrainedTokenizerFast",
    )
    with reading, warnings.catch_warnings(action="ignore"):
        has_file = (checkpoint / "tokenizer.json").is_file()
        config = None
        if values.get("model_type") not in CONFIG_MAPPING:  # as AutoTokenizer does then, which warns of other entries
            config = PreTrainedConfig(**{name: values[name] for name in _CHOOSING if name in values})
        try:
            found = AutoTokenizer.from_pretrained(checkpoint, config=config, **options)
        except ValueError as error:
            if has_file and "trust_remote_code" not in str(error):
                raise
            found = (AnyClass if has_file else Qwen2Tokenizer).from_pretrained(checkpoint, **options)
        found.backend_tokenizer  # noqa: B018 - classes of other libraries have none
        return found


def check_tokenizer_class(checkpoint: Path, content: bytes) -> None:
    """Raise BadInputError unless AutoTokenizer of the folder gives the ids and texts of a bundle's tokenizer.json.

    `content` is that file. AutoTokenizer's class may build a tokenizer of its own from the vocabulary.
    """
    theirs = auto_tokenizer(checkpoint)
    source = "tokenizer.json" if (checkpoint / "tokenizer.json").is_file() else "vocab.json"
    chosen = f"{type(theirs).__name__} (by tokenizer_class or model_type)"
    hints = {
        "expected": "the ids and texts of the class that AutoTokenizer of transformers chooses by these files",
        "remedy": "save the tokenizer again with transformers; or set tokenizer_class in tokenizer_config.json to "
        "PreTrainedTokenizerFast, and model_type in config.json to the family's",
    }
    with errors_as_bad_input(f"{checkpoint}: {chosen} fails", **hints):
        tokenizer = Tokenizer.from_buffer(content)
        difference = find_difference(tokenizer, theirs)
        ours, whole = tokenizer.encode("a").ids, theirs("a").input_ids
    if difference is None and source == "tokenizer.json" and ours != whole:
        difference = f"with the tokens around a text, 'a' becomes {ours}, in transformers {whole}"
    if difference:
        raise BadInputError(
            f"{checkpoint}: {chosen} differs from {source}: {difference}",
            **hints,
        )


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

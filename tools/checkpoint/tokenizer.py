"""A small untrained byte-level BPE tokenizer: all bytes, some words, and a likeness's special tokens.

It encodes any text and decodes it unchanged. Most ids of a large vocabulary have no token.
"""

from collections.abc import Sequence
from itertools import count
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from tools.checkpoint.likeness import Likeness

_WORDS = (
    "the of and to in is that for it as was with be on not he by are this at from or have an they which one you "
    "all her she there their we him when your can said what so up out if about who get would make like time into "
    "number sum answer question return def print list for while else class import self true false none"
)
BOS, EOS, END = "<|beginoftext|>", "<|endoftext|>", "<|im_end|>"


def tokenizer_from_likeness(likeness: Likeness, words: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the content of tokenizer.json, in which each of `words` is one token (default: frequent words).

    The defaults start with a space. Earlier merges have priority.
    """
    words = [f" {word}" for word in _WORDS.split()] if words is None else words
    # A byte-level tokenizer represents each byte by one of 256 letters.
    letters = sorted(ByteLevel.alphabet())
    in_letters = [ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(word)[0][0] for word in words]
    starts = dict.fromkeys(word[:end] for word in in_letters for end in range(2, len(word) + 1))
    special = _special_ids(likeness)
    free = (i for i in count() if i not in special.values())
    ids = dict(zip([*letters, *starts], free, strict=False))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(content, i) for content, i in sorted(special.items(), key=lambda pair: pair[1])],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            # Special tokens must be in the vocabulary, or the library assigns their ids.
            "vocab": {**ids, **special},
            "merges": [[start[:-1], start[-1]] for start in starts],
        },
    }


def tokenizer_config_from_likeness(likeness: Likeness) -> dict[str, Any]:
    """Return the content of tokenizer_config.json."""
    roles = {"bos_token": None if likeness.bos is None else BOS}
    if likeness.names_mask:
        roles["mask_token"] = likeness.mask_text
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles,
        "eos_token": EOS,
        "pad_token": EOS,
        "model_max_length": likeness.dimensions.max_positions,
        "clean_up_tokenization_spaces": False,
    }


def _special_ids(likeness: Likeness) -> dict[str, int]:
    """Return the ids of the special tokens by text."""
    ids = {EOS: likeness.eos, likeness.mask_text: likeness.mask}
    if likeness.bos is not None:
        ids[BOS] = likeness.bos
    return ids | dict(zip((END,), likeness.ends, strict=False))


def _added_token(content: str, token_id: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **flags, "special": True}

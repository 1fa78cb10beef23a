"""Tokens of byte-level tokenizers, and short tokenizations of texts."""

from types import SimpleNamespace
from typing import cast

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.errors import BadInputError
from lopa.runtime.grammar.vocabulary import Vocabulary, vocabulary_from_tokenizer
from lopa.runtime.text.tokenizer import Tokenizer


def manifest(size: int) -> Manifest:
    tokens, sizes = SimpleNamespace(ends=(0,)), SimpleNamespace(vocab_size=size)
    return cast(Manifest, SimpleNamespace(special_tokens=tokens, dimensions=sizes))


def test_texts_equal_the_tokenizer_s(vocabulary: Vocabulary) -> None:
    assert vocabulary.texts[0] == vocabulary.texts[2] == b""  # special
    assert vocabulary.texts[-1] == b""  # an id that the tokenizer lacks
    for text in (" The total is 12.", "naïve 🙂\n"):
        assert b"".join(vocabulary.texts[each] for each in vocabulary.encode(text)) == text.encode()
    assert vocabulary.writes_all_bytes


def test_byte_level_tokenizer_and_one_that_drops_a_space() -> None:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(["naïve naïve words words words"], trainer)
    found = vocabulary_from_tokenizer(Tokenizer(backend, {}, None, source="x"), manifest(300))
    assert found.writes_all_bytes
    assert b" words" in found.ids

    words = tokenizers.Tokenizer(models.WordLevel({"a": 1, "b": 2, "<end>": 0}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(BadInputError, match="tokenizer"):
        vocabulary_from_tokenizer(Tokenizer(words, {}, None, source="x"), manifest(3))

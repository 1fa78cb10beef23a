"""The embedded model's tokens as grammars see them."""

from pathlib import Path

import pytest

from lopa.runtime.bundle import Bundle
from lopa.runtime.grammar.vocabulary import Vocabulary, vocabulary_from_tokenizer
from lopa.runtime.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def vocabulary(tiny_bundle: Path) -> Vocabulary:
    bundle = Bundle.open(tiny_bundle)
    return vocabulary_from_tokenizer(Tokenizer.open(bundle), bundle.manifest)

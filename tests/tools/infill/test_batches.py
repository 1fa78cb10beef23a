"""Training texts: what is masked, and what the labels of a hole are."""

import random
from itertools import islice

import numpy as np
import pytest
from tokenizers import Tokenizer
from tools.infill.batches import EOS, MASK, Example, batch_of, example_of, source_from_function, source_from_problem
from tools.infill.functions import functions
from tools.infill.problems import problems

from lopa.tiny import CHECKPOINT

TOKENIZER = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
SOURCES = [
    *map(source_from_problem, islice(problems(4), 150)),
    *(source_from_function(lines, random.Random(number)) for number, lines in enumerate(islice(functions(4), 50))),
]


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    rng = random.Random(6)
    return [example_of(source, TOKENIZER, rng) for source in SOURCES]


def test_the_labels_are_the_text(examples: list[Example]) -> None:
    whole = 0
    for source, example in zip(SOURCES, examples, strict=True):
        text = TOKENIZER.decode([token for token in example.labels if token != EOS])
        assert "".join(source.pieces).startswith(text)
        assert text.startswith(source.pieces[0])
        whole += text == "".join(source.pieces)
    assert 120 < whole < len(SOURCES)  # a continuation may be cut


def test_masked_positions(examples: list[Example]) -> None:
    for source, example in zip(SOURCES, examples, strict=True):
        masked = [position for position, token in enumerate(example.ids) if token == MASK]
        given = len(TOKENIZER.encode(source.pieces[0]).ids) + 1
        assert masked
        assert masked[0] >= given - 1
        assert all(example.ids[i] == example.labels[i] for i in range(len(example.ids)) if i not in masked)
    # Holes have text on the right, and some of them have spare positions.
    assert sum(example.ids[-1] not in (MASK, EOS) for example in examples) > 60
    assert sum(EOS in example.labels[:-1] and example.labels[-1] != EOS for example in examples) > 60


def test_batches_are_padded() -> None:
    batch = batch_of(SOURCES[-4:] + SOURCES[:4], TOKENIZER, random.Random(8))
    lengths = batch.is_text.sum(axis=1)
    assert len(set(lengths.tolist())) > 1
    assert batch.ids.shape == (8, lengths.max())
    assert np.array_equal(batch.is_text, np.arange(lengths.max()) < lengths[:, None])
    assert (batch.ids[~batch.is_text] == EOS).all()
    assert not batch.is_masked[~batch.is_text].any()

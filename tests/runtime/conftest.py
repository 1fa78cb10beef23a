"""One decoder of the tiny bundle for the tests of a file, and a prompt that it can answer; files may have their own."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lopa.runtime import Decoder
from lopa.tiny import EVAL


@pytest.fixture(scope="module")
def decoder(tiny_bundle: Path) -> Iterator[Decoder]:
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        yield decoder


@pytest.fixture(scope="module")
def prompt(decoder: Decoder) -> tuple[int, ...]:
    text = json.loads(EVAL.read_text(encoding="utf-8").splitlines()[0])["prompt"]
    return tuple(decoder.tokenizer.encode(text, add_bos=True))

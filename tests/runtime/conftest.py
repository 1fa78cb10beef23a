"""Fixtures: decoders of the tiny bundle and of models for holes, a prompt, and sessions that a test closes."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lopa.runtime import Decoder
from lopa.runtime.bundle import Bundle
from lopa.runtime.grammar.vocabulary import Vocabulary, vocabulary_from_tokenizer
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.tiny import EVAL


@pytest.fixture(scope="module")
def decoder(tiny_bundle: Path) -> Iterator[Decoder]:
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        yield decoder


@pytest.fixture
def plain(decoder: Decoder) -> Iterator[Decoder]:
    """Yield a decoder on a session of its own."""
    session = open_session(decoder.bundle, "cpu", threads=1)
    yield Decoder(decoder.bundle, session, decoder.tokenizer, threads=1)
    session.close()


@pytest.fixture(scope="module")
def llada(family_bundle: Callable[..., Path]) -> Iterator[Decoder]:
    """Yield a decoder whose rows attend to both sides and predict their own positions."""
    with Decoder.open(family_bundle("llada"), threads=1) as decoder:
        yield decoder


@pytest.fixture(scope="module")
def dream(export_tiny: Callable[..., Path]) -> Iterator[Decoder]:
    """Yield a decoder whose rows attend to both sides and predict the next position."""
    with Decoder.open(export_tiny(with_logits=False, lora=None), threads=1) as decoder:
        yield decoder


@pytest.fixture(scope="module")
def prompt(decoder: Decoder) -> tuple[int, ...]:
    text = json.loads(EVAL.read_text(encoding="utf-8").splitlines()[0])["prompt"]
    return tuple(decoder.tokenizer.encode(text, add_bos=True))


@pytest.fixture
def copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    """Return a copy of tiny_bundle that the test may change."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


@pytest.fixture(scope="session")
def vocabulary(tiny_bundle: Path) -> Vocabulary:
    """Return the embedded model's tokens as grammars see them."""
    bundle = Bundle.open(tiny_bundle)
    return vocabulary_from_tokenizer(Tokenizer.open(bundle), bundle.manifest)


@pytest.fixture
def opened() -> Iterator[Callable[[Path, str], Session]]:
    """Return a function that opens sessions; they are closed at the end of the test."""
    sessions: list[Session] = []

    def open_one(bundle: Path, device: str) -> Session:
        sessions.append(open_session(Bundle.open(bundle), device, threads=1))
        return sessions[-1]

    yield open_one
    for session in sessions:
        session.close()

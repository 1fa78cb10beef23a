"""The points at which the loop asks an extension, and the rows that a request's cache accepts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lone_decode import LoneDecode
from tests.params import params_of

from lopa.runtime.bundle import Bundle
from lopa.runtime.decoding.extension import Extension
from lopa.runtime.requests.running_loop import RequestCache
from lopa.runtime.sessions.session import Session, open_session

PROMPT = np.arange(5, 17)


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path) -> Bundle:
    return Bundle.open(tiny_bundle)


@pytest.fixture(scope="module")
def session(bundle: Bundle) -> Session:
    return open_session(bundle, "numpy")


@pytest.mark.parametrize("branches", [1, 3])
def test_each_point_is_asked_once_a_round_and_in_order(session: Session, bundle: Bundle, branches: int) -> None:
    params = params_of(branches=branches, max_new_tokens=24, stop_at_eos=False)
    asked: list[str] = []

    def at(point: str, place: int) -> Any:
        def ask(*arguments: Any) -> Any:
            asked.append(point)
            return arguments[place] if place >= 0 else None

        return ask

    every = Extension(
        start=lambda *given: asked.append("start") or given,
        rows=at("rows", 2),
        candidates=at("candidates", -1),
        unmasked=at("unmasked", 0),
        answer=at("answer", 1),
    )
    without = LoneDecode(session, PROMPT, params, bundle.manifest)
    decoding = LoneDecode(session, PROMPT, params, bundle.manifest, every, Extension())
    while without.stop_reason is None:
        without.step()
        decoding.step()
    assert decoding.stop_reason == "length"
    assert decoding.answer.committed.tolist() == without.answer.committed.tolist()
    assert asked == ["start", "answer", *["rows", "candidates", "unmasked", "answer"] * decoding.steps]


def test_an_extension_changes_what_it_returns(session: Session, bundle: Bundle) -> None:
    """An answer that one extension ends reaches the next one, and the loop."""
    seen: list[Any] = []
    ending = Extension(answer=lambda loop, answer, _: answer._replace(stop_reason="eos") if loop.steps else answer)
    noting = Extension(answer=lambda _, answer, __: seen.append(answer.stop_reason) or answer)
    decoding = LoneDecode(session, PROMPT, params_of(max_new_tokens=24), bundle.manifest, ending, noting)
    decoding.step()
    assert seen == [None, "eos"]
    assert decoding.stop_reason == "eos"


def test_a_cache_with_other_rows_is_refused(session: Session, bundle: Bundle) -> None:
    """A round whose cached rows are not those of the request would decode wrong text."""
    decoding = LoneDecode(session, PROMPT, params_of(max_new_tokens=24), bundle.manifest)
    decoding.step()
    decoding.step()
    packed = decoding.open_round()
    assert packed.prefix
    cache = RequestCache(session)
    with pytest.raises(RuntimeError, match=f"the rows of 0 positions, expected those of the {packed.prefix}"):
        cache.align(packed, decoding.loop.layout)
    cache.positions = packed.cached
    with pytest.raises(RuntimeError, match="no row predicts"):  # it lacks the statistics of the last committed row
        cache.align(packed, decoding.loop.layout)

"""Decoder.handles: configs of single requests, and results before a failure."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.outcomes import outcomes
from tests.runtime.test_engine import FailingSession

from lopa.runtime import BadInputError, Decoder, LopaError, Request
from lopa.runtime.requests.result import GenerationResult

IDS = (1, 340, 28, 606)
LENGTHS = (2, 2, 30)


def requests(decoder: Decoder) -> list[Request]:
    """Return two requests of equal length, then a much longer one, each with one token per step."""
    return [
        Request(IDS, decoder.config(strategy="vanilla", max_new_tokens=length, stop_at_eos=False)) for length in LENGTHS
    ]


def test_a_request_is_decoded_by_its_own_config(decoder: Decoder) -> None:
    mixed: list[Any] = [IDS, *requests(decoder), BadInputError("x", expected="y", remedy="z")]
    common = decoder.config(max_new_tokens=4, stop_at_eos=False)
    for max_num_seqs in (1, 3):
        found = list(outcomes(decoder, mixed, common, max_num_seqs=max_num_seqs))
        lengths = [each.generated_positions for each in found if isinstance(each, GenerationResult)]
        assert lengths[:4] == [4, *LENGTHS]
        assert isinstance(found[4], BadInputError)


@pytest.mark.parametrize("method", ["wait", "free"])
def test_results_come_before_the_failure_of_a_device(decoder: Decoder, method: str) -> None:
    session = FailingSession(decoder.session, method)
    broken = Decoder(decoder.bundle, session, decoder.tokenizer, threads=1)  # type: ignore[arg-type]
    steps = []

    def on_step(number: int, step: Any) -> None:
        steps.append(number)
        session.broken = steps.count(2) == (2 if method == "free" else 5)

    found: list[GenerationResult | BadInputError] = []  # extend keeps items before an error
    with pytest.raises((OSError, LopaError)):
        found.extend(outcomes(broken, requests(decoder), max_num_seqs=3, on_step=on_step))
    assert [each.generated_positions for each in found if isinstance(each, GenerationResult)] == list(LENGTHS[:2])


def test_results_come_before_the_failure_of_the_caller(decoder: Decoder) -> None:
    def prompts() -> Iterator[Request]:
        yield from requests(decoder)[:2]
        raise LookupError("no more lines")

    found: list[Any] = []
    with pytest.raises(LookupError, match="no more lines"):
        found.extend(outcomes(decoder, prompts()))
    assert len(found) == 2

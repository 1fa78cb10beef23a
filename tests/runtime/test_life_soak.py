"""Random signals during decodes, for LOPA_SOAK_SECONDS per test: `make soak SECONDS=600`."""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lopa.runtime import Decoder

pytestmark = pytest.mark.slow
SECONDS = float(os.environ.get("LOPA_SOAK_SECONDS", "5"))
OPTIONS: dict[str, Any] = {"max_new_tokens": 48}


@pytest.fixture(scope="module")
def prompts(prompt: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [prompt[:-count] for count in range(1, 9)]


@pytest.fixture(scope="module")
def answers(decoder: Decoder, prompts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [decoder.generate(each, **OPTIONS).token_ids for each in prompts]


@contextmanager
def alarms(handler: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def set_alarm(rng: random.Random, seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, rng.random() * seconds + 1e-4)


def trials() -> Iterator[int]:
    began, number = time.monotonic(), 0
    while time.monotonic() - began < SECONDS:
        yield number
        number += 1


class AlarmError(Exception):
    """An exception of a handler."""


@pytest.mark.parametrize("max_num_seqs", [1, 2])
def test_handlers_that_raise(decoder: Decoder, prompts: Any, answers: Any, max_num_seqs: int) -> None:
    rng = random.Random(max_num_seqs)

    def handle(*_: Any) -> None:
        raise AlarmError

    for _ in trials():
        number = rng.randrange(8)
        half_read = decoder.stream(prompts[number], **OPTIONS)
        next(half_read)
        try:
            with alarms(handle):
                set_alarm(rng, 0.06)
                decoder.generate([*prompts[number:], *prompts[:number]], max_num_seqs=max_num_seqs, **OPTIONS)
        except AlarmError:
            pass
        assert decoder.generate(prompts[number], **OPTIONS).token_ids == answers[number]
        assert [*half_read][-1].result.token_ids == answers[number]  # type: ignore[union-attr]
    assert not decoder.session._caches  # type: ignore[attr-defined]

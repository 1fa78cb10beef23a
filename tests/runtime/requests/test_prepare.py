"""Engine.prepare: slow grammars are checked outside the caller's loop, and preparation stops when cancelled."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.runtime.grammar.costly import COSTLY, USUAL
from tests.runtime.grammar.test_helper import children, process_of, until
from tests.runtime.requests.batch_mates import WAIT, alone, result_of

from lopa.runtime import (
    BadInputError,
    Decoder,
    Engine,
    EngineClosedError,
    GrammarLimits,
    GrammarRefusedError,
    PreparationStoppedError,
    QueueFullError,
)
from lopa.runtime.grammar.helper import GrammarHelper, is_helper_supported

needs_helper = pytest.mark.skipif(not is_helper_supported(), reason="no fork or process limits on this system")
PROMPT = "Question: 2 + 3?\nAnswer:"


@pytest.fixture(scope="module")
def guarded(tiny_bundle: Path) -> Iterator[Decoder]:
    """Return a decoder whose helper process would run far longer than any test waits."""
    limits = GrammarLimits(cpu_seconds=600.0, memory_bytes=2**34)
    with Decoder.open(tiny_bundle, threads=1, grammar_limits=limits) as opened:
        opened.prepare_grammars()
        yield opened


def helper_of(decoder: Decoder) -> GrammarHelper:
    assert decoder._grammars.helper is not None
    return decoder._grammars.helper


def test_a_prepared_request_is_decoded_like_any_other(decoder: Decoder) -> None:
    config = decoder.config(max_new_tokens=48, **USUAL["object"])

    async def submit(engine: Engine) -> None:
        prepared = await engine.prepare(PROMPT, config)
        assert result_of(engine.submit(prepared)) == alone(decoder, PROMPT, config)  # type: ignore[arg-type]
        with pytest.raises(BadInputError, match="already submitted"):
            engine.submit(prepared)

    with Engine(decoder) as engine:
        asyncio.run(submit(engine))


def test_bad_requests_are_rejected_when_prepared(decoder: Decoder) -> None:
    async def submit(engine: Engine) -> None:
        with pytest.raises(GrammarRefusedError, match="unclosed group"):
            await engine.prepare(PROMPT, decoder.config(regex="(("))
        with pytest.raises(BadInputError, match="empty prompt"):
            await engine.prepare([])

    with Engine(decoder) as engine:
        asyncio.run(submit(engine))
    with pytest.raises(EngineClosedError):
        asyncio.run(engine.prepare(PROMPT))


@needs_helper
def test_the_loop_continues_and_a_cancelled_task_stops_the_preparation(guarded: Decoder) -> None:
    process = process_of(helper_of(guarded))

    async def submit(engine: Engine) -> None:
        costly = asyncio.create_task(engine.prepare(PROMPT, guarded.config(**COSTLY["multiples"])))
        while not children(process):
            await asyncio.sleep(0.01)
        usual = await engine.prepare(PROMPT, guarded.config(max_new_tokens=48, **USUAL["object"]))
        assert (await engine.submit(usual)).stop_reason == "eos"
        assert not costly.done()
        costly.cancel()
        with pytest.raises(asyncio.CancelledError):
            await costly
        while children(process):
            await asyncio.sleep(0.01)

    with Engine(guarded) as engine:
        asyncio.run(submit(engine))


@needs_helper
def test_a_deadline_ends_the_preparation_with_an_empty_answer(guarded: Decoder) -> None:
    with Engine(guarded) as engine:
        result = engine.submit(PROMPT, guarded.config(**COSTLY["multiples"]), deadline=0.1).result()
    assert (result.text, result.stop_reason, result.steps) == ("", "time_limit", 0)
    until(lambda: not children(process_of(helper_of(guarded))))


@needs_helper
def test_a_cancelled_reservation_stops_the_preparation(guarded: Decoder) -> None:
    with ThreadPoolExecutor(1) as threads, Engine(guarded, max_num_seqs=1, queue_limit=0) as engine:
        with engine.reserved(1) as places:
            costly = guarded.config(**COSTLY["multiples"])
            submitted = threads.submit(engine.submit_many, [PROMPT], costly, reservation=places)
            until(lambda: bool(children(process_of(helper_of(guarded)))))
            with pytest.raises(QueueFullError):
                engine.submit(PROMPT)
            places.cancel()
            assert isinstance(submitted.exception(WAIT), PreparationStoppedError)
        assert engine.submit(PROMPT, guarded.config(max_new_tokens=8)).result().tokens


@needs_helper
def test_closing_an_engine_stops_preparations(guarded: Decoder) -> None:
    with ThreadPoolExecutor(1) as threads:
        with Engine(guarded) as engine:
            submitted = threads.submit(engine.submit, PROMPT, guarded.config(**COSTLY["multiples"]))
            until(lambda: bool(children(process_of(helper_of(guarded)))))
        assert isinstance(submitted.exception(WAIT), EngineClosedError)

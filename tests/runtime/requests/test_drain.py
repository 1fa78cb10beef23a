"""Draining: new requests are rejected, existing ones end completely, and no caller waits for ever."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.runtime.requests.batch_mates import WAIT, FailingSession, Gate, Observer, alone, result_of

from lopa.runtime import BadInputError, Decoder, EndReport, Engine, EngineClosedError, EngineFailedError
from lopa.runtime.decoding.step import Step


def test_running_and_waiting_requests_end_and_new_ones_are_rejected(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    config, gate = decoder.config(max_new_tokens=16), Gate()
    expected = alone(decoder, prompt, config)
    with Engine(decoder, max_num_seqs=1) as engine:
        handles = [engine.submit(prompt, config, on_step=gate), *engine.submit_many([prompt] * 2, config)]
        assert gate.reached.wait(WAIT)
        assert not engine.status.draining
        assert not engine.drain(0)
        assert not engine.drain(0.01)
        for refused in (lambda: engine.submit(prompt), lambda: engine.submit_many([prompt])):
            with pytest.raises(EngineClosedError, match="draining and accepts no new requests") as caught:
                refused()
            assert caught.value.exit_code == 2
        status = engine.status
        assert (status.draining, status.closed, status.running, status.waiting) == (True, False, 1, 1)
        gate.open()
        assert engine.drain(WAIT)
        assert [handle.done for handle in handles] == [True] * 3
        assert [result_of(handle) for handle in handles] == [expected] * 3
        assert engine.drain()
        assert not engine.closed
    assert engine.drain(WAIT)  # all requests had ended before the engine closed
    with pytest.raises(EngineClosedError, match="engine is closed"):
        engine.submit(prompt)


def test_a_failure_during_a_drain_cuts_requests_short(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    session, gate = FailingSession(decoder.session, "wait"), Gate()
    broken = Decoder(decoder.bundle, session, decoder.tokenizer, threads=1)  # type: ignore[arg-type]
    with Engine(broken, max_num_seqs=1) as engine, ThreadPoolExecutor(1) as threads:
        handles = [engine.submit(prompt, on_step=gate), engine.submit(prompt), engine.submit(prompt)]
        assert gate.reached.wait(WAIT)
        draining = threads.submit(engine.drain, WAIT)
        session.broken = True
        gate.open()
        assert draining.result() is False
        for handle in handles:
            with pytest.raises(EngineFailedError):
                handle.result(0)
        status = engine.status
        assert isinstance(status.failure, EngineFailedError)
        assert "the device is gone" in str(status.failure)
        assert (status.closed, status.running, status.waiting, status.cache_rows) == (True, 0, 0, 0)
    for number in list(decoder.session._caches):  # type: ignore[attr-defined]
        decoder.session.free(number)


def test_drain_waits_for_a_request_that_ends_in_the_queue(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def stall(report: Any) -> None:
        if isinstance(report, EndReport):
            reached.set()
            assert go_on.wait(WAIT), report

    with Engine(decoder, observer=Observer(stall)) as engine:
        handle = engine.submit(prompt, deadline=0)
        assert reached.wait(WAIT)
        assert (engine.status.running, engine.status.waiting) == (0, 0)
        assert not engine.drain(0)
        go_on.set()
        assert engine.drain(WAIT)
        assert handle.result(0).stop_reason == "time_limit"


def test_a_request_that_waits_for_itself_fails_alone(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    config = decoder.config(max_new_tokens=4)
    with Engine(decoder) as engine:

        def drain(_: Step) -> None:
            engine.drain()

        good, bad = engine.submit(prompt, config), engine.submit(prompt, config, on_step=drain)
        with pytest.raises(BadInputError, match="on the engine's own thread"):
            bad.result(WAIT)
        assert good.result(WAIT).tokens
        assert not engine.status.draining

"""The engine on a bundle: batch mates do not change results, and every request ends."""

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.requests.batch_mates import (
    WAIT,
    CountingSession,
    FailingSession,
    Gate,
    alone,
    result_of,
    with_stored_prompt,
)
from tools.random_configs import random_config, random_prompt

from lopa.runtime import (
    BadInputError,
    Decoder,
    DecoderClosedError,
    Engine,
    EngineClosedError,
    EngineFailedError,
    GenerationConfig,
    GenerationResult,
    QueueFullError,
)
from lopa.runtime.decoding.lopa_loop import LopaLoop
from lopa.runtime.decoding.step import Step
from lopa.runtime.options import DecodingParams
from lopa.runtime.requests.handle import RequestHandle

DEADLINE = 1.0
"""Seconds within which a request joins even on a busy machine."""


@pytest.mark.parametrize("seed", range(2))
def test_a_random_mix_gives_the_results_of_single_requests(decoder: Decoder, seed: int) -> None:
    rng = np.random.default_rng(seed)
    submitted = [(random_prompt(rng, decoder), random_config(rng, decoder)) for _ in range(12)]
    expected = [alone(decoder, *each) for each in submitted]
    with Engine(decoder, max_num_seqs=int(rng.integers(2, 9)), queue_limit=100) as engine:
        for _ in range(2):
            order = rng.permutation(len(submitted))
            with ThreadPoolExecutor(3) as threads:
                handles = list(threads.map(lambda i: engine.submit(*submitted[i]), order.tolist()))
            for index, handle in zip(order, handles, strict=True):
                result = result_of(handle)
                assert result == with_stored_prompt(expected[index], result)


def test_a_request_joins_while_others_run_and_leaves_before_them(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    long, short = decoder.config(strategy="vanilla", max_new_tokens=48), decoder.config(max_new_tokens=4)
    gate, order = Gate(), []
    with Engine(decoder, max_num_seqs=2) as engine:
        first = engine.submit(prompt, dataclasses.replace(long, stop_at_eos=False), on_step=gate)
        assert gate.reached.wait(WAIT)
        second = engine.submit(prompt, short, on_step=lambda _: order.append(first.done))
        gate.open()
        assert result_of(second) == alone_outside(decoder, prompt, short, engine, first)
    assert order
    assert not any(order)


def alone_outside(
    decoder: Decoder, prompt: Any, config: GenerationConfig, engine: Engine, running: RequestHandle
) -> GenerationResult:
    """Return the request's result alone, decoded once the engine no longer uses the decoder."""
    assert running.result(WAIT).steps == 48
    engine.close()
    return alone(decoder, prompt, config)


def test_requests_run_in_order_of_submission(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    gate, started = Gate(), []
    config = decoder.config(max_new_tokens=4)
    with Engine(decoder, max_num_seqs=1, queue_limit=5) as engine:
        handles = [engine.submit(prompt, config, on_step=gate)]
        assert gate.reached.wait(WAIT)
        for number in range(5):
            handles.append(engine.submit(prompt, config, on_step=lambda _, number=number: started.append(number)))
        with pytest.raises(QueueFullError) as caught:
            engine.submit(prompt, config)
        assert caught.value.exit_code == 2
        gate.open()
        for handle in handles:
            handle.result(WAIT)
        assert engine.submit(prompt, config).result(WAIT).steps > 0
    assert list(dict.fromkeys(started)) == [0, 1, 2, 3, 4]


def test_the_slot_of_a_finished_request_is_free_at_once(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    with Engine(decoder, max_num_seqs=1, queue_limit=0) as engine:
        for _ in range(20):
            assert engine.submit(prompt, decoder.config(max_new_tokens=1)).result(WAIT).steps > 0


def test_cancel_and_deadline_end_running_and_waiting_requests(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    config = decoder.config(strategy="vanilla", max_new_tokens=40)
    whole = alone(decoder, prompt, config)
    gates = [Gate(), Gate()]
    with Engine(decoder, max_num_seqs=2) as engine:
        running = [
            engine.submit(prompt, config, on_step=gates[0]),
            engine.submit(prompt, config, deadline=DEADLINE, on_step=gates[1]),
        ]
        waiting = [engine.submit(prompt, config), engine.submit(prompt, config, deadline=DEADLINE)]
        last = engine.submit(prompt, config)
        gates[0].open()
        assert gates[1].reached.wait(WAIT)
        time.sleep(DEADLINE)
        running[0].cancel()
        waiting[0].cancel()
        while not (waiting[1].done or gates[1]._open.is_set()):
            gates[1].open()
        results = [handle.result(WAIT) for handle in (*running, *waiting)]
        assert [each.stop_reason for each in results] == ["cancelled", "time_limit"] * 2
        for each in results:
            assert whole.token_ids[: each.tokens] == each.token_ids
            assert whole.text.startswith(each.text)
        assert [each.steps for each in results[2:]] == [0, 0]
        assert [each.text for each in results[2:]] == ["", ""]
        assert result_of(last) == whole
        last.cancel()
        assert result_of(last) == whole


@pytest.mark.parametrize("method", ["__init__", "open_round", "finish_round"])
def test_an_error_anywhere_in_a_request_is_its_own(
    decoder: Decoder, prompt: tuple[int, ...], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = decoder.config(max_new_tokens=24), decoder.config(max_new_tokens=24, seed=666, branches=2)
    expected = alone(decoder, prompt, good)

    class Faulty(LopaLoop):
        """A loop that raises for one request."""

        def __init__(self, params: DecodingParams, *more: Any) -> None:
            self._breaks_in = method if params.seed == 666 else ""
            self._raise_if_due("__init__")
            super().__init__(params, *more)

        def open_round(self, cached: Any) -> Any:
            self._raise_if_due("open_round")
            return super().open_round(cached)

        def finish_round(self, *arguments: Any) -> Step:
            self._raise_if_due("finish_round")
            return super().finish_round(*arguments)

        def _raise_if_due(self, place: str) -> None:
            if place == self._breaks_in:
                raise ZeroDivisionError("its own fault")

    monkeypatch.setattr("lopa.runtime.requests.job.LopaLoop", Faulty)
    with Engine(decoder, max_num_seqs=3) as engine:
        handles = [engine.submit(prompt, config) for config in (good, bad, good)]
        with pytest.raises(ZeroDivisionError, match="its own fault"):
            handles[1].result(WAIT)
        assert [result_of(handles[i]) for i in (0, 2)] == [expected] * 2
        assert not engine.closed


@pytest.mark.parametrize("method", ["wait", "append_kept", "free"])
def test_a_device_that_fails_ends_every_request_and_the_engine(
    decoder: Decoder, prompt: tuple[int, ...], method: str
) -> None:
    session = FailingSession(decoder.session, method)
    broken = Decoder(decoder.bundle, session, decoder.tokenizer, threads=1)  # type: ignore[arg-type]
    config = decoder.config(max_new_tokens=32, attention="block_causal")
    gate = Gate()
    with Engine(broken, max_num_seqs=2) as engine:
        engine.submit(prompt, config).result(WAIT)  # its prompt is stored, so the next requests append rows
        running = engine.submit(prompt, config, on_step=gate)
        assert gate.reached.wait(WAIT)
        handles = [running, engine.submit(prompt, config), engine.submit(prompt, config)]
        session.broken = True
        gate.open()
        for handle in handles[1:]:
            with pytest.raises(EngineFailedError) as caught:
                handle.result(WAIT)
            assert "the device is gone" in caught.value.received
            assert isinstance(caught.value.__cause__, OSError)
            assert caught.value.exit_code == 3
        with pytest.raises(EngineFailedError):
            list(running)
        while not engine.closed:
            pass
        with pytest.raises(EngineClosedError, match="the device is gone"):
            engine.submit(prompt, config)
    assert not any(thread.name == "lopa-engine" for thread in threading.enumerate())
    session.broken = False
    for number in list(decoder.session._caches):  # type: ignore[attr-defined]
        decoder.session.free(number)


def test_closing_cancels_running_and_waiting_requests(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    gate = Gate()
    engine = Engine(decoder, max_num_seqs=1)
    config = decoder.config(strategy="vanilla", max_new_tokens=40)
    handles = [engine.submit(prompt, config, on_step=gate), engine.submit(prompt, config)]
    assert gate.reached.wait(WAIT)
    closing = threading.Thread(target=engine.close)
    closing.start()
    while not engine.closed:
        pass
    gate.open()
    closing.join()
    assert [handle.result(0).stop_reason for handle in handles] == ["cancelled", "cancelled"]
    assert [handle.result(0).steps for handle in handles] == [1, 0]
    with pytest.raises(EngineClosedError) as caught:
        engine.submit(prompt, config)
    assert caught.value.exit_code == 2
    engine.close()
    assert not decoder.session._caches  # type: ignore[attr-defined]
    assert alone(decoder, prompt, config).stop_reason != "cancelled"  # the decoder is still open


def test_an_engine_closes_the_decoder_that_it_opened(tiny_bundle: Path, prompt: tuple[int, ...]) -> None:
    with Engine.open(tiny_bundle, threads=1, max_num_seqs=2) as engine:
        assert engine.submit(prompt, engine.decoder.config(max_new_tokens=4)).result(WAIT).tokens > 0
    with pytest.raises(DecoderClosedError, match="the decoder is closed"):
        next(iter(engine.decoder.stream(prompt)))
    with pytest.raises(BadInputError, match="max_num_seqs 0"):
        Engine.open(tiny_bundle, max_num_seqs=0)


def test_prompts_decoded_together_share_forwards_and_keep_their_order(
    decoder: Decoder, prompt: tuple[int, ...]
) -> None:
    session = CountingSession(decoder.session)
    counted = Decoder(decoder.bundle, session, decoder.tokenizer, threads=1)  # type: ignore[arg-type]
    config = decoder.config(max_new_tokens=24)
    prompts = [prompt[:length] for length in range(5, 12)]
    one = [dataclasses.replace(each, seconds=0) for each in counted.generate(prompts, config)]
    separate, session.forwards = len(session.forwards), []
    together = [dataclasses.replace(each, seconds=0) for each in counted.generate(prompts, config, max_num_seqs=4)]
    assert together == one == [alone(decoder, each, config) for each in prompts]
    assert max(map(len, session.forwards)) == 4
    assert len(session.forwards) < separate
    assert not decoder.session._caches  # type: ignore[attr-defined]

"""Turns on a decoder's session: threads, streams, engines, callbacks, signal handlers and finalizers."""

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.requests.batch_mates import WAIT, Gate, alone, result_of

from lopa.runtime import (
    BadInputError,
    Decoder,
    DecoderBusyError,
    DecoderClosedError,
    DoneEvent,
    Engine,
    GenerationConfig,
)
from lopa.runtime.contract import Statistics
from lopa.runtime.decoding.step import Step
from lopa.runtime.sessions.session import Session, next_request_number
from lopa.runtime.sessions.tickets import Ticket
from lopa.runtime.sessions.wrapped_session import WrappedSession

OPTIONS: dict[str, Any] = {"max_new_tokens": 32, "attention": "block_causal"}


class InterruptedSession(WrappedSession):
    """A session with a function that runs inside its forwards, as signal handlers and finalizers may."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.interruption: Callable[[], object] = lambda: None

    def wait(self, ticket: Ticket) -> Statistics:
        self.interruption()
        return self._inner.wait(ticket)


@pytest.fixture
def interrupted(decoder: Decoder) -> tuple[Decoder, InterruptedSession]:
    session = InterruptedSession(decoder.session)
    return Decoder(decoder.bundle, session, decoder.tokenizer, threads=1), session


@pytest.fixture(scope="module")
def prompts(prompt: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [prompt[:-count] for count in range(1, 7)]


@pytest.fixture(scope="module")
def answers(decoder: Decoder, prompts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [decoder.generate(each, **OPTIONS).token_ids for each in prompts]


@contextmanager
def handling(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle SIGUSR1 within the context."""
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def decode_one(decoder: Decoder, prompt: tuple[int, ...]) -> tuple[int, ...]:
    return decoder.generate(prompt, **OPTIONS).token_ids


def send_signal() -> None:
    signal.raise_signal(signal.SIGUSR1)


def test_threads_get_the_answers_of_one_thread(decoder: Decoder, prompts: Any, answers: Any) -> None:
    def decode(number: int) -> Any:
        if number % 3 == 0:
            return [result.token_ids for result in decoder.generate(prompts[:3], max_num_seqs=2, **OPTIONS)] == answers[
                :3
            ]
        if number % 3 == 1:
            *_, last = decoder.stream(prompts[number], **OPTIONS)
            assert isinstance(last, DoneEvent)
            return last.result.token_ids == answers[number]
        return decoder.generate(prompts[number], **OPTIONS).token_ids == answers[number]

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(decode, [*range(6)] * 3))


def test_callbacks_may_decode(decoder: Decoder, prompts: Any, answers: Any) -> None:
    found: list[tuple[int, ...]] = []

    def decode(_: int, step: Step) -> None:
        if step.number == 1:
            found.append(decoder.generate(prompts[5], **OPTIONS).token_ids)
            with ThreadPoolExecutor(1) as thread:  # another thread does not wait for this callback
                found.append(thread.submit(decode_one, decoder, prompts[5]).result(WAIT))

    results = decoder.generate(prompts[:3], max_num_seqs=3, on_step=decode, **OPTIONS)
    assert [each.token_ids for each in results] == answers[:3]
    assert found == [answers[5]] * 6


@pytest.mark.parametrize("max_num_seqs", [1, 2])
def test_a_call_from_a_signal_handler_inside_a_round_is_rejected(
    interrupted: tuple[Decoder, InterruptedSession], prompts: Any, answers: Any, max_num_seqs: int
) -> None:
    decoder, session = interrupted
    half_read = decoder.stream(prompts[5], strategy="sequential", **OPTIONS)
    next(half_read)
    raised: list[DecoderBusyError] = []

    def handle(*_: Any) -> None:
        calls: list[Callable[[], object]] = [lambda: decoder.generate(prompts[4], **OPTIONS)]
        calls += [] if raised else [lambda: list(half_read)]  # the error ends the stream
        for call in calls:
            with pytest.raises(DecoderBusyError, match="interrupts a round of its own thread") as caught:
                call()
            raised.append(caught.value)

    session.interruption = send_signal
    with handling(handle):
        results = decoder.generate(prompts[:3], max_num_seqs=max_num_seqs, **OPTIONS)
    assert [each.token_ids for each in results] == answers[:3]
    assert "lopa.Engine" in raised[0].remedy
    session.interruption = lambda: None
    assert decoder.generate(prompts[4], **OPTIONS).token_ids == answers[4]


class TimeLimitError(Exception):
    """An exception of a signal handler."""


@pytest.mark.parametrize("max_num_seqs", [1, 2])
@pytest.mark.parametrize("place", ["wait", "commit", "tokenizer"])
@pytest.mark.parametrize("error", [TimeLimitError("late"), BadInputError("a", expected="b", remedy="c")])
def test_what_a_signal_handler_raises_passes_unchanged(
    interrupted: tuple[Decoder, InterruptedSession],
    prompts: Any,
    answers: Any,
    max_num_seqs: int,
    place: str,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder, session = interrupted

    def handle(_: int, __: Any) -> None:
        raise error

    def interrupted_call(*_: Any, **__: Any) -> None:
        send_signal()
        raise AssertionError("the handler did not raise")

    half_read = decoder.stream(prompts[0], **OPTIONS)
    events = [next(half_read)]
    with monkeypatch.context() as patch, handling(handle):
        if place == "tokenizer":
            patch.setattr(decoder.tokenizer, "encode", interrupted_call)
        else:
            patch.setattr(session, place, interrupted_call, raising=False)
        with pytest.raises(type(error)) as caught:
            decoder.generate(["Question: 1", "Question: 2"], max_num_seqs=max_num_seqs, **OPTIONS)
    assert caught.value is error
    assert decoder.generate(prompts[1], **OPTIONS).token_ids == answers[1]
    last = [*events, *half_read][-1]
    assert isinstance(last, DoneEvent)
    assert last.result.token_ids == answers[0]
    assert not session._inner._caches  # type: ignore[attr-defined]


def test_a_stream_that_is_left_inside_a_round_is_released_after_it(
    interrupted: tuple[Decoder, InterruptedSession], prompts: Any, answers: Any
) -> None:
    """The collector closes streams at any moment."""
    decoder, session = interrupted
    stream = decoder.stream(prompts[1], **OPTIONS)
    next(stream)
    request = next_request_number() - 1
    assert decoder.session.prefix_length(request)
    lengths: list[int] = []

    def leave() -> None:
        stream.close()
        lengths.append(decoder.session.prefix_length(request))

    session.interruption = leave
    assert decoder.generate(prompts[0], **OPTIONS).token_ids == answers[0]
    assert lengths[0] > 0
    assert not decoder.session.prefix_length(request)


def test_a_closed_decoder_is_named(tiny_bundle: Path, prompt: tuple[int, ...]) -> None:
    decoder = Decoder.open(tiny_bundle, threads=1)
    stream = decoder.stream(prompt)
    next(stream)
    engine = Engine(decoder)
    decoder.close()
    decoder.close()
    calls: list[Callable[[], Any]] = [
        lambda: decoder.generate(prompt),
        lambda: decoder.generate([prompt, prompt], max_num_seqs=2),
        lambda: decoder.stream(prompt),
        lambda: decoder.iter_generate([prompt]),
        lambda: next(stream),
        lambda: Engine(decoder),
        lambda: engine.submit(prompt).result(WAIT),
    ]
    for call in calls:
        with pytest.raises(DecoderClosedError, match="the decoder is closed"):
            call()
    engine.close()


def test_a_decoder_that_is_closed_during_a_round_ends_after_it(
    tiny_bundle: Path, prompt: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    decoder = Decoder.open(tiny_bundle, threads=1)
    session = decoder.session
    inside = InterruptedSession(session)
    inside.interruption = decoder.close
    decoder.session = inside
    steps: list[Step] = []
    with pytest.raises(DecoderClosedError):
        decoder.generate(prompt, on_step=lambda _, step: steps.append(step))
    assert len(steps) == 1
    assert session._forward is None  # type: ignore[attr-defined]
    assert not caplog.records


@pytest.mark.parametrize("where", ["on_step", "observer"])
def test_an_engine_cannot_close_itself(decoder: Decoder, prompt: tuple[int, ...], where: str) -> None:
    raised: list[BadInputError] = []

    def close(*_: Any) -> None:
        with pytest.raises(BadInputError, match=r"close\(\) called on the engine's own thread") as caught:
            engine.close()
        raised.append(caught.value)

    class Observer:
        """An observer that closes the engine."""

        round_ended = request_admitted = request_ended = close

    config = GenerationConfig(max_new_tokens=4)
    with Engine(decoder, observer=Observer() if where == "observer" else None) as engine:
        expected = alone(decoder, prompt, config)
        assert result_of(engine.submit(prompt, config, on_step=close if where == "on_step" else None)) == expected
    assert raised


def test_a_signal_handler_may_close_an_engine_inside_any_method(
    tiny_bundle: Path, prompt: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler runs where the lock of submissions is held."""
    ended: list[int] = []

    def handle(*_: Any) -> None:
        assert engine.submit(prompt, max_new_tokens=4).result(WAIT).tokens
        assert engine.drain(WAIT)
        engine.close()
        ended.append(engine.status.running)

    engine = Engine.open(tiny_bundle, threads=1)
    running = engine.submit(prompt, max_new_tokens=4)
    original = engine._reserved_places

    def interrupted_once(*arguments: Any, **named: Any) -> int:
        monkeypatch.setattr(engine, "_reserved_places", original)
        send_signal()
        return original(*arguments, **named)

    monkeypatch.setattr(engine, "_reserved_places", interrupted_once)
    with handling(handle), pytest.raises(BadInputError, match="closed"):
        engine.submit(prompt, max_new_tokens=4)
    assert ended == [0]
    assert running.done
    assert not any(each.name == "lopa-engine" for each in threading.enumerate())


def test_engines_without_a_reference_end_after_their_requests(decoder: Decoder, prompts: Any, answers: Any) -> None:
    gate = Gate()

    def drop() -> list[tuple[int, ...]]:
        handles = [Engine(decoder).submit(each, on_step=gate, **OPTIONS) for each in prompts[:2]]
        gate.open()
        found = [each.result(WAIT).token_ids for each in handles]
        while any(each.name == "lopa-engine" for each in threading.enumerate()):
            pass
        return found

    with pytest.warns(ResourceWarning, match="dropped without close"):
        assert drop() == answers[:2]


@pytest.mark.parametrize("kind", [SystemExit, StopIteration])
def test_any_exception_of_on_step_ends_only_its_request(
    decoder: Decoder, prompts: Any, answers: Any, kind: type[BaseException]
) -> None:
    def fail(_: Step) -> None:
        raise kind

    with Engine(decoder) as engine:
        good = [engine.submit(each, **OPTIONS) for each in prompts[:2]]
        bad = engine.submit(prompts[2], on_step=fail, **OPTIONS)
        with pytest.raises(kind):
            bad.result(WAIT)
        assert [each.result(WAIT).token_ids for each in good] == answers[:2]
        assert not engine.closed

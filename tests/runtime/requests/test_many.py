"""Submitting several requests: all or none, and copies that share a decode but end separately."""

import dataclasses

import pytest
from tests.runtime.requests.batch_mates import (
    WAIT,
    CountingSession,
    Gate,
    StalledSession,
    alone,
    result_of,
)

from lopa.runtime import (
    BadInputError,
    Decoder,
    DoneEvent,
    Engine,
    EngineClosedError,
    QueueFullError,
    Request,
    TextEvent,
)


class Counted:
    """A decoder on a session that records the requests of every forward."""

    def __init__(self, decoder: Decoder) -> None:
        self.session = CountingSession(decoder.session)
        self.decoder = Decoder(decoder.bundle, self.session, decoder.tokenizer, threads=1)  # type: ignore[arg-type]

    @property
    def decodes(self) -> int:
        """Number of different requests among all forwards."""
        return len({request for forward in self.session.forwards for request in forward})


@pytest.fixture
def counted(decoder: Decoder) -> Counted:
    return Counted(decoder)


def test_greedy_copies_are_decoded_once(counted: Counted, prompt: tuple[int, ...]) -> None:
    decoder = counted.decoder
    config = decoder.config(max_new_tokens=24, logprobs=True)
    expected, *_ = decoder.generate([prompt], config)
    *events, _ = decoder.stream(prompt, config)
    counted.session.forwards.clear()
    other = dataclasses.replace(config, max_new_tokens=23)
    with Engine(decoder, max_num_seqs=1, queue_limit=1) as engine:  # two decodes, seven handles
        handles = engine.submit_many([prompt] * 3 + [Request(list(prompt), other)] * 2 + [prompt] * 2, config)
        assert len(set(handles)) == 7
        for number, handle in enumerate(handles):
            assert (result_of(handle) == dataclasses.replace(expected, seconds=0)) == (number not in (3, 4))
            assert isinstance(handle.result(0).logprobs, tuple)
        assert handles[3].result(0).token_ids == handles[4].result(0).token_ids
        assert [event for event in handles[-1] if isinstance(event, TextEvent)] == events
    assert counted.decodes == 2


@pytest.mark.parametrize("case", ["drawn", "on_step", "seeds", "salts", "grammars"])
def test_different_requests_are_decoded_separately(counted: Counted, prompt: tuple[int, ...], case: str) -> None:
    config = counted.decoder.config(max_new_tokens=6, temperature=1.0 if case == "drawn" else 0.0, seed=3)
    numbers: list[int] = []
    on_step = (lambda number, _: numbers.append(number)) if case == "on_step" else None
    configs = [dataclasses.replace(config, seed=seed) for seed in range(3)] if case == "seeds" else [config] * 3
    configs = [dataclasses.replace(config, regex=f"{each}+") for each in "abc"] if case == "grammars" else configs
    expected = [alone(counted.decoder, prompt, each) for each in configs]
    salts = ("a", "b", None) if case == "salts" else (None,) * 3
    counted.session.forwards.clear()
    with Engine(counted.decoder, prefix_cache_tokens=0) as engine:
        requests = [Request(prompt, each, cache_salt=salt) for each, salt in zip(configs, salts, strict=True)]
        handles = engine.submit_many(requests, on_step=on_step)
        assert [result_of(handle) for handle in handles] == expected
    assert counted.decodes == 3
    assert set(numbers) == ({0, 1, 2} if case == "on_step" else set())


def test_a_cancelled_copy_leaves_and_the_others_get_the_whole_answer(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    session = StalledSession(decoder.session, allowed=6)
    held = Decoder(decoder.bundle, session, decoder.tokenizer, threads=1)  # type: ignore[arg-type]
    config = decoder.config(strategy="vanilla", max_new_tokens=24, stop_at_eos=False)
    whole = alone(decoder, prompt, config)
    with Engine(held, max_num_seqs=1) as engine:
        first, second, third = engine.submit_many([prompt] * 3, config)
        session.wait_until_stalled()
        second.cancel()
        session.allow(1)
        cut = second.result(WAIT)
        assert (cut.stop_reason, cut.steps) == ("cancelled", 7)
        assert cut.token_ids == whole.token_ids[: cut.tokens]
        assert whole.text.startswith(cut.text)
        *texts, end = second
        assert "".join(event.text for event in texts if isinstance(event, TextEvent)) == cut.text
        assert isinstance(end, DoneEvent)
        assert not first.done
        session.allow(100)
        assert result_of(first) == result_of(third) == whole
        assert engine.status.running == 0


@pytest.mark.parametrize("waiting", [False, True])
def test_the_decode_ends_with_the_last_copy(decoder: Decoder, prompt: tuple[int, ...], waiting: bool) -> None:
    session = StalledSession(decoder.session, allowed=1)
    held = Decoder(decoder.bundle, session, decoder.tokenizer, threads=1)  # type: ignore[arg-type]
    slow = decoder.config(strategy="vanilla", max_new_tokens=60, stop_at_eos=False)
    with Engine(held, max_num_seqs=1) as engine:
        before = [engine.submit(prompt[:-1], slow)] if waiting else []
        if waiting:
            session.wait_until_stalled()
        handles = engine.submit_many([prompt] * 3, slow)
        session.wait_until_stalled()
        handles[0].cancel()
        session.allow(1)
        assert handles[0].result(WAIT).stop_reason == "cancelled"
        session.wait_until_stalled()
        assert not handles[1].done
        assert not handles[2].done
        for handle in (*handles, *before):
            handle.cancel()
        session.allow(100)
        steps = [handle.result(WAIT).steps for handle in handles]
        assert [handle.result(0).stop_reason for handle in handles] == ["cancelled"] * 3
        assert steps == ([0, 0, 0] if waiting else [2, 3, 3])
        assert engine.drain(WAIT)
    assert len(session.forwards) == 3
    assert not decoder.session._caches  # type: ignore[attr-defined]


def test_all_are_queued_or_none(counted: Counted, prompt: tuple[int, ...]) -> None:
    decoder, gate = counted.decoder, Gate()
    config = decoder.config(max_new_tokens=4)
    different = [prompt[: 5 + number] for number in range(5)]
    with Engine(decoder, max_num_seqs=1, queue_limit=3) as engine:
        running = engine.submit(prompt, config, on_step=gate)
        assert gate.reached.wait(WAIT)
        with pytest.raises(QueueFullError, match="1 unfinished requests, 4 more submitted"):
            engine.submit_many(different[:4], config)
        with pytest.raises(BadInputError, match="in prompt 2, counted from 0: an empty prompt"):
            engine.submit_many([different[0], different[1], [], different[2]], config)
        assert engine.status.waiting == 0
        handles = engine.submit_many([*different[:3], *different[:3]], config)  # copies take no place in the queue
        assert engine.status.waiting == 3
        with pytest.raises(QueueFullError, match="4 unfinished requests\n"):
            engine.submit_many([""])  # rejected before it is read
        with pytest.raises(QueueFullError, match="4 unfinished requests\n"):
            engine.submit("")
        gate.open()
        assert all(handle.result(WAIT).tokens for handle in (*handles, running))
        assert engine.submit_many([]) == ()
    assert counted.decodes == 4
    with pytest.raises(EngineClosedError):
        engine.submit_many([prompt])


def test_reserved_places_are_used_and_count_once(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    config, gate = decoder.config(max_new_tokens=2), Gate()
    different = [prompt[: 5 + number] for number in range(5)]
    with Engine(decoder, max_num_seqs=1, queue_limit=3) as engine:
        running = engine.submit(prompt, config, on_step=gate)
        assert gate.reached.wait(WAIT)
        with engine.reserved(2) as places:
            assert (engine.status.running, engine.status.waiting, engine.status.reserved) == (1, 0, 2)
            with pytest.raises(QueueFullError, match="1 unfinished and 2 reserved requests, 2 more submitted"):
                engine.submit_many(different[:2], config)
            other = engine.submit(different[0], config)
            with pytest.raises(QueueFullError), engine.reserved(1):
                pass
            with pytest.raises(QueueFullError, match=r"\d reserved requests\n"):
                engine.submit(different[1], config)
            with pytest.raises(QueueFullError, match="2 unfinished requests, 3 more submitted"):
                engine.submit_many(different[2:], config, reservation=places)
            taken = engine.submit_many(different[2:4], config, reservation=places)
            assert (engine.status.waiting, engine.status.reserved) == (3, 0)
            with pytest.raises(BadInputError, match="a reservation of another engine"):
                engine.submit_many([prompt], config, reservation=places)
        gate.open()
        assert all(handle.result(WAIT).tokens for handle in (running, other, *taken))
        with pytest.raises(BadInputError, match="an empty prompt"), engine.reserved(4) as places:
            engine.submit_many([[]], config, reservation=places)
        with engine.reserved(4) as whole:  # the reserved places were released
            assert len(engine.submit_many([prompt] * 9, config, reservation=whole)) == 9
            with Engine(decoder) as another, pytest.raises(BadInputError, match="a reservation of another engine"):
                another.submit_many([prompt], config, reservation=whole)
        with pytest.raises(BadInputError), engine.reserved(0):
            pass
    with pytest.raises(EngineClosedError), engine.reserved(1):
        pass


def test_several_places_need_one_free_place(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    """A request for all places is admitted where one place becomes free, as requests for one place are."""
    config, gate = decoder.config(max_new_tokens=2), Gate()
    different = [prompt[: 5 + number] for number in range(7)]
    with Engine(decoder, max_num_seqs=1, queue_limit=3) as engine:
        with pytest.raises(QueueFullError, match="0 unfinished requests, 5 more"), engine.reserved(5):
            pass
        running = [engine.submit(ids, config, on_step=gate) for ids in different[:3]]
        assert gate.reached.wait(WAIT)
        with engine.reserved(4) as places:
            for count in (1, 4):
                with pytest.raises(QueueFullError), engine.reserved(count):
                    pass
            taken = engine.submit_many(different[3:], config, reservation=places)
        assert (engine.status.running, engine.status.waiting, engine.status.reserved) == (1, 6, 0)
        with pytest.raises(QueueFullError):
            engine.submit(prompt, config)
        gate.open()
        assert all(handle.result(WAIT).tokens for handle in (*running, *taken))

"""Requests on a device with little memory: they wait in order, stored rows go first, and only the newest ends."""

from typing import Any

import numpy as np
import pytest
from tests.runtime.requests.batch_mates import WAIT, Gate, Observer, alone, result_of, with_stored_prompt
from tests.runtime.requests.overlapping_session import overlapping

from lopa.runtime import Decoder, DeviceMemoryError, Engine, PromptTooLongError
from lopa.runtime.requests import pool
from lopa.runtime.requests.observer import AdmissionReport

OPTIONS: dict[str, Any] = {"attention": "block_causal", "block_size": 8, "stop_at_eos": False, "strategy": "vanilla"}
BLOCKS = {**OPTIONS, "alignment": "absolute"}


def prompts_of(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(len(lengths))
    return [rng.integers(3, 900, length).tolist() for length in lengths]


def test_requests_wait_for_memory_in_order(plain: Decoder) -> None:
    """The rows that running requests may still need count, and not places times the longest request."""
    held, session = overlapping(plain, memory=300)
    config = plain.config(**OPTIONS, max_new_tokens=24)
    prompts = prompts_of(100, 30, 40, 100, 20, 30, 10)  # tiles of 128, 64, 64, 128, 64, 64, 64 rows
    expected = [alone(plain, each, config) for each in prompts]
    admitted, most = list[int](), 0
    observer = Observer(
        lambda report: admitted.append(report.prompt_tokens) if isinstance(report, AdmissionReport) else None
    )

    def count(name: str) -> None:
        nonlocal most
        most = max(most, engine.status.running)

    with Engine(held, max_num_seqs=7, prefix_cache_tokens=0, observer=observer) as engine:
        session.before = count
        assert [result_of(handle) for handle in engine.submit_many(prompts, config)] == expected
        assert engine.status.free_cache_rows == 300
        assert engine.status.cache_rows_limit == 300
    assert admitted == [len(each) for each in prompts]
    assert most == 3
    assert [each.token_ids for each in held.generate(prompts, config, max_num_seqs=7)] == [
        each.token_ids for each in expected
    ]
    assert session.is_empty
    held.close()


def test_a_request_that_can_never_fit_ends_at_once(plain: Decoder) -> None:
    held, _ = overlapping(plain, memory=100)
    config = plain.config(**OPTIONS, max_new_tokens=30)
    short, long = prompts_of(40, 71)
    expected, gate = alone(plain, short, config), Gate()
    with Engine(held) as engine:
        message = "an answer of up to 101 tokens, and a device with memory for 100"
        with pytest.raises(PromptTooLongError, match=message) as caught:
            engine.submit(long, config)
        assert "shorten the prompt" in caught.value.client_text
        running = engine.submit(short, config, on_step=gate)
        assert gate.reached.wait(WAIT)
        with pytest.raises(PromptTooLongError, match=message):
            engine.submit(long, config)
        gate.open()
        assert result_of(running) == expected
        assert result_of(engine.submit(long[1:], config)).tokens == 30
    for use in (lambda: held.generate(long, config), lambda: held.generate([short, long], config, max_num_seqs=2)):
        with pytest.raises(PromptTooLongError, match=message):
            use()
    held.close()


def test_stored_rows_that_nobody_uses_make_room(plain: Decoder) -> None:
    held, session = overlapping(plain, memory=200)
    config = plain.config(**BLOCKS, max_new_tokens=16)
    prompts = prompts_of(48, 48, 48, 100)
    expected = [alone(plain, each, config) for each in prompts]
    with Engine(held) as engine:
        for prompt, each in zip(prompts, expected, strict=True):
            assert result_of(engine.submit(prompt, config)) == each
        assert engine.status.evicted_blocks > 0
        again = result_of(engine.submit(prompts[3], config))
        assert again.cached_tokens == 96
        assert again.token_ids == expected[3].token_ids
        session.unseen_rows = 60  # the rest is found out when rows are appended and committed
        assert result_of(engine.submit(prompts[0], config)).token_ids == expected[0].token_ids
    held.close()


@pytest.mark.parametrize("group_rows", [1, 10**6])
@pytest.mark.parametrize("failing", ["commit", "start"])
def test_only_the_newest_request_ends_if_memory_does(
    plain: Decoder, group_rows: int, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "MIN_GROUP_ROWS", group_rows)
    held, session = overlapping(plain, memory=300)
    config = plain.config(**OPTIONS, max_new_tokens=40)
    prompts = prompts_of(21, 22, 23, 24)
    expected = [alone(plain, each, config) for each in prompts]
    failures = 0

    def fails(name: str) -> None:
        nonlocal failures
        if failures < 2 and name == failing and sum(each == "commit" for each, _ in session.calls) > 9:
            failures += 1
            raise DeviceMemoryError("cpu", session.calls[-1][1][-1], 8)

    session.before = fails
    with Engine(held, prefix_cache_tokens=0) as engine:
        handles = engine.submit_many(prompts, config)
        found = []
        for handle, each in zip(handles, expected, strict=True):
            try:
                assert result_of(handle) == each
                found.append(True)
            except DeviceMemoryError:
                found.append(False)
        assert sum(found) >= 2
        assert found[:1] == [True]
        assert result_of(engine.submit(prompts[3], config)) == expected[3]
    assert failures == 2
    assert session.is_empty
    held.close()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_random_requests_in_little_memory(plain: Decoder, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MIN_GROUP_ROWS", 1 + 200 * (seed % 2))
    rng = np.random.default_rng(seed)
    held, session = overlapping(plain, memory=300)
    session.unseen_rows = int(rng.choice([0, 60]))
    begin, lost = prompts_of(*rng.integers(10, 60, 4)), 0
    cases = []
    for _ in range(16):
        prompt = [*begin[int(rng.integers(4))], *rng.integers(3, 900, int(rng.integers(1, 20))).tolist()]
        cases.append((prompt, plain.config(**BLOCKS, max_new_tokens=int(rng.integers(1, 40)))))
    expected = [alone(plain, *case) for case in cases]
    with Engine(held, max_num_seqs=5, prefix_cache_tokens=int(rng.choice([100, 4000]))) as engine:
        handles = [engine.submit(*case) for case in cases]
        for number in rng.choice(16, 4, replace=False):
            handles[number].cancel()
        for handle, each in zip(handles, expected, strict=True):
            try:
                found = result_of(handle)
            except DeviceMemoryError:
                lost += 1
                continue
            if found.stop_reason != "cancelled":
                assert found.token_ids == with_stored_prompt(each, found).token_ids
        assert session.memory == 300
        stored = engine.status.prefix_cached_tokens
        assert session.free_rows() == 300 - stored
    assert lost == 0 or session.unseen_rows
    assert session.is_empty
    held.close()

"""Two groups of requests that alternate: equal answers in any mix, and host work while a forward is in flight."""

import dataclasses
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.requests.batch_mates import WAIT, alone, result_of, with_stored_prompt
from tests.runtime.requests.overlapping_session import OverlappingSession, overlapping
from tools.random_configs import random_config, random_prompt

from lopa.runtime import Decoder, Engine, EngineFailedError
from lopa.runtime.requests import pool, prompt_pieces
from lopa.runtime.requests.running_loop import groups_by_rows

OPTIONS: dict[str, Any] = {"attention": "block_causal", "block_size": 8, "stop_at_eos": False}


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MIN_GROUP_ROWS", 1)


@given(st.lists(st.integers(1, 50), max_size=20), st.integers(1, 90), st.integers(1, 90))
def test_groups_hold_all_requests_in_order(sizes: list[int], max_rows: int, complete: int) -> None:
    groups = groups_by_rows(sizes, max_rows, complete)
    assert [index for group in groups for index in group] == list(range(len(sizes)))
    for number, group in enumerate(groups):
        rows = sum(sizes[index] for index in group)
        assert rows <= max_rows or len(group) == 1
        assert sum(sizes[index] for index in group[:-1]) < complete
        last = number == len(groups) - 1
        assert last or rows >= complete or rows + sizes[groups[number + 1][0]] > max_rows


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_any_mix_gives_the_answers_of_single_decodes(plain: Decoder, seed: int) -> None:
    rng = np.random.default_rng(seed)
    held, session = overlapping(plain, rows_per_forward=int(rng.choice([40, 10**6])), seconds=0.0005)
    cases = [(random_prompt(rng, plain), random_config(rng, plain)) for _ in range(14)]
    cases += [cases[index] for index in rng.integers(0, len(cases), 6)]
    expected = [alone(plain, *case) for case in cases]
    with Engine(held, max_num_seqs=int(rng.integers(2, 8)), prefix_cache_tokens=int(rng.choice([0, 300]))) as engine:
        handles = []
        for case in cases:
            handles.append(engine.submit(*case))
            time.sleep(rng.exponential(0.003))
        cancelled = [engine.submit(*cases[index], deadline=0.01) for index in range(3)]
        cancelled[0].cancel()
        for handle, each in zip(handles, expected, strict=True):
            found = result_of(handle)
            assert found == with_stored_prompt(each, found)
        for handle in cancelled:
            handle.result(WAIT)
    assert session.most_in_flight == 2
    assert session.is_empty
    held.close()


@pytest.mark.usefixtures("small_groups")
def test_the_host_works_for_one_group_while_the_other_is_computed(plain: Decoder) -> None:
    """Each commit of a group is between the start and the wait of the other one, and each group has its turn."""
    held, session = overlapping(plain)
    config = plain.config(**OPTIONS, strategy="vanilla", max_new_tokens=24)
    prompts = [[5, 6, 7, number] for number in range(9, 13)]
    expected = [alone(plain, each, config) for each in prompts]
    with Engine(held) as engine:
        assert list(map(result_of, engine.submit_many(prompts, config))) == expected
    assert {len(requests) for name, requests in session.calls if name == "start"} == {2}
    first, second = (requests for name, requests in session.calls[:2])
    order = [(name, requests) for name, requests in session.calls if name != "commit"]
    assert order[:4] == [("start", first), ("start", second), ("wait", first), ("start", first)]
    in_flight, behind = list[tuple[int, ...]](), Counter[bool]()
    for name, requests in session.calls:
        if name == "start":
            in_flight.append(requests)
        elif name == "wait":
            assert in_flight.pop(0) == requests
        else:
            assert all(requests[0] not in each for each in in_flight)
            behind[bool(in_flight)] += 1
    assert behind[True] > 5 * behind[False]  # alone at the end, when the other group has ended
    starts = [requests for name, requests in session.calls if name == "start"]
    assert starts == [(first, second)[number % 2] for number in range(len(starts))]
    held.close()


def test_few_rows_and_a_single_request_share_no_time(plain: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request alone has one forward after another. Few rows are one forward without padding."""
    config = plain.config(**OPTIONS, max_new_tokens=24)
    for requests, rows, forwards in ((1, 1, 1), (3, 10**6, 1)):
        monkeypatch.setattr(pool, "MIN_GROUP_ROWS", rows)
        held, session = overlapping(plain)
        with Engine(held) as engine:
            for handle in engine.submit_many([[5, 6, 7][: 1 + number] for number in range(requests)], config):
                result_of(handle)
        assert session.most_in_flight == forwards
        assert max(len(each) for name, each in session.calls if name == "start") == requests
        held.close()


@pytest.mark.usefixtures("small_groups")
def test_a_failing_request_hurts_no_other_and_a_failing_device_all(plain: Decoder) -> None:
    held, session = overlapping(plain)
    config = plain.config(**OPTIONS, strategy="vanilla", max_new_tokens=16)
    prompts = [[5, 6, 7, number] for number in range(9, 13)]
    expected = [alone(plain, each, config) for each in prompts]

    def fails(number: int, step: Any) -> None:
        if number == 2 and step.number == 3:
            raise KeyError("mine")

    with Engine(held) as engine:
        handles = engine.submit_many(prompts, config, on_step=fails)
        with pytest.raises(KeyError, match="mine"):
            handles[2].result(WAIT)
        assert [result_of(handles[number]) for number in (0, 1, 3)] == [expected[number] for number in (0, 1, 3)]
        waits = iter(range(100))

        def device_fails(name: str) -> None:
            if name == "wait" and next(waits) == 5:
                raise OSError("the device is gone")

        session.before = device_fails
        for handle in engine.submit_many(prompts, config):
            with pytest.raises(EngineFailedError, match="the device is gone"):
                handle.result(WAIT)
    session.before = lambda _: None
    session.in_flight.clear()
    held.close()


@pytest.mark.usefixtures("small_groups")
def test_several_pools_share_a_session_between_the_groups_of_one(plain: Decoder) -> None:
    held, _ = overlapping(plain, seconds=0.0005)
    config = plain.config(**OPTIONS, max_new_tokens=24)
    prompts = [[5, 6, 7, number] for number in range(9, 17)]
    expected = [alone(plain, each, config) for each in prompts]
    with Engine(held) as engine:
        handles = engine.submit_many(prompts, config)
        for number in range(4):
            assert alone(held, prompts[number], config) == expected[number]
            handles[-1].cancel()
        assert list(map(result_of, handles[:-1])) == expected[:-1]
    half_read = held.handles([list(each) for each in prompts], config, max_num_seqs=4)
    next(half_read)
    half_read.close()  # with forwards in flight
    assert [each.token_ids for each in held.generate(prompts, config, max_num_seqs=4)] == [
        each.token_ids for each in expected
    ]
    held.close()


@pytest.mark.parametrize("kind", ["absolute", "sliding", "sub_block", "prompt", "full"])
@pytest.mark.parametrize("cached", [0, 4000])
def test_pieces_of_a_long_prompt_share_forwards(
    plain: Decoder, llada: Decoder, kind: str, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other requests go on, and steps and answers are those of a prompt in one forward."""
    monkeypatch.setattr(prompt_pieces, "MAX_PIECE", 32)
    options: dict[str, Any] = {
        "absolute": {"attention": "block_causal", "alignment": "absolute", "block_size": 8},
        "sliding": {
            "attention": "causal",
            "alignment": "sliding",
            "strategy": "threshold",
            "cache": "blocks",
            "confidence": "neg_entropy",
        },
        "sub_block": {
            **{"attention": "block_causal", "alignment": "absolute", "block_size": 8, "strategy": "threshold"},
            **{"sub_block": 4, "cache": "sub_block"},
        },
        "prompt": {"attention": "block_causal"},
        "full": {"attention": "full"},
    }[kind]
    decoder = llada if kind == "sliding" else plain
    session = OverlappingSession(decoder.session)
    held = Decoder(decoder.bundle, session, decoder.tokenizer, threads=1)  # type: ignore[arg-type]
    rng = np.random.default_rng(3)
    short, *long = (rng.integers(3, 900, length).tolist() for length in (5, 150, 151, 163, 73, 32, 33))
    config = decoder.config(**options, max_new_tokens=20, stop_at_eos=False)
    slow = decoder.config(**options, max_new_tokens=60, stop_at_eos=False)
    expected = [alone(decoder, short, slow), *(alone(decoder, each, config) for each in long)]
    with Engine(held, prefix_cache_tokens=cached) as engine:
        for _ in range(2):  # the second time, prompts are stored
            handles = [engine.submit(short, slow), *engine.submit_many(long, config)]
            for handle, each in zip(handles, expected, strict=True):
                found = result_of(handle)
                assert dataclasses.replace(found, cached_tokens=0) == with_stored_prompt(each, found)
    forwards = session.rows_of_forwards
    assert any(max(rows) > 32 + 32 for rows in forwards) == (kind in ("prompt", "full"))
    if kind not in ("prompt", "full") and not cached:
        pieces = [rows for rows in forwards if 32 in rows]
        assert len(pieces) >= 2 * sum((len(each) - 17) // 32 for each in long)
        assert sum(len(rows) > 1 for rows in pieces) > len(pieces) / 2
    assert session.is_empty

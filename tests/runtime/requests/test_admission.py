"""Number of prompts that join a round: limits per round, no starvation, and the same tokens."""

import math
from typing import Any

import numpy as np
import pytest
from tests.runtime.requests.batch_mates import WAIT, Gate, Observer

from lopa.runtime import Decoder, Engine, RoundReport
from lopa.runtime.requests.admission import Admission


def test_random_queues_join_completely_within_the_limits() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        limit, longest = int(rng.integers(10, 300)), int(rng.integers(1, 1000))
        admission, waiting = Admission(limit), rng.integers(0, longest + 1, 40).tolist()
        left, joined, rounds_at_head = list(waiting), list[int](), 0
        rows_of_rounds: list[int] = []
        while left:
            free = int(rng.integers(0, 4))
            number = admission.number_joining(left[:free], nothing_runs=False)
            assert number <= free
            rows_of_rounds.append(sum(left[:number]))
            if free:
                rounds_at_head = 0 if number else rounds_at_head + 1
                assert rounds_at_head < max(1, math.ceil(left[0] / limit))
            joined += left[:number]
            left = left[number:]
        assert joined == waiting
        assert max(rows_of_rounds) <= max(longest, limit)
        beyond = np.cumsum([0, *(rows - limit for rows in rows_of_rounds)])
        assert (beyond - np.minimum.accumulate(beyond)).max() <= longest  # any consecutive rounds


@pytest.mark.parametrize(("rows", "rounds"), [(10, 1), (100, 1), (101, 2), (1000, 10), (1001, 11)])
def test_a_long_prompt_waits_only_until_its_rows_are_available(rows: int, rounds: int) -> None:
    admission = Admission(100)
    joined = [admission.number_joining([rows], nothing_runs=False) for _ in range(rounds)]
    assert joined == [0] * (rounds - 1) + [1]


def test_a_prompt_joins_at_once_if_nothing_runs() -> None:
    admission = Admission(10)
    assert admission.number_joining([1000, 1], nothing_runs=True) == 1
    assert admission.number_joining([11, 1], nothing_runs=False) == 0
    assert admission.number_joining([11, 1, 9], nothing_runs=False) == 1
    assert admission.number_joining([1, 9, 1], nothing_runs=False) == 2


def test_rounds_without_waiting_requests_add_nothing() -> None:
    admission = Admission(10)
    for _ in range(50):
        assert admission.number_joining([], nothing_runs=False) == 0
    assert admission.number_joining([10, 1], nothing_runs=False) == 1


def test_stored_prompts_join_without_being_counted(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    reports, gate = list[Any](), Gate()
    config = decoder.config(max_new_tokens=4, attention="block_causal")
    with Engine(decoder, max_num_seqs=8, max_num_batched_tokens=1, observer=Observer(reports.append)) as engine:
        engine.submit(prompt, config).result(WAIT)
        running = engine.submit(prompt[:-1], decoder.config(strategy="vanilla", max_new_tokens=20), on_step=gate)
        assert gate.reached.wait(WAIT)
        before = len(reports)
        sampled = [decoder.config(**{**vars(config), "temperature": 1.0, "seed": seed}) for seed in range(4)]
        handles = [engine.submit(prompt, each) for each in sampled]
        gate.open()
        for handle in handles:
            handle.result(WAIT)
        running.result(WAIT)
    first, *rounds = [each for each in reports[before:] if isinstance(each, RoundReport)]
    assert not any(each.prompt_rows for each in rounds)
    assert [first.requests, rounds[0].requests] == [1, 5]  # all prompts join at once

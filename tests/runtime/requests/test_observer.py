"""Reports of rounds, admissions and ends, and the engine's status."""

import logging
from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.runtime.requests.batch_mates import WAIT, CountingSession, Gate, Observer, StalledSession, alone, result_of
from tools.random_configs import random_config, random_prompt

from lopa.runtime import (
    AdmissionReport,
    BadInputError,
    Decoder,
    EndReport,
    Engine,
    Request,
    RoundReport,
)
from lopa.runtime.decoding.step import Step


def by_kind(reports: list[Any]) -> list[list[Any]]:
    """Return the reports of rounds, of admissions and of ends."""
    kinds = (RoundReport, AdmissionReport, EndReport)
    return [[each for each in reports if isinstance(each, kind)] for kind in kinds]


def test_reports_of_a_random_mix_agree_with_steps_forwards_and_results(decoder: Decoder) -> None:
    rng, reports = np.random.default_rng(3), list[Any]()
    submitted = [Request(random_prompt(rng, decoder), random_config(rng, decoder)) for _ in range(10)]
    session, steps = CountingSession(decoder.session), list[Step]()
    measured = Decoder(decoder.bundle, session, decoder.tokenizer, threads=1)  # type: ignore[arg-type]
    with Engine(measured, max_num_seqs=4, observer=Observer(reports.append)) as engine:
        handles = engine.submit_many(submitted, on_step=lambda _, step: steps.append(step))
        results = [handle.result(WAIT) for handle in handles]
        assert len(by_kind(reports)[2]) == 10  # each report precedes the result
    rounds, admissions, ends = by_kind(reports)
    real = sum(step.rows.input_ids.size for step in steps)
    assert sum(each.real_rows for each in rounds) == real
    assert sum(each.real_rows + each.padding_rows for each in rounds) == sum(
        each.padded_rows for each in session.batches
    )
    assert sum(each.padding_rows for each in rounds) > 0
    assert sum(each.requests for each in rounds) == len(steps)
    assert max(each.requests for each in rounds) == 4
    assert all(0 < each.seconds_outside < each.seconds for each in rounds)
    computed = sum(each.prompt_tokens - each.cached_tokens for each in admissions)
    assert sum(each.prompt_rows for each in rounds) == computed
    assert Counter(each.prompt_tokens for each in admissions) == Counter(len(r.prompt_ids) for r in results)
    waits = [each.queue_seconds for each in admissions]
    assert waits == sorted(waits)  # submitted at one moment, admitted in order
    assert waits[0] >= 0
    reported = Counter((e.stop_reason, e.prompt_tokens, e.tokens, e.steps) for e in ends)
    assert reported == Counter((r.stop_reason, len(r.prompt_ids), r.tokens, r.steps) for r in results)
    assert {(each.error, each.cancelled) for each in ends} == {(None, False)}
    for each in ends:
        assert each.first_text_seconds is None or 0 < each.first_text_seconds <= each.seconds
    assert sum(e.first_text_seconds is not None for e in ends) == sum(bool(r.text) for r in results)
    assert engine.status.rounds == len(rounds)


def test_every_kind_of_end_is_reported_once(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    reports, gate = list[Any](), Gate()
    config = decoder.config(max_new_tokens=16)

    def fail(step: Step) -> None:
        raise ZeroDivisionError("its own fault")

    with Engine(decoder, max_num_seqs=1, observer=Observer(reports.append)) as engine:
        cached = engine.submit(prompt, config, on_step=gate)
        assert gate.reached.wait(WAIT)
        late = engine.submit(prompt[:-1], config, deadline=0)
        gone = engine.submit(prompt[:-2], config)
        copies = engine.submit_many([prompt[:-3]] * 3, config)
        failed = engine.submit(prompt[:-4], config, on_step=fail)
        gone.cancel()
        copies[1].cancel()
        gate.open()
        for handle in (cached, late, gone, *copies):
            handle.result(WAIT)
        with pytest.raises(ZeroDivisionError) as caught:
            failed.result(WAIT)
        cached.cancel()
    count, (_, admissions, ended) = len(prompt), by_kind(reports)
    ends = {(e.prompt_tokens, e.stop_reason, e.cancelled, e.error and str(e.error)) for e in ended}
    reason, of_copies = cached.result().stop_reason, copies[0].result().stop_reason
    assert ends == {
        (count, reason, False, None),
        (count - 1, "time_limit", False, None),
        (count - 2, "cancelled", True, None),
        (count - 3, of_copies, False, None),
        (count - 3, "cancelled", True, None),
        (count - 4, None, False, str(caught.value)),
    }
    assert len(ended) == 7
    by_length = {e.prompt_tokens: (e.tokens, e.steps) for e in ended}
    assert by_length[count - 1] == by_length[count - 2] == (0, 0)
    assert by_length[count - 4] == (0, 1)
    # Requests that ended in the queue were never admitted.
    assert [e.prompt_tokens for e in admissions] == [count, count - 3, count - 3, count - 4]


def test_an_observer_that_raises_is_logged_once(
    decoder: Decoder, prompt: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    config = decoder.config(max_new_tokens=8)
    expected = alone(decoder, prompt, config)

    def fail(report: Any) -> None:
        raise ValueError(report) if isinstance(report, AdmissionReport) else SystemExit(report)

    with caplog.at_level(logging.ERROR), Engine(decoder, observer=Observer(fail)) as engine:
        assert [result_of(handle) for handle in engine.submit_many([prompt] * 2, config)] == [expected] * 2
        assert result_of(engine.submit(prompt, config)) == expected
        assert engine.status.failure is None
    records = [each for each in caplog.records if each.name == "lopa.runtime.requests.pool"]
    assert len(records) == 1
    assert "request_admitted" in records[0].message


@pytest.mark.parametrize("observer", [3, "metrics", object()])
def test_invalid_observers(decoder: Decoder, observer: Any) -> None:
    with pytest.raises(BadInputError, match="observer"):
        Engine(decoder, observer=observer)


def test_the_status_is_up_to_date(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    session = StalledSession(decoder.session, allowed=0)
    cached = Decoder(decoder.bundle, session, decoder.tokenizer, threads=1)  # type: ignore[arg-type]
    config = decoder.config(strategy="vanilla", max_new_tokens=6, attention="block_causal", stop_at_eos=False)
    engine = Engine(cached, max_num_seqs=2, queue_limit=5)
    idle = engine.status
    assert (idle.running, idle.waiting, idle.max_num_seqs, idle.queue_limit) == (0, 0, 2, 5)
    assert (idle.rounds, idle.cache_rows, idle.prompt_rows, idle.prefix_cached_tokens, idle.prefix_hit_tokens) == (
        0,
    ) * 5
    assert idle.cache_rows_limit == 2 * engine.decoder.bundle.manifest.dimensions.max_positions
    assert (idle.draining, idle.closed, idle.failure) == (False, False, None)
    first = engine.submit(prompt, config)
    session.wait_until_stalled()
    engine.submit_many([prompt[:-1], prompt[:-2], prompt[:-2]], config)
    assert (engine.status.running, engine.status.waiting) == (1, 2)
    session.allow(1)
    session.wait_until_stalled()  # in the second round
    status = engine.status
    assert (status.running, status.waiting, status.rounds) == (2, 1, 1)
    assert status.cache_rows == status.prompt_rows == status.prefix_cached_tokens == len(prompt)
    session.allow(100)
    first.result(WAIT)
    assert engine.drain(WAIT)
    engine.close()
    again = engine.status
    assert (again.running, again.waiting, again.cache_rows, again.prompt_rows) == (0, 0, 0, 0)
    assert again.prefix_cached_tokens == 3 * len(prompt) - 3
    assert (again.draining, again.closed, again.prefix_hit_tokens) == (True, True, 0)

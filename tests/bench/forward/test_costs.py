"""Cost tables: the choice of the grid, the measured forwards, and the table from their seconds."""

import itertools
import math
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lopa.bench.forward import cost_measurement
from lopa.bench.forward.cost_measurement import (
    GRIDS,
    Schedule,
    host_cost,
    measured_costs,
    schedule_for_decoder,
    shapes_of_grid,
    time_forwards,
)
from lopa.bench.forward.work import ForwardShape
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.costs import costs_from_bundle, costs_name
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.contract import Statistics
from lopa.runtime.contract.packed_batch import padded_batch
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import BadInputError, EngineFailedError
from lopa.runtime.requests.observer import RoundReport
from lopa.runtime.sessions.tickets import Ticket

SMALL = Schedule(
    tuple(
        ForwardShape(branches, window, prefix, window)
        for prefix in (64, 128)
        for branches in (1, 3)
        for window in (5, 9)
    ),
    rounds=3,
)


@pytest.fixture
def decoder(tiny_bundle: Path) -> Iterator[Decoder]:
    with Decoder.open(tiny_bundle, threads=1) as opened:
        yield opened


@pytest.fixture
def forwards(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> list[ForwardShape]:
    """Record the shape of every forward of the decoder's session, in order."""
    seen: list[ForwardShape] = []
    original = decoder.session.wait

    def noted(ticket: Ticket) -> Statistics:
        batch = padded_batch(ticket.batch).batch
        (request,) = batch.requests
        _, branches, window = batch.input_ids.shape
        seen.append(ForwardShape(branches, window, decoder.session.prefix_length(request), batch.logits_index.shape[2]))
        assert batch.position_ids[0, 0, 0] == seen[-1].prefix
        return original(ticket)

    monkeypatch.setattr(decoder.session, "wait", noted)
    return seen


@pytest.mark.parametrize(("short", "runs"), [(0.0, 1), (math.inf, 2)])
def test_every_shape_is_timed_once_per_round(
    decoder: Decoder, forwards: list[ForwardShape], monkeypatch: pytest.MonkeyPatch, short: float, runs: int
) -> None:
    """Short forwards run twice, and only the second counts."""
    monkeypatch.setattr(cost_measurement, "_SHORT", short)
    progress_calls: list[tuple[int, int]] = []
    seconds = time_forwards(decoder, SMALL, lambda done, total: progress_calls.append((done, total)))
    assert progress_calls == [(done, SMALL.forwards) for done in range(1, SMALL.forwards + 1)]
    assert {shape: len(found) for shape, found in seconds.items()} == dict.fromkeys(SMALL.shapes, 3)
    assert all(second > 0 for found in seconds.values() for second in found)
    # The smallest shape also runs once whenever the prefix changes.
    extra = {shape: 3 if (shape.branches, shape.window) == (1, 5) else 0 for shape in SMALL.shapes}
    assert Counter(forwards) == {shape: runs * (3 + extra[shape]) for shape in SMALL.shapes}
    timed = forwards[runs - 1 :: runs]
    rounds = [timed[start : start + 10] for start in (0, 10, 20)]
    assert rounds[0] != rounds[1] or rounds[1] != rounds[2], "another order every round"
    assert [decoder.session.prefix_length(request) for request in range(-4, 4)] == [0] * 8


@pytest.mark.parametrize(("seconds_a_forward", "rounds"), [(1e-4, 25), (0.04, 8), (0.1, 3), (9.0, 3)])
def test_rounds_end_after_enough_seconds(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, seconds_a_forward: float, rounds: int
) -> None:
    """Use a clock that each forward advances by a fixed time."""
    schedule = Schedule(SMALL.shapes, 25, enough=8.5 * 8 * 0.04)
    now = 0.0
    timed = 0

    def forward(*_: object) -> float:
        nonlocal now, timed
        timed += 1
        if timed % 5 != 1:  # four shapes on a prefix, after an uncounted one
            now += seconds_a_forward
        return seconds_a_forward

    monkeypatch.setattr(cost_measurement, "_forward_seconds", forward)
    monkeypatch.setattr(cost_measurement.time, "perf_counter", lambda: now)
    totals: list[int] = []
    seconds = time_forwards(decoder, schedule, lambda _, total: totals.append(total))
    assert {len(found) for found in seconds.values()} == {rounds}
    assert totals == [len(totals)] * len(totals)


def test_prefixes_are_released_after_a_failure(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(ticket: Ticket) -> Statistics:
        raise KeyError

    monkeypatch.setattr(decoder.session, "wait", fail)
    with pytest.raises(EngineFailedError, match="KeyError"):
        time_forwards(decoder, SMALL)
    assert [decoder.session.prefix_length(request) for request in range(-4, 4)] == [0] * 8


def test_a_measured_table_round_trips(tiny_bundle: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    with Decoder.open(path, threads=1) as decoder:
        found = measured_costs(decoder, SMALL, threads=1)
    (path / costs_name("cpu")).write_bytes(json_from_record(found))
    table = costs_from_bundle(Bundle.open(path), "cpu", 1)
    assert table.costs == found
    assert table.seconds(3, 9, 128) == next(
        point.seconds for point in found.points if (point.branches, point.window, point.prefix) == (3, 9, 128)
    )
    with pytest.raises(BadInputError, match="threads"):
        costs_from_bundle(Bundle.open(path), "cpu", 2)


@pytest.mark.parametrize(
    ("seconds_a_row", "grid"),
    # A round of the finest grid has 46,080 rows: 184 s at 4 ms per row. Three of them fit into ten minutes.
    [(1e-5, 0), (0.004, 0), (0.0044, 1), (0.01, 2), (0.04, 3), (10.0, 3)],
)
def test_a_slower_model_gets_a_coarser_grid(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, seconds_a_row: float, grid: int
) -> None:
    manifest = decoder.bundle.manifest
    roomy = replace_positions(decoder, 1 << 17)
    monkeypatch.setattr(cost_measurement, "_seconds_a_row", lambda *_: seconds_a_row)
    schedule = schedule_for_decoder(roomy)
    assert schedule == Schedule(tuple(shapes_of_grid(GRIDS[grid], roomy.bundle.manifest)), 25, cost_measurement.ENOUGH)
    assert schedule.shapes[-1].window == manifest.decoding.block_size * max(GRIDS[grid].blocks)


def test_host_seconds_per_step_and_per_branch(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the seconds of real rounds by 7 outside the forward and 2 for each further branch."""
    original_job, original_pool, counts = Decoder._job, Decoder._pool, list[int]()

    def job(self: Decoder) -> Any:
        def counted_job(*arguments: Any, on_step: Any, **named: Any) -> Any:
            def counted(step: Step) -> None:
                counts.append(len(step.branches))
                on_step(step)

            return original_job.__get__(self)(*arguments, on_step=counted, **named)

        return counted_job

    def pool(self: Decoder, *arguments: Any, observer: Any, **named: Any) -> Any:
        def ended(report: RoundReport) -> None:
            assert 0 < report.seconds_outside < report.seconds
            observer.round_ended(replace(report, seconds_outside=7.0 + 2.0 * (counts[-1] - 1)))

        timed = SimpleNamespace(
            round_ended=ended, request_admitted=observer.request_admitted, request_ended=observer.request_ended
        )
        return original_pool(self, *arguments, observer=timed, **named)

    monkeypatch.setattr(Decoder, "_job", property(job))
    monkeypatch.setattr(Decoder, "_pool", pool)
    assert host_cost(decoder) == pytest.approx((7.0, 2.0))
    assert max(counts) == 8


def replace_positions(decoder: Decoder, positions: int) -> Decoder:
    """Return a decoder whose manifest has this number of positions."""
    manifest = decoder.bundle.manifest
    dimensions = msgspec.structs.replace(manifest.dimensions, max_positions=positions)
    bundle = Bundle(decoder.bundle.path, msgspec.structs.replace(manifest, dimensions=dimensions))
    return Decoder(bundle, decoder.session, decoder.tokenizer)


def test_points_are_medians(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = ForwardShape(2, 32, 64, 32)
    seconds = iter((0.5, 0.1, 0.2))
    monkeypatch.setattr(cost_measurement, "host_cost", lambda _: (1e-3, 1e-4))
    monkeypatch.setattr(cost_measurement, "_forward_seconds", lambda *_: 9.0 if _binds() else next(seconds))
    turns = itertools.cycle((True, False))

    def _binds() -> bool:
        """Return True for the first forward of a turn, which binds its inputs and does not count."""
        return next(turns)

    found = measured_costs(decoder, Schedule((shape,), 3), threads=1)
    (point,) = found.points
    assert (point.branches, point.window, point.prefix, point.seconds) == (2, 32, 64, 0.2)
    assert (found.device, found.threads, found.weights_sha256) == ("cpu", 1, decoder.bundle.manifest.weights_digest)


def test_prefixes_beyond_the_model_are_omitted(decoder: Decoder) -> None:
    for positions, prefixes in ((2048, [64, 128, 256, 512, 1024]), (192, [64]), (2176, [*GRIDS[0].prefixes])):
        manifest = replace_positions(decoder, positions).bundle.manifest
        shapes = shapes_of_grid(GRIDS[0], manifest)
        assert sorted({shape.prefix for shape in shapes}) == prefixes
        assert len(shapes) == 6 * 4 * len(prefixes)
    with pytest.raises(BadInputError, match="191 positions"):
        shapes_of_grid(GRIDS[0], replace_positions(decoder, 191).bundle.manifest)

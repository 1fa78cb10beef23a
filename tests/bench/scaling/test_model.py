"""The replay of recorded steps: small cases worked out by hand, and what must hold for all."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lopa.bench.forward.work import ForwardShape
from lopa.bench.scaling.links import PUBLISHED_LINKS, SHARED_MEMORY, Link, shared_memory_link
from lopa.bench.scaling.model import (
    EngineTable,
    MessageSizes,
    RecordedStep,
    StepParts,
    device_shape,
    message_seconds,
    sizes_from_manifest,
    steps_on_devices,
    transfer_seconds,
)
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.costs import COSTS_SCHEMA, Costs, CostTable, ForwardCost
from lopa.runtime.contract import CONTRACT_VERSION
from lopa.runtime.sessions.onnxruntime_graph import available_cores

SIZES = MessageSizes(cache_row=1000, answer_row=100)
LINK = Link("test", 0.5, 1000.0, "made up")
FREE = Link("free", 0.0, float("inf"), "made up")
PARTS = StepParts(windows=1.0, engine=99.0, gather=0.25, select=2.0, commit=0.5, spawn=4.0)


def recorded(*, branches: int = 4, window: int = 10, committed: int = 0, shared: bool = False) -> RecordedStep:
    return RecordedStep(ForwardShape(branches, window, 64, 5), committed, shared, PARTS)


def engine(shape: ForwardShape) -> float:
    """10 seconds a branch."""
    return 10.0 * shape.branches


def test_one_device_is_the_sum_of_its_parts() -> None:
    (step,) = steps_on_devices([recorded(committed=8)], 1, LINK, SIZES, engine, slowdown=3.0)
    assert step == replace(PARTS, engine=40.0)
    assert step.seconds == 1.0 + 40.0 + 0.25 + 2.0 + 0.5 + 4.0
    assert step.host == 5.0


def test_a_step_on_two_devices_by_hand() -> None:
    """Two branches away. Each asks 2 * 8 * 10 + 100 + 8 * 5 = 300 bytes and answers 5 * 100 = 500."""
    step = recorded()
    assert SIZES.question(step.shape, 2) == 600
    assert SIZES.answer(step.shape, 2) == 1000
    assert message_seconds(step.shape, 2, LINK, SIZES) == 2 * 0.5 + 1600 / 1000
    (predicted,) = steps_on_devices([step], 2, LINK, SIZES, engine, slowdown=1.5)
    assert predicted == replace(PARTS, engine=20.0 * 1.5, gather=0.25 + 1.0 + 1.6)


def test_the_next_forward_waits_for_what_the_hosts_work_does_not_cover() -> None:
    """9 rows to one device: 0.5 + 9 seconds; 4 of them pass while spawning, 1 while the next windows are built."""
    steps = [recorded(committed=9), recorded(), recorded()]
    assert transfer_seconds(steps[0], 2, LINK, SIZES) == 9.5
    gathers = [step.gather for step in steps_on_devices(steps, 2, LINK, SIZES, engine)]
    assert gathers == pytest.approx([2.85, 2.85 + 4.5, 2.85])
    short = [recorded(committed=4), recorded()]
    assert transfer_seconds(short[0], 2, LINK, SIZES) == 4.5 < PARTS.spawn + PARTS.windows
    assert [step.gather for step in steps_on_devices(short, 2, LINK, SIZES, engine)] == pytest.approx([2.85, 2.85])


@pytest.mark.parametrize(
    ("branches", "devices", "shared", "receivers"),
    [(4, 1, False, 0), (4, 2, False, 1), (4, 4, False, 3), (4, 8, False, 7), (4, 4, True, 0), (1, 4, True, 3)],
)
def test_who_receives_committed_rows(branches: int, devices: int, shared: bool, receivers: int) -> None:
    step = recorded(branches=branches, committed=2, shared=shared)
    expected = 0.5 + receivers * 2 * 1000 / 1000 if receivers else 0.0
    assert transfer_seconds(step, devices, LINK, SIZES) == expected


def test_a_single_branch_sends_nothing_and_shares_no_core() -> None:
    (step,) = steps_on_devices([recorded(branches=1)], 4, LINK, SIZES, engine, slowdown=2.0)
    assert step == replace(PARTS, engine=10.0)


@pytest.mark.parametrize(("devices", "share"), [(1, 5), (2, 3), (3, 2), (4, 2), (5, 1), (8, 1)])
def test_the_fullest_device(devices: int, share: int) -> None:
    assert device_shape(ForwardShape(5, 10, 64, 3), devices) == ForwardShape(share, 10, 64, 3)


a_step = st.builds(
    RecordedStep,
    st.builds(ForwardShape, st.integers(1, 12), st.integers(1, 90), st.just(64), st.integers(1, 60)),
    st.integers(0, 64),
    st.booleans(),
    st.builds(StepParts, *[st.floats(0, 2)] * 6),
)
decodes = st.lists(a_step, min_size=1, max_size=5)


@given(decodes, st.integers(1, 9), st.floats(0, 3), st.floats(10, 1e6), st.floats(1, 100), st.floats(0, 1))
def test_a_better_link_is_never_slower(
    steps: list[RecordedStep], devices: int, latency: float, bandwidth: float, more: float, less: float
) -> None:
    slow, fast = Link("", latency, bandwidth, ""), Link("", latency * less, bandwidth * more, "")
    pairs = zip(
        steps_on_devices(steps, devices, fast, SIZES, engine),
        steps_on_devices(steps, devices, slow, SIZES, engine),
        strict=True,
    )
    assert all(better.seconds <= worse.seconds + 1e-9 for better, worse in pairs)


@given(decodes, st.integers(1, 9), st.integers(1, 9))
def test_without_links_more_devices_are_never_slower(steps: list[RecordedStep], few: int, more: int) -> None:
    few, more = sorted((few, more))
    pairs = zip(
        steps_on_devices(steps, more, FREE, SIZES, engine),
        steps_on_devices(steps, few, FREE, SIZES, engine),
        strict=True,
    )
    assert all(after.seconds <= before.seconds for after, before in pairs)


@given(st.integers(1, 8), st.integers(1, 8), decodes)
def test_a_free_link_divides_the_engine_alone(share: int, devices: int, steps: list[RecordedStep]) -> None:
    steps = [replace(step, shape=replace(step.shape, branches=share * devices)) for step in steps]
    for step, predicted in zip(steps, steps_on_devices(steps, devices, FREE, SIZES, engine), strict=True):
        assert predicted.seconds == pytest.approx(step.parts.seconds - step.parts.engine + 10.0 * share)


def table(rng: np.random.Generator, scale: float) -> CostTable:
    """A grid of 2 x 2 x 2 random points."""
    grid = [(b, w, p) for b in (1, 4) for w in (9, 17) for p in (64, 128)]
    points = [ForwardCost(branches=b, window=w, prefix=p, seconds=scale * float(rng.uniform(1, 2))) for b, w, p in grid]
    return CostTable(
        Costs(
            schema=COSTS_SCHEMA,
            contract=CONTRACT_VERSION,
            device="cpu",
            machine="",
            threads=1,
            weights_sha256="",
            measured="",
            host_seconds=1.0,
            host_seconds_a_branch=0.0,
            points=points,
        )
    )


def test_the_engine_table_lies_between_one_row_and_all() -> None:
    rng = np.random.default_rng(5)
    tables = EngineTable(every_row=table(rng, 10.0), one_row=table(rng, 1.0))
    one, every = tables.one_row.seconds(4, 17, 128), tables.every_row.seconds(4, 17, 128)
    found = [tables.seconds(ForwardShape(4, 17, 128, wanted)) for wanted in (1, 9, 17, 18)]
    assert found == pytest.approx([one, (one + every) / 2, every, every])
    assert tables.seconds(ForwardShape(1, 1, 64, 1)) == pytest.approx(tables.every_row.seconds(1, 1, 64))


def test_sizes_of_a_bundle(tiny_bundle: Path) -> None:
    """5 layers of 2 heads of 32 in float32, keys and values; 8 candidates of 8 + 4 bytes and an entropy of 4."""
    assert sizes_from_manifest(Bundle.open(tiny_bundle).manifest) == MessageSizes(cache_row=2560, answer_row=100)


def test_links_are_ordered_as_everyone_knows_them() -> None:
    pcie, nvlink, ethernet = PUBLISHED_LINKS
    assert nvlink.bandwidth > pcie.bandwidth > ethernet.bandwidth
    assert nvlink.latency < min(pcie.latency, ethernet.latency)
    assert all(link.source for link in PUBLISHED_LINKS)


def test_the_link_between_threads_is_measured() -> None:
    link = shared_memory_link(min(available_cores()))
    assert link.name == SHARED_MEMORY
    assert 0 < link.latency < 0.1
    assert link.bandwidth > 1e6

"""Replay of recorded steps: small cases computed by hand, and general properties."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lopa.bench.forward.work import ForwardShape
from lopa.bench.scaling.links import PUBLISHED_LINKS, SHARED_MEMORY, DeviceLink, shared_memory_link
from lopa.bench.scaling.scaling_model import (
    MessageSizes,
    ReplayStep,
    ScalingModel,
    ShareCost,
    StepParts,
    device_shape,
    sizes_from_manifest,
)
from lopa.runtime.bundle import Bundle
from lopa.runtime.sessions.onnxruntime_graph import available_cores

SIZES = MessageSizes(cache_row=1000, answer_row=100)
LINK = DeviceLink("test", 0.5, 1000.0, "made up")
HERE = DeviceLink(SHARED_MEMORY, 0.5, 1000.0, "made up")
FREE = DeviceLink("free", 0.0, float("inf"), "made up")
PARTS = StepParts(windows=1.0, engine=40.0, gather=0.25, select=2.0, commit=0.5, spawn=4.0)


def recorded(*, branches: int = 4, window: int = 10, committed: int = 0, shared: bool = False) -> ReplayStep:
    return ReplayStep(ForwardShape(branches, window, 64, 5), committed, shared, PARTS)


def model(*, slowdown: float | None = None) -> ScalingModel:
    """Return a model with 10 engine seconds per branch. Two devices of this machine slow each other down."""
    together = None if slowdown is None else 500.0 * slowdown
    shares = ((1, 1000, None), (2, 50, together), (1000, 1, None))
    return ScalingModel(
        SIZES, tuple(ShareCost(devices, share, 10, 64, 5, 10.0 * share, busy) for devices, share, busy in shares)
    )


MODEL = model()


def test_one_device_is_the_sum_of_its_parts() -> None:
    (step,) = model(slowdown=3.0).steps([recorded(committed=8)], 1, HERE)
    assert step == PARTS
    assert step.seconds == 1.0 + 40.0 + 0.25 + 2.0 + 0.5 + 4.0
    assert step.host == 5.0


def test_a_step_on_two_devices_by_hand() -> None:
    """Two branches are remote. Each needs messages of 2 * 8 * 10 + 100 + 8 * 5 = 300 and 5 * 100 = 500 bytes."""
    step = recorded()
    assert SIZES.messages(step.shape, 2) == 600 + 1000
    assert MODEL.message_seconds(step.shape, 2, LINK) == 2 * 0.5 + 1600 / 1000
    (predicted,) = model(slowdown=1.5).steps([step], 2, HERE)
    assert predicted == replace(PARTS, engine=20.0 * 1.5, gather=0.25 + 1.0 + 1.6)


def test_the_next_forward_waits_for_the_rest_of_the_transfer() -> None:
    """9 rows to one device take 0.5 + 9 seconds. 4 of them overlap with spawning, 1 with building the next windows."""
    steps = [recorded(committed=9), recorded(), recorded()]
    assert MODEL.transfer_seconds(steps[0], 2, LINK) == 9.5
    gathers = [step.gather for step in MODEL.steps(steps, 2, LINK)]
    assert gathers == pytest.approx([2.85, 2.85 + 4.5, 2.85])
    short = [recorded(committed=4), recorded()]
    assert MODEL.transfer_seconds(short[0], 2, LINK) == 4.5 < PARTS.spawn + PARTS.windows
    assert [step.gather for step in MODEL.steps(short, 2, LINK)] == pytest.approx([2.85, 2.85])


@pytest.mark.parametrize(
    ("branches", "devices", "shared", "receivers"),
    [(4, 1, False, 0), (4, 2, False, 1), (4, 4, False, 3), (4, 8, False, 7), (4, 4, True, 0), (1, 4, True, 3)],
)
def test_receivers_of_committed_rows(branches: int, devices: int, shared: bool, receivers: int) -> None:
    step = recorded(branches=branches, committed=2, shared=shared)
    expected = 0.5 + receivers * 2 * 1000 / 1000 if receivers else 0.0
    assert MODEL.transfer_seconds(step, devices, LINK) == expected


def test_a_single_branch_sends_nothing_and_shares_no_core() -> None:
    (step,) = model(slowdown=2.0).steps([recorded(branches=1)], 4, HERE)
    assert step == PARTS


@pytest.mark.parametrize(("devices", "share"), [(1, 5), (2, 3), (3, 2), (4, 2), (5, 1), (8, 1)])
def test_the_largest_share(devices: int, share: int) -> None:
    assert device_shape(ForwardShape(5, 10, 64, 3), devices) == ForwardShape(share, 10, 64, 3)


a_step = st.builds(
    ReplayStep,
    st.builds(ForwardShape, st.integers(1, 12), st.integers(1, 90), st.just(64), st.integers(1, 60)),
    st.integers(0, 64),
    st.booleans(),
    st.builds(StepParts, *[st.floats(0, 2)] * 6),
)
decodes = st.lists(a_step, min_size=1, max_size=5)


@given(decodes, st.integers(1, 9), st.floats(0, 3), st.floats(10, 1e6), st.floats(1, 100), st.floats(0, 1))
def test_a_better_link_is_never_slower(
    steps: list[ReplayStep], devices: int, latency: float, bandwidth: float, more: float, less: float
) -> None:
    slow, fast = DeviceLink("", latency, bandwidth, ""), DeviceLink("", latency * less, bandwidth * more, "")
    pairs = zip(
        MODEL.steps(steps, devices, fast),
        MODEL.steps(steps, devices, slow),
        strict=True,
    )
    assert all(better.seconds <= worse.seconds + 1e-9 for better, worse in pairs)


@given(decodes, st.integers(1, 9), st.integers(1, 9))
def test_without_links_more_devices_are_never_slower(steps: list[ReplayStep], few: int, more: int) -> None:
    few, more = sorted((few, more))
    pairs = zip(
        MODEL.steps(steps, more, FREE),
        MODEL.steps(steps, few, FREE),
        strict=True,
    )
    assert all(after.seconds <= before.seconds for after, before in pairs)


@given(st.integers(1, 8), st.integers(1, 8), decodes)
def test_a_free_link_only_divides_the_engine(share: int, devices: int, steps: list[ReplayStep]) -> None:
    steps = [replace(step, shape=replace(step.shape, branches=share * devices)) for step in steps]
    for step, predicted in zip(steps, MODEL.steps(steps, devices, FREE), strict=True):
        assert predicted.seconds == pytest.approx(step.parts.seconds - step.parts.engine * (1 - 1 / devices))


def test_costs_between_measured_shares_are_linear() -> None:
    """Shares of 1, 2 and 4 branches take 1, 3 and 4 seconds. 3 branches take 3.5, and 5 as long as 4."""
    costs = {4: 4.0, 2: 3.0, 1: 1.0}
    shares = tuple(ShareCost(4 // share, share, 10, 64, 5, seconds, None) for share, seconds in costs.items())
    found = [
        ScalingModel(SIZES, shares).engine_seconds(recorded(branches=branches), 2, FREE) for branches in (1, 2, 3, 4, 5)
    ]
    assert found == pytest.approx([40.0, 40.0 / 3, 40.0 * 3 / 3.5, 40.0 * 3 / 4, 40.0 * 3.5 / 4])


def test_the_slowdown_of_the_next_smaller_number() -> None:
    shares = tuple(
        ShareCost(devices, 8 // devices, 10, 64, 5, 1.0, together)
        for devices, together in ((1, None), (2, 1.2), (4, 1.7), (8, None))
    )
    found = [ScalingModel(SIZES, shares).slowdown(devices) for devices in (1, 2, 3, 4, 8)]
    assert found == [1.0, 1.2, 1.2, 1.7, 1.7]


def test_sizes_of_a_bundle(tiny_bundle: Path) -> None:
    """5 layers have 2 heads of 32 in float32, keys and values. 8 candidates have 8 + 4 bytes, the entropy 4."""
    assert sizes_from_manifest(Bundle.open(tiny_bundle).manifest) == MessageSizes(cache_row=2560, answer_row=100)


def test_faster_links_have_lower_latency_or_more_bandwidth() -> None:
    pcie, nvlink, ethernet = PUBLISHED_LINKS
    assert nvlink.bandwidth > pcie.bandwidth > ethernet.bandwidth
    assert nvlink.latency < min(pcie.latency, ethernet.latency)
    assert all(link.source for link in PUBLISHED_LINKS)


def test_the_link_between_threads_is_measured() -> None:
    link = shared_memory_link(min(available_cores()))
    assert link.name == SHARED_MEMORY
    assert 0 < link.latency < 0.1
    assert link.bandwidth > 1e6

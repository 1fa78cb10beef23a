"""The planner against trying every choice of gears at run time, its bounds, and the aim on the recorded traces."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.recorded import TRACES, recording_of_file

from lopa.bench.gears.costs import GearCosts, bytes_of_gear, gear_costs
from lopa.bench.gears.planner import Choice, chosen_gears, limits_from_configs
from lopa.bench.gears.recording import forwards_of_recording
from lopa.bench.gears.rivals import outcome_of_gears, rival_outcomes
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.gears import Gear, GearPlanCosts, GearTable, gears_can_be_used
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig

LIMITS = Sizes(2, 4, 128, 192, 97)


def costs_of(knee: int) -> GearCosts:
    """Seconds grow with rows above `knee`, and with the prefix."""
    about = GearPlanCosts(kind="modelled", device="test", machine="test", measured=None)
    return GearCosts(about, lambda sequences, window, prefix: max(sequences * window, knee) * (1 + prefix / 512))


def rows_of(sizes: Sizes) -> int:
    """Stands for bytes: whatever grows."""
    return sizes.requests * sizes.branches * sizes.window


def plan(forwards: Counter[Sizes], limits: Sizes, costs: GearCosts, most: int, most_bytes: int | None = None) -> Choice:
    return chosen_gears(forwards, limits, costs, most=most, most_bytes=most_bytes, bytes_of=rows_of, seconds=60)


def seconds_at_run_time(gears: list[Gear], forwards: Counter[Sizes]) -> float:
    table = GearTable(gears)
    return sum(count * table.gear_for(sizes).seconds_for(sizes) for sizes, count in forwards.items())


@st.composite
def some_forwards(draw: st.DrawFn) -> Counter[Sizes]:
    forwards: Counter[Sizes] = Counter()
    for _ in range(draw(st.integers(1, 6))):
        window = draw(st.sampled_from([1, 16, 40, 64, 100]))
        sizes = Sizes(
            draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 3, 4])), window, draw(st.sampled_from([64, 192])),
            draw(st.integers(1, min(window, 97))),
        )  # fmt: skip
        forwards[sizes] += draw(st.integers(1, 50))
    return forwards


@settings(max_examples=60, deadline=None)
@given(some_forwards(), st.integers(1, 3), st.sampled_from([1, 200]), st.sampled_from([None, 300]))
def test_no_choice_of_gears_is_better_at_run_time(
    forwards: Counter[Sizes], most: int, knee: int, most_bytes: int | None
) -> None:
    costs = costs_of(knee)
    found = plan(forwards, LIMITS, costs, most, most_bytes)
    assert gears_can_be_used(found.gears)
    assert len(found.gears) <= most
    assert 0.5 < found.least_share <= 1
    axes = (
        sorted({1, LIMITS.requests} | {sizes.requests for sizes in forwards}),
        sorted({1, LIMITS.branches} | {sizes.branches for sizes in forwards}),
        sorted({LIMITS.window} | {-(-sizes.window // 16) * 16 for sizes in forwards}),
        sorted({LIMITS.prefix} | {sizes.prefix for sizes in forwards}),
    )
    every = [
        Gear(requests=r, branches=b, window=w, prefix=p, wanted=min(w, 97), seconds=costs.seconds_of(r * b, w, p))
        for r, b, w, p in itertools.product(*axes)
    ]
    fitting = [gear for gear in every if most_bytes is None or rows_of(gear) <= most_bytes]
    longest = [gear for gear in fitting if (gear.window, gear.prefix) == (LIMITS.window, LIMITS.prefix)]
    whole = [gear for gear in longest if (gear.requests, gear.branches) == (LIMITS.requests, LIMITS.branches)]
    rng = np.random.default_rng(0)
    others = [list(each) for each in itertools.combinations(fitting, most - 1)]
    tried = [others[i] for i in rng.permutation(len(others))[:400]]
    best = min(seconds_at_run_time([gear, *rest], forwards) for gear in whole or longest for rest in tried)
    assert seconds_at_run_time(list(found.gears), forwards) <= best * (1 + 1e-9)


def test_one_gear_takes_everything_and_the_others_what_is_frequent() -> None:
    forwards = Counter({Sizes(1, 4, 60, 64, 33): 1000, Sizes(1, 1, 90, 64, 33): 5})
    found = plan(forwards, LIMITS, costs_of(1), 2)
    assert [(gear.requests, gear.branches, gear.window, gear.prefix, gear.wanted) for gear in found.gears] == [
        (1, 4, 64, 64, 64),
        (2, 4, 128, 192, 97),
    ]


def test_below_the_knee_one_gear_is_enough() -> None:
    forwards = Counter({Sizes(1, b, w, 192, 1): 7 for b in (1, 4) for w in (16, 64)})
    assert len(plan(forwards, LIMITS, costs_of(10**6), 5).gears) == 1


def test_memory_takes_branches_from_the_largest_gear_first() -> None:
    forwards = Counter({Sizes(1, 4, 60, 64, 33): 1000, Sizes(1, 4, 128, 192, 33): 5})
    found = plan(forwards, LIMITS, costs_of(1), 2, most_bytes=256)
    assert max(rows_of(gear) for gear in found.gears) <= 256
    split = GearTable(found.gears).gear_for(Sizes(1, 4, 128, 192, 33))
    assert split.forwards(Sizes(1, 4, 128, 192, 33)) > 1
    with pytest.raises(BadInputError, match=r"at least 0\.000001 GiB: one branch of one request over a window of 128"):
        plan(forwards, LIMITS, costs_of(1), 2, most_bytes=127)


def test_of_too_many_sizes_a_part_is_considered(monkeypatch: pytest.MonkeyPatch) -> None:
    forwards = Counter({Sizes(1, b, w, p, 1): b + w for b in (1, 2, 4) for w in range(1, 129) for p in (64, 192)})
    best = plan(forwards, LIMITS, costs_of(1), 4)
    assert best.every_size
    monkeypatch.setattr("lopa.bench.gears.planner.MOST_CELLS", 1000)
    found = plan(forwards, LIMITS, costs_of(1), 4)
    assert not found.every_size
    assert gears_can_be_used(found.gears)
    least = seconds_at_run_time(list(best.gears), forwards)
    assert least < seconds_at_run_time(list(found.gears), forwards) < 1.2 * least


def test_limits_are_what_the_options_allow() -> None:
    configs = [
        GenerationConfig(branches=5, block_size=32, max_new_tokens=100),
        GenerationConfig(strategy="d2f", block_size=16, max_new_tokens=40),
    ]
    forwards = Counter({Sizes(3, 2, 50, 64, 20): 1})
    assert limits_from_configs(configs, forwards, 30) == Sizes(3, 5, 112, 192, 101)
    assert limits_from_configs(configs, forwards, 300) == Sizes(3, 5, 336, 448, 101)


@pytest.mark.parametrize("path", sorted(TRACES.glob("*lopa*.gz")), ids=lambda path: path.name.split(".")[0])
def test_recorded_traces_with_eight_gears(path: Path, tiny_bundle: Path) -> None:
    """The aim is 10 % over no padding. The model of one CPU thread is the hardest: every padding row costs."""
    bundle = Bundle.open(tiny_bundle)
    recording = recording_of_file(path)
    forwards = forwards_of_recording(recording, 1)
    limits = limits_from_configs(recording.configs, forwards, recording.longest_prompt)
    for device, aim in (("cpu", 1.14 if "x_long" in path.name else 1.10), ("cuda:0", 1.05)):
        costs = gear_costs(bundle, device, None)
        found = chosen_gears(
            forwards, limits, costs, most=8, most_bytes=None, seconds=60,
            bytes_of=lambda sizes: bytes_of_gear(bundle.manifest, sizes),
        )  # fmt: skip
        unpadded, *others = rival_outcomes(forwards, limits, costs)
        outcome = outcome_of_gears("plan", found.gears, forwards)
        assert 0.97 < found.least_share <= 1
        assert outcome.seconds <= aim * unpadded.seconds
        largest = others[-1]
        assert outcome.seconds < largest.seconds
        assert outcome.padding < largest.padding

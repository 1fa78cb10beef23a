"""A fixed number of real steps, and the host's share from their seconds."""

from pathlib import Path

import pytest

from lopa.bench.gpu import host_share
from lopa.bench.gpu.host_share import measure_steps
from lopa.runtime.bundle import Bundle
from lopa.runtime.decoding.step import Step
from lopa.runtime.requests.running_loop import RunningLoop
from lopa.runtime.sessions.session import open_session


def test_only_steps_of_the_second_decode_count(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle.open(tiny_bundle)
    session = open_session(bundle, "cpu", threads=1)
    monkeypatch.setattr(host_share, "_STEPS", 4)
    decodes: dict[int, list[int]] = {}
    step = RunningLoop.step

    def with_known_seconds(running: RunningLoop) -> Step:
        made = step(running)
        decodes.setdefault(running.cache.number, []).append(made.number)
        # One counted forward is slow, as when an engine prepares for a new size.
        slow = len(decodes) == 2 and made.number == 2
        made.seconds.clear()
        made.seconds.update(windows=0.1, forward=100.0 if slow else 0.7, select=0.2)
        return made

    monkeypatch.setattr(RunningLoop, "step", with_known_seconds)
    found = measure_steps(session, bundle.manifest)
    numbers = list(decodes.values())
    assert len(numbers) == 6, "three prompts, each decoded twice"
    assert numbers[::2] == numbers[1::2]
    assert max(map(len, numbers)) == 4
    counted = sum(len(each) - 1 for each in numbers[1::2])
    assert found.steps == counted
    assert found.branches == 4
    assert found.host_share == pytest.approx(0.3)
    assert (found.median, found.forward_median) == (pytest.approx(1.0), pytest.approx(0.7))
    assert found.steps_per_second == pytest.approx(counted / (counted - 1 + 100.3))
    assert all(session.prefix_length(request) == 0 for request in decodes)
    session.close()

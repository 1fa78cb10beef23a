"""Decodes of canvases on the stand-in driver: every step equals transformers' recording, and numpy's statistics.

test_on_stand_in.py runs them in a process of its own.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.canvas_checkpoints import FOLDER, canvas_model, with_stops
from tests.conformance.test_canvas_recordings import FILES, NEAR_TIE, loop_of, recorded, replayed
from tests.runtime.cuda.stand_in_ort import StandInOrt

from lopa.export.bundle_from_checkpoint import bundle_from_plan
from lopa.export.bundle_plan import BundleChoices, plan_from_checkpoint
from lopa.runtime.bundle import Bundle
from lopa.runtime.cuda.packed_session import PackedSession
from lopa.runtime.requests.running_loop import RequestCache, RunningLoop
from lopa.runtime.sessions.session import Session, open_session

TRACES = 3
"""Decodes of each recording."""


@pytest.fixture(scope="module")
def bundle_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bundle]:
    folder = tmp_path_factory.mktemp("canvases")
    return cache(
        lambda name: bundle_from_plan(
            plan_from_checkpoint(FOLDER / name, folder / name, BundleChoices(dialects=("standard",)))
        )
    )


@pytest.fixture
def opened(bundle_of: Callable[[str], Bundle], stand_in_machine: StandInOrt) -> Iterator[Callable[[str], Session]]:
    sessions: list[Session] = []

    def on_device(name: str) -> Session:
        sessions.append(open_session(bundle_of(name), "cuda:1"))
        assert isinstance(sessions[-1], PackedSession)
        return sessions[-1]

    captures = len(stand_in_machine.captures)
    yield on_device
    for session in sessions:
        session.close()
    assert len(stand_in_machine.captures) > captures


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parts[0]}-{path.name.partition('.')[0]}")
def test_every_step_equals_the_published_one(path: Path, opened: Callable[[str], Session]) -> None:
    config, *traces = recorded(path)
    manifest, session = with_stops(canvas_model(path.parts[0])[0], config["stops"]), opened(path.parts[0])
    for trace in traces[:TRACES]:
        running = RunningLoop(loop_of(config, trace, manifest), RequestCache(session))
        found: Any = replayed(running, trace)
        running.cache.release()
        assert found is None or trace["margin"] < NEAR_TIE, found

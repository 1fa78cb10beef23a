"""Decodes of canvases on the stand-in driver: every step equals transformers' recording.

test_on_stand_in.py runs them in a process of its own.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.canvas_checkpoints import FOLDER, canvas_model, with_stops
from tests.conformance.test_canvas_recordings import FILES, NEAR_TIE, loop_of, recorded, replayed
from tests.runtime.canvas_decodes import CanvasDecodes
from tests.runtime.cuda.stand_in_ort import StandInOrt

from lopa import Decoder
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
def opened(bundle_of: Callable[[str], Bundle], request: pytest.FixtureRequest) -> Iterator[Session]:
    session = open_session(bundle_of(request.node.callspec.params["path"].parts[0]), "cuda:1")
    assert isinstance(session, PackedSession)
    yield session
    session.close()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parts[0]}-{path.name.partition('.')[0]}")
def test_every_step_equals_the_published_one(path: Path, opened: Session, stand_in_machine: StandInOrt) -> None:
    config, *traces = recorded(path)
    manifest, captures = with_stops(canvas_model(path.parts[0])[0], config["stops"]), len(stand_in_machine.captures)
    for trace in traces[:TRACES]:
        running = RunningLoop(loop_of(config, trace, manifest), RequestCache(opened))
        found: Any = replayed(running, trace)
        running.cache.release()
        assert found is None or trace["margin"] < NEAR_TIE, found
    assert len(stand_in_machine.captures) > captures


class TestDecodes(CanvasDecodes):
    traces, seeds = 1, 2

    @pytest.fixture
    def decoder(self, canvas_bundle: Path, stand_in_machine: StandInOrt) -> Iterator[Decoder]:
        replays = stand_in_machine.replays
        with Decoder.open(canvas_bundle, ["cuda:0"]) as decoder:
            yield decoder
        assert stand_in_machine.replays > replays

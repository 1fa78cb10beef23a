"""Our decoder makes the choices of the published loops of mixtures of experts, step by step: LLaDA2.0's, LLaDA2.1's
with edits, SDAR's and LLaDA's.

tests/reference/moe/README.md describes the recordings.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conformance.family_traces import (
    MIXTURES,
    checkpoint_of,
    family_comparisons,
    family_trace_files,
    read_family_traces,
    sampled,
)
from tests.conformance.recorded import DEVICE, Record, check_comparisons

from lopa.runtime.bundle import Bundle
from lopa.runtime.sessions.session import Session, open_session

FILES = family_trace_files(MIXTURES)


def opened(path: Path, family_bundle: Callable[..., Path], device: str = "cpu") -> tuple[Bundle, Session]:
    bundle = Bundle.open(family_bundle(checkpoint_of(path).name, with_logits=True))
    return bundle, open_session(bundle, device, threads=1)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{checkpoint_of(path).name}-{path.name.split('.')[0]}")
def test_published_loops_are_reproduced(
    path: Path, family_bundle: Callable[..., Path], record_property: Record
) -> None:
    bundle, session = opened(path, family_bundle, DEVICE.format(0))
    numbers = sampled(read_family_traces(path)[1])
    found = family_comparisons(path, session, bundle.manifest, only=numbers)
    session.close()
    assert len(found) == len(numbers) >= 6
    check_comparisons(found, record_property)


def test_every_recording_exists() -> None:
    assert len(FILES) == 17
    assert sum(len(read_family_traces(path)[1]) for path in FILES) == 374

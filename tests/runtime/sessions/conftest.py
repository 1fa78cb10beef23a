"""Sessions that are closed at the end of a test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lopa.runtime.bundle import Bundle
from lopa.runtime.sessions.session import Session, open_session


@pytest.fixture
def opened() -> Iterator[Callable[[Path, str], Session]]:
    """Opens sessions and closes them at the end of the test."""
    sessions: list[Session] = []

    def open_one(bundle: Path, device: str) -> Session:
        sessions.append(open_session(Bundle.open(bundle), device, threads=1))
        return sessions[-1]

    yield open_one
    for session in sessions:
        session.close()

"""Replicas that tests can break, with files in a folder named by an environment variable."""

import os
from pathlib import Path
from typing import Any

from lopa.runtime.sessions import onnxruntime_session
from lopa.serve.ray.bundle_replica import BundleReplica

FOLDER = "LOPA_RAY_TESTS"


def file_of(name: str) -> Path:
    return Path(os.environ[FOLDER]) / name


class Failing(onnxruntime_session.HostSession):
    """Device that fails if a file named fail-PID exists for its process."""

    def wait(self, ticket: Any) -> Any:
        if file_of(f"fail-{os.getpid()}").exists():
            raise OSError("the fan stopped")
        return super().wait(ticket)


class BreakableReplica(BundleReplica):
    async def __init__(self, *args: Any) -> None:
        onnxruntime_session.HostSession = Failing  # type: ignore[misc]
        await super().__init__(*args)
        file_of(self._name).write_text(str(os.getpid()))

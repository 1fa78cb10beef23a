"""Replicas that tests can break: by files in a folder that processes of Ray know from their environment."""

import os
from pathlib import Path
from typing import Any

from lopa.runtime.sessions import onnxruntime_session
from lopa.serve.ray.opened import OpenedBundle
from lopa.serve.ray.replica import BundleReplica

FOLDER = "LOPA_RAY_TESTS"


def file_of(name: str) -> Path:
    return Path(os.environ[FOLDER]) / name


class Failing(onnxruntime_session.HostSession):
    """A device that fails in the process for which there is a file."""

    def forward(self, batch: Any) -> Any:
        if file_of(f"fail-{os.getpid()}").exists():
            raise OSError("the fan stopped")
        return super().forward(batch)


class Breakable(BundleReplica):
    async def __init__(self, *args: Any) -> None:
        onnxruntime_session.HostSession = Failing  # type: ignore[misc]
        await super().__init__(*args)
        file_of(self._name).write_text(str(os.getpid()))


class Poor(BundleReplica):
    """It finds no memory for its bundle."""

    def open(self, model: str) -> OpenedBundle:
        raise MemoryError(f"no memory for {model}")


class Killed(BundleReplica):
    """Its process is ended while it opens its bundle, as the kernel does where there is no memory."""

    def open(self, model: str) -> OpenedBundle:  # noqa: ARG002
        os.kill(os.getpid(), 9)
        raise AssertionError("it has ended")

"""The file of a plan: held against its digest, then given to TensorRT piece by piece. Knows no engine.

A plan has the weights in it. So the host never holds it whole: TensorRT asks for what it copies to the GPU.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

from lopa.runtime.bundle import sha256_of_file
from lopa.runtime.bundle.engine_file import ENGINE_NAME
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import regular_file
from lopa.runtime.tensorrt.held_garbage import garbage_held
from lopa.runtime.tensorrt.manifest import PLAN_NAME, StoredTensorRTEngine
from lopa.runtime.tensorrt.messages import Messages

_PIECE = 64 * 2**20
"""Bytes that are given at once at most; TensorRT asks again for the rest (IStreamReaderV2)."""


def engine_from_plan(trt: ModuleType, found: StoredTensorRTEngine, messages: Messages) -> tuple[Any, Any]:
    """A Runtime of the module `trt`, which has to live as long as its engine, and the engine of the plan.

    None for an engine that TensorRT refuses: `messages` says why. Raises BadInputError when the plan is not what was
    built, byte for byte.
    """
    path = check_file(found, PLAN_NAME)
    with (
        regular_file(path, expected="the plan as it was built", remedy=found.engine.target.rebuild) as file,
        garbage_held(),
    ):
        runtime = trt.Runtime(messages)
        runtime.engine_host_code_allowed = found.engine.flags.version_compatible  # it holds a runtime of its own
        return runtime, runtime.deserialize_cuda_engine(stream_reader_v2=stream_reader(trt, file))


def check_file(found: StoredTensorRTEngine, name: str) -> Path:
    """The path of a file of the engine, which is read. Raises BadInputError when it has changed since the build."""
    record = next(record for record in found.engine.files if record.path == name)
    path = found.folder / name
    if sha256_of_file(path) != record.sha256:
        raise BadInputError(
            f"{path} is damaged: its sha256 differs from that in {ENGINE_NAME}",
            expected="the file as it was built",
            remedy=f"remove {found.folder}, then {found.engine.target.rebuild}",
        )
    return path


def stream_reader(trt: ModuleType, file: Any) -> Any:
    """An IStreamReaderV2 of the module `trt` over an open file."""
    whence = {trt.SeekPosition.SET: 0, trt.SeekPosition.CUR: 1, trt.SeekPosition.END: 2}

    class _Reader(trt.IStreamReaderV2):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IStreamReaderV2.__init__(self)

        def read(self, num_bytes: int, stream: int) -> bytes:  # noqa: ARG002
            return bytes(file.read(min(num_bytes, _PIECE)))

        def seek(self, offset: int, where: Any) -> bool:
            file.seek(offset, whence[where])
            return True

    return _Reader()

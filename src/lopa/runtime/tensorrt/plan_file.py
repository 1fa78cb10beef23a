"""The file of a plan, which is compared with its digest and then streamed to TensorRT.

A plan contains the weights. Streaming avoids holding it in host memory, because TensorRT requests the parts that it
copies to the GPU.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

from lopa.runtime.bundle import sha256_of_file
from lopa.runtime.bundle.engine_file import ENGINE_NAME
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import regular_file
from lopa.runtime.tensorrt.tensorrt_library import Messages, garbage_collection_disabled
from lopa.runtime.tensorrt.tensorrt_manifest import PLAN_NAME, StoredTensorRTEngine

_CHUNK = 64 * 2**20
"""Maximum number of bytes per read. TensorRT calls the reader again for the rest (IStreamReaderV2)."""


def engine_from_plan(trt: ModuleType, found: StoredTensorRTEngine, messages: Messages) -> tuple[Any, Any]:
    """Return a Runtime of the module `trt`, which must outlive its engine, and the engine of the plan.

    The engine is None if TensorRT rejects the plan; `messages` has the reason. Raises BadInputError if the plan differs
    from the build.
    """
    path = check_file(found, PLAN_NAME)
    with (
        regular_file(path, expected="the plan of the build", remedy=found.engine.target.rebuild) as file,
        garbage_collection_disabled(),
    ):
        runtime = trt.Runtime(messages)
        runtime.engine_host_code_allowed = found.engine.flags.version_compatible  # the plan contains its own runtime
        return runtime, runtime.deserialize_cuda_engine(stream_reader_v2=stream_reader(trt, file))


def check_file(found: StoredTensorRTEngine, name: str) -> Path:
    """Return the path of one of the engine's files. Raises BadInputError if it has changed since the build."""
    record = next(record for record in found.engine.files if record.path == name)
    path = found.folder / name
    if sha256_of_file(path) != record.sha256:
        raise BadInputError(
            f"{path} is damaged: its sha256 differs from {ENGINE_NAME}",
            expected="the file of the build",
            remedy=f"remove {found.folder}, then {found.engine.target.rebuild}",
        )
    return path


def stream_reader(trt: ModuleType, file: Any) -> Any:
    """Return an IStreamReaderV2 of the module `trt` over an open file."""
    whence = {trt.SeekPosition.SET: 0, trt.SeekPosition.CUR: 1, trt.SeekPosition.END: 2}

    class _Reader(trt.IStreamReaderV2):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IStreamReaderV2.__init__(self)

        def read(self, num_bytes: int, stream: int) -> bytes:  # noqa: ARG002
            return bytes(file.read(min(num_bytes, _CHUNK)))

        def seek(self, offset: int, where: Any) -> bool:
            file.seek(offset, whence[where])
            return True

    return _Reader()

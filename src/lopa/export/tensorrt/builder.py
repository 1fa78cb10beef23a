"""One build with TensorRT, from a model in memory to a file with a serialized engine (plan) and a timing cache.

Networks are strongly typed: every operation has the types of the graph. `trt` is the module of a TensorRTLibrary, or
a stand-in for it in tests.
"""

import ctypes
import hashlib
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Protocol

from lopa.export.progress import ProgressCallback
from lopa.export.tensorrt.flags import configure
from lopa.runtime.accelerator.device_forward import GraphArrays
from lopa.runtime.bundle.manifest import FileRecord, Manifest
from lopa.runtime.errors import BadInputError
from lopa.runtime.tensorrt.profiles import ProfileRange
from lopa.runtime.tensorrt.tensorrt_library import Messages, garbage_collection_disabled, last_messages, messages_logger
from lopa.runtime.tensorrt.tensorrt_manifest import BuildFlags, EngineTarget


class Cancellable(Protocol):
    """Protocol of an IProgressMonitor that can cancel a build."""

    def cancel(self) -> None:
        """End the build at its next step."""


def progress_monitor(trt: ModuleType, report: ProgressCallback) -> Cancellable:
    """Return a monitor of the module `trt` that reports outermost phases, from TensorRT's threads."""

    class _Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._cancelled = threading.Event()
            self._steps: dict[str, int] = {}

        def cancel(self) -> None:
            self._cancelled.set()

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            if not parent_phase:
                self._steps[phase_name] = num_steps
                report(phase_name, 0, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            if phase_name in self._steps:
                report(phase_name, step + 1, self._steps[phase_name])
            return not self._cancelled.is_set()

        def phase_finish(self, phase_name: str) -> None:
            total = self._steps.pop(phase_name, None)
            if total is not None:
                report(phase_name, total, total)

    return _Monitor()


_M_MMAP_THRESHOLD = -3
"""Parameter of glibc's mallopt. Blocks from this size on are mapped separately and unmapped when they are freed."""
_BLOCK = 256 * 2**10
"""Block size in bytes. By default glibc raises the threshold to 32 MB and keeps the compiler's freed blocks."""


@dataclass(frozen=True)
class TimingCache:
    """Timings of earlier builds with the same version on the same GPU."""

    content: bytes
    """Content of the file; empty if there is none yet."""
    name: str
    """Name for messages."""


@dataclass(frozen=True, eq=False)
class BuildRequest:
    """Inputs of one build."""

    model: bytes
    """ONNX without its external data."""
    graph_path: Path
    """Path in the folder that external data is relative to."""
    manifest: Manifest
    """Manifest of the bundle, for the shapes of inputs."""
    profiles: Sequence[ProfileRange]
    flags: BuildFlags
    target: EngineTarget
    timing_cache: TimingCache | None
    """Cache of earlier timings, or None for a library that does not time kernels."""


@dataclass(frozen=True, eq=False)
class BuiltPlan:
    """Result of one build."""

    plan: FileRecord
    """Record of the plan file."""
    timing_cache: bytes | None


def plan_from_request(trt: ModuleType, request: BuildRequest, path: Path, report: ProgressCallback) -> BuiltPlan:
    """Build an engine and write its plan to the new file `path`.

    A build takes minutes, and Ctrl-C ends it at the next step. TensorRT builds on the current CUDA device. TensorRT for
    RTX needs no device. Raises BadInputError if the model cannot be parsed or built, a profile is inconsistent, or the
    timing cache is of another version or GPU. Raises OSError if the plan cannot be written.
    """
    return_freed_memory()
    with garbage_collection_disabled():
        try:
            return _built_from_request(trt, request, path, report)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # the stored error must not keep the builder alive
            raise


def _built_from_request(trt: ModuleType, request: BuildRequest, path: Path, report: ProgressCallback) -> BuiltPlan:
    messages = messages_logger(trt)
    builder = trt.Builder(messages)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    _parse(trt, network, messages, request)
    config = builder.create_builder_config()
    configure(trt, config, request.flags, request.target)
    _add_profiles(builder, config, network, request)
    if request.timing_cache is not None:
        _set_timing_cache(config, request.timing_cache)
    monitor = progress_monitor(trt, report)
    config.progress_monitor = monitor
    file = _PlanFile(path)
    try:
        built = _build(builder, network, config, _writer_to_file(trt, file), monitor)
    finally:
        file.close()
    if file.error is not None:
        raise file.error
    if not built:
        raise _cannot_build(f"{request.target.built_by} could not build the network", messages)
    timings = None if request.timing_cache is None else bytes(config.get_timing_cache().serialize())
    return BuiltPlan(file.record, timings)


def return_freed_memory() -> None:
    """Make glibc return freed blocks to the system for the rest of the process.

    The compiler frees half the size of a 1.3 GB plan before the plan is complete.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _BLOCK)


class _PlanFile:
    """Writer of a plan. The first bytes create the file."""

    def __init__(self, path: Path) -> None:
        self.error: OSError | None = None
        """Reason why the file is incomplete, or None."""
        self._path = path
        self._file: BinaryIO | None = None
        self._size = 0
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        """Write `data` and return the number of bytes written, which is all or none."""
        try:
            if self._file is None:
                self._file = self._path.open("wb")
            self._file.write(data)
        except OSError as error:  # TensorRT's own error would not name the reason
            self.error = error
            return 0
        self._size += len(data)
        self._digest.update(data)
        return len(data)

    def close(self) -> None:
        """Close the file. Raises OSError if the last bytes cannot be written."""
        if self._file is not None:
            self._file.close()

    @property
    def record(self) -> FileRecord:
        """Record of the written file."""
        return FileRecord(path=self._path.name, size=self._size, sha256=self._digest.hexdigest())


def _writer_to_file(trt: ModuleType, file: _PlanFile) -> Any:
    """Return an IStreamWriter of the module `trt`. TensorRT for RTX 1.7.1 needs less memory with it than without."""

    class _Writer(trt.IStreamWriter):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IStreamWriter.__init__(self)

        def write(self, data: bytes) -> int:
            return file.write(data)

    return _Writer()


def _parse(trt: ModuleType, network: Any, messages: Messages, request: BuildRequest) -> None:
    parser = trt.OnnxParser(network, messages)
    if not parser.parse(request.model, str(request.graph_path)):
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        places = [f"{error.node_operator()} {error.node_name()}: {error.desc()}" for error in errors]
        raise _cannot_build(f"TensorRT's parser rejects the graph: {'; '.join(places)}", messages)


def _add_profiles(builder: Any, config: Any, network: Any, request: BuildRequest) -> None:
    arrays = GraphArrays(request.manifest)
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    names = {each.name: [each.get_dimension_name(axis) for axis in range(len(each.shape))] for each in inputs}
    for number, profile_range in enumerate(request.profiles):
        smallest, best, largest = (
            arrays.input_shapes(sizes) for sizes in (profile_range.min, profile_range.best, profile_range.max)
        )
        for shapes in (smallest, best, largest):
            check_named_dimensions(names, shapes, number)
        profile = builder.create_optimization_profile()
        for name in smallest:
            profile.set_shape(name, smallest[name], best[name], largest[name])
        if config.add_optimization_profile(profile) != number:
            raise RuntimeError(f"TensorRT rejected profile {number}, {profile_range}")


def check_named_dimensions(
    names: Mapping[str, Sequence[str]], shapes: Mapping[str, Sequence[int]], profile: int
) -> None:
    """Raise BadInputError unless axes with the same name have the same size in the input `shapes` of a profile.

    `names` has the axis names of each input in the graph, "" for one without. TensorRT accepts such a profile first and
    fails minutes later in the build.
    """
    known: dict[str, tuple[int, str]] = {}
    for tensor, sizes in shapes.items():
        for axis, (name, size) in enumerate(zip(names[tensor], sizes, strict=True)):
            place = f"{tensor}, axis {axis}"
            first, where = known.setdefault(name, (size, place)) if name else (size, place)
            if first != size:
                raise BadInputError(
                    f"profile {profile} gives {name} the size {first} in {where} and {size} in {place}",
                    expected="the same size for axes with the same name in the graph",
                    remedy="export the checkpoint again, and plan again: lopa-export plan BUNDLE",
                )


def _set_timing_cache(config: Any, timed: TimingCache) -> None:
    """Set the cache of earlier timings. TensorRT itself recognizes the cache of another version or GPU."""
    cache = config.create_timing_cache(timed.content)
    if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
        raise BadInputError(
            f"{timed.name} is not a timing cache of this TensorRT version and GPU",
            expected="a file that this version wrote on this GPU, or no file with this name",
            remedy="pass another file to --timing-cache, or remove this one",
        )


def _build(builder: Any, network: Any, config: Any, writer: Any, monitor: Cancellable) -> bool:
    """Build the engine on a new thread, so that the calling one can be interrupted. Return True on success."""
    outcome: list[Any] = []
    begun, cancelled, ended = threading.Event(), threading.Event(), threading.Event()

    def build() -> None:
        begun.set()
        try:
            if not cancelled.is_set():
                outcome.append(builder.build_serialized_network_to_stream(network, config, writer))
        except BaseException as error:
            outcome.append(error)
        finally:
            ended.set()

    # Not with Thread.join: up to Python 3.12 an interrupted join marks its thread as ended, and the next join does not
    # wait.
    try:
        threading.Thread(target=build, name="tensorrt-build").start()
        ended.wait()
    except BaseException:
        cancelled.set()
        monitor.cancel()
        if begun.is_set():  # otherwise the thread may not exist; if it starts later, it sees the cancellation
            ended.wait()
        raise
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return bool(outcome[0])


def _cannot_build(received: str, messages: Messages) -> BadInputError:
    return BadInputError(
        received + last_messages(messages),
        expected="a graph, types and shape buckets that TensorRT has kernels for, and memory for the largest bucket",
        remedy="see Troubleshooting in docs/how-to/engines.md: free GPU memory, plan smaller shape buckets "
        "(lopa-export plan --memory), build for other GPUs, or export in another dtype",
    )

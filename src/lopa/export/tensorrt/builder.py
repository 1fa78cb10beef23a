"""One build with TensorRT: a model in memory becomes a file with a serialized engine, and a timing cache.

Strongly typed: every product and sum has the type that the graph says. Knows no bundle. `trt` is the module of a
TensorRTLibrary, or what stands in for it in tests.
"""

import ctypes
import hashlib
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from lopa.export.progress import Progress
from lopa.export.tensorrt.flags import configure
from lopa.export.tensorrt.progress import Cancellable, progress_monitor
from lopa.runtime.accelerator.arrays import GraphArrays
from lopa.runtime.bundle.manifest import FileRecord, Manifest
from lopa.runtime.errors import BadInputError
from lopa.runtime.tensorrt.held_garbage import garbage_held
from lopa.runtime.tensorrt.manifest import BuildFlags, EngineTarget
from lopa.runtime.tensorrt.messages import Messages, last_messages, messages_logger
from lopa.runtime.tensorrt.profiles import ProfileRange

_M_MMAP_THRESHOLD = -3
"""Of glibc's mallopt: blocks from this size on are the system's own, and go back to it when they are freed."""
_BLOCK = 256 * 2**10
"""Bytes. glibc raises its threshold to 32 MB as such blocks are freed, and keeps what the compiler frees then."""


@dataclass(frozen=True)
class TimingCache:
    """What was timed by earlier builds of the same version on the same GPU."""

    content: bytes
    """Empty: nothing yet."""
    name: str
    """For messages."""


@dataclass(frozen=True, eq=False)
class BuildRequest:
    """What is to be built."""

    model: bytes
    """ONNX without its external data."""
    beside: Path
    """A path in the folder that external data is named relative to."""
    manifest: Manifest
    """Of the bundle: its shapes."""
    profiles: Sequence[ProfileRange]
    flags: BuildFlags
    target: EngineTarget
    timing_cache: TimingCache | None
    """None: nothing is timed."""


@dataclass(frozen=True, eq=False)
class Built:
    """What came of it."""

    plan: FileRecord
    """The file, by its name."""
    timing_cache: bytes | None


def plan_from_request(trt: ModuleType, request: BuildRequest, path: Path, tell: Progress) -> Built:
    """Build, and write the plan to the new file `path`; minutes. Ctrl-C ends the build at its next step.

    TensorRT builds on the current CUDA device, TensorRT for RTX without one. Raises BadInputError when the model
    cannot be parsed or built, a profile contradicts itself, or the timing cache is of another version or GPU; OSError.
    """
    give_freed_memory_back()
    with garbage_held():
        try:
            return _built_from_request(trt, request, path, tell)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # whoever keeps the error is not to keep a builder with it
            raise


def _built_from_request(trt: ModuleType, request: BuildRequest, path: Path, tell: Progress) -> Built:
    messages = messages_logger(trt)
    builder = trt.Builder(messages)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    _parse(trt, network, messages, request)
    config = builder.create_builder_config()
    configure(trt, config, request.flags, request.target)
    _add_profiles(builder, config, network, request)
    if request.timing_cache is not None:
        _set_timing_cache(config, request.timing_cache)
    monitor = progress_monitor(trt, tell)
    config.progress_monitor = monitor
    file = _PlanFile(path)
    try:
        built = _built(builder, network, config, _writer_to_file(trt, file), monitor)
    finally:
        file.close()
    if file.error is not None:
        raise file.error
    if not built:
        raise _cannot_build(f"{request.target.built_by} could not build the network", messages)
    return Built(file.record, None if request.timing_cache is None else bytes(config.get_timing_cache().serialize()))


def give_freed_memory_back() -> None:
    """Have freed blocks given back to the system, for the rest of the process, where there is glibc: what the compiler
    frees before it has the plan is half as much as a plan of 1.3 GB."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _BLOCK)


class _PlanFile:
    """Takes a plan as it comes; the file is made with its first bytes."""

    def __init__(self, path: Path) -> None:
        self.error: OSError | None = None
        """Why it does not have them all."""
        self._path = path
        self._file: BinaryIO | None = None
        self._size = 0
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        """How many of them were taken: all or none."""
        try:
            if self._file is None:
                self._file = self._path.open("wb")
            self._file.write(data)
        except OSError as error:  # TensorRT would only say that it could not build
            self.error = error
            return 0
        self._size += len(data)
        self._digest.update(data)
        return len(data)

    def close(self) -> None:
        """Raises OSError when the last bytes cannot be written."""
        if self._file is not None:
            self._file.close()

    @property
    def record(self) -> FileRecord:
        """Of what was written."""
        return FileRecord(path=self._path.name, size=self._size, sha256=self._digest.hexdigest())


def _writer_to_file(trt: ModuleType, file: _PlanFile) -> Any:
    """An IStreamWriter of the module `trt`: TensorRT for RTX 1.7.1 needs less memory so than for a whole plan."""

    class _Writer(trt.IStreamWriter):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IStreamWriter.__init__(self)

        def write(self, data: bytes) -> int:
            return file.write(data)

    return _Writer()


def _parse(trt: ModuleType, network: Any, messages: Messages, request: BuildRequest) -> None:
    parser = trt.OnnxParser(network, messages)
    if not parser.parse(request.model, str(request.beside)):
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        places = [f"{error.node_operator()} {error.node_name()}: {error.desc()}" for error in errors]
        raise _cannot_build(f"TensorRT's parser refuses the graph: {'; '.join(places)}", messages)


def _add_profiles(builder: Any, config: Any, network: Any, request: BuildRequest) -> None:
    arrays = GraphArrays(request.manifest)
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    names = {each.name: [each.get_dimension_name(axis) for axis in range(len(each.shape))] for each in inputs}
    for number, profile_range in enumerate(request.profiles):
        lower, best, upper = (
            arrays.input_shapes(sizes) for sizes in (profile_range.min, profile_range.best, profile_range.max)
        )
        for shapes in (lower, best, upper):
            check_named_dimensions(names, shapes, number)
        profile = builder.create_optimization_profile()
        for name in lower:
            profile.set_shape(name, lower[name], best[name], upper[name])
        if config.add_optimization_profile(profile) != number:
            raise RuntimeError(f"TensorRT did not take profile {number}, {profile_range}")


def check_named_dimensions(
    names: Mapping[str, Sequence[str]], shapes: Mapping[str, Sequence[int]], profile: int
) -> None:
    """Raise BadInputError unless axes of one name have one size in the input `shapes` of a profile.

    `names` has those of each input's axes in the graph, "" for one without. TensorRT takes such a profile and refuses
    it minutes later, when it builds.
    """
    known: dict[str, tuple[int, str]] = {}
    for tensor, sizes in shapes.items():
        for axis, (name, size) in enumerate(zip(names[tensor], sizes, strict=True)):
            place = f"{tensor}, axis {axis}"
            first, where = known.setdefault(name, (size, place)) if name else (size, place)
            if first != size:
                raise BadInputError(
                    f"profile {profile} gives {name} the size {first} in {where} and {size} in {place}",
                    expected="one size for the axes that the graph calls by one name",
                    remedy="export the checkpoint again, and plan again: lopa-export plan BUNDLE",
                )


def _set_timing_cache(config: Any, timed: TimingCache) -> None:
    """What was timed before is not timed again; TensorRT itself knows what another version or GPU has timed."""
    cache = config.create_timing_cache(timed.content)
    if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
        raise BadInputError(
            f"{timed.name} is no timing cache of this version of TensorRT and this GPU",
            expected="one that was written here, or no file of this name",
            remedy="give another file to --timing-cache, or remove this one",
        )


def _built(builder: Any, network: Any, config: Any, writer: Any, monitor: Cancellable) -> bool:
    """Whether the engine was built. On a thread of its own: the calling one can be interrupted in the meantime."""
    outcome: list[Any] = []
    begun, given_up, ended = threading.Event(), threading.Event(), threading.Event()

    def build() -> None:
        begun.set()
        try:
            if not given_up.is_set():
                outcome.append(builder.build_serialized_network_to_stream(network, config, writer))
        except BaseException as error:
            outcome.append(error)
        finally:
            ended.set()

    # Not by Thread.join: interrupted, it takes its thread for ended up to Python 3.12, and the next join does not wait.
    try:
        threading.Thread(target=build, name="tensorrt-build").start()
        ended.wait()
    except BaseException:
        given_up.set()
        monitor.cancel()
        if begun.is_set():  # it may have come before there was a thread; one that begins later sees that it is too late
            ended.wait()
        raise
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return bool(outcome[0])


def _cannot_build(received: str, messages: Messages) -> BadInputError:
    return BadInputError(
        received + last_messages(messages),
        expected="a graph, types and buckets that TensorRT has kernels for, and memory for the largest bucket",
        remedy="see docs/how-to/engines.md, Troubleshooting: free memory of the GPU, plan smaller buckets "
        "(lopa-export plan --memory), build for other GPUs, or export in another dtype",
    )

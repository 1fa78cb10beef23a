"""One build with TensorRT: a model in memory becomes a serialized engine, its layer report and a timing cache.

Strongly typed: every product and sum has the type that the graph says. Knows no bundle and writes no file. `trt` is
the module tensorrt, or what stands in for it in tests.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from lopa.export.progress import Progress
from lopa.export.tensorrt.flags import configure
from lopa.export.tensorrt.progress import Cancellable, progress_monitor
from lopa.runtime.accelerator.arrays import GraphArrays
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.errors import BadInputError, CheckFailedError
from lopa.runtime.tensorrt.manifest import BuildFlags
from lopa.runtime.tensorrt.messages import Messages, last_messages, messages_logger
from lopa.runtime.tensorrt.profiles import ProfileRange


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
    timing_cache: bytes
    """Of an earlier build by the same version on the same GPU; empty for none."""
    timing_cache_name: str
    """For messages."""


@dataclass(frozen=True, eq=False)
class Built:
    """What came of it."""

    plan: bytes
    layers: str
    """JSON by TensorRT's EngineInspector."""
    timing_cache: bytes


def built_from_request(trt: ModuleType, request: BuildRequest, tell: Progress) -> Built:
    """Build on the current CUDA device; minutes. Ctrl-C ends the build at its next step.

    Raises BadInputError when the model cannot be parsed or built or the timing cache is of another version or GPU,
    CheckFailedError when the engine that was built cannot be opened.
    """
    messages = messages_logger(trt)
    builder = trt.Builder(messages)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    _parse(trt, network, messages, request)
    config = builder.create_builder_config()
    configure(trt, config, request.flags)
    _add_profiles(builder, config, request)
    _set_timing_cache(config, request)
    monitor = progress_monitor(trt, tell)
    config.progress_monitor = monitor
    plan = _built(builder, network, config, monitor)
    if plan is None:
        raise _cannot_build("TensorRT could not build the network", messages)
    serialized = bytes(plan)
    del plan  # as large as the weights
    cache = bytes(config.get_timing_cache().serialize())
    return Built(serialized, _layers(trt, serialized, messages, request.flags), cache)


def _parse(trt: ModuleType, network: Any, messages: Messages, request: BuildRequest) -> None:
    parser = trt.OnnxParser(network, messages)
    if not parser.parse(request.model, str(request.beside)):
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        places = [f"{error.node_operator()} {error.node_name()}: {error.desc()}" for error in errors]
        raise _cannot_build("TensorRT's parser refuses the graph: " + "; ".join(places), messages)


def _add_profiles(builder: Any, config: Any, request: BuildRequest) -> None:
    arrays = GraphArrays(request.manifest)
    for number, profile_range in enumerate(request.profiles):
        least, best, most = (
            arrays.input_shapes(sizes) for sizes in (profile_range.least, profile_range.best, profile_range.most)
        )
        profile = builder.create_optimization_profile()
        for name in least:
            profile.set_shape(name, least[name], best[name], most[name])
        if config.add_optimization_profile(profile) != number:
            raise RuntimeError(f"TensorRT did not take profile {number}, {profile_range}")


def _set_timing_cache(config: Any, request: BuildRequest) -> None:
    """What was timed before is not timed again; TensorRT itself knows what another version or GPU has timed."""
    cache = config.create_timing_cache(request.timing_cache)
    if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
        raise BadInputError(
            f"{request.timing_cache_name} is no timing cache of this version of TensorRT and this GPU",
            expected="one that was written here, or no file of this name",
            remedy="give another file to --timing-cache, or remove this one",
        )


def _built(builder: Any, network: Any, config: Any, monitor: Cancellable) -> Any:
    """The serialized engine, or None. On a thread of its own: the calling one can be interrupted in the meantime."""
    outcome: list[Any] = []

    def build() -> None:
        try:
            outcome.append(builder.build_serialized_network(network, config))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=build, name="tensorrt-build")
    thread.start()
    try:
        thread.join()
    except BaseException:
        monitor.cancel()
        thread.join()
        raise
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _layers(trt: ModuleType, plan: bytes, messages: Messages, flags: BuildFlags) -> str:
    """The report, from the engine opened once; that it opens is worth knowing too."""
    runtime = trt.Runtime(messages)
    runtime.engine_host_code_allowed = flags.version_compatible  # such a plan holds a runtime of its own
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise CheckFailedError(
            "TensorRT built an engine that it cannot open" + last_messages(messages),
            expected="an engine that opens on the GPU it was built on",
            remedy="free memory of the GPU, or leave out --version-compatible or --strip-weights, and build again",
        )
    report: str = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    return report


def _cannot_build(received: str, messages: Messages) -> BadInputError:
    return BadInputError(
        received + last_messages(messages),
        expected="a graph, types and gears that TensorRT has kernels for, and memory for the largest gear",
        remedy="see docs/tensorrt.md, Troubleshooting: free memory of the GPU, plan smaller gears "
        "(lopa-export plan --memory), or export in another dtype",
    )

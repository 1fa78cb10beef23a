"""The two TensorRT libraries: their Python packages, imported on demand, supported versions, and their log.

TensorRT builds on the target GPU. TensorRT for RTX builds on any machine for all GPUs of certain compute capabilities,
and compiles kernels when the engine opens. Their Python interfaces are the same.
"""

import gc
import importlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from lopa.runtime.cuda.driver import cuda_device, version_numbers
from lopa.runtime.device_families import FAMILIES, DeviceStatus, find_device, parse_device
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import installed_version


@dataclass(frozen=True)
class TensorRTLibrary:
    """One of the two libraries."""

    name: str
    """Name in devices (before the colon) and in engine.json."""
    title: str
    """Name in messages."""
    modules: Sequence[str]
    """Module names. The first one that can be imported is used."""
    oldest: tuple[int, ...]
    newest_major: int
    build: str
    """Command that builds an engine for this library."""
    parts: Sequence[Sequence[str]]
    """Groups of distributions that must have the same version if installed."""

    @property
    def rebuild(self) -> str:
        """Remedy for an engine that cannot be used."""
        return f"build the engine again here: {self.build}"

    @property
    def versions(self) -> str:
        """Supported versions, for messages."""
        return f"{'.'.join(map(str, self.oldest))} to {self.newest_major}.x"

    def module(self) -> ModuleType:
        """Import the library. Raises MissingBackendError if it is missing or broken, or if versions are unsupported or
        mixed.
        """
        trt = self._import()
        version = version_numbers(trt.__version__)
        if version < self.oldest or version[0] > self.newest_major:
            raise self._missing(f"{self.title} {trt.__version__}", self.versions)
        for names in self.parts:
            found = {name: installed for name in names if (installed := installed_version(name)) is not None}
            if len({*found.values()}) > 1:
                versions = ", ".join(f"{name} {installed}" for name, installed in found.items())
                raise self._missing(versions, "libraries and bindings of one version")
        return trt

    def _import(self) -> ModuleType:
        errors = []
        for name in self.modules:
            try:
                return importlib.import_module(name)
            except ImportError as error:
                errors.append(str(error))
        raise self._missing(
            f"{self.title} cannot be imported: {'; '.join(errors)}", f"{self.versions} with its libraries"
        )

    def _missing(self, received: str, expected: str) -> MissingBackendError:
        return MissingBackendError(
            received, expected=f"{self.title} {expected}", remedy=FAMILIES[self.name].ability.remedy()
        )


TENSORRT = TensorRTLibrary(
    name="tensorrt",
    title="TensorRT",
    modules=("tensorrt",),
    oldest=(
        10,
        15,
    ),  # the first version whose parser supports Attention, RotaryEmbedding and RMSNormalization of our graphs
    newest_major=11,
    build="lopa-export tensorrt BUNDLE",
    parts=(),
)
RTX = TensorRTLibrary(
    name="tensorrt-rtx",
    title="TensorRT for RTX",
    modules=("tensorrt_rtx_bindings", "tensorrt_rtx"),  # module names in the wheels on PyPI and in the SDK
    oldest=(1, 7),  # the first version that builds every bundle without a GPU; 1.4 needs one for int8
    newest_major=1,
    build="lopa-export tensorrt BUNDLE --rtx",
    parts=tuple((f"tensorrt-rtx-{cuda}-libs", f"tensorrt-rtx-{cuda}-bindings") for cuda in ("cu12", "cu13")),
)
LIBRARIES = {library.name: library for library in (TENSORRT, RTX)}


def is_tensorrt(device: str) -> bool:
    """Return True if `device` belongs to either library."""
    found = find_device(device)
    return found is not None and found.family.name in LIBRARIES


def library_of_device(device: str) -> TensorRTLibrary:
    """Return the library of "tensorrt:N" or "tensorrt-rtx:N". Raises BadInputError for another device."""
    return LIBRARIES[parse_device(device, *LIBRARIES).family.name]


def find_devices(family: str) -> list[DeviceStatus]:
    """Return one status line for all GPUs."""
    library, name = LIBRARIES[family], f"{family}:N"
    try:
        version = library.module().__version__
    except MissingBackendError as error:
        return [DeviceStatus(name, f"needs {library.title} and a GPU: {error.received}", is_here=False)]
    try:
        state = f"{library.title} {version} is installed, for {cuda_device(0).name} (docs/how-to/engines.md)"
    except MissingBackendError:
        state = f"{library.title} {version} is installed, but running engines needs a GPU and its driver"
    return [DeviceStatus(name, state)]


_MAX_MESSAGES = 20
"""Maximum number of collected messages. TensorRT repeats itself, and the last messages have the cause."""
_MAX_REPORTED = 5


class Messages(Protocol):
    """An ILogger that collects errors and warnings."""

    kept: list[str]
    """Last messages, in order."""


def messages_logger(trt: ModuleType) -> Messages:
    """Return a logger of the module `trt`. It may be called from any thread."""

    class _Messages(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.kept: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR, trt.ILogger.WARNING):
                self.kept = [*self.kept, msg][-_MAX_MESSAGES:]

    return _Messages()


def last_messages(messages: Messages) -> str:
    """Return the last messages, one per line, to append to an error message. The text is empty if there are none."""
    return "".join(f"\n  TensorRT: {message}" for message in messages.kept[-_MAX_REPORTED:])


_LOCK = threading.Lock()
_blocks: list[bool] = []
"""One entry per running block: True if collection was enabled before the first block."""


@contextmanager
def garbage_collection_disabled() -> Iterator[None]:
    """Disable garbage collection in the whole process while the block runs."""
    with _LOCK:
        _blocks.append(_blocks[0] if _blocks else gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _LOCK:
            if _blocks.pop() and not _blocks:
                gc.enable()

"""The two TensorRTs: which Python package each is, imported when it is asked for, in a known version.

TensorRT builds on the GPU that an engine is for. TensorRT for RTX builds anywhere, for all GPUs of some compute
capabilities, and makes the kernels where the engine is opened. Their Python interface is the same. Builds and runs
nothing.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from lopa.runtime.cuda.driver import version_numbers
from lopa.runtime.device_families import FAMILIES, find_device, parse_device
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import installed_version


@dataclass(frozen=True)
class TensorRTLibrary:
    """One of them."""

    name: str
    """In devices (before the colon) and in engine.json."""
    title: str
    """In messages."""
    modules: Sequence[str]
    """The first that is there is it."""
    oldest: tuple[int, ...]
    newest_major: int
    build: str
    """The command that builds an engine for it."""
    parts: Sequence[Sequence[str]]
    """Distributions of one version, where any of them is installed."""

    @property
    def rebuild(self) -> str:
        """What to do about an engine for it that cannot be used."""
        return f"build it again here: {self.build}"

    @property
    def versions(self) -> str:
        """Those that are known, for people."""
        return f"{'.'.join(map(str, self.oldest))} to {self.newest_major}.x"

    def module(self) -> ModuleType:
        """Raises MissingBackendError when it is absent, does not load, or is of an unknown or of two versions."""
        trt = self._imported()
        version = version_numbers(trt.__version__)
        if version < self.oldest or version[0] > self.newest_major:
            raise self._missing(f"{self.title} {trt.__version__}", self.versions)
        for names in self.parts:
            found = {name: installed for name in names if (installed := installed_version(name)) is not None}
            if len({*found.values()}) > 1:
                words = ", ".join(f"{name} {installed}" for name, installed in found.items())
                raise self._missing(words, "libraries and bindings of one version")
        return trt

    def _imported(self) -> ModuleType:
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
    oldest=(10, 15),  # the first whose parser takes Attention, RotaryEmbedding and RMSNormalization of our graphs
    newest_major=11,
    build="lopa-export tensorrt BUNDLE",
    parts=(),
)
RTX = TensorRTLibrary(
    name="tensorrt-rtx",
    title="TensorRT for RTX",
    modules=("tensorrt_rtx_bindings", "tensorrt_rtx"),  # the wheels of an index, and the one that comes with the SDK
    oldest=(1, 7),  # the first that builds every bundle without a GPU: 1.4 asks for one in int8
    newest_major=1,
    build="lopa-export tensorrt BUNDLE --rtx",
    parts=tuple((f"tensorrt-rtx-{cuda}-libs", f"tensorrt-rtx-{cuda}-bindings") for cuda in ("cu12", "cu13")),
)
LIBRARIES = {library.name: library for library in (TENSORRT, RTX)}


def is_tensorrt(device: str) -> bool:
    """Return True if `device` is one of either library."""
    found = find_device(device)
    return found is not None and found.family.name in LIBRARIES


def library_of_device(device: str) -> TensorRTLibrary:
    """The one that "tensorrt:N" or "tensorrt-rtx:N" means. Raises BadInputError for another device."""
    return LIBRARIES[parse_device(device, *LIBRARIES).family.name]

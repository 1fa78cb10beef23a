"""engine.json: what `lopa-export tensorrt` built for one kind of GPU, checked strictly when read.

It lies beside the plan in engines/tensorrt-*/ of a bundle. Does not build and does not run anything.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.engine_file import (
    ENGINE_NAME,
    ENGINES_FOLDER,
    description_from_folder,
    folders_of_engines,
    text_of_engine,
)
from lopa.runtime.bundle.gears import Gears, gears_can_be_used
from lopa.runtime.bundle.manifest import Bytes, FileRecord, Manifest
from lopa.runtime.cuda.driver import CudaDevice, version_numbers
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import bytes_from_file
from lopa.runtime.tensorrt.profiles import ProfileRange, prefill_range

ENGINE_SCHEMA = 1
PLAN_NAME = "engine.plan"
LAYERS_NAME = "layers.json"
"""What TensorRT made of the graph, layer by layer, for people."""
_PREFIX = "tensorrt-"
REBUILD = "build it again here: lopa-export tensorrt BUNDLE"


class BuildFlags(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a user may choose of a build."""

    workspace: Bytes | None = None
    """Bytes that a kernel may take for its own work; None: all of the GPU's memory."""
    weight_streaming: bool = False
    """Weights may stay in the host's memory and be copied when they are needed."""
    strip_weights: bool = False
    """The plan has no weights; they are put in from the bundle when it is opened."""
    version_compatible: bool = False
    """Later versions of TensorRT may run the plan."""
    plugins: bool = False
    """Kernels of lopa.plugins in place of the functions that the bundle's graph calls, which have bodies otherwise."""
    products: Literal["graph", "int8", "fp8"] = "graph"
    """Products with weights: in the types of the bundle's graph, or in 8 bits by Q/DQ nodes put in for the build."""


class TensorRTEngine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    schema: int
    contract: int
    made: str
    """ISO date and time."""
    tensorrt: str
    """The version that built it, as it names itself."""
    gpu: str
    """The device's name: a plan is for one model of GPU."""
    capability: str
    """Its compute capability, e.g. "9.0"."""
    flags: BuildFlags
    gears: Gears
    """In the order of the plan; profile i takes the exact shape of gear i."""
    prefill: ProfileRange
    """The last profile."""
    graph_sha256: str
    """Of the bundle's graph."""
    weights_sha256: str
    """Of the bundle's weights."""
    cache_key: str
    """sha256 over all that decides what is built."""
    verified: bool
    """Whether its tokens were held against those of ONNX Runtime on recorded windows. A build alone proves nothing."""
    files: Annotated[list[FileRecord], Meta(max_length=4096)]
    """The plan and the layer report, relative to the engine's folder."""


@dataclass(frozen=True)
class FoundEngine:
    """An engine on disk."""

    folder: Path
    engine: TensorRTEngine

    @property
    def name(self) -> str:
        """The folder's."""
        return self.folder.name

    def plan(self) -> bytes:
        """The serialized engine. Raises BadInputError when it is not what was built, byte for byte."""
        record = next(record for record in self.engine.files if record.path == PLAN_NAME)
        path = self.folder / PLAN_NAME
        plan = bytes_from_file(path, expected="the plan as it was built", remedy=REBUILD, most=record.size)
        if hashlib.sha256(plan).hexdigest() != record.sha256:
            raise BadInputError(
                f"{path} is damaged: its sha256 differs from that in {ENGINE_NAME}",
                expected="the plan as it was built",
                remedy=f"remove {self.folder}, then {REBUILD}",
            )
        return plan


def engine_folder(bundle: Bundle, device: CudaDevice, version: str) -> Path:
    """Where the engine for this GPU and version of TensorRT lies: engines/tensorrt-sm90-10.15.1.29."""
    return bundle.path / ENGINES_FOLDER / f"{_PREFIX}{device.architecture}-{version}"


def engine_for_device(bundle: Bundle, device: CudaDevice, version: str) -> FoundEngine:
    """The engine of `bundle` that runs on `device` with this version of TensorRT.

    One built by this very version comes before one built to run with later ones. Raises BadInputError when there is
    none, saying of each that is there why it is not the one.
    """
    usable: list[FoundEngine] = []
    reasons: list[str] = []
    for folder in engine_folders(bundle):
        try:
            found = engine_from_folder(folder)
        except BadInputError as error:
            reasons.append(f"{folder.name} cannot be used, {error.received}")
            continue
        reason = reason_against(found.engine, bundle.manifest, device, version)
        if reason is None:
            usable.append(found)
        else:
            reasons.append(f"{found.name} {reason}")
    if not usable:
        raise BadInputError(
            f"no engine of {bundle.path} runs on {device.name} (compute capability {device.capability}) with "
            f"TensorRT {version}: " + ("; ".join(reasons) or "it has none"),
            expected="an engine that was built of this bundle, by this version, on such a GPU",
            remedy=REBUILD,
        )
    return max(usable, key=lambda each: (each.engine.tensorrt == version, version_numbers(each.engine.tensorrt)))


def reason_against(engine: TensorRTEngine, manifest: Manifest, device: CudaDevice, version: str) -> str | None:
    """Why `engine` cannot run this bundle here; None if it can."""
    if engine.weights_sha256 != _digest(manifest, manifest.weights):
        return "was built of other weights"
    if engine.graph_sha256 != _digest(manifest, manifest.graph):
        return "was built of another graph"
    if (engine.gpu, engine.capability) != (device.name, device.capability):
        return f"was built for {engine.gpu} (compute capability {engine.capability})"
    if engine.tensorrt != version and not (
        engine.flags.version_compatible and version_numbers(engine.tensorrt) <= version_numbers(version)
    ):
        return f"was built by TensorRT {engine.tensorrt}"
    return None


def engine_folders(bundle: Bundle) -> list[Path]:
    """The folders of all TensorRT engines in the bundle, by name, whatever is in them."""
    return folders_of_engines(bundle, _PREFIX)


def engine_from_folder(folder: Path) -> FoundEngine:
    """Read and check an engine; that its files are there, with their sizes, not their digests.

    Raises BadInputError when it cannot be read, is of another schema or contract, or is not whole.
    """
    engine = description_from_folder(folder, TensorRTEngine, ENGINE_SCHEMA, REBUILD)
    wrong = PLAN_NAME not in {record.path for record in engine.files} or not gears_can_be_used(engine.gears)
    if wrong or engine.prefill != prefill_range(engine.gears):
        raise BadInputError(
            f"{folder / ENGINE_NAME} has no {PLAN_NAME} among its files, or gears that cannot be used, or another "
            "profile for prompts than belongs to them",
            expected="a plan, its gears, and the profile made of them",
            remedy=REBUILD,
        )
    return FoundEngine(folder, engine)


def mark_verified(found: FoundEngine) -> None:
    """Write into engine.json that its tokens were verified; the file is the old one or the new one at any time.

    Raises BadInputError when it is another engine's by now.
    """
    path = found.folder / ENGINE_NAME
    if engine_from_folder(found.folder).engine != found.engine:
        raise BadInputError(
            f"{path} was changed while the engine was verified", expected="one build at a time", remedy="verify again"
        )
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.write_bytes(text_of_engine(msgspec.structs.replace(found.engine, verified=True)))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _digest(manifest: Manifest, name: str) -> str:
    return next(record.sha256 for record in manifest.files if record.path == name)

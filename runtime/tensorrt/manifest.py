"""engine.json: what `lopa-export tensorrt` built for one kind of GPU, checked strictly when read.

It lies beside the plan in engines/tensorrt-*/ of a bundle. Does not build and does not run anything.
"""

import hashlib
import os
from pathlib import Path
from typing import Literal

import msgspec

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.engine_file import ENGINE_NAME, EngineFile, EngineKind, StoredEngine
from lopa.runtime.bundle.gears import Gears, gears_can_be_used
from lopa.runtime.bundle.manifest import Bytes, Manifest
from lopa.runtime.bundle.record import Reasons, json_from_record
from lopa.runtime.cuda.driver import CudaDevice, version_numbers
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import bytes_from_file
from lopa.runtime.tensorrt.profiles import ProfileRange, prefill_range

ENGINE_SCHEMA = 1
PLAN_NAME = "engine.plan"
LAYERS_NAME = "layers.json"
"""What TensorRT made of the graph, layer by layer, for people."""
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


class TensorRTEngine(EngineFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    tensorrt: str
    """The version that built it, as it names itself."""
    gpu: str
    """The device's name: a plan is for one model of GPU."""
    capability: str
    """Its compute capability, e.g. "9.0"."""
    flags: BuildFlags
    gears: Gears
    """In the order of the plan of gears; profile i takes the exact shape of gear i."""
    prefill: ProfileRange
    """The last profile."""
    verified: bool
    """Whether its tokens were held against those of ONNX Runtime on recorded windows. A build alone proves nothing."""


def _reasons_against_engine(engine: TensorRTEngine) -> Reasons:
    wrong = PLAN_NAME not in {record.path for record in engine.files} or not gears_can_be_used(engine.gears)
    if wrong or engine.prefill != prefill_range(engine.gears):
        yield (
            f"no {PLAN_NAME} among its files, or gears that cannot be used, or another profile for prompts than "
            "belongs to them",
            "a plan, its gears, and the profile made of them",
        )


TENSORRT_ENGINES = EngineKind("tensorrt-", TensorRTEngine, ENGINE_SCHEMA, REBUILD, _reasons_against_engine)
StoredTensorRTEngine = StoredEngine[TensorRTEngine]


def engine_folder(bundle: Bundle, device: CudaDevice, version: str) -> Path:
    """Where the engine for this GPU and version of TensorRT lies: engines/tensorrt-sm90-10.15.1.29."""
    return TENSORRT_ENGINES.folder(bundle, f"{device.architecture}-{version}")


def engine_for_device(bundle: Bundle, device: CudaDevice, version: str) -> StoredTensorRTEngine:
    """The engine of `bundle` that runs on `device` with this version of TensorRT.

    One built by this very version comes before one built to run with later ones. Raises BadInputError when there is
    none, saying of each that is there why it is not the one.
    """
    usable: list[StoredTensorRTEngine] = []
    reasons: list[str] = []
    for folder in TENSORRT_ENGINES.folders(bundle):
        try:
            found = TENSORRT_ENGINES.read(folder)
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
    if engine.weights_sha256 != manifest.weights_digest:
        return "was built of other weights"
    if engine.graph_sha256 != manifest.digest(manifest.graph):
        return "was built of another graph"
    if (engine.gpu, engine.capability) != (device.name, device.capability):
        return f"was built for {engine.gpu} (compute capability {engine.capability})"
    if engine.tensorrt != version and not (
        engine.flags.version_compatible and version_numbers(engine.tensorrt) <= version_numbers(version)
    ):
        return f"was built by TensorRT {engine.tensorrt}"
    return None


def plan_of_engine(found: StoredTensorRTEngine) -> bytes:
    """The serialized engine. Raises BadInputError when it is not what was built, byte for byte."""
    record = next(record for record in found.engine.files if record.path == PLAN_NAME)
    path = found.folder / PLAN_NAME
    plan = bytes_from_file(path, expected="the plan as it was built", remedy=REBUILD, most=record.size)
    if hashlib.sha256(plan).hexdigest() != record.sha256:
        raise BadInputError(
            f"{path} is damaged: its sha256 differs from that in {ENGINE_NAME}",
            expected="the plan as it was built",
            remedy=f"remove {found.folder}, then {REBUILD}",
        )
    return plan


def mark_verified(found: StoredTensorRTEngine) -> None:
    """Write into engine.json that its tokens were verified; the file is the old one or the new one at any time.

    Raises BadInputError when it is another engine's by now.
    """
    path = found.folder / ENGINE_NAME
    if TENSORRT_ENGINES.read(found.folder).engine != found.engine:
        raise BadInputError(
            f"{path} was changed while the engine was verified", expected="one build at a time", remedy="verify again"
        )
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.write_bytes(json_from_record(msgspec.structs.replace(found.engine, verified=True)))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)

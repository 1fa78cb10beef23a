"""engine.json of an engine that `lopa-export tensorrt` built, checked strictly on reading.

It is next to the plan in engines/tensorrt-*/ of a bundle.
"""

import os
from pathlib import Path
from typing import Literal

import msgspec

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBuckets, are_valid_shape_buckets
from lopa.runtime.bundle.engine_file import ENGINE_NAME, EngineFile, EngineKind, StoredEngine
from lopa.runtime.bundle.manifest import Bytes, Manifest
from lopa.runtime.bundle.record import Reasons, json_from_record
from lopa.runtime.cuda.driver import FIRST_WITH_FP8, CudaDevice, version_numbers, without_fp8
from lopa.runtime.errors import BadInputError
from lopa.runtime.tensorrt.profiles import ProfileRange, prefill_range
from lopa.runtime.tensorrt.tensorrt_library import LIBRARIES, TENSORRT, TensorRTLibrary

ENGINE_SCHEMA = 3
PLAN_NAME = "engine.plan"
MODEL_NAME = "model.onnx"
"""Graph that a plan without weights was built from. It is used to refit the weights, which stay in the bundle."""
LAYERS_NAME = "layers.json"
"""Layers of the built engine, for information only. It is not listed among the engine's files, so it may be missing."""
REBUILD = TENSORRT.rebuild
"""Remedy if the library of an engine is unknown."""
MIN_RTX_CAPABILITY = (8, 0)
"""Minimum compute capability of RTX engines built without explicit ones ("CPU-Only AOT" in its documentation)."""


class BuildFlags(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Build options that users may choose."""

    workspace: Bytes | None = None
    """Maximum workspace of a kernel in bytes, or None for all of the GPU's memory."""
    weight_streaming: bool = False
    """True if weights may stay in host memory and be copied on demand."""
    strip_weights: bool = False
    """True if the plan has no weights. They are refitted from the bundle when it opens."""
    version_compatible: bool = False
    """True if later versions of TensorRT may run the plan."""
    plugins: bool = False
    """True if kernels of lopa.plugins replace the graph's functions. Otherwise the operators in the functions run."""
    products: Literal["graph", "int8", "fp8"] = "graph"
    """Type of products with weights: as in the bundle's graph, or 8 bits. Products are fp8 also if the graph's are."""


class EngineTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Library and GPUs of an engine."""

    library: Literal["tensorrt", "tensorrt-rtx"]
    version: str
    """Version as reported by the library."""
    gpu: str | None
    """Device name if the plan is for one GPU model, or None if it is for compute capabilities."""
    capabilities: list[str]
    """Compute capabilities, e.g. "9.0". The list is empty for the default of TensorRT for RTX (8.0 and later)."""

    @property
    def folder_name(self) -> str:
        """Folder name, e.g. tensorrt-sm90-10.15.1.29, tensorrt-rtx-1.7.1.116 or tensorrt-rtx-sm86-sm89-1.7.1.116."""
        return "-".join([self.library, *(f"sm{each.replace('.', '')}" for each in self.capabilities), self.version])

    @property
    def built_by(self) -> str:
        """Library and version, for messages."""
        return f"{LIBRARIES[self.library].title} {self.version}"

    @property
    def rebuild(self) -> str:
        """Remedy for an engine that cannot be used."""
        return LIBRARIES[self.library].rebuild

    def serves(self, device: CudaDevice) -> bool:
        """Return True if the engine was built for this GPU."""
        if self.gpu is not None:
            return (self.gpu, self.capabilities) == (device.name, [device.capability])
        if self.capabilities:
            return device.capability in self.capabilities
        return version_numbers(device.capability) >= MIN_RTX_CAPABILITY


def can_be_captured(target: EngineTarget, flags: BuildFlags) -> bool:
    """Return True if forwards of such an engine can be captured as CUDA graphs.

    The builder of TensorRT for RTX 1.7.1 rejects the required flag together with weights that stay on the host.
    """
    return target.library == TENSORRT.name or not flags.weight_streaming


def target_of_device(device: CudaDevice, version: str) -> EngineTarget:
    """Return the target for one GPU and this version of TensorRT."""
    return EngineTarget(library="tensorrt", version=version, gpu=device.name, capabilities=[device.capability])


class TensorRTEngine(EngineFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Content of engine.json."""

    target: EngineTarget
    flags: BuildFlags
    buckets: ShapeBuckets
    """Shape buckets in the order of the plan. Profile i takes the exact shape of bucket i."""
    prefill: ProfileRange
    """Range of the last profile."""
    verified_on: list[str]
    """Names of GPUs on which the engine's tokens were compared with another device's.

    A successful build does not prove correct tokens, and neither do correct tokens on another GPU.
    """

    @property
    def gpus(self) -> str:
        """Target GPUs, for messages."""
        if self.target.gpu is not None:
            return self.target.gpu
        minimum = ".".join(map(str, FIRST_WITH_FP8 if self.flags.products == "fp8" else MIN_RTX_CAPABILITY))
        return f"GPUs of compute capability {', '.join(self.target.capabilities) or f'{minimum} and later'}"

    def is_verified_on(self, device: CudaDevice) -> bool:
        """Return True if the engine may decode on `device`."""
        return device.name in self.verified_on


def _find_engine_errors(engine: TensorRTEngine) -> Reasons:
    names = {record.path for record in engine.files}
    wrong = PLAN_NAME not in names or not are_valid_shape_buckets(engine.buckets)
    if wrong or engine.prefill != prefill_range(engine.buckets):
        yield (
            f"no {PLAN_NAME} among its files, invalid shape buckets, or a prompt profile that does not match them",
            "a plan, its shape buckets, and the matching prompt profile",
        )
    if engine.flags.strip_weights and MODEL_NAME not in names:
        yield f"a plan without weights, but no {MODEL_NAME} among its files", "the graph that the plan was built from"
    target = engine.target
    if (target.library == TENSORRT.name) != (target.gpu is not None) or (target.gpu and len(target.capabilities) != 1):
        yield f"an engine by {target.built_by} for {engine.gpus}", "one GPU name for TensorRT, none for RTX"


TENSORRT_ENGINES = EngineKind("tensorrt-", TensorRTEngine, ENGINE_SCHEMA, REBUILD, _find_engine_errors)
StoredTensorRTEngine = StoredEngine[TensorRTEngine]


def engine_folder(bundle: Bundle, target: EngineTarget) -> Path:
    """Return the folder of the engine for `target` in `bundle`."""
    return TENSORRT_ENGINES.folder(bundle, target.folder_name.removeprefix(TENSORRT_ENGINES.prefix))


def engine_for_device(
    bundle: Bundle, device: CudaDevice, version: str, library: TensorRTLibrary = TENSORRT
) -> StoredTensorRTEngine:
    """Return the engine of `bundle` that runs on `device` with this version of `library`.

    Engines of exactly this version take precedence over version-compatible ones, and engines for fewer capabilities
    over others. Raises BadInputError if there is none, with the reason for each existing engine.
    """
    usable: list[StoredTensorRTEngine] = []
    reasons: list[str] = []
    for folder in TENSORRT_ENGINES.folders(bundle):
        try:
            found = TENSORRT_ENGINES.read(folder)
        except BadInputError as error:
            reasons.append(f"{folder.name} is unusable ({error.received})")
            continue
        reason = find_mismatch(found.engine, bundle.manifest, device, version, library)
        if reason is None:
            usable.append(found)
        else:
            reasons.append(f"{found.name} {reason}")
    if not usable:
        raise BadInputError(
            f"no engine of {bundle.path} runs on {device.name} (compute capability {device.capability}) with "
            f"{library.title} {version}: " + ("; ".join(reasons) or "the bundle has no engine"),
            expected="an engine built from this bundle, with this version, for this GPU",
            remedy=library.rebuild,
        )
    return max(usable, key=lambda each: _preference(each.engine.target, version))


def _preference(target: EngineTarget, version: str) -> tuple[bool, tuple[int, ...], bool, int]:
    named = len(target.capabilities)
    return target.version == version, version_numbers(target.version), named > 0, -named


def find_mismatch(
    engine: TensorRTEngine, manifest: Manifest, device: CudaDevice, version: str, library: TensorRTLibrary = TENSORRT
) -> str | None:
    """Return the reason why `engine` cannot run this bundle here, or None."""
    target = engine.target
    if target.library != library.name:
        return f"was built by {target.built_by}, for the device {target.library}:N"
    if engine.weights_sha256 != manifest.weights_digest:
        return "was built from other weights"
    if engine.graph_sha256 != manifest.digest(manifest.graph):
        return "was built from another graph"
    if not target.serves(device):
        capability = "" if target.gpu is None else f" (compute capability {target.capabilities[0]})"
        return f"was built for {engine.gpus}{capability}"
    if engine.flags.products == "fp8" and without_fp8([device.capability]):
        return "has fp8 products, which need compute capability 8.9 or later"
    if target.version != version and not (
        engine.flags.version_compatible and version_numbers(target.version) <= version_numbers(version)
    ):
        return f"was built by {target.built_by}"
    return None


def mark_verified(found: StoredTensorRTEngine, device: CudaDevice) -> None:
    """Record in engine.json that the tokens were verified on `device`. The file is replaced atomically.

    Raises BadInputError if the engine has changed meanwhile.
    """
    path = found.folder / ENGINE_NAME
    if TENSORRT_ENGINES.read(found.folder).engine != found.engine:
        raise BadInputError(
            f"{path} was changed while the engine was verified",
            expected="an unchanged engine",
            remedy="verify it again",
        )
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        names = sorted({*found.engine.verified_on, device.name})
        partial.write_bytes(json_from_record(msgspec.structs.replace(found.engine, verified_on=names)))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)

"""engine.json: what `lopa-export tensorrt` built, and for which GPUs, checked strictly when read.

It lies beside the plan in engines/tensorrt-*/ of a bundle. Does not build and does not run anything.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBuckets, buckets_can_be_used
from lopa.runtime.bundle.engine_file import ENGINE_NAME, EngineFile, EngineKind, StoredEngine
from lopa.runtime.bundle.manifest import Bytes, Manifest
from lopa.runtime.bundle.record import Reasons, json_from_record
from lopa.runtime.cuda.driver import CudaDevice, version_numbers
from lopa.runtime.errors import BadInputError
from lopa.runtime.tensorrt.library import LIBRARIES, TENSORRT, TensorRTLibrary
from lopa.runtime.tensorrt.profiles import ProfileRange, prefill_range

ENGINE_SCHEMA = 3
PLAN_NAME = "engine.plan"
MODEL_NAME = "model.onnx"
"""The graph that a plan without weights was built of, whose weights are put in again; they stay in the bundle."""
LAYERS_NAME = "layers.json"
"""What TensorRT made of the graph, layer by layer, for people. Not one of the engine's files: it may be missing."""
REBUILD = TENSORRT.rebuild
"""Where it cannot be read which library built an engine."""
MIN_RTX_CAPABILITY = (8, 0)
"""Of an engine by TensorRT for RTX that was built for no capability by name ("CPU-Only AOT" of its documentation)."""
_FIRST_WITH_FP8 = (8, 9)


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


class EngineTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an engine was built by, and for."""

    library: Literal["tensorrt", "tensorrt-rtx"]
    version: str
    """Of the library, as it names itself."""
    gpu: str | None
    """The device's name, where a plan is for one model of GPU; None: for all of some compute capabilities."""
    capabilities: list[str]
    """Compute capabilities, e.g. "9.0"; none: what TensorRT for RTX builds for when it is not told (8.0 and later)."""

    @property
    def folder_name(self) -> str:
        """E.g. tensorrt-sm90-10.15.1.29, tensorrt-rtx-1.7.1.116, tensorrt-rtx-sm86-sm89-1.7.1.116."""
        return "-".join([self.library, *(f"sm{each.replace('.', '')}" for each in self.capabilities), self.version])

    @property
    def built_by(self) -> str:
        """Library and version, for people."""
        return f"{LIBRARIES[self.library].title} {self.version}"

    @property
    def rebuild(self) -> str:
        """What to do about an engine for it that cannot be used."""
        return LIBRARIES[self.library].rebuild

    def serves(self, device: CudaDevice) -> bool:
        """Whether it was built for this GPU."""
        if self.gpu is not None:
            return (self.gpu, self.capabilities) == (device.name, [device.capability])
        if self.capabilities:
            return device.capability in self.capabilities
        return version_numbers(device.capability) >= MIN_RTX_CAPABILITY


def can_be_captured(target: EngineTarget, flags: BuildFlags) -> bool:
    """Whether forwards of such an engine may become CUDA graphs.

    The builder of TensorRT for RTX 1.7.1 refuses what that asks for beside weights that stay on the host.
    """
    return target.library == TENSORRT.name or not flags.weight_streaming


def target_of_device(device: CudaDevice, version: str) -> EngineTarget:
    """One GPU, for which this version of TensorRT builds."""
    return EngineTarget(library="tensorrt", version=version, gpu=device.name, capabilities=[device.capability])


def without_fp8(capabilities: Sequence[str]) -> list[str]:
    """Those of the compute capabilities whose GPUs have no products in fp8."""
    return [each for each in capabilities if version_numbers(each) < _FIRST_WITH_FP8]


class TensorRTEngine(EngineFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    target: EngineTarget
    flags: BuildFlags
    buckets: ShapeBuckets
    """In the order of the plan of buckets; profile i takes the exact shape of bucket i."""
    prefill: ProfileRange
    """The last profile."""
    verified_on: list[str]
    """Names of GPUs on which its tokens were held against another device's: a build alone proves nothing, and kernels
    that TensorRT for RTX makes on one GPU nothing about another's."""

    @property
    def gpus(self) -> str:
        """What it is for, for people."""
        if self.target.gpu is not None:
            return self.target.gpu
        lower = ".".join(map(str, _FIRST_WITH_FP8 if self.flags.products == "fp8" else MIN_RTX_CAPABILITY))
        return f"GPUs of compute capability {', '.join(self.target.capabilities) or f'{lower} and later'}"

    def is_verified_on(self, device: CudaDevice) -> bool:
        """Whether it may decode there."""
        return device.name in self.verified_on


def _reasons_against_engine(engine: TensorRTEngine) -> Reasons:
    names = {record.path for record in engine.files}
    wrong = PLAN_NAME not in names or not buckets_can_be_used(engine.buckets)
    if wrong or engine.prefill != prefill_range(engine.buckets):
        yield (
            f"no {PLAN_NAME} among its files, or buckets that cannot be used, or another profile for prompts than "
            "belongs to them",
            "a plan, its buckets, and the profile made of them",
        )
    if engine.flags.strip_weights and MODEL_NAME not in names:
        yield f"a plan without weights, and no {MODEL_NAME} among its files", "the graph that the plan was built of"
    target = engine.target
    if (target.library == TENSORRT.name) != (target.gpu is not None) or (target.gpu and len(target.capabilities) != 1):
        yield f"an engine by {target.built_by} for {engine.gpus}", "one GPU by name for TensorRT, none for RTX"


TENSORRT_ENGINES = EngineKind("tensorrt-", TensorRTEngine, ENGINE_SCHEMA, REBUILD, _reasons_against_engine)
StoredTensorRTEngine = StoredEngine[TensorRTEngine]


def engine_folder(bundle: Bundle, target: EngineTarget) -> Path:
    """Where the engine for `target` lies in `bundle`."""
    return TENSORRT_ENGINES.folder(bundle, target.folder_name.removeprefix(TENSORRT_ENGINES.prefix))


def engine_for_device(
    bundle: Bundle, device: CudaDevice, version: str, library: TensorRTLibrary = TENSORRT
) -> StoredTensorRTEngine:
    """The engine of `bundle` that runs on `device` with this version of `library`.

    One built by this very version comes before one built to run with later ones, and one for few capabilities before
    one for many. Raises BadInputError when there is none, saying of each that is there why it is not the one.
    """
    usable: list[StoredTensorRTEngine] = []
    reasons: list[str] = []
    for folder in TENSORRT_ENGINES.folders(bundle):
        try:
            found = TENSORRT_ENGINES.read(folder)
        except BadInputError as error:
            reasons.append(f"{folder.name} cannot be used, {error.received}")
            continue
        reason = reason_against(found.engine, bundle.manifest, device, version, library)
        if reason is None:
            usable.append(found)
        else:
            reasons.append(f"{found.name} {reason}")
    if not usable:
        raise BadInputError(
            f"no engine of {bundle.path} runs on {device.name} (compute capability {device.capability}) with "
            f"{library.title} {version}: " + ("; ".join(reasons) or "it has none"),
            expected="an engine that was built of this bundle, by this version, for such a GPU",
            remedy=library.rebuild,
        )
    return max(usable, key=lambda each: _preference(each.engine.target, version))


def _preference(target: EngineTarget, version: str) -> tuple[bool, tuple[int, ...], bool, int]:
    named = len(target.capabilities)
    return target.version == version, version_numbers(target.version), named > 0, -named


def reason_against(
    engine: TensorRTEngine, manifest: Manifest, device: CudaDevice, version: str, library: TensorRTLibrary = TENSORRT
) -> str | None:
    """Why `engine` cannot run this bundle here; None if it can."""
    target = engine.target
    if target.library != library.name:
        return f"was built by {target.built_by}, for the device {target.library}:N"
    if engine.weights_sha256 != manifest.weights_digest:
        return "was built of other weights"
    if engine.graph_sha256 != manifest.digest(manifest.graph):
        return "was built of another graph"
    if not target.serves(device):
        capability = "" if target.gpu is None else f" (compute capability {target.capabilities[0]})"
        return f"was built for {engine.gpus}{capability}"
    if engine.flags.products == "fp8" and without_fp8([device.capability]):
        return "has products in fp8, for compute capability 8.9 and later"
    if target.version != version and not (
        engine.flags.version_compatible and version_numbers(target.version) <= version_numbers(version)
    ):
        return f"was built by {target.built_by}"
    return None


def mark_verified(found: StoredTensorRTEngine, device: CudaDevice) -> None:
    """Write into engine.json that its tokens were verified on `device`; the file is the old or the new one at any time.

    Raises BadInputError when it is another engine's by now.
    """
    path = found.folder / ENGINE_NAME
    if TENSORRT_ENGINES.read(found.folder).engine != found.engine:
        raise BadInputError(
            f"{path} was changed while the engine was verified", expected="one build at a time", remedy="verify again"
        )
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        names = sorted({*found.engine.verified_on, device.name})
        partial.write_bytes(json_from_record(msgspec.structs.replace(found.engine, verified_on=names)))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)

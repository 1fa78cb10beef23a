"""Build of the TensorRT engine of a bundle for its shape buckets, in the bundle's engines/, unless it is up to date.

This module prepares the build, and builder.py runs it.
"""

import datetime
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import onnx

from lopa.export.progress import ProgressCallback
from lopa.export.staging import Product, staged_folder
from lopa.export.tensorrt.builder import BuildRequest, TimingCache, plan_from_request
from lopa.export.tensorrt.flags import check_has_products
from lopa.export.tensorrt.parser_graph import model_for_parser
from lopa.export.tensorrt.products import Products, magnitudes_of_columns, quantize_products
from lopa.plugins.tensorrt_plugins import register_plugins
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.bundle.engine_file import ENGINE_NAME, ENGINES_FOLDER
from lopa.runtime.bundle.manifest import FileRecord
from lopa.runtime.bundle.network import network_from_dimensions
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.contract import CONTRACT_VERSION, Float32, float32_from_stored, stored_dtype
from lopa.runtime.cuda.driver import cuda_device, version_numbers
from lopa.runtime.errors import BadInputError, LopaError, MissingBackendError, errors_as_bad_input
from lopa.runtime.files.output_file import check_replaceable, write_atomically
from lopa.runtime.tensorrt.contexts import gpu_slug
from lopa.runtime.tensorrt.plan_file import engine_from_plan
from lopa.runtime.tensorrt.profiles import ProfileRange, prefill_range, profiles_of_buckets
from lopa.runtime.tensorrt.tensorrt_library import last_messages, messages_logger
from lopa.runtime.tensorrt.tensorrt_manifest import (
    ENGINE_SCHEMA,
    LAYERS_NAME,
    MODEL_NAME,
    PLAN_NAME,
    TENSORRT_ENGINES,
    BuildFlags,
    EngineTarget,
    StoredTensorRTEngine,
    TensorRTEngine,
    engine_folder,
)

_ENGINE = Product("TensorRT engine", ENGINE_NAME)
_CACHE_HINTS = {
    "expected": "a path for the timing cache that can be read and written",
    "remedy": "use another --timing-cache",
}
_OVERHEAD_BYTES = 1 << 28
"""Upper bound on the bytes of a plan without its weights, mostly kernels."""


@dataclass(frozen=True, eq=False)
class EngineJob:
    """Everything that determines an engine, except the machine."""

    bundle: Bundle
    """Bundle with the standard graph only."""
    model: bytes
    """ONNX for the parser."""
    buckets: Sequence[ShapeBucket]
    prefill: ProfileRange
    flags: BuildFlags

    def cache_key(self, target: EngineTarget) -> str:
        """Return the SHA-256 of everything that the engine depends on."""
        manifest = self.bundle.manifest
        parts = {
            "schema": ENGINE_SCHEMA,
            "contract": CONTRACT_VERSION,
            "model": hashlib.sha256(self.model).hexdigest(),
            "graph": manifest.digest(manifest.graph),
            "weights": manifest.weights_digest,
            "buckets": self.buckets,
            "prefill": self.prefill,
            "flags": self.flags,
            "target": target,
        }
        return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


@dataclass(frozen=True)
class TensorRTBuild:
    """Result of a build."""

    found: StoredTensorRTEngine
    cached: bool
    """True if the engine existed already and nothing was built."""
    no_layers: str | None = None
    """Reason why there is no layer report; None if there is one."""


def job_from_bundle(bundle: Bundle, buckets: Sequence[ShapeBucket], flags: BuildFlags) -> EngineJob:
    """Return a checked job. This needs no TensorRT, and reads the weights only for 8-bit products of float weights.

    Raises BadInputError for a bundle without a standard graph, and like flags_for_bundle.
    """
    standard = bundle.with_dialect("standard")
    flags, model = flags_for_bundle(standard, flags), model_for_parser(standard)
    if flags.products != "graph" and standard.manifest.quantization is None:
        _quantize(model, standard, flags.products)
    return EngineJob(standard, model.SerializeToString(deterministic=True), buckets, prefill_range(buckets), flags)


def flags_for_bundle(bundle: Bundle, flags: BuildFlags) -> BuildFlags:
    """Return `flags`, with fp8 products for a bundle with FP8 matrices.

    Raises BadInputError for other 8-bit products of a quantized bundle, and for plugins that the graph does not call.
    """
    manifest = bundle.manifest
    if flags.plugins and not manifest.plugins:
        raise BadInputError(
            f"--plugins for {bundle.path}, whose graph calls no plugins",
            expected="a bundle made with lopa-export onnx --plugins",
            remedy="drop --plugins, or export the checkpoint again with --plugins",
        )
    if manifest.is_fp8 and flags.products != "int8":
        return msgspec.structs.replace(flags, products="fp8")
    if manifest.quantization is not None and flags.products != "graph":
        raise BadInputError(
            f"--{flags.products} for {bundle.path}, whose matrices are {manifest.quantization.kind}",
            expected="a bundle in floating point, whose products become 8-bit in the engine",
            remedy=f"drop --{flags.products}, or export with --quantize none",
        )
    return flags


def _quantize(model: onnx.ModelProto, bundle: Bundle, products: Products) -> None:
    manifest = bundle.manifest

    def magnitudes(name: str) -> Float32:
        record = manifest.tensors[name]
        shape = tuple(record.shape)
        stored = np.memmap(bundle.weights, stored_dtype(record.dtype), "r", record.offset, shape)
        return magnitudes_of_columns(stored, float32_from_stored)

    tensors = network_from_dimensions(manifest.dimensions).tensors
    # Stacked matrices of experts stay in floating point.
    names = [
        name
        for name in manifest.tensors
        if name in tensors and not tensors[name].is_float32 and len(tensors[name].shape) <= 2
    ]
    quantize_products(model, products, names, magnitudes)


def engine_from_job(
    job: EngineJob, trt: ModuleType, target: EngineTarget, timing_cache: Path | None, report: ProgressCallback
) -> TensorRTBuild:
    """Build an engine for `target` unless an up-to-date one exists.

    TensorRT builds on the current CUDA device, which must be the target. Without `timing_cache`, a library that times
    kernels uses a file in the engines' folder for this GPU and version. Raises the errors of plan_from_request, and
    BadInputError if something cannot be written. A previous engine is then kept. Raises MissingBackendError for plugins
    without Triton, and for a plan without weights for RTX without a GPU.
    """
    check_has_products(job.flags, target.capabilities, target.gpu)
    manifest, folder = job.bundle.manifest, engine_folder(job.bundle, target)
    key = job.cache_key(target)
    existing = TENSORRT_ENGINES.with_key(folder, key)
    if existing is not None:
        return TensorRTBuild(existing, cached=True)
    if job.flags.plugins:
        major, minor = version_numbers(target.capabilities[0])
        register_plugins((major, minor))
    if target.gpu is None and job.flags.strip_weights:
        _check_has_gpu_to_strip(target)
    cache = None
    if target.gpu is not None:  # TensorRT rejects the caches of other versions and GPUs
        name = f"timing-{gpu_slug(target.gpu)}-{target.version}.cache"
        cache = timing_cache or job.bundle.path / ENGINES_FOLDER / name
        with errors_as_bad_input(f"{cache} cannot be written", **_CACHE_HINTS):
            cache.parent.mkdir(parents=True, exist_ok=True)
        check_replaceable(cache)
    needed = job.bundle.weights.stat().st_size + _OVERHEAD_BYTES
    with staged_folder(folder, overwrite=True, needed_bytes=needed, product=_ENGINE) as staged:
        request = BuildRequest(
            model=job.model,
            graph_path=job.bundle.graph,
            manifest=manifest,
            profiles=profiles_of_buckets(job.buckets, job.prefill),
            flags=job.flags,
            target=target,
            timing_cache=None if cache is None else _timings(cache),
        )
        built = plan_from_request(trt, request, staged / PLAN_NAME, report)
        files = [built.plan, *([_written_model(staged, job)] if job.flags.strip_weights else [])]
        engine = TensorRTEngine(
            schema=ENGINE_SCHEMA,
            contract=CONTRACT_VERSION,
            made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            target=target,
            flags=job.flags,
            buckets=list(job.buckets),
            prefill=job.prefill,
            graph_sha256=manifest.digest(manifest.graph),
            weights_sha256=manifest.weights_digest,
            cache_key=key,
            verified_on=[],
            files=files,
        )
        (staged / ENGINE_NAME).write_bytes(json_from_record(engine))
        if cache is not None and built.timing_cache is not None:
            write_atomically(cache, built.timing_cache)
    found = TENSORRT_ENGINES.read(folder)
    return TensorRTBuild(found, cached=False, no_layers=_write_layers(trt, found))


def _check_has_gpu_to_strip(target: EngineTarget) -> None:
    """Raise MissingBackendError without a GPU. TensorRT for RTX 1.7.1 needs one only for this
    (docs/how-to/engines.md)."""
    try:
        cuda_device(0)
    except MissingBackendError as error:
        raise MissingBackendError(
            f"--strip-weights with --rtx on a machine without a GPU: {error.received}",
            expected=f"a GPU, which {target.built_by} requires for plans without weights",
            remedy="build on a machine with a GPU, or drop --strip-weights",
        ) from error


def _write_layers(trt: ModuleType, found: StoredTensorRTEngine) -> str | None:
    """Write the layer report into the engine's folder, on the current CUDA device.

    Return None, or the reason of a failure, e.g. without a GPU to open the engine on.
    """
    if found.engine.target.gpu is None:
        try:
            cuda_device(0)
        except MissingBackendError:
            return "this machine has no GPU to open the engine on"
    messages = messages_logger(trt)
    try:
        _runtime, engine = engine_from_plan(trt, found, messages)
        if engine is None:
            return f"TensorRT cannot open the engine on this machine{last_messages(messages)}"
        report: str = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
        write_atomically(found.folder / LAYERS_NAME, report.encode())
    except LopaError as error:
        return error.received
    return None


def _timings(cache: Path) -> TimingCache:
    with errors_as_bad_input(f"{cache} cannot be read", **_CACHE_HINTS):
        return TimingCache(cache.read_bytes() if cache.exists() else b"", str(cache))


def _written_model(folder: Path, job: EngineJob) -> FileRecord:
    """Write the ONNX model of the plan, which is needed to add the weights again."""
    (folder / MODEL_NAME).write_bytes(job.model)
    return FileRecord(path=MODEL_NAME, size=len(job.model), sha256=hashlib.sha256(job.model).hexdigest())

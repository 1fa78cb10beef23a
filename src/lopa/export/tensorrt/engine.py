"""A bundle and its buckets in, an engine for some GPUs in the bundle's engines/ out, unless it is there already.

Decides what is built and writes it down; the build itself is builder.py's.
"""

import datetime
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import onnx

from lopa.export.progress import Progress
from lopa.export.staging import Product, staged_folder
from lopa.export.tensorrt.builder import BuildRequest, TimingCache, plan_from_request
from lopa.export.tensorrt.flags import check_has_products
from lopa.export.tensorrt.layer_report import write_layer_report
from lopa.export.tensorrt.lint import check_parser_takes
from lopa.export.tensorrt.parser_graph import model_for_parser
from lopa.export.tensorrt.products import Products, magnitudes_of_columns, quantize_products
from lopa.plugins.tensorrt_plugins import register_plugins
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.bundle.engine_file import ENGINE_NAME, ENGINES_FOLDER
from lopa.runtime.bundle.manifest import FileRecord
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.contract import CONTRACT_VERSION, Float32
from lopa.runtime.contract.stored_floats import float32_from_stored, stored_dtype
from lopa.runtime.cuda.driver import cuda_device, version_numbers
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.tensorrt.contexts import slug_of_gpu
from lopa.runtime.tensorrt.manifest import (
    ENGINE_SCHEMA,
    MODEL_NAME,
    PLAN_NAME,
    TENSORRT_ENGINES,
    BuildFlags,
    EngineTarget,
    StoredTensorRTEngine,
    TensorRTEngine,
    engine_folder,
)
from lopa.runtime.tensorrt.profiles import ProfileRange, prefill_range, profiles_of_buckets

_ENGINE = Product("TensorRT engine", ENGINE_NAME)
_ROOM_BESIDE_WEIGHTS = 1 << 28
"""Bytes: a plan holds the weights once, kernels, and little else."""


@dataclass(frozen=True, eq=False)
class EngineJob:
    """All that decides what is built, but for the machine."""

    bundle: Bundle
    """With the standard graph alone."""
    model: bytes
    """What the parser is given."""
    buckets: Sequence[ShapeBucket]
    prefill: ProfileRange
    flags: BuildFlags

    def cache_key(self, target: EngineTarget) -> str:
        """sha256 over everything that the engine depends on."""
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
class Made:
    """The engine, and whether it was there already."""

    found: StoredTensorRTEngine
    cached: bool
    no_layers: str | None = None
    """Why there is no report of its layers; None if there is one."""


def job_from_bundle(bundle: Bundle, buckets: Sequence[ShapeBucket], flags: BuildFlags) -> EngineJob:
    """Check everything that can be checked without TensorRT; for 8-bit products the weights are read.

    Raises BadInputError for a bundle without a standard graph, for 8-bit products of one that has integers already, for
    plugins that its graph has no place for, and for what the parser would refuse.
    """
    standard = bundle.of_dialect("standard")
    if flags.plugins and not standard.manifest.plugins:
        raise BadInputError(
            f"--plugins for {bundle.path}, whose graph calls none",
            expected="a bundle made with lopa-export onnx --plugins",
            remedy="leave --plugins out, or export the checkpoint again with it",
        )
    model = model_for_parser(standard)
    if flags.products != "graph":
        _quantize(model, standard, flags.products)
    check_parser_takes(model, str(standard.graph))
    return EngineJob(standard, model.SerializeToString(deterministic=True), buckets, prefill_range(buckets), flags)


def _quantize(model: onnx.ModelProto, bundle: Bundle, products: Products) -> None:
    manifest = bundle.manifest
    if manifest.quantization is not None:
        raise BadInputError(
            f"--{products} for {bundle.path}, whose matrices are {manifest.quantization.kind}",
            expected="a bundle in floats, whose products become 8-bit ones here",
            remedy=f"leave --{products} out, or export with --quantize none",
        )

    def magnitudes(name: str) -> Float32:
        record = manifest.tensors[name]
        shape = tuple(record.shape)
        stored = np.memmap(bundle.weights, stored_dtype(record.dtype), "r", record.offset, shape)
        return magnitudes_of_columns(stored, float32_from_stored)

    quantize_products(model, products, manifest.tensors, magnitudes)


def engine_from_job(
    job: EngineJob, trt: ModuleType, target: EngineTarget, timing_cache: Path | None, tell: Progress
) -> Made:
    """Build for `target` unless the same engine is there: TensorRT on the current CUDA device, for which it is.

    `timing_cache` None: a file of this GPU and version beside the engines, for a library that times. Raises as
    plan_from_request does, and BadInputError when something cannot be written; an engine that was there before is then
    untouched. MissingBackendError for plugins without Triton, and for a plan without weights for RTX without a GPU.
    """
    check_has_products(job.flags, target.capabilities, target.gpu)
    manifest, folder = job.bundle.manifest, engine_folder(job.bundle, target)
    key = job.cache_key(target)
    there = TENSORRT_ENGINES.with_key(folder, key)
    if there is not None:
        return Made(there, cached=True)
    if job.flags.plugins:
        major, minor = version_numbers(target.capabilities[0])
        register_plugins((major, minor), manifest.plugins)
    if target.gpu is None and job.flags.strip_weights:
        _check_has_gpu_to_strip(target)
    cache = None
    if target.gpu is not None:
        cache = timing_cache or _timing_cache_beside(job.bundle, target.gpu, target.version)
        _check_writable(cache)
    room = job.bundle.weights.stat().st_size + _ROOM_BESIDE_WEIGHTS
    with staged_folder(folder, overwrite=True, room=room, product=_ENGINE) as staged:
        built = plan_from_request(trt, _request(job, target, cache), staged / PLAN_NAME, tell)
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
            _replace(cache, built.timing_cache)
    found = TENSORRT_ENGINES.read(folder)
    return Made(found, cached=False, no_layers=_why_no_layers(trt, found))


def _check_has_gpu_to_strip(target: EngineTarget) -> None:
    """What else needs no GPU asks for one then: seen with 1.7.1 (docs/how-to/engines.md)."""
    try:
        cuda_device(0)
    except MissingBackendError as error:
        raise MissingBackendError(
            f"--strip-weights with --rtx on a machine without a GPU: {error.received}",
            expected=f"a GPU, which {target.built_by} asks for to leave weights out",
            remedy="build on a machine with a GPU, or leave --strip-weights out",
        ) from error


def _why_no_layers(trt: ModuleType, found: StoredTensorRTEngine) -> str | None:
    """Make the report where there is a GPU to open the engine on; a build by TensorRT for RTX does not ask for one."""
    if found.engine.target.gpu is None:
        try:
            cuda_device(0)
        except MissingBackendError:
            return "there is no GPU here to open the engine on"
    return write_layer_report(trt, found)


def _request(job: EngineJob, target: EngineTarget, cache: Path | None) -> BuildRequest:
    return BuildRequest(
        model=job.model,
        beside=job.bundle.graph,
        manifest=job.bundle.manifest,
        profiles=profiles_of_buckets(job.buckets, job.prefill),
        flags=job.flags,
        target=target,
        timing_cache=None if cache is None else TimingCache(_timed(cache), str(cache)),
    )


def _timed(cache: Path) -> bytes:
    try:
        return cache.read_bytes() if cache.exists() else b""
    except OSError as error:
        raise BadInputError(
            f"{cache} cannot be read: {error.strerror}", expected="a timing cache", remedy="give another --timing-cache"
        ) from error


def _timing_cache_beside(bundle: Bundle, gpu: str, version: str) -> Path:
    """One for each version and GPU: TensorRT takes no other's."""
    return bundle.path / ENGINES_FOLDER / f"timing-{slug_of_gpu(gpu)}-{version}.cache"


def _written_model(folder: Path, job: EngineJob) -> FileRecord:
    """What the plan was built of, by which its weights are put in again."""
    (folder / MODEL_NAME).write_bytes(job.model)
    return FileRecord(path=MODEL_NAME, size=len(job.model), sha256=hashlib.sha256(job.model).hexdigest())


def _check_writable(cache: Path) -> None:
    """Before the minutes of a build: that its times can be kept."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        partial = _partial(cache)
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise BadInputError(
            f"{cache} cannot be written: {error.strerror}",
            expected="a place for the timing cache that can be written",
            remedy="give another --timing-cache",
        ) from error


def _replace(path: Path, content: bytes) -> None:
    """Never half a file: it is written beside `path` and renamed."""
    partial = _partial(path)
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial-{os.getpid()}")

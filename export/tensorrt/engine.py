"""A bundle and its gears in, an engine for this machine's GPU in the bundle's engines/ out, unless it is there already.

Decides what is built and writes it down; the build itself is builder.py's.
"""

import datetime
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import onnx

from lopa.export.progress import Progress
from lopa.export.staging import Product, staged_folder
from lopa.export.tensorrt.builder import BuildRequest, Built, built_from_request
from lopa.export.tensorrt.lint import check_parser_takes
from lopa.export.tensorrt.parser_graph import model_for_parser
from lopa.export.tensorrt.products import Products, magnitudes_of_columns, quantize_products
from lopa.plugins.tensorrt_plugins import register_plugins
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.engine_file import ENGINE_NAME, ENGINES_FOLDER
from lopa.runtime.bundle.gears import Gear
from lopa.runtime.bundle.manifest import FileRecord
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.contract import CONTRACT_VERSION, Float32
from lopa.runtime.contract.stored_floats import float32_from_stored, stored_dtype
from lopa.runtime.cuda.driver import CudaDevice, version_numbers
from lopa.runtime.errors import BadInputError
from lopa.runtime.tensorrt.manifest import (
    ENGINE_SCHEMA,
    LAYERS_NAME,
    PLAN_NAME,
    TENSORRT_ENGINES,
    BuildFlags,
    StoredTensorRTEngine,
    TensorRTEngine,
    engine_folder,
)
from lopa.runtime.tensorrt.profiles import ProfileRange, prefill_range, profiles_of_gears

_ENGINE = Product("TensorRT engine", ENGINE_NAME)
_FIRST_WITH_FP8 = (8, 9)
"""Compute capability."""
_ROOM_BESIDE_WEIGHTS = 1 << 28
"""Bytes: a plan holds the weights once, kernels, and little else."""


@dataclass(frozen=True, eq=False)
class EngineJob:
    """All that decides what is built, but for the machine."""

    bundle: Bundle
    """With the standard graph alone."""
    model: bytes
    """What the parser is given."""
    gears: Sequence[Gear]
    prefill: ProfileRange
    flags: BuildFlags

    def cache_key(self, device: CudaDevice, version: str) -> str:
        """sha256 over everything that the engine depends on."""
        manifest = self.bundle.manifest
        parts = {
            "schema": ENGINE_SCHEMA,
            "contract": CONTRACT_VERSION,
            "model": hashlib.sha256(self.model).hexdigest(),
            "graph": manifest.digest(manifest.graph),
            "weights": manifest.weights_digest,
            "gears": self.gears,
            "prefill": self.prefill,
            "flags": self.flags,
            "tensorrt": version,
            "gpu": device.name,
            "capability": device.capability,
        }
        return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


@dataclass(frozen=True)
class Made:
    """The engine, and whether it was there already."""

    found: StoredTensorRTEngine
    cached: bool


def job_from_bundle(bundle: Bundle, gears: Sequence[Gear], flags: BuildFlags) -> EngineJob:
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
    return EngineJob(standard, model.SerializeToString(deterministic=True), gears, prefill_range(gears), flags)


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


def _check_has_fp8(device: CudaDevice) -> None:
    if version_numbers(device.capability) < _FIRST_WITH_FP8:
        raise BadInputError(
            f"--fp8 for {device.name}, of compute capability {device.capability}",
            expected="compute capability 8.9 or later",
            remedy="use --int8, or leave it out",
        )


def engine_from_job(
    job: EngineJob, trt: ModuleType, device: CudaDevice, timing_cache: Path | None, tell: Progress
) -> Made:
    """Build on the current CUDA device, `device`, unless the same engine is there.

    `timing_cache` None: a file of this GPU and version beside the engines. Raises as built_from_request does, and
    BadInputError when something cannot be written; an engine that was there before is then untouched.
    MissingBackendError for plugins without Triton.
    """
    if job.flags.products == "fp8":
        _check_has_fp8(device)
    manifest, folder = job.bundle.manifest, engine_folder(job.bundle, device, trt.__version__)
    key = job.cache_key(device, trt.__version__)
    there = TENSORRT_ENGINES.with_key(folder, key)
    if there is not None:
        return Made(there, cached=True)
    if job.flags.plugins:
        major, minor = version_numbers(device.capability)
        register_plugins((major, minor), manifest.plugins)
    cache = timing_cache or _timing_cache_beside(job.bundle, device, trt.__version__)
    _check_writable(cache)
    room = job.bundle.weights.stat().st_size + _ROOM_BESIDE_WEIGHTS
    with staged_folder(folder, overwrite=True, room=room, product=_ENGINE) as staged:
        built = built_from_request(trt, _request(job, cache), tell)
        files = _written_files(staged, built)
        engine = TensorRTEngine(
            schema=ENGINE_SCHEMA,
            contract=CONTRACT_VERSION,
            made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            tensorrt=trt.__version__,
            gpu=device.name,
            capability=device.capability,
            flags=job.flags,
            gears=list(job.gears),
            prefill=job.prefill,
            graph_sha256=manifest.digest(manifest.graph),
            weights_sha256=manifest.weights_digest,
            cache_key=key,
            verified=False,
            files=files,
        )
        (staged / ENGINE_NAME).write_bytes(json_from_record(engine))
        _replace(cache, built.timing_cache)
    return Made(TENSORRT_ENGINES.read(folder), cached=False)


def _request(job: EngineJob, cache: Path) -> BuildRequest:
    try:
        timed = cache.read_bytes() if cache.exists() else b""
    except OSError as error:
        raise BadInputError(
            f"{cache} cannot be read: {error.strerror}", expected="a timing cache", remedy="give another --timing-cache"
        ) from error
    return BuildRequest(
        model=job.model,
        beside=job.bundle.graph,
        manifest=job.bundle.manifest,
        profiles=profiles_of_gears(job.gears, job.prefill),
        flags=job.flags,
        timing_cache=timed,
        timing_cache_name=str(cache),
    )


def _timing_cache_beside(bundle: Bundle, device: CudaDevice, version: str) -> Path:
    """One for each version and GPU: TensorRT takes no other's."""
    gpu = re.sub(r"[^a-z0-9]+", "-", device.name.lower())
    return bundle.path / ENGINES_FOLDER / f"timing-{gpu}-{version}.cache"


def _written_files(folder: Path, built: Built) -> list[FileRecord]:
    records = []
    for name, content in ((PLAN_NAME, built.plan), (LAYERS_NAME, built.layers.encode())):
        (folder / name).write_bytes(content)
        records.append(FileRecord(path=name, size=len(content), sha256=hashlib.sha256(content).hexdigest()))
    return records


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

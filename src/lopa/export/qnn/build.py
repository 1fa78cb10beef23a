"""Compilation of a bundle's shape buckets into engines/qnn-*/ of the bundle, which appears complete or not at all."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime

from lopa.export.qnn.fixed_graph import block_matrices, fixed_graph
from lopa.export.staging import Product, staged_folder
from lopa.runtime.bundle import Bundle, sha256_of_file
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.bundle.engine_file import ENGINE_NAME
from lopa.runtime.bundle.manifest import FileRecord
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.bundle.webgpu_twin import reordered_matrices
from lopa.runtime.contract import CONTRACT_VERSION
from lopa.runtime.errors import BadInputError, CheckFailedError, error_text
from lopa.runtime.qnn.qnn_library import qnn_module, sdk_version, session_options
from lopa.runtime.qnn.qnn_manifest import ENGINE_SCHEMA, QNN_ENGINES, QnnBucket, QnnEngine, QnnSoc, StoredQnnEngine

_ENGINE = Product("engine", ENGINE_NAME)
_FORM = 2
"""Version of fixed_graph's result. Engines of another version are built again."""


@dataclass(frozen=True)
class QnnBuild:
    """Result of a build."""

    found: StoredQnnEngine
    cached: bool
    """True if the engine existed already and nothing was compiled."""


def engine_from_bundle(
    bundle: Bundle, soc: QnnSoc, buckets: Sequence[ShapeBucket], progress: Callable[[str], None]
) -> QnnBuild:
    """Return the engine of `bundle` for `soc`. Compile it unless an up-to-date one exists.

    `bundle` is in the standard dialect. `progress` receives the name of each graph before its compilation. Raises
    BadInputError for a bundle that QNN cannot run, and CheckFailedError if QNN rejects a graph or leaves a node on the
    CPU. Raises MissingBackendError without onnxruntime-qnn.
    """
    check_bundle(bundle)
    module = qnn_module()
    graph_sha256 = sha256_of_file(bundle.graph)
    facts = (_FORM, graph_sha256, bundle.manifest.weights_digest, soc, sdk_version(module), module.__version__)
    key = hashlib.sha256(repr(facts).encode() + msgspec.json.encode(list(buckets))).hexdigest()
    destination = QNN_ENGINES.folder(bundle, soc.name)
    present = QNN_ENGINES.with_key(destination, key)
    if present is not None and all(
        sha256_of_file(destination / record.path) == record.sha256 for record in present.engine.files
    ):
        return QnnBuild(present, cached=True)
    with staged_folder(destination, overwrite=True, product=_ENGINE) as folder:
        names = [f"bucket-{number}.onnx" for number in range(len(buckets))]
        matrices = reordered_matrices(bundle, block_matrices(bundle.manifest))
        for bucket, name in zip(buckets, names, strict=True):
            progress(name)
            _compile(bundle, bucket, matrices, session_options(module, soc), folder / name)
        engine = QnnEngine(
            schema=ENGINE_SCHEMA,
            contract=CONTRACT_VERSION,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            graph_sha256=graph_sha256,
            weights_sha256=bundle.manifest.weights_digest,
            cache_key=key,
            soc=soc.name,
            soc_model=soc.soc_model,
            htp_arch=soc.htp_arch,
            sdk_version=sdk_version(module),
            package_version=module.__version__,
            buckets=[QnnBucket(bucket=bucket, graph=name) for bucket, name in zip(buckets, names, strict=True)],
            files=[
                FileRecord(path=path.name, size=path.stat().st_size, sha256=sha256_of_file(path))
                for path in sorted(folder.iterdir())
            ],
        )
        (folder / ENGINE_NAME).write_bytes(json_from_record(engine))
    return QnnBuild(QNN_ENGINES.read(destination), cached=False)


def check_bundle(bundle: Bundle) -> None:
    """Raise BadInputError for a bundle whose standard graph does not fit a Qualcomm NPU as a whole."""
    manifest = bundle.manifest
    reasons = (
        (bool(manifest.plugins), "functions of the domain lopa", "without --plugins"),
        (manifest.is_fp8, "FP8 matrices, which QNN lacks", "with --quantize int8 or int4"),
        (manifest.dtype == "bfloat16", "bfloat16, which QNN lacks", "with --dtype float16 or float32"),
    )
    for applies, reason, remedy in reasons:
        if applies:
            raise BadInputError(
                f"{bundle.path} has {reason}",
                expected="a standard graph in float32 or float16, which the NPU computes in float16, or int8 or int4",
                remedy=f"export the checkpoint {remedy}",
            )


def _compile(
    bundle: Bundle,
    bucket: ShapeBucket,
    matrices: Mapping[str, npt.NDArray[Any]],
    options: onnxruntime.SessionOptions,
    path: Path,
) -> None:
    """Write the context binary of one shape bucket, and the graph at `path` that names it.

    `matrices` are the initializers without values.
    """
    model = ir.to_proto(fixed_graph(bundle, bucket)).SerializeToString()
    entries = {
        "ep.context_enable": "1",
        "ep.context_embed_mode": "0",
        "ep.context_file_path": str(path),
        "session.model_external_initializers_file_folder_path": str(bundle.graph.parent.resolve()),
    }
    for name, value in entries.items():
        options.add_session_config_entry(name, value)
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in matrices.items()}
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    try:
        onnxruntime.InferenceSession(model, options, enable_fallback=0)
    except Exception as error:  # ONNX Runtime raises its own exception classes
        raise CheckFailedError(
            f"QNN cannot compile {path.name} ({bucket.requests} x {bucket.branches} x {bucket.window}, prefix "
            f"{bucket.prefix}): {error_text(error)}",
            expected="a graph with every node on the NPU",
            remedy="plan smaller shape buckets, or use another chip or --device cpu",
        ) from error
    if not path.is_file():
        raise CheckFailedError(
            f"QNN wrote no context binary for {path.name}",
            expected="a graph with every node on the NPU",
            remedy="report this with the version of onnxruntime-qnn",
        )

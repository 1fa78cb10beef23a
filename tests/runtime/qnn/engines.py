"""Engines for Qualcomm NPUs without context binaries, for checks that come before opening one."""

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket, bucket_from_sizes
from lopa.runtime.bundle.engine_file import ENGINE_NAME
from lopa.runtime.bundle.manifest import FileRecord
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.contract import CONTRACT_VERSION
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.qnn.qnn_manifest import ENGINE_SCHEMA, QNN_ENGINES, SOCS, QnnBucket, QnnEngine, StoredQnnEngine

SMALL: ShapeBucket = bucket_from_sizes(Sizes(1, 1, 64, 64, 32), 1.0)


def empty_engine(bundle: Bundle, soc: str = "SM8650", *, weights: str | None = None) -> StoredQnnEngine:
    """Write and return an engine of `bundle` with an empty graph, compiled by QNN 1.2.3."""
    folder = QNN_ENGINES.folder(bundle, soc)
    folder.mkdir(parents=True)
    (folder / "bucket-0.onnx").write_bytes(b"")
    engine = QnnEngine(
        schema=ENGINE_SCHEMA,
        contract=CONTRACT_VERSION,
        made="2026-11-24T00:00:00+00:00",
        graph_sha256="0" * 64,
        weights_sha256=bundle.manifest.weights_digest if weights is None else weights,
        cache_key="0" * 64,
        files=[FileRecord(path="bucket-0.onnx", size=0, sha256="0" * 64)],
        soc=soc,
        soc_model=SOCS[soc].soc_model,
        htp_arch=SOCS[soc].htp_arch,
        sdk_version="1.2.3",
        package_version="0.0.1",
        buckets=[QnnBucket(bucket=SMALL, graph="bucket-0.onnx")],
    )
    (folder / ENGINE_NAME).write_bytes(json_from_record(engine))
    return QNN_ENGINES.read(folder)

"""engine.json of an engine that `lopa-export qnn` compiled for one Qualcomm chip, checked strictly on reading.

It is next to the context binaries in engines/qnn-*/ of a bundle.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from lopa.runtime.bundle.buckets import ShapeBucket, are_valid_shape_buckets
from lopa.runtime.bundle.engine_file import EngineFile, EngineKind, StoredEngine
from lopa.runtime.bundle.manifest import Name
from lopa.runtime.bundle.record import Reasons
from lopa.runtime.qnn.socs import QnnSoc

ENGINE_SCHEMA = 1
_REMEDY = "build it again: lopa-export qnn BUNDLE --soc SOC"


class QnnBucket(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One shape bucket and its graph."""

    bucket: ShapeBucket
    graph: Name
    """ONNX file that names its context binary, relative to the engine's folder."""


class QnnEngine(EngineFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Content of engine.json."""

    soc: Annotated[str, Meta(pattern=r"^[\w-]{1,64}\Z")]
    soc_model: Annotated[int, Meta(ge=0, le=9999)]
    htp_arch: Annotated[int, Meta(ge=0, le=999)]
    sdk_version: str
    """Version of the QNN SDK that compiled the context binaries. Another one may reject them."""
    package_version: str
    """Version of onnxruntime-qnn."""
    buckets: Annotated[list[QnnBucket], Meta(min_length=1, max_length=256)]

    @property
    def target(self) -> QnnSoc:
        """Chip that the engine was compiled for."""
        return QnnSoc(self.soc, self.soc_model, self.htp_arch)


def _find_bucket_errors(engine: QnnEngine) -> Reasons:
    listed = {record.path for record in engine.files}
    missing = [each.graph for each in engine.buckets if each.graph not in listed]
    if missing or not are_valid_shape_buckets([each.bucket for each in engine.buckets]):
        yield (
            f"{len(engine.buckets)} invalid shape buckets, {len(missing)} of them without a graph",
            "shape buckets with a listed graph, in shapes that a plan may have",
        )


QNN_ENGINES = EngineKind("qnn-", QnnEngine, ENGINE_SCHEMA, _REMEDY, _find_bucket_errors)
StoredQnnEngine = StoredEngine[QnnEngine]

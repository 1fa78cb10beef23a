"""engine.json of an engine that `lopa-export ascend` compiled for one kind of NPU, checked strictly on reading.

It is next to the OM files in engines/ascend-*/ of a bundle.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket, are_valid_shape_buckets
from lopa.runtime.bundle.engine_file import EngineFile, EngineKind, StoredEngine
from lopa.runtime.bundle.manifest import Name
from lopa.runtime.bundle.record import Reasons

ENGINE_SCHEMA = 2
_REMEDY = "build it again: lopa-export ascend BUNDLE --soc-version SOC"
Precision = Literal["origin", "fp16", "bf16"]
"""Precision of the OMs: the graph's own types, or the type to which ATC may lower float32."""
Dtype = Annotated[str, Meta(pattern=r"^(bool|u?int(8|16|32|64)|b?float16|float32|float64)\Z")]
"""Type name as in numpy, or bfloat16."""
Dim = Annotated[int, Meta(ge=0, le=2**32)]


class EngineInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One input of the portable form, in order."""

    name: str
    dtype: Dtype
    dims: Annotated[list[Annotated[int, Meta(ge=-1, le=2**32)]], Meta(max_length=8)]
    """Dims of the input. -1 marks dims that differ between shape buckets."""


class EngineOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One output of the portable form, in order."""

    name: str
    dtype: Dtype


class EngineBucket(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One shape bucket and how the engine runs it."""

    bucket: ShapeBucket
    dims: Annotated[list[Dim], Meta(max_length=4096)]
    """Values for every -1 of the inputs, in order. Two shape buckets may have the same."""
    model: Name
    """OM file, relative to the engine's folder."""


class AscendEngine(EngineFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Content of engine.json."""

    soc_version: str
    precision: Precision
    int8: bool
    """True if AMCT quantized the graph before compilation."""
    dynamic: bool
    """True for one OM whose dims are set before every forward, False for OMs with fixed shapes."""
    inputs: Annotated[list[EngineInput], Meta(max_length=4096)]
    outputs: Annotated[list[EngineOutput], Meta(max_length=65536)]
    buckets: Annotated[list[EngineBucket], Meta(max_length=256)]
    """Shape buckets in the order of the plan."""
    commands: list[list[str]]
    """ATC command of each OM, as a list of arguments. Paths are relative to the build folder."""
    cann_version: str | None
    """Version of the toolkit, or None if it reports none."""


def _find_bucket_errors(engine: AscendEngine) -> Reasons:
    listed = {record.path for record in engine.files}
    dynamic_count = sum(dim == -1 for each in engine.inputs for dim in each.dims)
    wrong = [
        bucket.model for bucket in engine.buckets if bucket.model not in listed or len(bucket.dims) != dynamic_count
    ]
    if wrong or not are_valid_shape_buckets([each.bucket for each in engine.buckets]):
        yield (
            f"{len(engine.buckets)} invalid shape buckets, {len(wrong)} of them without a model or with the wrong "
            "number of dims",
            f"shape buckets with a listed model and {dynamic_count} dims, in shapes that a plan may have",
        )


ASCEND_ENGINES = EngineKind("ascend-", AscendEngine, ENGINE_SCHEMA, _REMEDY, _find_bucket_errors)
StoredAscendEngine = StoredEngine[AscendEngine]


def engine_folder(bundle: Bundle, soc_version: str) -> Path:
    """Return the folder of the engine for `soc_version`, e.g. engines/ascend-910B1 for Ascend910B1."""
    return ASCEND_ENGINES.folder(bundle, soc_version.removeprefix("Ascend"))

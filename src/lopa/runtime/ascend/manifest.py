"""engine.json: what `lopa-export ascend` compiled for one kind of NPU, checked strictly when read.

It lies beside the OM files in engines/ascend-*/ of a bundle. Does not compile and does not run anything.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket, buckets_can_be_used
from lopa.runtime.bundle.engine_file import EngineFile, EngineKind, StoredEngine
from lopa.runtime.bundle.manifest import Name
from lopa.runtime.bundle.record import Reasons

ENGINE_SCHEMA = 2
_REMEDY = "build it again: lopa-export ascend BUNDLE --soc-version SOC"
Precision = Literal["origin", "fp16", "bf16"]
"""The graph's own types, or what ATC may lower float32 to."""
Dtype = Annotated[str, Meta(pattern=r"^(bool|u?int(8|16|32|64)|b?float16|float32|float64)\Z")]
"""numpy's name, or bfloat16."""
Dim = Annotated[int, Meta(ge=0, le=2**32)]


class EngineInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One input of the portable form, in its order."""

    name: str
    dtype: Dtype
    dims: Annotated[list[Annotated[int, Meta(ge=-1, le=2**32)]], Meta(max_length=8)]
    """-1 where buckets differ."""


class EngineOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One output of the portable form, in its order."""

    name: str
    dtype: Dtype


class EngineBucket(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One bucket and how the engine runs it."""

    bucket: ShapeBucket
    dims: Annotated[list[Dim], Meta(max_length=4096)]
    """What stands in place of every -1 of the inputs, in their order. Two buckets may have the same."""
    model: Name
    """The OM file, relative to the engine's folder."""


class AscendEngine(EngineFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    soc_version: str
    precision: Precision
    int8: bool
    """Whether the graph was one that AMCT had quantized."""
    dynamic: bool
    """One OM for all buckets, whose dims are set before every forward; otherwise OMs of fixed shapes."""
    inputs: Annotated[list[EngineInput], Meta(max_length=4096)]
    outputs: Annotated[list[EngineOutput], Meta(max_length=65536)]
    buckets: Annotated[list[EngineBucket], Meta(max_length=256)]
    """In the order of the plan of buckets."""
    commands: list[list[str]]
    """What was run, a list of arguments for each OM; paths are relative to the folder that it was run in."""
    cann_version: str | None
    """Of the toolkit; None if it does not say."""


def _reasons_against_buckets(engine: AscendEngine) -> Reasons:
    listed = {record.path for record in engine.files}
    holes = sum(dim == -1 for each in engine.inputs for dim in each.dims)
    wrong = [bucket.model for bucket in engine.buckets if bucket.model not in listed or len(bucket.dims) != holes]
    if wrong or not buckets_can_be_used([each.bucket for each in engine.buckets]):
        yield (
            f"{len(engine.buckets)} buckets that cannot be used, {len(wrong)} of them without a model or with the wrong "
            "number of dims",
            f"buckets with a listed model and {holes} dims, in shapes as a plan of buckets has them",
        )


ASCEND_ENGINES = EngineKind("ascend-", AscendEngine, ENGINE_SCHEMA, _REMEDY, _reasons_against_buckets)
StoredAscendEngine = StoredEngine[AscendEngine]


def engine_folder(bundle: Bundle, soc_version: str) -> Path:
    """Where the engine for `soc_version` lies: Ascend910B1 -> engines/ascend-910B1."""
    return ASCEND_ENGINES.folder(bundle, soc_version.removeprefix("Ascend"))

"""Writes the weights file of a bundle: reads each tensor, merges the adapter, casts, checks and writes it, in pieces.

One pass, never more than one piece of one tensor in memory beside the mapped source. Does not know the graph.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from lopa.export.checkpoint import StoredTensor
from lopa.export.lora import Adapter, LowRankProduct
from lopa.export.weight_plan import Dtype, PlannedWeight
from lopa.runtime.errors import BadInputError
from lopa.runtime.manifest import FileRecord, TensorRecord

_PIECE_ITEMS = 1 << 24
"""Numbers merged at a time: 64 MiB in float32."""
_TORCH_DTYPES: dict[Dtype, torch.dtype] = {"float32": torch.float32, "float16": torch.float16}
_SOURCE_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def write_weights(
    path: Path,
    planned: Sequence[PlannedWeight],
    records: Mapping[str, TensorRecord],
    stored: Mapping[str, StoredTensor],
    adapter: Adapter,
    progress: Callable[[int], None],
) -> FileRecord:
    """Write every planned tensor at its record's offset in the new file `path`.

    `progress` hears the bytes written so far. Raises BadInputError, naming the tensor, for values that are NaN,
    infinite or beyond the bundle's dtype, and OSError when the file cannot be written.
    """
    digest = hashlib.sha256()
    written = 0
    with path.open("wb") as file:
        for weight in planned:
            record = records[weight.name]
            for data in _pieces_of_weight(weight, record, stored, adapter, padding=record.offset - written):
                file.write(data)
                digest.update(data)
                written += len(data)
                progress(written)
    return FileRecord(path=path.name, size=written, sha256=digest.hexdigest())


def _pieces_of_weight(
    weight: PlannedWeight,
    record: TensorRecord,
    stored: Mapping[str, StoredTensor],
    adapter: Adapter,
    *,
    padding: int,
) -> Iterator[bytes | memoryview]:
    """`padding` zeros and then the tensor's bytes as they lie in the bundle, some rows at a time."""
    yield b"\0" * padding
    origin = adapter.replaced.get(weight.source, stored[weight.source])
    source = origin.read()
    if source.dtype not in _SOURCE_DTYPES:
        raise BadInputError(
            f"{origin.file}: {origin.name} has the type {source.dtype}",
            expected="float32, float16 or bfloat16 weights",
            remedy="export a checkpoint that is not quantized",
        )
    product = adapter.products.get(weight.source)
    rows = max(1, _PIECE_ITEMS * weight.shape[0] // source.numel())
    for start in range(0, weight.shape[0], rows):
        merged = _merged_rows(source, product, slice(start, start + rows), transposed=weight.transposed)
        yield _checked_cast(merged, record.dtype, weight).numpy().data.cast("B")


def _merged_rows(
    source: torch.Tensor, product: LowRankProduct | None, rows: slice, *, transposed: bool
) -> torch.Tensor:
    """Rows of the bundle's tensor in float32: columns of the source where it is transposed."""
    part = source[:, rows] if transposed else source[rows]
    merged = part.to(torch.float32)
    if product is not None:
        merged = merged + product.scale * (product.up.read().float() @ product.down.read()[:, rows].float())
    return (merged.t() if transposed else merged).contiguous()


def _checked_cast(values: torch.Tensor, dtype: Dtype, weight: PlannedWeight) -> torch.Tensor:
    # The least and the greatest value tell it all: either is NaN if any value is, and rounding keeps the order.
    extremes = torch.stack(torch.aminmax(values))
    if not torch.isfinite(extremes).all():
        raise BadInputError(
            f"the tensor {weight.source} has values that are NaN or infinite",
            expected="finite weights, after merging the adapter",
            remedy="copy the checkpoint and the adapter again; if that does not help, their training diverged",
        )
    if not torch.isfinite(extremes.to(_TORCH_DTYPES[dtype])).all():
        raise BadInputError(
            f"the tensor {weight.source} has a value of {extremes.abs().max().item():g}",
            expected=f"values that {dtype} can hold",
            remedy="export with --dtype fp32",
        )
    return values.to(_TORCH_DTYPES[dtype])

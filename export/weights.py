"""Writes the weights file of a bundle: reads each tensor, merges the adapter, casts, checks and writes it, in pieces.

One pass, never more than one piece of one tensor in memory beside the mapped source. Does not know the graph.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from lopa.export.checkpoint import StoredTensor
from lopa.export.lora import Adapter, LowRankProduct
from lopa.export.quantize_tensor import integer_pieces
from lopa.export.weight_plan import BLOCK, Dtype, PlannedWeight
from lopa.runtime.errors import BadInputError
from lopa.runtime.manifest import FileRecord, TensorRecord, scale_name

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
            for offset, data in _pieces_of_weight(weight, records, stored, adapter):
                for part in (bytes(max(0, offset - written)), data):
                    file.write(part)
                    digest.update(part)
                    written += len(part)
                progress(written)
    return FileRecord(path=path.name, size=written, sha256=digest.hexdigest())


def _pieces_of_weight(
    weight: PlannedWeight, records: Mapping[str, TensorRecord], stored: Mapping[str, StoredTensor], adapter: Adapter
) -> Iterator[tuple[int, memoryview]]:
    """The tensor's bytes as they lie in the bundle, some rows at a time, each with the offset where its tensor begins.

    A quantized tensor is followed by its scales; int8 ones are known only when all rows were read, which are then read
    again.
    """
    record = records[weight.name]
    if weight.quantized is None:
        dtype = _float_dtype(record)
        for piece in _merged_pieces(weight, stored, adapter):
            yield record.offset, _bytes(_checked(piece, dtype, weight).to(_TORCH_DTYPES[dtype]))
        return
    scale_record = records[scale_name(weight.name)]
    scale_dtype = _float_dtype(scale_record)

    def checked_pieces() -> Iterator[torch.Tensor]:
        return (_checked(piece, scale_dtype, weight) for piece in _merged_pieces(weight, stored, adapter))

    scales: list[torch.Tensor] = []
    for piece in integer_pieces(weight.quantized, checked_pieces, scale_dtype, scales):
        yield record.offset, _bytes(piece)
    for piece in scales:
        yield scale_record.offset, _bytes(piece)


def _merged_pieces(
    weight: PlannedWeight, stored: Mapping[str, StoredTensor], adapter: Adapter
) -> Iterator[torch.Tensor]:
    """Rows of the bundle's tensor in float32, with the adapter; of a matrix, whole blocks of rows."""
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
    if weight.quantized == "int4":
        rows = -(-rows // BLOCK) * BLOCK
    for start in range(0, weight.shape[0], rows):
        yield _merged_rows(source, product, slice(start, start + rows), transposed=weight.transposed)


def _merged_rows(
    source: torch.Tensor, product: LowRankProduct | None, rows: slice, *, transposed: bool
) -> torch.Tensor:
    """Rows of the bundle's tensor in float32: columns of the source where it is transposed."""
    part = source[:, rows] if transposed else source[rows]
    merged = part.to(torch.float32)
    if product is not None:
        merged = merged + product.scale * (product.up.read().float() @ product.down.read()[:, rows].float())
    return (merged.t() if transposed else merged).contiguous()


def _checked(values: torch.Tensor, dtype: Dtype, weight: PlannedWeight) -> torch.Tensor:
    """`values`, or BadInputError when they are not finite or beyond `dtype`."""
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
    return values


def _float_dtype(record: TensorRecord) -> Dtype:
    if record.dtype == "int8" or record.dtype == "int4":
        raise ValueError(f"received a record of {record.dtype}, expected one of a floating-point type")
    return record.dtype


def _bytes(values: torch.Tensor) -> memoryview:
    return values.numpy().data.cast("B")

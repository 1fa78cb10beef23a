"""Writer of a bundle's weights file: reads each tensor, merges the adapter, casts or quantizes, checks and writes it.

The checkpoint is read once. One matrix at a time is in memory, transposed, since checkpoints store [outputs, inputs]. A
very large matrix is written in strips and read again for each strip.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from lopa.export.checkpoint.lora import Adapter, LowRankProduct
from lopa.export.checkpoint.tensors import StoredTensor
from lopa.export.weights.digests import HashedFile
from lopa.export.weights.merged_blocks import merged_blocks
from lopa.export.weights.plan import BLOCK, Dtype, IntegerDtype, PlannedWeight, WeightPlan
from lopa.export.weights.quantize_tensor import bytes_from_int4, integers_from_values
from lopa.export.weights.torch_dtypes import TORCH_DTYPES
from lopa.runtime.bundle.manifest import FileRecord, TensorRecord, scale_name
from lopa.runtime.errors import BadInputError

_STRIP_BYTES = 1_100_000_000
"""Maximum size of a transposed strip: the head of a 7B model in 16 bits just fits."""
_PACKED_ITEMS = 1 << 20
"""Number of int4 values packed at a time."""


def write_weights(
    path: Path,
    plan: WeightPlan,
    records: Mapping[str, TensorRecord],
    stored: Mapping[str, StoredTensor],
    adapter: Adapter,
    progress: Callable[[int], None],
) -> FileRecord:
    """Write every tensor of `plan` at its record's offset in the new file `path`.

    `progress` receives the number of bytes written so far. Raises BadInputError, which names the tensor, for values
    that are NaN, infinite or out of range of the bundle's dtype. Raises OSError when the file cannot be written.
    """
    workspace = Workspace()
    with HashedFile(path) as file, _one_torch_thread():
        for weight in plan:
            origin = adapter.replaced.get(weight.source, stored[weight.source])
            product = adapter.products.get(weight.source)
            for offset, piece in _pieces_of_weight(weight, records, origin, product, workspace):
                _write(file, memoryview(bytes(max(0, offset - file.size))), progress)
                _write(file, _bytes(piece), progress)
        return FileRecord(path=path.name, size=file.size, sha256=file.sha256)


class Workspace:
    """Buffer that is reused for all tensors, since allocating fresh memory takes longer than the work in it."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a contiguous uninitialized tensor. It reuses the memory of the previous one, which becomes invalid."""
        size = math.prod(shape) * dtype.itemsize
        if size > len(self._buffer):
            del self._buffer  # frees the old memory first
            self._buffer = torch.empty(size, dtype=torch.uint8)
        return self._buffer[:size].view(dtype).reshape(shape)


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Limit torch to one thread, because operations on blocks are too short for threads that compete for cores.

    Measured on two idle cores, two threads were 1.8 times as fast as one. With two busy programs they took 5 times as
    long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _write(file: HashedFile, data: memoryview, progress: Callable[[int], None]) -> None:
    while data:
        data = data[file.write(data) :]
        progress(file.size)


def _pieces_of_weight(
    weight: PlannedWeight,
    records: Mapping[str, TensorRecord],
    origin: StoredTensor,
    product: LowRankProduct | None,
    workspace: Workspace,
) -> Iterator[tuple[int, Tensor]]:
    """Yield the pieces of a tensor in file order, each with the offset of its tensor.

    The scales follow a quantized tensor. The next piece may reuse the memory of the previous one.
    """
    record = records[weight.name]
    if weight.quantized is not None:
        scales = records[scale_name(weight.name)]
        yield from _integers_and_scales(weight, weight.quantized, record, scales, origin, product, workspace)
        return
    cast = _strips if weight.transposed else _rows
    for piece in cast(weight, _float_dtype(record), origin, product, workspace):
        yield record.offset, piece


def _rows(
    weight: PlannedWeight, dtype: Dtype, origin: StoredTensor, product: LowRankProduct | None, _: Workspace
) -> Iterator[Tensor]:
    """Yield the rows of a tensor that has the same layout in the bundle as in the checkpoint."""
    for _row, values in merged_blocks(origin, product):
        yield _checked(values, dtype, weight).to(TORCH_DTYPES[dtype])


def _strips(
    weight: PlannedWeight, dtype: Dtype, origin: StoredTensor, product: LowRankProduct | None, workspace: Workspace
) -> Iterator[Tensor]:
    """Yield strips [some inputs, outputs] of a matrix that the checkpoint stores as [outputs, inputs]; usually one."""
    inputs, outputs = weight.shape
    count = -(-inputs * outputs * TORCH_DTYPES[dtype].itemsize // _STRIP_BYTES)
    width = -(-inputs // count)
    for first in range(0, inputs, width):
        columns = slice(first, min(first + width, inputs))
        strip = workspace.tensor((columns.stop - first, outputs), TORCH_DTYPES[dtype])
        for row, values in merged_blocks(origin, product, columns):
            # The cast comes before transposing, which is the slow step and then moves fewer bytes.
            cast = _checked(values, dtype, weight).to(TORCH_DTYPES[dtype])
            strip[:, row : row + len(cast)] = cast.t()
        yield strip


def _integers_and_scales(
    weight: PlannedWeight,
    kind: IntegerDtype,
    record: TensorRecord,
    scale_record: TensorRecord,
    origin: StoredTensor,
    product: LowRankProduct | None,
    workspace: Workspace,
) -> Iterator[tuple[int, Tensor]]:
    """Yield the integers and then the scales.

    A block of rows has all inputs of its outputs, which their scales need.
    """
    scale_dtype = _float_dtype(scale_record)
    integers = workspace.tensor(weight.shape, torch.int8)
    scales = torch.empty(scale_record.shape, dtype=TORCH_DTYPES[scale_dtype])
    for row, values in merged_blocks(origin, product):
        outputs = slice(row, row + len(values))
        integers[:, outputs], scales[..., outputs] = integers_from_values(
            kind, _checked(values, scale_dtype, weight).t(), scale_dtype
        )
    if kind == "int8":
        yield record.offset, integers
    else:
        rows = BLOCK * max(1, _PACKED_ITEMS // (BLOCK * integers.shape[1]))
        for start in range(0, len(integers), rows):
            yield record.offset, bytes_from_int4(integers[start : start + rows])
    yield scale_record.offset, scales


def _checked(values: Tensor, dtype: Dtype, weight: PlannedWeight) -> Tensor:
    """Return `values`. Raises BadInputError if any is not finite or does not fit `dtype`."""
    # The extremes suffice: both are NaN if any value is, and rounding is monotonic.
    extremes = torch.stack(torch.aminmax(values))
    if not torch.isfinite(extremes).all():
        raise BadInputError(
            f"the tensor {weight.source} has values that are NaN or infinite",
            expected="finite weights, after merging the adapter",
            remedy="copy the checkpoint and the adapter again; if that does not help, their training diverged",
        )
    if not torch.isfinite(extremes.to(TORCH_DTYPES[dtype])).all():
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


def _bytes(values: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor."""
    return values.view(-1).view(torch.uint8).numpy().data

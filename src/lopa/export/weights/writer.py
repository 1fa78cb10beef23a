"""Writer of a bundle's weights file: reads each tensor, merges the adapter, casts or quantizes, checks and writes it.

The checkpoint is read once. One matrix at a time is in memory, transposed, since checkpoints store [outputs, inputs]. A
very large matrix is written in strips and read again for each strip.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from lopa.export.checkpoint.lora import Adapter, LowRankProduct
from lopa.export.checkpoint.packed_weights import PackedTensor
from lopa.export.checkpoint.tensors import CheckpointTensor
from lopa.export.weights.calibration import Blocks, NetworkCalibration
from lopa.export.weights.digests import HashedFile
from lopa.export.weights.plan import BLOCK, Dtype, PlannedWeight, QuantizedKind, WeightPart, WeightPlan
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
    stored: Mapping[str, CheckpointTensor],
    adapter: Adapter,
    progress: Callable[[int], None],
    calibrating: Callable[[Blocks], NetworkCalibration] | None = None,
) -> FileRecord:
    """Write every tensor of `plan` at its record's offset in the new file `path`.

    `calibrating` makes the calibration of matrices from a reader of tensors. `progress` receives the number of
    bytes written so far. Raises BadInputError, which names the tensor, for values that are NaN, infinite or out of
    range of the bundle's dtype. Raises OSError when the file cannot be written.
    """
    workspace = Workspace()
    by_name = {weight.name: weight for weight in plan}

    def blocks(name: str) -> Iterator[tuple[int, Tensor]]:
        (part,) = by_name[name].parts
        return _origin_of_part(part, stored, adapter).blocks()

    with HashedFile(path) as file, _one_torch_thread():
        calibration = None if calibrating is None else calibrating(blocks)
        for weight in plan:
            origins = [_origin_of_part(part, stored, adapter) for part in weight.parts]
            for offset, piece in _pieces_of_weight(weight, records, origins, workspace, calibration):
                _write(file, memoryview(bytes(max(0, offset - file.size))), progress)
                _write(file, _bytes(piece), progress)
        return FileRecord(path=path.name, size=file.size, sha256=file.sha256)


@dataclass(frozen=True)
class _Origin:
    """Rows of a checkpoint's tensor, and their adapter."""

    tensor: CheckpointTensor
    product: LowRankProduct | None
    rows: range

    def blocks(self, columns: slice = slice(None)) -> Iterator[tuple[int, Tensor]]:
        """Yield the blocks of merged_blocks."""
        return merged_blocks(self.tensor, self.product, columns, self.rows)


def _origin_of_part(part: WeightPart, stored: Mapping[str, CheckpointTensor], adapter: Adapter) -> _Origin:
    tensor = adapter.replaced.get(part.source, stored[part.source])
    return _Origin(tensor.as_matrix(), adapter.products.get(part.source), range(part.first, part.first + part.rows))


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
    origins: Sequence[_Origin],
    workspace: Workspace,
    calibration: NetworkCalibration | None,
) -> Iterator[tuple[int, Tensor]]:
    """Yield the pieces of a tensor in file order, each with the offset of its tensor.

    `origins` has one element per stacked matrix. The scales of all of them follow a quantized tensor. The next piece
    may reuse the memory of the previous one.
    """
    record = records[weight.name]
    if weight.quantized is not None:
        scale_record, scales = records[scale_name(weight.name)], []
        for origin in origins:
            dtype = _float_dtype(scale_record)
            if calibration is None:
                matrix = _quantized_matrix(weight, weight.quantized, dtype, origin, workspace)
            else:
                matrix = _calibrated_matrix(weight, weight.quantized, dtype, origin, workspace, calibration)
            for piece in _packed(matrix.integers, weight.quantized):
                yield record.offset, piece
            scales.append(matrix.scales)
        yield scale_record.offset, torch.stack(scales)
        return
    dtype = _float_dtype(record)
    if calibration is not None and weight.transposed:
        calibration.pass_unrounded(weight.name, weight.shape[-1])
    for origin in origins:
        pieces = _strips(weight, dtype, origin, workspace) if weight.transposed else _rows(dtype, origin)
        for piece in pieces:
            yield record.offset, piece


def _rows(dtype: Dtype, origin: _Origin) -> Iterator[Tensor]:
    """Yield the rows of a tensor that has the same layout in the bundle as in the checkpoint."""
    for _row, values in origin.blocks():
        yield _checked(values, dtype, origin.tensor.name).to(TORCH_DTYPES[dtype])


def _strips(weight: PlannedWeight, dtype: Dtype, origin: _Origin, workspace: Workspace) -> Iterator[Tensor]:
    """Yield strips [some inputs, outputs] of a matrix that the checkpoint stores as [outputs, inputs]; usually one."""
    inputs, outputs = weight.shape[-2:]
    count = -(-inputs * outputs * TORCH_DTYPES[dtype].itemsize // _STRIP_BYTES)
    width = -(-inputs // count)
    for first in range(0, inputs, width):
        columns = slice(first, min(first + width, inputs))
        strip = workspace.tensor((columns.stop - first, outputs), TORCH_DTYPES[dtype])
        for row, values in origin.blocks(columns):
            # The cast comes before transposing, which is the slow step and then moves fewer bytes.
            cast = _checked(values, dtype, origin.tensor.name).to(TORCH_DTYPES[dtype])
            strip[:, row : row + len(cast)] = cast.t()
        yield strip


@dataclass(frozen=True)
class _QuantizedMatrix:
    integers: Tensor
    """int8 [inputs, outputs], or the bytes of FP8, in the workspace."""
    scales: Tensor


def _quantized_matrix(
    weight: PlannedWeight, kind: QuantizedKind, scale_dtype: Dtype, origin: _Origin, workspace: Workspace
) -> _QuantizedMatrix:
    """Return the integers and scales of one matrix.

    A block of rows has all inputs of its outputs, which their scales need.
    """
    published = _published_integers(kind, origin)
    if published is not None:
        return _QuantizedMatrix(
            published[0], _checked(published[1], scale_dtype, origin.tensor.name).to(TORCH_DTYPES[scale_dtype])
        )
    integers, scales = _empty_quantized(kind, weight, scale_dtype, workspace)
    for row, values in origin.blocks():
        columns = slice(row, row + len(values))
        checked = _checked(values, scale_dtype, origin.tensor.name)
        integers[:, columns], scales[..., columns] = integers_from_values(kind, checked.t(), scale_dtype)
    return _QuantizedMatrix(integers, scales)


def _empty_quantized(
    kind: QuantizedKind, weight: PlannedWeight, scale_dtype: Dtype, workspace: Workspace
) -> tuple[Tensor, Tensor]:
    """Return uninitialized int8 [inputs, outputs] in the order of the file, which has FP8 transposed, and scales."""
    inputs, outputs = weight.shape[-2:]
    scales = torch.empty((inputs // BLOCK, outputs) if kind == "int4" else (outputs,), dtype=TORCH_DTYPES[scale_dtype])
    if kind == "fp8":
        return workspace.tensor((outputs, inputs), torch.int8).t(), scales
    return workspace.tensor((inputs, outputs), torch.int8), scales


def _published_integers(kind: QuantizedKind, origin: _Origin) -> tuple[Tensor, Tensor] | None:
    """Return the int4 numbers and scales of the checkpoint, or None if the matrix must be rounded.

    A matrix that an adapter changes is rounded again, and so is one whose values blocks of int4 cannot express.
    """
    tensor = origin.tensor
    if kind != "int4" or origin.product is not None or not isinstance(tensor, PackedTensor):
        return None
    return tensor.int4_columns(origin.rows, BLOCK)


def _calibrated_matrix(
    weight: PlannedWeight,
    kind: QuantizedKind,
    scale_dtype: Dtype,
    origin: _Origin,
    workspace: Workspace,
    calibration: NetworkCalibration,
) -> _QuantizedMatrix:
    """Return the integers and scales of one matrix, rounded for the rows of the calibration."""
    integers, scales = _empty_quantized(kind, weight, scale_dtype, workspace)
    checked = partial(_checked, dtype=scale_dtype, name=origin.tensor.name)
    outputs = weight.shape[-1]
    for columns, some, theirs in calibration.integers_from_blocks(kind, weight.name, outputs, scale_dtype, checked):
        integers[:, columns], scales[..., columns] = some, theirs
    return _QuantizedMatrix(integers, scales)


def _packed(integers: Tensor, kind: QuantizedKind) -> Iterator[Tensor]:
    """Yield the bytes of integers [inputs, outputs], two int4 values per byte, and FP8 transposed."""
    if kind != "int4":
        yield integers if kind == "int8" else integers.t()
        return
    rows = BLOCK * max(1, _PACKED_ITEMS // (BLOCK * integers.shape[1]))
    for start in range(0, len(integers), rows):
        yield bytes_from_int4(integers[start : start + rows])


def _checked(values: Tensor, dtype: Dtype, name: str) -> Tensor:
    """Return `values` of the tensor `name`. Raises BadInputError if any is not finite or does not fit `dtype`."""
    # The extremes suffice: both are NaN if any value is, and rounding is monotonic.
    extremes = torch.stack(torch.aminmax(values))
    if not torch.isfinite(extremes).all():
        raise BadInputError(
            f"the tensor {name} has values that are NaN or infinite",
            expected="finite weights, after merging the adapter",
            remedy="copy the checkpoint and the adapter again; if that does not help, their training diverged",
        )
    if not torch.isfinite(extremes.to(TORCH_DTYPES[dtype])).all():
        raise BadInputError(
            f"the tensor {name} has a value of {extremes.abs().max().item():g}",
            expected=f"values that {dtype} can hold",
            remedy="export with --dtype float32",
        )
    return values


def _float_dtype(record: TensorRecord) -> Dtype:
    if record.dtype == "int8" or record.dtype == "int4" or record.dtype == "float8e4m3fn":
        raise ValueError(f"received a record of {record.dtype}, expected one of a floating-point type")
    return record.dtype


def _bytes(values: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor."""
    return values.view(-1).view(torch.uint8).numpy().data


_BLOCK_ITEMS = 1 << 20
"""Numbers read per block: 4 MiB in float32."""
_ROW_MULTIPLE = 32
"""Large blocks have a multiple of this many rows, so that results computed from them are aligned."""


def merged_blocks(
    origin: CheckpointTensor, product: LowRankProduct | None, columns: slice = slice(None), rows: range | None = None
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the number of the first row and the values, float32 [count, *origin.shape[1:]], of each block.

    `columns` selects columns of a matrix; each block is read completely. `rows` selects rows, and their numbers begin
    at 0. The next block reuses the memory of the previous one. Raises BadInputError when a file cannot be read.
    """
    rows = range(origin.shape[0]) if rows is None else rows
    count = _rows_per_block(len(rows), math.prod(origin.shape[1:]))
    stored = torch.empty(count, *origin.shape[1:], dtype=origin.dtype)
    values = torch.empty_like(_columns(stored, columns), dtype=torch.float32, memory_format=torch.contiguous_format)
    if product is not None:
        up, down = product.up.read().float(), product.down.read().float()[:, columns]
    for start in range(rows.start, rows.stop, count):
        size = min(count, rows.stop - start)
        origin.read_rows(start, stored[:size])
        block = values[:size].copy_(_columns(stored[:size], columns))
        if product is not None:
            block += product.scale * (up[start : start + size] @ down)
        yield start - rows.start, block


def _rows_per_block(rows: int, width: int) -> int:
    count = max(1, _BLOCK_ITEMS // width)
    return min(rows, max(count // _ROW_MULTIPLE * _ROW_MULTIPLE, 1) if count >= _ROW_MULTIPLE else count)


def _columns(rows: torch.Tensor, columns: slice) -> torch.Tensor:
    return rows if columns == slice(None) else rows[:, columns]

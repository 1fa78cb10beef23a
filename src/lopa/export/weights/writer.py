"""Writes the weights file of a bundle: reads each tensor, merges the adapter, casts or quantizes, checks and writes it.

One pass over the checkpoint. In memory is one matrix at a time, as the bundle has it, since a checkpoint has it the
other way round. A matrix that is very large is written in strips, and read again for each. Does not know the graph.
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
"""The most that is turned round at a time: just what the head of a 7B model takes in 16 bits."""
_PACKED_ITEMS = 1 << 20
"""int4 numbers packed at a time."""


def write_weights(
    path: Path,
    plan: WeightPlan,
    records: Mapping[str, TensorRecord],
    stored: Mapping[str, StoredTensor],
    adapter: Adapter,
    progress: Callable[[int], None],
) -> FileRecord:
    """Write every tensor of `plan` at its record's offset in the new file `path`.

    `progress` hears the bytes written so far. Raises BadInputError, naming the tensor, for values that are NaN,
    infinite or beyond the bundle's dtype, and OSError when the file cannot be written.
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
    """One buffer, as large as the largest tensor so far: fresh memory costs more time than what is done in it."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor of any values. It takes the memory of the one given before, which ends with this call."""
        size = math.prod(shape) * dtype.itemsize
        if size > len(self._buffer):
            del self._buffer  # before the larger one exists
            self._buffer = torch.empty(size, dtype=torch.uint8)
        return self._buffer[:size].view(dtype).reshape(shape)


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Operations on blocks are so short that threads which share the cores with other programs wait for each other.

    Measured on two cores: two threads were 1.8 times as fast as one alone, a fifth as fast beside two busy programs.
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
    """The tensor as it lies in the bundle, piece after piece, each with the offset where its tensor begins.

    A quantized tensor is followed by its scales. The next piece may take the memory of the last one.
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
    """Of a tensor that lies in the bundle as it does in the checkpoint."""
    for _row, values in merged_blocks(origin, product):
        yield _checked(values, dtype, weight).to(TORCH_DTYPES[dtype])


def _strips(
    weight: PlannedWeight, dtype: Dtype, origin: StoredTensor, product: LowRankProduct | None, workspace: Workspace
) -> Iterator[Tensor]:
    """[some inputs, outputs] of a matrix that the checkpoint has as [outputs, inputs]; mostly all of it."""
    inputs, outputs = weight.shape
    count = -(-inputs * outputs * TORCH_DTYPES[dtype].itemsize // _STRIP_BYTES)
    width = -(-inputs // count)
    for first in range(0, inputs, width):
        columns = slice(first, min(first + width, inputs))
        strip = workspace.tensor((columns.stop - first, outputs), TORCH_DTYPES[dtype])
        for row, values in merged_blocks(origin, product, columns):
            # Cast first: turning round is the slow step, and has less to move then.
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
    """A block of the checkpoint's rows has all inputs of some outputs, and so all that their scales depend on."""
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
    """`values`, or BadInputError when they are not finite or beyond `dtype`."""
    # The least and the greatest value tell it all: either is NaN if any value is, and rounding keeps the order.
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
    """Of a contiguous tensor."""
    return values.view(-1).view(torch.uint8).numpy().data

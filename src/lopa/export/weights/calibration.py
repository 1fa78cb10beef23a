"""Calibration of int4 and FP8: the network computes calibration windows while its matrices are rounded, one by one.

The earlier matrices of the network are already rounded when rows arrive at a matrix. Later matrices thus also correct
the errors of earlier ones. One matrix at a time is in memory, and the rows of one layer.
"""

from collections.abc import Callable, Generator, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from lopa.export.weights.calibration_windows import CalibrationWindow
from lopa.export.weights.gptq import calibrated_integers, input_factors
from lopa.export.weights.plan import BLOCK, Dtype, QuantizedKind
from lopa.export.weights.quantize_tensor import float32_from_fp8
from lopa.runtime.bundle.manifest import ModelDimensions
from lopa.runtime.bundle.network import EMBEDDING, HEAD
from lopa.runtime.contract import Float32, Int64, Rows
from lopa.runtime.sessions.numpy_forward import attention, rms_norm, rotated, rotation, silu

Blocks = Callable[[str], Iterator[tuple[int, Tensor]]]
"""Reader of a tensor, by its name in the bundle. It yields the number of the first row and the values of every block of
rows, float32, as stored in the checkpoint. The next block may reuse the memory of the previous one."""
_SILU_ROWS = 256
_STRIP_ITEMS = 1 << 24
"""Values of a matrix that are rounded at once: rounding is a loop over its inputs, so that wide strips are faster."""


class NetworkCalibration:
    """The network at the matrix to be rounded next. Matrices come in the order of the weights file."""

    def __init__(self, dimensions: ModelDimensions, windows: Sequence[CalibrationWindow], blocks: Blocks) -> None:
        self._blocks = blocks
        self._matrices = _rows_by_matrix(dimensions, windows, blocks)
        self._name, self._rows = next(self._matrices)

    def integers_from_blocks(
        self,
        kind: QuantizedKind,
        name: str,
        outputs: int,
        scale_dtype: Dtype,
        checked: Callable[[Tensor], Tensor],
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield columns of the matrix `name`, their integers [inputs, columns] and scales [.., columns].

        `checked` receives the values of the checkpoint. After the last columns the network continues.
        """
        rows = self._rows_of(name)
        factors = input_factors(rows)
        results = torch.empty(len(rows), 0 if name == HEAD else outputs)
        for columns, strip in _strips(self._blocks(name)):
            values = checked(strip).t().contiguous()
            integers, scales = calibrated_integers(kind, values, factors, scale_dtype)
            if name != HEAD:  # nothing follows the head
                fp8 = kind == "fp8"
                steps = scales if fp8 else scales.float().repeat_interleave(BLOCK, dim=0)
                rounded = float32_from_fp8(integers) if fp8 else integers.float()
                torch.matmul(rows, rounded.mul_(steps), out=results[:, columns])
            yield columns, integers, scales
        self._continue(results)

    def pass_unrounded(self, name: str, outputs: int) -> None:
        """Continue with a matrix that stays in floating point."""
        rows = self._rows_of(name)
        results = torch.empty(len(rows), 0 if name == HEAD else outputs)
        if name != HEAD:
            for first, values in self._blocks(name):
                results[:, first : first + len(values)] = rows @ values.t()
        self._continue(results)

    def _rows_of(self, name: str) -> Tensor:
        if name != self._name:
            raise ValueError(f"received the matrix {name}, expected {self._name}, the next one of the network")
        return torch.from_numpy(self._rows)

    def _continue(self, results: Tensor) -> None:
        self._rows = np.empty((0, 0), np.float32)  # frees the rows before the next ones are computed
        try:
            self._name, self._rows = self._matrices.send(results.numpy())
        except StopIteration:
            self._name = ""


def _rows_by_matrix(
    sizes: ModelDimensions, windows: Sequence[CalibrationWindow], blocks: Blocks
) -> Generator[tuple[str, Float32], Float32, None]:
    """Yield every matrix and the rows [rows, inputs] of all windows that arrive at it. Receive their products."""

    def small(name: str) -> Float32:
        return np.concatenate([values.numpy().copy() for _, values in blocks(name)])

    def normal(name: str, x: Float32) -> Float32:
        return rms_norm(x, small(f"{name}.weight"), sizes.rms_norm_eps)

    def biased(name: str, x: Float32) -> Float32:
        return x + small(f"{name}.bias") if sizes.qkv_bias else x

    x = _embedded(np.concatenate([window.ids for window in windows]), blocks)
    for i in range(sizes.layers):
        layer = f"layers.{i}."
        heads = []
        rows = normal(f"{layer}attention_norm", x)
        for part in ("query", "key", "value"):
            heads.append(biased(f"{layer}attention.{part}", (yield f"{layer}attention.{part}.weight", rows)))
        if sizes.qk_norm:
            for index, part in enumerate(("query", "key")):
                split = heads[index].reshape(len(x), -1, sizes.head_size)
                heads[index] = normal(f"{layer}attention.{part}_norm", split).reshape(heads[index].shape)
        attended = np.concatenate(list(_attended(sizes, windows, heads)))
        x = x + (yield f"{layer}attention.output.weight", attended)
        rows = normal(f"{layer}mlp_norm", x)
        gate = yield f"{layer}mlp.gate.weight", rows
        for first in range(0, len(gate), _SILU_ROWS):  # silu of all rows would need three more arrays of this size
            gate[first : first + _SILU_ROWS] = silu(gate[first : first + _SILU_ROWS])
        gate *= yield f"{layer}mlp.up.weight", rows
        del rows
        x = x + (yield f"{layer}mlp.down.weight", gate)
    firsts = np.cumsum([0, *(len(window.ids) for window in windows)])
    sampled = np.concatenate([first + window.sampled for first, window in zip(firsts, windows, strict=False)])
    yield HEAD, normal("final_norm", x[sampled])


def _embedded(ids: Int64, blocks: Blocks) -> Float32:
    """Return the embeddings of token ids, [rows, hidden size], without holding all embeddings in memory."""
    unique, places = np.unique(ids, return_inverse=True)
    found = []
    for first, values in blocks(EMBEDDING):
        low, high = np.searchsorted(unique, (first, first + len(values)))
        found.append(values[torch.from_numpy(unique[low:high] - first)].numpy())
    return np.concatenate(found)[places]


def _attended(
    sizes: ModelDimensions, windows: Sequence[CalibrationWindow], heads: Sequence[Float32]
) -> Iterator[Float32]:
    """Yield the attention of each window's rows, [rows, heads * head size]."""
    first = 0
    nothing: Rows = np.zeros((1, sizes.kv_heads, 0, sizes.head_size), np.float32)
    for window in windows:
        rows = slice(first, first + len(window.ids))
        first = rows.stop
        query, key, value = (
            part[rows].reshape(1, 1, len(window.ids), -1, sizes.head_size).swapaxes(2, 3) for part in heads
        )
        cos, sin = rotation(np.arange(len(window.ids))[None, None], sizes.rotary_size, sizes.rope_theta)
        key = rotated(key, cos, sin)
        mask = window.attention[None, None, None, None]
        yield attention(rotated(query, cos, sin), (nothing, nothing), (key, value), mask)[0, 0]


def _strips(blocks: Iterator[tuple[int, Tensor]]) -> Iterator[tuple[slice, Tensor]]:
    """Join blocks of rows to strips of at least _STRIP_ITEMS values, except the last."""
    first, joined = 0, []
    for _, values in blocks:
        joined.append(values.clone())
        if sum(each.numel() for each in joined) >= _STRIP_ITEMS:
            strip = torch.cat(joined)
            joined.clear()
            yield slice(first, first + len(strip)), strip
            first += len(strip)
    if joined:
        strip = torch.cat(joined)
        yield slice(first, first + len(strip)), strip

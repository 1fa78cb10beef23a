"""Rules for computing equal rows of several branches once (docs/concepts/decoding.md, "Caches").

A shared window multiplies fewer rows with the weights, but each of its rows attends to all of them. The cheaper way is
chosen by the device's cost table, or by an estimate from the model's sizes if there is none.
"""

from lopa.runtime.bundle.costs import CostTable
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.bundle.network import HEAD, network_from_dimensions
from lopa.runtime.contract import tiles
from lopa.runtime.state.packed_rows import PackedRows

MIN_SAVED = 0.05
"""Minimum saving, as a share of a forward's time. Smaller savings are within the estimate's error."""
ATTENTION_COST = 2.0
"""Operations of a product with float32 weights that take as long as one operation of attention (measured:
docs/measurements/cpu.md)."""
INTEGER_SPEEDUP = 3.0
"""Operations of a product with integer weights that take as long as one with float32 weights (same measurement)."""


def always(packed: PackedRows, rows: int, sampled: int) -> bool:  # noqa: ARG001
    """Return True, which shares rows whenever that reduces their number."""
    return True


class FasterSharing:
    """Rule that shares rows if the forward is expected to take less time."""

    def __init__(self, manifest: Manifest, table: CostTable | None) -> None:
        """Use the cost `table` of the device. If it is None, estimate the cost on a processor from the model's
        sizes."""
        sizes, speedup = manifest.dimensions, 1 if manifest.is_fp8 else INTEGER_SPEEDUP
        work = {
            name: tensor.row_operations / (speedup if manifest.is_quantized(name) else 1)
            for name, tensor in network_from_dimensions(sizes).tensors.items()
        }
        self._table = table
        self._head = work.pop(HEAD)
        self._layers = sum(work.values())
        """Work per row in products with weights, without the vocabulary, and per sampled row with the vocabulary."""
        self._attention = ATTENTION_COST * 4 * sizes.layers * sizes.heads * sizes.head_size
        """Work per pair of a row and a row that it attends to: scores and the sum of values."""

    def __call__(self, packed: PackedRows, rows: int, sampled: int) -> bool:
        """Return True if one window of `rows`, of which `sampled` are sampled, takes less time than `packed`."""
        branches, width, prefix = len(packed.lengths), max(packed.lengths), tiles(packed.prefix)
        apart = self._cost(branches, branches * width, prefix + width, branches * max(1, *packed.branch_columns))
        together = self._cost(branches, rows, prefix + rows, sampled)
        return together < (1 - MIN_SAVED) * apart

    def _cost(self, branches: int, rows: int, seen: int, sampled: int) -> float:
        """Return the cost of a forward, in seconds by the table or, without a table, in units of work.

        Each of the `rows` attends to `seen` rows. Cost tables sample every row, and none has a single window of all
        rows. The table is therefore queried with `branches` shorter windows, on a longer prefix that compensates for
        the difference in attention.
        """
        if self._table is None:
            return rows * (self._layers + self._attention * seen) + sampled * self._head
        width = -(-rows // branches)
        unsampled = (1 - sampled / rows) * self._head / (self._layers + self._head)
        return self._table.seconds(branches, width, seen - width) * (1 - unsampled)

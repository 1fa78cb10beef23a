"""Where rows that are equal on several branches are computed once (docs/concepts/decoding.md, "Caches").

As one window they are fewer rows to multiply with the weights, but every row's attention goes over all of them. Which
weighs more is known from the cost table of the device, or else estimated from the sizes of the model. Knows no tokens.
"""

from lopa.runtime.bundle.costs import CostTable
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.bundle.network import HEAD, network_from_dimensions
from lopa.runtime.contract import tiles
from lopa.runtime.state.windows import Windows

MIN_SAVED = 0.05
"""Share of a forward's time that has to be saved: less is within the error of an estimate."""
ATTENTION = 2.0
"""How many operations of a product with float32 weights take as long as one of attention (measured:
docs/measurements/cpu.md)."""
INTEGER = 3.0
"""How many operations of a product with integer weights take as long as one with float32 weights (measured there)."""


def always(windows: Windows, rows: int, wanted: int) -> bool:  # noqa: ARG001
    """Wherever it is fewer rows."""
    return True


class CheaperForward:
    """Where the forward is expected to take less time."""

    def __init__(self, manifest: Manifest, table: CostTable | None) -> None:
        """`table` of the device; None: by the sizes of the model alone, on a processor."""
        sizes = manifest.dimensions
        work = {
            name: tensor.row_operations / (INTEGER if manifest.has_integers(name) else 1)
            for name, tensor in network_from_dimensions(sizes).tensors.items()
        }
        self._table = table
        self._head = work.pop(HEAD)
        self._layers = sum(work.values())
        """Work of a row in products with weights, and of a wanted row with the vocabulary."""
        self._attention = ATTENTION * 4 * sizes.layers * sizes.heads * sizes.head_size
        """Work of a row for each that it may see: scores and the sum of values."""

    def __call__(self, windows: Windows, rows: int, wanted: int) -> bool:
        """Whether one window of `rows`, of which `wanted` are, takes less time than `windows` as they are."""
        branches, width = windows.input_ids.shape
        prefix = tiles(windows.prefix)
        apart = self._cost(branches, branches * width, prefix + width, windows.logits_index.size)
        together = self._cost(branches, rows, prefix + rows, wanted)
        return together < (1 - MIN_SAVED) * apart

    def _cost(self, branches: int, rows: int, seen: int, wanted: int) -> float:
        """Of a forward of so many rows, each of which attends over so many: seconds, or work where no table is.

        A table is of forwards whose every row is wanted, and its windows end where one window of all rows may only
        begin; so it is asked for as many branches with shorter windows, on a prefix that makes up for what rows see.
        """
        if self._table is None:
            return rows * (self._layers + self._attention * seen) + wanted * self._head
        width = -(-rows // branches)
        not_wanted = (1 - wanted / rows) * self._head / (self._layers + self._head)
        return self._table.seconds(branches, width, seen - width) * (1 - not_wanted)

"""Expected seconds and bytes of a forward of any shape, from a measured cost table or a roofline model."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lopa.bench.forward.work import ForwardShape, MachineRates, floor_seconds, work_of_forward
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BucketPlanCosts
from lopa.runtime.bundle.costs import CostTable, check_costs, costs_from_file, costs_name
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import TOP_K, stored_dtype
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.device_families import is_on_processor

_CPU_RATES = MachineRates(float32=1.8e11, int8=5.5e11, bandwidth=2.8e10)
"""Rates of one thread of an AMD EPYC with AVX-512 VNNI, rounded (docs/measurements/cpu.md)."""
_ACCELERATOR_RATES = MachineRates(float32=1e15, int8=2e15, bandwidth=3.3e12)
"""Rates of an H100, rounded from its data sheet: dense 16-bit and 8-bit products, and memory.

The choice of shape buckets depends on their ratio only, which is similar for other accelerators of that generation.
"""
_MASK_BYTES = 4
"""Bytes of a window mask entry in the portable dialect, where it is a float. In the standard dialect it is a bool."""


@dataclass(frozen=True)
class BucketCosts:
    """Seconds of a forward with their source."""

    about: BucketPlanCosts
    seconds_of: Callable[[int, int, int], float]
    """Function from sequences (requests x branches), window rows and prefix rows to seconds, with all positions
    sampled.
    """

    def seconds(self, sizes: Sizes) -> float:
        """Return the expected seconds of one forward.

        The table is for one request, so the branches of several requests count as branches of one.
        """
        return self.seconds_of(sizes.requests * sizes.branches, sizes.window, sizes.prefix)


def bucket_costs(bundle: Bundle, device: str, path: Path | None) -> BucketCosts:
    """Return the costs from the table at `path`, or from the bundle's table for `device`, or from a model.

    Raises BadInputError for an unreadable table, and for the table of another device, contract or bundle.
    """
    source = bundle.path / costs_name(device) if path is None else path
    if path is None and not source.is_file():
        return _modelled(bundle.manifest, device)
    costs = costs_from_file(source)
    table = CostTable(check_costs(costs, bundle, device, costs.threads, source=str(source)))
    about = BucketPlanCosts(kind="measured", device=device, machine=costs.machine, measured=costs.measured)
    return BucketCosts(about, table.seconds)


def bytes_of_bucket(manifest: Manifest, sizes: Sizes) -> int:
    """Return the bytes of an engine's inputs, outputs and caches for this shape, without weights and workspace."""
    model = manifest.dimensions
    sequences = sizes.requests * sizes.branches
    rows, wanted = sequences * sizes.window, sequences * sizes.wanted
    cache_row = 2 * model.layers * model.kv_heads * model.head_size * stored_dtype(manifest.dtype).itemsize
    inputs = rows * (2 * 8 + _MASK_BYTES * sizes.window) + sizes.requests * (sizes.prefix + 4) + wanted * 8
    outputs = wanted * (TOP_K * (8 + 4) + 4 + (4 * model.vocab_size if manifest.with_logits else 0))
    return inputs + outputs + cache_row * (sizes.requests * sizes.prefix + rows)


def _modelled(manifest: Manifest, device: str) -> BucketCosts:
    """Return roofline costs. Padding costs nothing while a forward is limited by memory bandwidth."""
    on_cpu = is_on_processor(device)
    rates = _CPU_RATES if on_cpu else _ACCELERATOR_RATES

    def seconds(sequences: int, window: int, prefix: int) -> float:
        return floor_seconds(work_of_forward(manifest, ForwardShape(sequences, window, prefix, window)), rates)

    machine = "a processor with AVX-512, one thread" if on_cpu else "an accelerator like an H100"
    return BucketCosts(BucketPlanCosts(kind="modelled", device=device, machine=machine, measured=None), seconds)

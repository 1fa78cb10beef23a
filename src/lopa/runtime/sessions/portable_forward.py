"""One forward through a graph of the portable dialect on ONNX Runtime.

It documents the computation of such a graph. Portable graphs target other devices, so this code is not tuned: every run
allocates new arrays.
"""

import onnxruntime as ort

from lopa.runtime.contract import Rows, Statistics, WindowBatch, window_names
from lopa.runtime.contract.portable_form import (
    PAST,
    portable_inputs,
    portable_past,
    rows_from_portable,
    statistics_from_portable,
)
from lopa.runtime.contract.rotary import RotaryAngles
from lopa.runtime.sessions.onnxruntime_graph import quiet_run
from lopa.runtime.sessions.prefix_cache import Prefix


class OnnxPortableForward:
    """Forward over an opened portable graph in float32 or float16."""

    def __init__(self, session: ort.InferenceSession, rotary: RotaryAngles | None = None) -> None:
        """Create a forward over `session`, whose graph takes the cosines and sines of `rotary` unless it is None."""
        self._session: ort.InferenceSession | None = session
        self._rotary = rotary
        self._run_options = quiet_run()
        self._outputs = [value.name for value in session.get_outputs()]

    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Rows, ...]]:
        """Run one forward. The caller owns the returned arrays."""
        assert self._session is not None  # HostSession does not call `run` after close()
        inputs = portable_inputs(batch, prefix.mask, self._rotary) | {PAST: portable_past(prefix.block)}
        outputs = dict(zip(self._outputs, self._session.run(self._outputs, inputs, self._run_options), strict=True))
        branches = batch.input_ids.shape[1]
        rows = tuple(rows_from_portable(outputs[name], branches) for name in window_names(len(prefix.block) // 2))
        return statistics_from_portable(outputs, batch), rows

    def forget_prefix(self) -> None:
        """Do nothing, because a run keeps no reference to its prefix."""

    def close(self) -> None:
        """Free the graph."""
        self._session = None

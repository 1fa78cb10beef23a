"""Every recorded model call of the published implementation, repeated by our engines."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tests.conformance.recorded import TRACES, prompt_of, read_traces
from tests.lone_decode import LoneDecode
from tests.params import params_of

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Statistics, WindowBatch
from lopa.runtime.contract.packed_batch import PackedBatch, padded_batch
from lopa.runtime.sessions.sequential_session import SequentialSession
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.sessions.tickets import Ticket
from lopa.runtime.sessions.wrapped_session import WrappedSession

PROBABILITY_TOLERANCE = 3e-5
"""Recorded probabilities are rounded to 1e-7; float32 kernels differ by a few 1e-6."""
LOGIT_SUM_TOLERANCE = 5e-5
"""Tolerance relative to the sum of the terms' magnitudes."""


class _AllRows(WrappedSession):
    """Forwards of a session, which also record the statistics of every window row."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._sequential = SequentialSession(session)
        self.forwards: list[tuple[WindowBatch, Statistics]] = []

    def start(self, packed: PackedBatch) -> Ticket:
        batch = padded_batch(packed).batch
        rows = np.broadcast_to(np.arange(batch.input_ids.shape[2]), batch.input_ids.shape)
        self.forwards.append((batch, self._sequential.forward(dataclasses.replace(batch, logits_index=rows))))
        self._sequential.release()
        return self._inner.start(packed)


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("name", ["lopa_bf4_bs32_full", "lopa_bf8_bs16_block"])
def test_recorded_calls(name: str, device: str, tiny_bundle_logits: Path) -> None:
    config, traces = read_traces(TRACES / f"{name}.jsonl.gz")
    trace = next(trace for trace in traces if "numeric" in trace)
    bundle = Bundle.open(tiny_bundle_logits)
    session = _AllRows(open_session(bundle, device, threads=1))
    decoding = LoneDecode(session, prompt_of(trace), params_of(config), bundle.manifest)
    while decoding.stop_reason is None:
        decoding.step()
    session.close()

    calls = iter(trace["numeric"])
    rows = compared = 0
    for batch, statistics in session.forwards:
        for branch in range(batch.input_ids.shape[1]):
            call = next(calls)
            width = len(call["input_ids"])
            rows += width
            assert batch.input_ids[0, branch, :width].tolist() == call["input_ids"]
            found = np.exp(statistics.topk_logprobs[0, branch, :width, :3])
            recorded = np.array(call["top3_prob"])
            np.testing.assert_allclose(found, recorded, atol=PROBABILITY_TOLERANCE)
            # A candidate's id is compared if its probability differs from the adjacent ones by more than the tolerance.
            apart = recorded[:, :2] - recorded[:, 1:] > 2 * PROBABILITY_TOLERANCE
            clear = np.stack([apart[:, 0], apart.all(axis=-1)], axis=-1)
            assert (statistics.topk_ids[0, branch, :width, :2] == np.array(call["top3_ids"])[:, :2])[clear].all()
            compared += int(clear[:, 0].sum())
            assert statistics.logits is not None
            logits = statistics.logits[0, branch, :width].astype(np.float64)
            error = np.abs(logits.sum(-1) - np.array(call["logit_sum"])) / np.abs(logits).sum(-1)
            assert error.max() < LOGIT_SUM_TOLERANCE
    assert next(calls, None) is None
    assert rows > 500
    assert compared > 0.95 * rows

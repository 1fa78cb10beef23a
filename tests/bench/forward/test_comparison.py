"""Comparison of engines: equal ones agree, and the figures follow from the seconds."""

from pathlib import Path

import numpy as np
import pytest

from lopa.bench.forward.comparison import compare_forwards, results_of_shape
from lopa.bench.forward.work import ForwardShape
from lopa.bench.speed.eager_model import eager_model_from_checkpoint
from lopa.bench.speed.eager_session import EagerSession
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Int64, Statistics
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.sessions.tickets import Ticket
from lopa.tiny import ADAPTER, CHECKPOINT

SHAPES = (ForwardShape(1, 16, 64, wanted=16), ForwardShape(3, 32, 100, wanted=5))


def statistics_of(best: Int64, logprob: float) -> Statistics:
    """Return statistics of rows [1, B, Q] with the most probable tokens `best`."""
    rows = best[..., None].repeat(8, axis=-1)
    return Statistics(rows, np.full(rows.shape, logprob, np.float32), np.zeros(best.shape, np.float32))


def test_medians_ratios_and_differences() -> None:
    best = np.array([[[5, 6, 7, 8]]])
    answers = {"a": statistics_of(best, -1.0), "b": statistics_of(np.array([[[5, 6, 7, 9]]]), -1.25)}
    a, b = results_of_shape(SHAPES[0], {"a": [3.0, 1.0, 2.0], "b": [0.5, 0.5, 4.0]}, answers)
    assert (a.side, a.median, a.minimum, a.ratio, a.same_best, a.logprob_error) == ("a", 2.0, 1.0, 1.0, 1.0, 0.0)
    assert (b.side, b.median, b.minimum, b.ratio, b.same_best, b.logprob_error) == ("b", 0.5, 0.5, 4.0, 0.75, 0.25)


def test_sides_alternate_on_the_same_prefix_and_windows(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle.open(tiny_bundle)
    eager, ours = EagerSession(eager_model_from_checkpoint(CHECKPOINT, ADAPTER)), open_session(bundle, "cpu", threads=1)
    sides: dict[str, Session] = {"eager": eager, "ours": ours}
    ran: list[tuple[str, bytes]] = []

    def watch(name: str, session: Session) -> None:
        original = session.wait

        def noted(ticket: Ticket) -> Statistics:
            batch = ticket.batch
            assert session.prefix_length(batch.requests[0]) == int(batch.position_ids[0])
            ran.append((name, batch.input_ids.tobytes()))
            return original(ticket)

        monkeypatch.setattr(session, "wait", noted)

    for name, session in sides.items():
        watch(name, session)
    progress_calls: list[int] = []
    results = compare_forwards(sides, bundle.manifest, SHAPES, 2, progress_calls.append)
    assert progress_calls == [1, 2, 3, 4]
    assert [name for name, _ in ran] == ["eager", "ours"] * 6
    assert len({ids for _, ids in ran}) == 2
    assert [(each.side, each.shape) for each in results] == [(side, shape) for shape in SHAPES for side in sides]
    assert all(each.same_best == 1 and each.logprob_error < 1e-5 for each in results)
    assert eager.prefix_length(0) == ours.prefix_length(0) == 0
    ours.close()

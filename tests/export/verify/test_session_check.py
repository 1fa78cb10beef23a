"""The check of an engine: correct engines pass, and every kind of error shows in the affected outputs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lopa.export.verify.cases import SHAPES, Sequences, cases_from_manifest
from lopa.export.verify.session_check import (
    CachedReference,
    NumpyReference,
    Reference,
    Report,
    WholeForward,
    report_from_session,
)
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import CacheRows, Statistics, WindowBatch
from lopa.runtime.contract.packed_batch import PackedBatch, packed_batch, padded_batch
from lopa.runtime.errors import CheckFailedError, EngineFailedError
from lopa.runtime.sessions.sequential_session import statistics_of_windows
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.sessions.tickets import Ticket
from lopa.runtime.sessions.wrapped_session import WrappedSession

STATISTICS = {"topk_ids", "topk_logprobs", "entropy"}


class Altered(WrappedSession):
    """Session that changes the inputs, statistics or commits of another one."""

    def __init__(
        self,
        inner: Session,
        *,
        batch: Callable[[WindowBatch], WindowBatch] = lambda batch: batch,
        statistics: Callable[[Statistics], Statistics] = lambda statistics: statistics,
        committed: Callable[[CacheRows], CacheRows] = lambda rows: rows,
    ) -> None:
        super().__init__(inner)
        self.batch, self.statistics, self.committed = batch, statistics, committed

    def start(self, batch: PackedBatch) -> Ticket:
        return super().start(packed_batch(self.batch(padded_batch(batch).batch)))

    def wait(self, ticket: Ticket) -> Statistics:
        shape = padded_batch(ticket.batch).batch.logits_index.shape
        found = self.statistics(statistics_of_windows(super().wait(ticket), shape))
        return padded_batch(ticket.batch).packed(found)

    def commit(self, ticket: Ticket, request: int, branch: int, count: int) -> None:
        self.append_rows(request, self.committed(self.read_rows(ticket, request, branch, count)))


@pytest.fixture(scope="module")
def reference(tiny_bundle: Path) -> CachedReference:
    """Return a reference that computes each case once for all tests."""
    return CachedReference(NumpyReference(Bundle.open(tiny_bundle)))


def report(
    bundle_path: Path, reference: Reference, alter: Callable[[Session], Session] = lambda session: session
) -> Report:
    bundle = Bundle.open(bundle_path)
    session = open_session(bundle, "cpu", threads=1)
    try:
        return report_from_session(alter(session), bundle.manifest, [reference])
    finally:
        session.close()


def test_every_row_sees_itself_and_rows_of_padding_nothing_else(tiny_bundle: Path) -> None:
    padding = 0
    for case in cases_from_manifest(Bundle.open(tiny_bundle).manifest):
        mask = case.window.window_mask
        assert np.diagonal(mask, axis1=-2, axis2=-1).all()
        assert case.shape.padded or case.shape.mask == "random" or mask[..., 0].all()
        padding += int(((mask.sum(axis=-1) == 1) & (mask.sum(axis=-2) == 1)).sum()) if case.shape.padded else 0
    assert padding > 0


class Counting:
    """Reference that returns zeros and counts its calls."""

    name = "counting"
    asked = 0

    def forward(self, _: Sequences) -> WholeForward:
        self.asked += 1
        return WholeForward(np.full((1, 2, 5), self.asked, np.float32), (np.zeros((1, 1, 3, 4), np.float32),) * 2)


def test_cached_results_depend_on_all_inputs() -> None:
    sequences = Sequences(
        input_ids=np.array([[3, 4, 5]]),
        position_ids=np.array([[0, 1, 2]]),
        mask=np.ones((1, 3, 3), np.bool_),
        wanted=np.array([[1, 2]]),
    )
    others = [
        replace(sequences, input_ids=np.array([[3, 4, 6]])),
        replace(sequences, position_ids=np.array([[0, 1, 3]])),
        replace(sequences, mask=np.tri(3, dtype=np.bool_)[None]),
        replace(sequences, wanted=np.array([[0, 2]])),
        replace(sequences, wanted=np.array([[1], [2]])),
    ]
    counting = Counting()
    cached = CachedReference(counting)
    assert cached.name == "counting"
    for _ in range(2):
        for number, each in enumerate([sequences, *others], start=1):
            answer = cached.forward(each)
            assert (answer.logits == number).all()
    assert counting.asked == 6


def wrong(found: Report) -> set[str]:
    """Return the outputs beyond tolerance, without layer numbers."""
    return {"key" if "key_values" in error.output else error.output for error in found.errors if not error.ok}


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_right_engines_pass(tiny_bundle: Path, reference: CachedReference, device: str) -> None:
    bundle = Bundle.open(tiny_bundle)
    progress: list[tuple[str, int, int]] = []
    session = open_session(bundle, device, threads=1)
    found = report_from_session(session, bundle.manifest, [reference], lambda *each: progress.append(each))
    assert found.ok
    assert found.cases == len(SHAPES)
    assert progress == [("comparing", done, len(SHAPES)) for done in range(len(SHAPES) + 1)]
    outputs = [error.output for error in found.errors]
    assert outputs[:3] == ["topk_ids", "topk_logprobs", "entropy"]
    assert [output.rpartition(".")[2] for output in outputs[3:]] == ["key", "value"]
    assert all(error.difference.absolute > 0 for error in found.errors[1:])
    assert all(error.tolerance == 1e-4 for error in found.errors)
    assert all(session.prefix_length(request) == 0 for request in range(8))
    session.close()


@pytest.mark.usefixtures("few_cases")
def test_logits_are_compared_where_the_bundle_has_them(tiny_bundle_logits: Path, reference: CachedReference) -> None:
    found = report(tiny_bundle_logits, reference)
    assert found.ok
    assert "logits" in [error.output for error in found.errors]


@pytest.mark.usefixtures("few_cases")
def test_wrong_logits_are_seen(tiny_bundle_logits: Path, reference: CachedReference) -> None:
    def enlarged(right: Statistics) -> Statistics:
        assert right.logits is not None
        return replace(right, logits=right.logits * 1.001)

    altered = report(tiny_bundle_logits, reference, lambda session: Altered(session, statistics=enlarged))
    assert wrong(altered) == {"logits"}


def causal(batch: WindowBatch) -> WindowBatch:
    return replace(batch, window_mask=np.tril(batch.window_mask))


def without_gaps(batch: WindowBatch) -> WindowBatch:
    width = batch.position_ids.shape[-1]
    return replace(batch, position_ids=batch.position_ids[..., :1] + np.arange(width))


def at_temperature_one(batch: WindowBatch) -> WindowBatch:
    return replace(batch, temperature=np.ones_like(batch.temperature))


def of_the_previous_row(batch: WindowBatch) -> WindowBatch:
    return replace(batch, logits_index=np.maximum(batch.logits_index - 1, 0))


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize(
    ("fault", "outputs"),
    [
        (causal, {*STATISTICS, "key"}),
        (without_gaps, {*STATISTICS, "key"}),
        (at_temperature_one, STATISTICS - {"topk_ids"}),
        (of_the_previous_row, STATISTICS),
    ],
)
def test_wrong_inputs_are_seen(
    tiny_bundle: Path, reference: CachedReference, fault: Callable[[WindowBatch], WindowBatch], outputs: set[str]
) -> None:
    found = report(tiny_bundle, reference, lambda session: Altered(session, batch=fault))
    assert wrong(found) == outputs


def with_swapped_rows(rows: CacheRows) -> CacheRows:
    """Move the values to other rows than their keys. Moving both would be no error, since attention ignores order."""
    return CacheRows(tuple(array[:, ::-1] if i % 2 else array for i, array in enumerate(rows.layers)))


def without_the_last_row(rows: CacheRows) -> CacheRows:
    return CacheRows(tuple(array[:, :-1] for array in rows.layers))


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize("fault", [with_swapped_rows, without_the_last_row])
def test_wrong_commits_are_seen(
    tiny_bundle: Path, reference: CachedReference, fault: Callable[[CacheRows], CacheRows]
) -> None:
    found = report(tiny_bundle, reference, lambda session: Altered(session, committed=fault))
    assert wrong(found) == {*STATISTICS, "key"}


def with_equal_ids(right: Statistics) -> Statistics:
    return replace(right, topk_ids=np.repeat(right.topk_ids[..., :1], 8, axis=-1))


def with_a_nan(right: Statistics) -> Statistics:
    entropy = right.entropy.copy()
    entropy[0, 0, 0] = np.nan
    return replace(right, entropy=entropy)


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize(("fault", "output"), [(with_equal_ids, "topk_ids"), (with_a_nan, "entropy")])
def test_wrong_statistics_are_seen(
    tiny_bundle: Path, reference: CachedReference, fault: Callable[[Statistics], Statistics], output: str
) -> None:
    found = report(tiny_bundle, reference, lambda session: Altered(session, statistics=fault))
    assert wrong(found) == {output}


@pytest.mark.usefixtures("few_cases")
def test_an_engine_that_fails_is_a_failed_check(tiny_bundle: Path, reference: CachedReference) -> None:
    def out_of_the_vocabulary(batch: WindowBatch) -> WindowBatch:
        return replace(batch, input_ids=batch.input_ids + 1024)

    with pytest.raises(CheckFailedError, match="the engine on cpu failed on CaseShape") as caught:
        report(tiny_bundle, reference, lambda session: Altered(session, batch=out_of_the_vocabulary))
    assert caught.value.exit_code == 1

    def failing(_: WindowBatch) -> WindowBatch:
        raise EngineFailedError("the kernel failed", expected="CUDA_SUCCESS", operator="LOPA_CUDA_KERNELS=off")

    with pytest.raises(CheckFailedError, match=r"failed on CaseShape.*: the kernel failed\n") as caught:
        report(tiny_bundle, reference, lambda session: Altered(session, batch=failing))
    assert caught.value.remedy.startswith("LOPA_CUDA_KERNELS=off; export the checkpoint again; ")

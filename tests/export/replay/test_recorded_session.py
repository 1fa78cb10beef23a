"""Recordings of a session have the inputs and results of its forwards."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.sequential import sequential

from lopa.export.replay.recorded_session import RecordedSession
from lopa.export.verify.cases import random_windows
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract.packed_batch import packed_batch
from lopa.runtime.sessions.numpy_session import numpy_forward_from_bundle
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest
from lopa.runtime.sessions.session import open_session


@pytest.fixture
def recorded(tiny_bundle: Path) -> Iterator[RecordedSession]:
    bundle = Bundle.open(tiny_bundle)
    with closing(
        RecordedSession(open_session(bundle, "cpu", threads=1), cache_shape_from_manifest(bundle.manifest))
    ) as session:
        yield session


def test_a_forward_can_be_run_again(tiny_bundle: Path, recorded: RecordedSession) -> None:
    bundle = Bundle.open(tiny_bundle)
    rng = np.random.default_rng(3)
    vocabulary = bundle.manifest.dimensions.vocab_size
    for request, counts in ((4, (50, 30)), (9, (7,))):  # 80 rows, more than a tile
        for count in counts:
            sequential(recorded).forward(random_windows((request,), (3, 50, 1), vocabulary, rng, start=0))
            sequential(recorded).commit(request, 2, count)
    recorded.append_rows(9, sequential(recorded).read_rows(9, 1, 5))
    sequential(recorded).forward(random_windows((4,), (1, 8, 8), vocabulary, rng, start=80))
    alone = recorded.last_forward()
    sequential(recorded).commit(4, 0, 8)
    assert alone.prefix.mask.sum() == 80  # the later commit is not part of the recording
    assert alone.prefix.mask.shape == (1, 128)
    batch = random_windows((9, 4), (2, 6, 3), vocabulary, rng, start=90)
    statistics = sequential(recorded).forward(batch)
    last = recorded.last_forward()
    np.testing.assert_array_equal(last.statistics.topk_logprobs, statistics.topk_logprobs)
    assert last.prefix.mask.sum(axis=1).tolist() == [recorded.prefix_length(9), recorded.prefix_length(4)] == [12, 88]

    again, rows = numpy_forward_from_bundle(bundle, bundle.manifest).run(last.batch, last.prefix)
    np.testing.assert_array_equal(again.topk_ids[..., 0], statistics.topk_ids[..., 0])
    np.testing.assert_allclose(again.topk_logprobs, statistics.topk_logprobs, rtol=1e-4, atol=1e-3)
    for expected, found in zip(rows, last.rows, strict=True):
        assert found.shape == (2, 2, 2, 6, 32)
        np.testing.assert_allclose(found, expected, atol=1e-3)

    for session in (recorded, recorded._inner):
        assert session.prefix_length(4) == 88
    recorded.shorten(4, 60)
    sequential(recorded).forward(random_windows((9, 4), (1, 8, 8), vocabulary, rng, start=60))
    shortened = recorded.last_forward().prefix
    assert shortened.mask.sum(axis=1).tolist() == [recorded.prefix_length(9), recorded.prefix_length(4)] == [12, 60]
    np.testing.assert_array_equal(shortened.block[:, 1, :, :60], last.prefix.block[:, 1, :, :60])

    recorded.free(9)
    sequential(recorded).forward(random_windows((9,), (1, 4, 1), vocabulary, rng, start=0))
    assert not recorded.last_forward().prefix.mask.any()


def test_a_failed_forward_is_not_recorded(recorded: RecordedSession) -> None:
    rng = np.random.default_rng(0)
    sequential(recorded).forward(random_windows((1,), (1, 4, 1), 50, rng, start=0))
    with pytest.raises(ValueError, match="expected"):
        sequential(recorded).run(packed_batch(random_windows((1, 1), (1, 4, 1), 50, rng, start=0)))
    with pytest.raises(AssertionError, match="no forward yet"):
        recorded.last_forward()

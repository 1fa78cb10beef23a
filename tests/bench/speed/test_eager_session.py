"""The eager session computes the same as the exported engine, on random windows and in a whole decode."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.sequential import sequential
from tests.runtime.shortened import assert_shortened_equals_fresh

from lopa.bench.speed.eager_model import EagerModel, eager_model_from_checkpoint
from lopa.bench.speed.eager_session import EagerSession, real_length
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import WindowBatch
from lopa.runtime.sessions.session import Session, open_session
from lopa.tiny import ADAPTER, CHECKPOINT

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def model() -> EagerModel:
    return eager_model_from_checkpoint(CHECKPOINT, ADAPTER)


def random_batch(
    rng: np.random.Generator, requests: tuple[int, ...], lengths: tuple[int, ...], queries: int, starts: list[int]
) -> WindowBatch:
    """Return branches of `lengths` rows, padded to the longest. The first and the last row always see something."""
    width, shape = max(lengths), (len(requests), len(lengths))
    mask = rng.random((*shape, width, width)) < 0.6
    mask |= np.eye(width, dtype=np.bool_)
    mask[..., 0] = True
    index = np.zeros((*shape, queries), np.int64)
    for branch, length in enumerate(lengths):
        mask[:, branch, length:, :] = False
        mask[:, branch, :, length:] = False
        mask[:, branch, np.arange(length, width), np.arange(length, width)] = True
        index[:, branch] = rng.integers(0, length, (len(requests), queries))
    positions = np.array(starts)[:, None, None] + np.arange(width)
    return WindowBatch(
        requests=requests,
        input_ids=rng.integers(3, 975, (*shape, width)),
        position_ids=np.ascontiguousarray(np.broadcast_to(positions, (*shape, width))),
        window_mask=mask,
        logits_index=index,
        temperature=rng.uniform(0.5, 2, len(requests)).astype(np.float32),
    )


def assert_same_forward(ours: Session, eager: Session, batch: WindowBatch, lengths: tuple[int, ...]) -> None:
    expected, found = sequential(ours).forward(batch), sequential(eager).forward(batch)
    np.testing.assert_allclose(found.topk_logprobs, expected.topk_logprobs, atol=TOLERANCE)
    np.testing.assert_allclose(found.entropy, expected.entropy, atol=TOLERANCE)
    clear = expected.topk_logprobs[..., 0] - expected.topk_logprobs[..., 1] > TOLERANCE
    assert clear.any()
    np.testing.assert_array_equal(found.topk_ids[clear][:, 0], expected.topk_ids[clear][:, 0])
    for request in batch.requests:
        for branch, length in enumerate(lengths):
            rows, wanted = (
                sequential(eager).read_rows(request, branch, length),
                sequential(ours).read_rows(request, branch, length),
            )
            for row, want in zip(rows.layers, wanted.layers, strict=True):
                np.testing.assert_allclose(row, want, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("requests", "lengths", "queries"),
    [((1,), (1,), 1), ((1,), (7,), 3), ((1,), (32, 64, 64), 9), ((1,), (64, 33, 64, 17, 64), 31), ((1, 2), (20, 5), 4)],
)
@pytest.mark.parametrize("together", [False, True])
def test_statistics_and_rows_equal_the_engines(
    tiny_bundle: Path,
    model: EagerModel,
    requests: tuple[int, ...],
    lengths: tuple[int, ...],
    queries: int,
    together: bool,
) -> None:
    rng = np.random.default_rng(len(lengths) * 100 + queries)
    ours, eager = open_session(Bundle.open(tiny_bundle), "cpu", threads=1), EagerSession(model, together=together)
    starts = [0] * len(requests)
    for _ in range(3):
        batch = random_batch(rng, requests, lengths, queries, starts)
        assert_same_forward(ours, eager, batch, lengths)
        for slot, request in enumerate(requests):
            branch = int(rng.integers(len(lengths)))
            count = int(rng.integers(1, lengths[branch] + 1))
            starts[slot] += count
            sequential(ours).commit(request, branch, count)
            sequential(eager).commit(request, branch, count)
            assert eager.prefix_length(request) == ours.prefix_length(request) == starts[slot]
    eager.free(requests[0])
    assert eager.prefix_length(requests[0]) == 0
    eager.free(99)
    ours.close()
    eager.close()


@pytest.mark.parametrize("family", ["llada", "sdar", "fast_dllm_v2"])
def test_statistics_and_rows_equal_the_engines_in_every_family(family_bundle: Callable[..., Path], family: str) -> None:
    rng, lengths = np.random.default_rng(11), (9, 16)
    checkpoint = Path(__file__).parents[2] / "reference" / "families" / family
    ours = open_session(Bundle.open(family_bundle(family)), "cpu", threads=1)
    eager = EagerSession(eager_model_from_checkpoint(checkpoint, None))
    for start in (0, 12):
        batch = random_batch(rng, (1,), lengths, 5, [start])
        assert_same_forward(ours, eager, replace(batch, input_ids=batch.input_ids % 100), lengths)
        sequential(ours).commit(1, 1, 12)
        sequential(eager).commit(1, 1, 12)
    ours.close()


def test_a_shortened_request_equals_a_fresh_one(model: EagerModel) -> None:
    session = EagerSession(model)
    assert_shortened_equals_fresh(session, EagerSession(model), exact=True)
    with pytest.raises(ValueError, match="received count 1, expected one from 0 to 0, the committed rows"):
        session.shorten(1, 1)


def test_only_padding_is_removed() -> None:
    rng = np.random.default_rng(6)
    for length in range(1, 12):
        batch = random_batch(rng, (1,), (length, 12), 1, [0])
        assert real_length(batch.window_mask[0, 0], np.array([0])) == length
    alone = np.eye(5, dtype=np.bool_)
    assert real_length(alone, np.array([0, 3])) == 4

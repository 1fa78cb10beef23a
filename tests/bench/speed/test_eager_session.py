"""The eager session computes the same as the exported engine, on random windows and in a whole decode."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runtime.sequential import sequential
from tests.runtime.shortened import assert_shortened_equals_fresh

from lopa.bench.speed.eager_model import EagerModel, compile_model, eager_model_from_checkpoint
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


def test_the_model_is_called_once_per_branch_or_request(model: EagerModel, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[int, ...]] = []
    original = EagerModel.forward

    def recording_forward(self: EagerModel, ids: torch.Tensor, *rest: Any) -> Any:
        called.append(tuple(ids.shape))
        return original(self, ids, *rest)

    monkeypatch.setattr(EagerModel, "forward", recording_forward)
    batch = random_batch(np.random.default_rng(7), (1, 2), (9, 24, 16), 6, [0, 0])
    sequential(EagerSession(model)).forward(batch)
    sequential(EagerSession(model, together=True)).forward(batch)
    assert called == [(1, 9), (1, 24), (1, 16)] * 2 + [(3, 24)] * 2


def test_bfloat16_agrees_approximately(model: EagerModel) -> None:
    """The most probable tokens agree if one leads clearly; bfloat16 has 8 bits of precision."""
    rng = np.random.default_rng(8)
    half = eager_model_from_checkpoint(CHECKPOINT, ADAPTER, dtype=torch.bfloat16)
    exact, rounded = EagerSession(model), EagerSession(half, together=True)
    for start in (0, 20):
        batch = random_batch(rng, (1,), (24, 20), 12, [start])
        expected, found = sequential(exact).forward(batch), sequential(rounded).forward(batch)
        assert 0 < np.abs(found.entropy - expected.entropy).max() < 0.3
        clear = expected.topk_logprobs[..., 0] - expected.topk_logprobs[..., 1] > 0.5
        assert clear.sum() > 4
        np.testing.assert_array_equal(found.topk_ids[clear][:, 0], expected.topk_ids[clear][:, 0])
        for session in (exact, rounded):
            sequential(session).commit(1, 0, 20)


def test_rows_of_another_session_can_be_appended(model: EagerModel) -> None:
    rng = np.random.default_rng(5)
    one, other = EagerSession(model), EagerSession(model)
    batch = random_batch(rng, (1,), (24, 24), 6, [0])
    sequential(one).forward(batch)
    other.append_rows(1, sequential(one).read_rows(1, 1, 20))
    sequential(one).commit(1, 1, 20)
    later = random_batch(rng, (1,), (16,), 6, [20])
    np.testing.assert_array_equal(
        sequential(one).forward(later).topk_logprobs, sequential(other).forward(later).topk_logprobs
    )


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


def test_the_compiled_model_shares_the_weights(model: EagerModel) -> None:
    half = eager_model_from_checkpoint(CHECKPOINT, ADAPTER, dtype=torch.bfloat16)
    for (name, exact), rounded in zip(model.named_parameters(), half.parameters(), strict=True):
        assert rounded.dtype == torch.bfloat16
        assert torch.equal(rounded, exact.bfloat16()), name
    assert half.network.model.rotary_emb.inv_freq.dtype == torch.float32
    compiled = compile_model(half)
    assert [each.data_ptr() for each in compiled.parameters()] == [each.data_ptr() for each in half.parameters()]
    assert all(layer._compiled_call_impl is not None for layer in compiled.layers)
    assert all(layer._compiled_call_impl is None for layer in half.layers)

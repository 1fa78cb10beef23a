"""Decoding with padded shape buckets: the forward sees bucket shapes only, and results are unchanged."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tests.buckets import BUCKETS, bucket
from tests.conformance.recorded import TRACES, comparisons_of_file
from tests.runtime.accelerator.bucketed_forward import BucketedForward, bucketed_session, host_session
from tests.runtime.check_cases import assert_cases_agree, assert_growth_agrees, fits
from tests.runtime.random_windows import random_batch
from tests.runtime.sequential import sequential

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.contract import Rows, Statistics, WindowBatch
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.host_session import Forward, HostSession
from lopa.runtime.sessions.prefix_cache import CacheShape, Prefix

LONG_BUCKETS = [bucket(1, 5, 64, 192), bucket(1, 1, 272, 64), bucket(1, 5, 96, 384), bucket(1, 6, 272, 384)]


class RecordingForward:
    """Forward that records its shapes and writes random values into all padding first.

    `real` is the batch before padding, which shows what is padding.
    """

    def __init__(self, forward: Forward, vocab_size: int, *, garbage: bool) -> None:
        self._forward, self._vocab_size, self._garbage = forward, vocab_size, garbage
        self._rng = np.random.default_rng(7)
        self.shapes: set[tuple[int, ...]] = set()
        self.real: WindowBatch | None = None
        self.runs = self.changed = 0

    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Rows, ...]]:
        self.runs += 1
        self.shapes.add((*batch.input_ids.shape, prefix.mask.shape[1], batch.logits_index.shape[2]))
        assert prefix.mask.shape[0] == len(batch.requests) == len(set(batch.requests))
        assert all(np.isfinite(array).all() for array in prefix.arrays)
        unused = ~prefix.mask[:, None, :]
        assert all(not array[np.broadcast_to(unused, array.shape[:3])].any() for array in prefix.arrays)
        if self._garbage:
            batch, prefix = self._with_garbage(batch, prefix)
        return self._forward.run(batch, prefix)

    def forget_prefix(self) -> None:
        self._forward.forget_prefix()

    def close(self) -> None:
        self._forward.close()

    def _with_garbage(self, batch: WindowBatch, prefix: Prefix) -> tuple[WindowBatch, Prefix]:
        """Randomize the padding. These tests ensure that the forward was not split."""
        assert self.real is not None
        real_batch = self.real
        rng, shape = self._rng, batch.input_ids.shape
        r, b, w = real_batch.input_ids.shape
        real = np.zeros(shape, np.bool_)
        real[:r, :b, :w] = True
        sampled = np.zeros(batch.logits_index.shape, np.bool_)
        sampled[:r, :b, : real_batch.logits_index.shape[2]] = True
        temperature = batch.temperature.copy()
        temperature[r:] = rng.uniform(0.1, 9, shape[0] - r)
        # A padding row may attend to anything.
        mask = np.where(real[..., None], batch.window_mask, rng.random(batch.window_mask.shape) < 0.5)
        garbage = rng.standard_normal(prefix.block.shape).astype(prefix.block.dtype)
        block = np.where(prefix.mask[:, None, :, None], prefix.block, garbage)
        prefix_mask = prefix.mask.copy()
        prefix_mask[r:] = rng.random(prefix_mask[r:].shape) < 0.5
        self.changed += int((~real).sum())
        changed = dataclasses.replace(
            batch,
            input_ids=np.where(real, batch.input_ids, rng.integers(self._vocab_size, size=shape)),
            position_ids=np.where(real, batch.position_ids, rng.integers(2048, size=shape)),
            window_mask=mask,
            logits_index=np.where(sampled, batch.logits_index, rng.integers(shape[2], size=sampled.shape)),
            temperature=temperature,
        )
        return changed, Prefix(block, prefix_mask)


class RealBatchRecorder:
    """Wrapper before the padding that gives `recorder` the real batch."""

    def __init__(self, forward: Forward, recorder: RecordingForward) -> None:
        self._forward, self._recorder = forward, recorder

    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Rows, ...]]:
        self._recorder.real = batch
        return self._forward.run(batch, prefix)

    def forget_prefix(self) -> None:
        self._forward.forget_prefix()

    def close(self) -> None:
        self._forward.close()


def recorded_session(
    bundle: Bundle, buckets: list[ShapeBucket], *, garbage: bool = False
) -> tuple[HostSession, RecordingForward]:
    kept: list[RecordingForward] = []

    def front(forward: Forward, shape: CacheShape) -> Forward:
        kept.append(RecordingForward(forward, bundle.manifest.dimensions.vocab_size, garbage=garbage))
        return RealBatchRecorder(BucketedForward(kept[0], buckets, shape), kept[0])

    return host_session(bundle, front), kept[0]


def shapes_of(buckets: list[ShapeBucket]) -> set[tuple[int, ...]]:
    return {(each.requests, each.branches, each.window, each.prefix, each.wanted) for each in buckets}


@pytest.fixture
def bundle(tiny_bundle: Path) -> Bundle:
    return Bundle.open(tiny_bundle)


@pytest.mark.parametrize(
    ("name", "buckets", "garbage", "limit"),
    [
        ("lopa_bf4_bs32_full", BUCKETS, True, 16),
        ("lopa_bf2_bs16_block", BUCKETS, True, 16),
        ("x_long_lopa_bf4_bs32_full", LONG_BUCKETS, False, 3),
    ],
    ids=["garbage", "block-causal, garbage", "long, plain"],
)
def test_recorded_traces_are_reproduced_with_four_buckets(
    name: str, buckets: list[ShapeBucket], garbage: bool, limit: int, bundle: Bundle
) -> None:
    session, recorder = recorded_session(bundle, buckets, garbage=garbage)
    comparisons = comparisons_of_file(TRACES / f"{name}.jsonl.gz", session, bundle.manifest, limit=limit)
    session.close()

    assert not [each.mismatch for each in comparisons if each.mismatch is not None]
    assert sum(each.whole for each in comparisons) >= limit - 2
    assert recorder.shapes <= shapes_of(buckets)
    assert len(recorder.shapes) > 1
    assert (recorder.changed > 0) == garbage


@pytest.mark.parametrize(
    ("buckets", "garbage", "split"),
    [
        ([bucket(1, 1, 160, 256, 1.0), bucket(4, 9, 96, 256, 2.0)], True, False),
        ([bucket(2, 2, 160, 256)], False, True),
        ([bucket(1, 1, 64, 64)], False, True),
    ],
    ids=["whole, garbage", "split in twos", "split singly"],
)
def test_all_shapes_give_the_same_statistics_and_rows(
    buckets: list[ShapeBucket], garbage: bool, split: bool, tiny_bundle_logits: Path
) -> None:
    """Cover all requests, branches, masks, padding rows and prefixes of the engine check, as far as the bucket
    fits.
    """
    bundle = Bundle.open(tiny_bundle_logits)
    session, recorder = recorded_session(bundle, buckets, garbage=garbage)
    selected = fits(prefix=buckets[0].prefix, window=buckets[0].window)
    forwards = assert_cases_agree(bundle, session, rows=True, taken=selected)
    session.close()
    assert recorder.shapes == shapes_of(buckets)
    assert (recorder.runs > forwards) == split


def test_prefix_grows_over_buckets_and_requests(bundle: Bundle) -> None:
    """Two requests run together and alone, in shape buckets of three prefix lengths. A released number is reused."""
    buckets = [bucket(1, 1, 40, 64), bucket(1, 1, 40, 128), bucket(2, 2, 40, 256)]
    session, recorder = recorded_session(bundle, buckets)
    assert_growth_agrees(bundle, session, ends=(6,))
    session.close()
    assert recorder.shapes == shapes_of(buckets)


def test_window_or_prefix_beyond_all_buckets_raises(bundle: Bundle) -> None:
    session = bucketed_session(bundle, [bucket(1, 2, 40, 64)])
    rng = np.random.default_rng(0)
    with pytest.raises(BadInputError, match="a forward with 41 query tokens"):
        sequential(session).forward(random_batch(rng, (0,), 1, 41, 1))
    for _ in range(2):
        sequential(session).forward(random_batch(rng, (0,), 5, 40, 1))  # at most three forwards of two branches
        sequential(session).commit(0, 4, 40)
    with pytest.raises(BadInputError, match="128 cached tokens"):
        sequential(session).forward(random_batch(rng, (0,), 1, 40, 1, starts=80))
    session.free(0)
    sequential(session).forward(random_batch(rng, (0,), 1, 40, 1))
    session.close()
    with pytest.raises(RuntimeError, match=r"after close\(\)"):
        sequential(session).forward(random_batch(rng, (0,), 1, 40, 1))

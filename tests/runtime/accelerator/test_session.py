"""Sessions with caches in device memory, on the strict host memory of host_memory.py and real ONNX Runtime."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.buckets import BUCKETS, bucket
from tests.conformance.recorded import assert_reproduced
from tests.runtime.accelerator.host_memory import HostMemory, device_session
from tests.runtime.canvas_decodes import CanvasDecodes
from tests.runtime.check_cases import assert_cases_agree, fits
from tests.runtime.random_windows import random_batch
from tests.runtime.sequential import sequential
from tests.runtime.shortened import assert_shortened_equals_fresh

from lopa import Decoder
from lopa.runtime.accelerator.device_memory import Buffer, BufferSet
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.contract import CacheRows
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.session import open_session
from lopa.runtime.text.tokenizer import Tokenizer


@pytest.fixture
def bundle(tiny_portable: Path) -> Bundle:
    return Bundle.open(tiny_portable)


class TestCanvases(CanvasDecodes):
    """Shape buckets pad canvases, and forwards of several requests and branches are split."""

    traces, seeds = 10, 2

    @pytest.fixture
    def decoder(self, canvas_bundle: Path) -> Iterator[Decoder]:
        bundle = Bundle.open(canvas_bundle)
        session, engine, memory = device_session(bundle, [bucket(1, 1, 160, 256), bucket(2, 2, 24, 256)])
        with Decoder(bundle, session, Tokenizer.open(bundle)) as opened:
            yield opened
        assert {each.branches for each in engine.runs} <= {1, 2}
        assert memory.closed


def test_standard_graph_with_rotary_inputs(tiny_rotary: Path) -> None:
    bundle = Bundle.open(tiny_rotary)
    session, _, _ = device_session(bundle, BUCKETS)
    assert_reproduced("lopa_bf2_bs16_block", session, bundle.manifest, limit=2)
    session.close()


@pytest.mark.parametrize(
    ("form", "buckets", "split"),
    [
        (
            "tiny_bundle_logits",
            [bucket(1, 1, 160, 256, 1.0), bucket(1, 9, 48, 256, 1.1), bucket(4, 3, 96, 256, 1.2)],
            False,
        ),
        ("tiny_portable", [bucket(2, 2, 64, 64)], True),
        ("tiny_bundle_logits", [bucket(1, 1, 64, 64)], True),
    ],
    ids=["whole", "split in twos", "split singly"],
)
def test_all_shapes_give_the_same_statistics_and_rows(
    form: str, buckets: list[ShapeBucket], split: bool, request: pytest.FixtureRequest
) -> None:
    """Cover all requests, branches, masks, padding rows and prefixes of the engine check; small ones are split.

    These include three requests, and two to four branches.
    """
    bundle = Bundle.open(request.getfixturevalue(form))
    session, engine, _ = device_session(bundle, buckets)
    selected = fits(prefix=64, window=64) if split else fits(prefix=256, window=160)
    forwards = assert_cases_agree(bundle, session, rows=True, taken=selected)
    session.close()
    assert {str(each) for each in engine.runs} == {str(each) for each in buckets}
    assert (len(engine.runs) > forwards) == split


_SHORT_BUCKETS = {
    (1, 2, 40, 64): 1.0,
    (1, 2, 40, 192): 1.1,
    (3, 2, 40, 64): 2.0,
    (3, 2, 40, 128): 2.1,
    (3, 2, 40, 192): 2.2,
}


@pytest.mark.parametrize("fixed_addresses", [False, True])
def test_shortened_request_equals_a_fresh_one(bundle: Bundle, *, fixed_addresses: bool) -> None:
    """Cover stacks and single caches in shape buckets of three prefixes. The stand-in fails if uncommitted rows are
    not zero.
    """
    buckets = [bucket(*shape, seconds) for shape, seconds in _SHORT_BUCKETS.items()]
    session, engine, memory = device_session(bundle, buckets, fixed_addresses=fixed_addresses)
    plain = open_session(bundle, "cpu", threads=1)
    assert_shortened_equals_fresh(session, plain, exact=False)
    assert {str(each) for each in engine.runs} == {str(each) for each in buckets}
    sequential(session).forward(random_batch(np.random.default_rng(0), (1,), 2, 40, 5))
    sequential(session).commit(1, 0, 20)
    blocks = len(memory.blocks)
    session.shorten(1, 0)
    assert len(memory.blocks) == blocks - 1  # a request without rows has no memory, as before its first row
    session.shorten(2, 0)
    session.close()
    plain.close()


def test_arrays_are_one_buffer_unless_there_are_gaps() -> None:
    memory = HostMemory()
    whole = BufferSet(memory, [1024, 512, 512])
    assert whole.whole == Buffer(whole.buffers[0].address, 2048)
    with pytest.raises(ValueError, match="received arrays of 520 bytes, expected a multiple of 512"):
        _ = BufferSet(memory, [520, 520]).whole
    before = len(memory.blocks)
    apart = BufferSet(memory, [520, 520], is_joined=False)
    assert len(memory.blocks) == before + 2
    apart.fill_zero()
    apart.free()
    assert len(memory.blocks) == before


def test_only_small_arrays_are_transferred(bundle: Bundle) -> None:
    """A forward uploads ids, angles, masks and indices and downloads statistics. A commit stays on the device."""
    chosen = bucket(1, 2, 40, 64)
    session, _, memory = device_session(bundle, [chosen])
    sequential(session).forward(random_batch(np.random.default_rng(0), (0,), 2, 40, 40))
    vocabulary = bundle.manifest.dimensions.vocab_size
    wanted, rows = 2 * 40, 2 * 40
    assert memory.sums["downloaded"] == wanted * (8 * 8 + 4 * 8 + 4 + 4 * vocabulary)
    assert memory.sums["uploaded"] == (8 + 2 * 4 * 16) * rows + 4 * rows * rows + 4 * 64 + wanted * (8 + 4)
    assert memory.sums["copied"] == 0
    before = dict(memory.sums)
    sequential(session).commit(0, 1, 30)
    sizes = bundle.manifest.dimensions
    assert memory.sums == before | {"copied": 2 * sizes.layers * sizes.kv_heads * 30 * sizes.head_size * 4}
    # A request's own cache with the bucket's prefix length is used without a copy.
    sequential(session).forward(random_batch(np.random.default_rng(1), (0,), 2, 40, 40, starts=30))
    assert memory.sums["copied"] == 2 * sizes.layers * sizes.kv_heads * 30 * sizes.head_size * 4
    session.close()


def test_memory_is_reused_and_freed(bundle: Bundle) -> None:
    buckets = [bucket(1, 1, 40, 64), bucket(2, 2, 40, 128)]
    session, _, memory = device_session(bundle, buckets)
    rng = np.random.default_rng(5)

    def decode() -> int:
        for turn in range(3):
            sequential(session).forward(random_batch(rng, (1, 2), 2, 40, 8, starts=40 * turn))
            sequential(session).commit(1, 0, 40)
            sequential(session).commit(2, 1, 20)
        session.free(1)
        session.free(2)
        session.free(3)
        return sum(block.size for block in memory.blocks.values())

    left = decode()
    peak = memory.peak
    for _ in range(4):
        assert decode() == left
    assert memory.peak == peak
    session.close()
    session.close()
    assert memory.closed
    with pytest.raises(RuntimeError, match=r"after close\(\)"):
        sequential(session).forward(random_batch(rng, (0,), 1, 40, 1))
    with pytest.raises(RuntimeError, match=r"after close\(\)"):
        session.shorten(0, 0)


def test_everything_is_freed_before_the_device(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    monkeypatch.setattr(HostMemory, "close", lambda memory: left.append(len(memory.blocks)))
    session, _, _ = device_session(bundle, [bucket(1, 1, 40, 64), bucket(2, 2, 40, 128)])
    sequential(session).forward(random_batch(np.random.default_rng(5), (1, 2), 2, 40, 8))
    sequential(session).commit(1, 0, 40)
    session.close()
    assert left == [0]


def test_a_forward_beyond_the_shape_buckets_raises(bundle: Bundle) -> None:
    session, _, _ = device_session(bundle, [bucket(1, 2, 40, 64)])
    rng = np.random.default_rng(0)
    with pytest.raises(BadInputError, match="a forward with 41 query tokens"):
        sequential(session).forward(random_batch(rng, (0,), 1, 41, 1))
    for _ in range(2):
        sequential(session).forward(random_batch(rng, (0,), 5, 40, 1))  # at most three forwards of two branches
        sequential(session).commit(0, 4, 40)
    with pytest.raises(ValueError, match="received branch 5"):
        sequential(session).commit(0, 5, 1)
    with pytest.raises(BadInputError, match="128 cached tokens"):
        sequential(session).forward(random_batch(rng, (0,), 1, 40, 1, starts=80))
    with pytest.raises(ValueError, match="received rows"):
        session.append_rows(0, CacheRows((np.zeros((1, 2, 3), np.float32),)))
    session.free(0)
    sequential(session).forward(random_batch(rng, (0,), 1, 40, 1))
    session.close()

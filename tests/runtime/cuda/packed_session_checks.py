"""Tests of the session over packed rows, on the stand-in driver: test_on_stand_in.py runs them in a process of its own.

What they cannot show: compiled kernels (their references run), and ONNX Runtime's CUDA memory and streams.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.check_cases import assert_growth_agrees
from tests.runtime.cuda.packed_session_soak import SECONDS, Soak
from tests.runtime.cuda.stand_in_cudart import StandInCudart, cudaError_t
from tests.runtime.cuda.stand_in_ort import StandInOrt
from tests.runtime.device_contract import DeviceContract, Devices
from tests.runtime.kept_rows import assert_rows_are_kept
from tests.runtime.random_windows import assert_same_statistics
from tests.runtime.requests.batch_mates import alone, result_of, with_stored_prompt
from tests.runtime.two_tickets import assert_misuse_is_refused, assert_two_forwards_in_flight, random_rows
from tools.gpu.experts import KINDS, ExpertSizes, measured
from tools.random_configs import random_config, random_prompt

from lopa.runtime import Decoder, Engine
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import CacheRows, Statistics
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.cuda.cuda_calls import MODULE
from lopa.runtime.cuda.packed_forward import MAX_ROWS, padded_count
from lopa.runtime.cuda.packed_session import PackedSession
from lopa.runtime.cuda_kernels.attention_tasks import CHUNK_ROWS
from lopa.runtime.errors import DeviceMemoryError, EngineFailedError
from lopa.runtime.requests import pool
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest
from lopa.runtime.sessions.session import Session, open_session


@pytest.fixture
def machine(stand_in_machine: StandInOrt) -> StandInOrt:
    return stand_in_machine


@pytest.fixture
def cudart(machine: StandInOrt) -> StandInCudart:
    return machine.cudart


@pytest.fixture
def session(tiny_bundle: Path, cudart: StandInCudart) -> Iterator[Session]:
    opened = open_session(Bundle.open(tiny_bundle), "cuda:1")
    assert isinstance(opened, PackedSession)
    yield opened
    opened.close()
    opened.close()
    assert cudart.left == []


class TestContract(DeviceContract):
    test_missing_library_raises = None  # type: ignore[assignment] - checked for the plain graph
    missing = ((MODULE, "cuda-bindings"),)
    absent = "cudaErrorInvalidDevice"
    failure = "cudaErrorIllegalAddress"

    @pytest.fixture
    def devices(self, tiny_bundle_logits: Path, machine: StandInOrt) -> Devices:
        replays = machine.replays

        def fail() -> None:
            machine.cudart.codes["cudaMemcpyAsync"] = [None] * 40 + [cudaError_t.cudaErrorIllegalAddress]

        def used() -> None:
            assert machine.waits == 0
            assert machine.replays > replays + 5

        return Devices(Bundle.open(tiny_bundle_logits), "cuda:{}", fail, used)


def test_prefixes_grow_and_requests_are_released(tiny_bundle: Path, session: Session) -> None:
    lengths = assert_growth_agrees(Bundle.open(tiny_bundle), session, rounds=2, most_branches=5, width=40, ends=(6, 13))
    assert lengths[1] > 256


def test_tickets(session: Session) -> None:
    assert_two_forwards_in_flight(session)
    assert_misuse_is_refused(session)


def test_rows_are_kept_by_reference(session: Session) -> None:
    assert_rows_are_kept(session)


def test_ragged_rows_match_numpy(tiny_bundle: Path, session: Session) -> None:
    """Windows, prefixes and sampled rows of all requests differ. Batch mates and padding change nothing."""
    rng, plain = np.random.default_rng(2), open_session(Bundle.open(tiny_bundle), "numpy")
    lengths = dict.fromkeys(range(6), 0)
    for _ in range(8):
        windows = {request: [int(n) for n in rng.integers(1, 70, rng.integers(1, 5))] for request in lengths}
        batch = random_rows(rng, windows, lengths)
        alone, sampled = _of_one(batch, 3)
        single = session.start(alone)
        statistics = session.wait(single)
        session.release(single)
        tickets = [each.start(batch) for each in (session, plain)]
        found, expected = (each.wait(ticket) for each, ticket in zip((session, plain), tickets, strict=True))
        assert_same_statistics(found, expected)
        assert_same_statistics(statistics, expected.mapped(lambda array, own=sampled: array[own]))
        for request, own in windows.items():
            branch = int(rng.integers(len(own)))
            count = int(rng.integers(0, own[branch] + 1))
            for each, ticket in zip((session, plain), tickets, strict=True):
                each.commit(ticket, request, branch, count)
            lengths[request] += count
        for each, ticket in zip((session, plain), tickets, strict=True):
            each.release(ticket)
    assert max(lengths.values()) > 2 * CHUNK_ROWS
    plain.close()


@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
@pytest.mark.parametrize("family", ["llada2", "sdar_moe"])
def test_quantized_experts(family_bundle: Callable[..., Path], family: str, kind: str) -> None:
    """Numpy rounds no rows to int8, but the plain graph on the CPU does. Rounding may differ at a tie."""
    bundle = Bundle.open(family_bundle(family, quantize=kind))
    session = open_session(bundle, "cuda:1")
    plain = open_session(bundle.with_twins(), "cpu") if kind == "int8" else open_session(bundle, "numpy")
    differences = []
    for seed in range(3):
        batch = random_rows(np.random.default_rng(seed), {1: [9, 9], 2: [20]}, {})
        found, expected = (_forward(each, batch).topk_logprobs for each in (session, plain))
        differences += np.abs(found - expected).max(-1).tolist()
    assert np.mean(np.array(differences) < 1e-3) >= (1 if kind == "int4" else 0.8)
    for each in (session, plain):
        each.close()


@pytest.mark.parametrize("kind", KINDS)
def test_experts_are_timed(kind: str, cudart: StandInCudart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.gpu.experts._ROUNDS", 2)
    sizes = ExpertSizes(experts=6, per_row=2, hidden=64, size=32, floats=np.float32)
    lines = [line.split() for line in measured("cuda:3", sizes, kind, (1, 40))]
    assert [line[:5] for line in lines] == [[kind, "1", "rows", "2", "experts"], [kind, "40", "rows", "6", "experts"]]
    assert cudart.left == []


def _of_one(batch: PackedBatch, slot: int) -> tuple[PackedBatch, np.ndarray]:
    """Return the rows of one request, and which sampled rows of `batch` are its own."""
    windows = batch.slots == slot
    rows, mask = np.repeat(windows, batch.lengths), np.repeat(windows, batch.lengths**2)
    sampled, first = rows[batch.sampled_rows], int(np.flatnonzero(rows)[0])
    return PackedBatch(
        requests=batch.requests[slot : slot + 1],
        temperature=batch.temperature[slot : slot + 1],
        slots=np.zeros(int(windows.sum()), np.int64),
        lengths=batch.lengths[windows],
        input_ids=batch.input_ids[rows],
        position_ids=batch.position_ids[rows],
        mask=batch.mask[mask],
        sampled_rows=batch.sampled_rows[sampled] - first,
    ), sampled


def test_rows_beyond_the_largest_graph(tiny_bundle: Path, session: Session, machine: StandInOrt) -> None:
    """A prompt with more rows than a graph has runs node by node, in memory that is freed with its rows."""
    rng, plain = np.random.default_rng(4), open_session(Bundle.open(tiny_bundle), "numpy")
    _forward(session, random_rows(rng, {1: [8]}, {}))
    allocated, batch = machine.cudart.allocated(1), random_rows(rng, {1: [MAX_ROWS + 1]}, {})
    captures, tickets = len(machine.captures), [each.start(batch) for each in (session, plain)]
    for each, ticket in zip((session, plain), tickets, strict=True):
        each.wait(ticket)
        each.commit(ticket, 1, 0, MAX_ROWS)
        each.release(ticket)
    tickets.clear()
    batch = random_rows(rng, {1: [30, 8]}, {1: MAX_ROWS})
    assert_same_statistics(_forward(session, batch), _forward(plain, batch))
    assert len(machine.captures) == captures + 1
    session.free(1)
    _forward(session, random_rows(rng, {1: [8]}, {}))
    assert machine.cudart.allocated(1) == allocated
    plain.close()


def _forward(session: Session, batch: PackedBatch) -> Statistics:
    ticket = session.start(batch)
    statistics = session.wait(ticket)
    session.release(ticket)
    return statistics


def test_one_copy_each_way(session: Session, cudart: StandInCudart) -> None:
    """A forward with commits of all requests costs one upload, one download, and one wait."""
    batch = random_rows(np.random.default_rng(0), {1: [20, 20], 2: [30]}, {})
    for turn in range(3):
        before = dict(cudart.calls)
        ticket = session.start(batch)
        session.wait(ticket)
        made = {name: count - before.get(name, 0) for name, count in cudart.calls.items()}
        session.commit(ticket, 1, 1, 20)
        session.commit(ticket, 2, 0, 30)
        session.release(ticket)
        del ticket
        if turn == 2:  # with a slot, a graph and free chunks
            called = {name: count for name, count in made.items() if count}
            assert called == {"cudaMemcpyAsync": 2, "cudaEventRecord": 1, "cudaEventSynchronize": 1}


def test_few_graphs_serve_all_shapes(session: Session, machine: StandInOrt) -> None:
    """One graph serves every prefix, and every number of requests, branches and rows of a window."""
    rng, before, lengths = np.random.default_rng(1), len(machine.captures), dict.fromkeys(range(4), 0)
    shapes = set()
    for turn in range(24):
        windows = {request: [3 + turn % 5] * (1 + (request + turn) % 3) for request in range(1 + turn % 4)}
        batch = random_rows(rng, windows, lengths, sampled=2)
        shapes.add((padded_count(batch.input_ids.size), padded_count(batch.sampled_rows.size)))
        ticket = session.start(batch)
        session.wait(ticket)
        for request in windows:
            session.commit(ticket, request, 0, 3)
            lengths[request] += 3
        session.release(ticket)
        del ticket
    assert len(machine.captures) - before == len(shapes) < 8


def test_memory_of_many_requests(tiny_bundle: Path, session: Session, cudart: StandInCudart) -> None:
    """64 requests with 2,000 rows take what their rows take, and at most 10 % more. It is freed with them."""
    shape = cache_shape_from_manifest(Bundle.open(tiny_bundle).manifest)
    wanted = 64 * 2000 * shape.arrays * shape.kv_heads * shape.head_size * shape.dtype.itemsize
    empty, rows = cudart.allocated(1), np.ones((shape.kv_heads, 2000, shape.head_size), shape.dtype)
    for request in range(64):
        session.append_rows(request, CacheRows((rows,) * shape.arrays))
    assert wanted <= cudart.allocated(1) - empty <= 1.1 * wanted
    for request in range(64):
        session.free(request)
    assert cudart.allocated(1) - empty <= 0.05 * wanted


def test_full_memory_ends_one_request(session: Session, cudart: StandInCudart) -> None:
    """The cache of the refused request is as before. Other requests go on, and it does once there is memory."""
    batch = random_rows(np.random.default_rng(1), {1: [500], 2: [100]}, {})
    ticket = session.start(batch)
    session.wait(ticket)
    session.commit(ticket, 2, 0, 100)
    release = _with_free_bytes(cudart, 1)
    with pytest.raises(DeviceMemoryError, match="cuda:1 has no memory") as caught:
        session.commit(ticket, 1, 0, 500)
    assert (caught.value.request, session.prefix_length(1)) == (1, 0)
    assert 0 < (session.free_rows() or 0) < 500
    session.commit(ticket, 2, 0, 20)
    release()
    session.commit(ticket, 1, 0, 500)
    assert (session.prefix_length(1), session.prefix_length(2)) == (500, 120)
    session.release(ticket)


def test_kept_rows_need_no_memory_unless_copied(session: Session, cudart: StandInCudart) -> None:
    """Kept rows behind other rows have to be copied. If that fails, the request is as before."""
    ticket = session.start(random_rows(np.random.default_rng(1), {1: [320], 2: [100]}, {}))
    session.wait(ticket)
    session.commit(ticket, 2, 0, 100)
    kept = session.keep_rows(2, 0, 100)
    session.append_rows(3, session.read_rows(ticket, 2, 0, 5))
    release = _with_free_bytes(cudart, 1)
    session.commit(ticket, 1, 0, 320)  # in all free chunks
    session.append_kept(4, [kept])
    with pytest.raises(DeviceMemoryError):
        session.append_kept(3, [kept])
    assert (session.prefix_length(3), session.prefix_length(4)) == (5, 100)
    release()
    session.append_kept(3, [kept])
    assert session.prefix_length(3) == 105
    session.release(ticket)


def _with_free_bytes(cudart: StandInCudart, device: int) -> Callable[[], None]:
    """Leave little memory on a device. Return a function that gives it back."""
    other = threading.Thread(target=lambda: (cudart.cudaSetDevice(device), given.append(cudart.take(left))))
    given: list[Callable[[], None]] = []
    left = cudart.capacity - cudart.allocated(device) - 1000
    other.start()
    other.join()
    return given[0]


def test_device_memory_is_full_at_a_forward(session: Session, machine: StandInOrt) -> None:
    """ONNX Runtime's own error ends the forward; commits before it are kept."""
    batch = random_rows(np.random.default_rng(1), {1: [50]}, {})
    ticket = session.start(batch)
    session.wait(ticket)
    session.commit(ticket, 1, 0, 50)
    machine.failures.append("CUDA failure 2: out of memory")
    failing = session.start(random_rows(np.random.default_rng(2), {1: [50]}, {1: 50}))
    with pytest.raises(EngineFailedError, match="CUDA failure 2"):
        session.wait(failing)
    assert session.prefix_length(1) == 50
    _forward(session, random_rows(np.random.default_rng(2), {1: [50]}, {1: 50}))


def test_forward_that_nobody_waits_for(tiny_bundle: Path, session: Session) -> None:
    """Its memory is used again, once it is done."""
    plain, rng = open_session(Bundle.open(tiny_bundle), "numpy"), np.random.default_rng(7)
    for request in range(10):
        session.start(random_rows(rng, {request: [60]}, {}))
        batch = random_rows(rng, {100 + request: [40, 9]}, {})
        assert_same_statistics(_forward(session, batch), _forward(plain, batch))
    plain.close()


def test_graph_with_operators_on_the_cpu_runs_without_graphs(tiny_bundle: Path, machine: StandInOrt) -> None:
    machine.unsupported = True
    opened = open_session(Bundle.open(tiny_bundle), "cuda:2")
    machine.unsupported = False
    captures = len(machine.captures)
    _forward(opened, random_rows(np.random.default_rng(0), {1: [9]}, {}))
    assert len(machine.captures) == captures
    opened.close()


def test_interrupted_calls_lose_no_commits(
    tiny_bundle: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request's start may be interrupted, e.g. by Ctrl-C, when the rows of a commit are not copied yet."""
    plain, rng = open_session(Bundle.open(tiny_bundle), "numpy"), np.random.default_rng(5)
    first, second = random_rows(rng, {1: [40]}, {}), random_rows(rng, {1: [20, 7]}, {1: 40})
    found = []
    for each in (session, plain):
        ticket = each.start(first)
        each.wait(ticket)
        each.commit(ticket, 1, 0, 40)
        each.release(ticket)
        del ticket
        with monkeypatch.context() as patch:
            patch.setattr("lopa.runtime.cuda.packed_session.position_inputs", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.start(random_rows(rng, {2: [9]}, {}))
        _forward(each, random_rows(np.random.default_rng(6), {3: [60]}, {}))
        found.append(_forward(each, second))
    assert_same_statistics(*found)
    plain.close()


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_failed_forwards_keep_no_memory(tiny_bundle: Path, session: Session, machine: StandInOrt) -> None:
    """The next forward may use the memory of a failed one at once, whose upload is still enqueued."""
    plain, rng = open_session(Bundle.open(tiny_bundle), "numpy"), np.random.default_rng(7)
    batch = random_rows(rng, {1: [50]}, {})
    for each in (session, plain):
        ticket = each.start(batch)
        each.wait(ticket)
        each.release(ticket)
        del ticket
    allocated = machine.cudart.allocated(1)
    for turn in range(6):
        for each in (session, plain):
            ticket = each.start(replace(batch, requests=(10 + turn,)))
            each.wait(ticket)
            each.commit(ticket, 10 + turn, 0, 50)
            each.release(ticket)
            del ticket
        machine.failures.append("CUDA failure 2: out of memory")
        with pytest.raises(EngineFailedError, match="CUDA failure 2"):
            _forward(session, random_rows(rng, {2: [50]}, {}))
        follow = random_rows(rng, {10 + turn: [30, 8]}, {10 + turn: 50})
        assert_same_statistics(_forward(session, follow), _forward(plain, follow))
    for turn in range(6):
        session.free(10 + turn)
    assert machine.cudart.allocated(1) == allocated
    plain.close()


def test_a_request_may_append_its_own_rows(tiny_bundle: Path, session: Session) -> None:
    """It then has a chunk twice, which later commits do not change."""
    plain, rng = open_session(Bundle.open(tiny_bundle), "numpy"), np.random.default_rng(8)
    batch, later = random_rows(rng, {1: [CHUNK_ROWS]}, {}), random_rows(rng, {1: [9]}, {1: 2 * CHUNK_ROWS - 3})
    found = []
    for each in (session, plain):
        ticket = each.start(batch)
        each.wait(ticket)
        each.commit(ticket, 1, 0, CHUNK_ROWS)
        each.append_kept(1, [each.keep_rows(1, 0, CHUNK_ROWS - 3)])
        each.commit(ticket, 1, 0, 20)
        each.release(ticket)
        found.append(_forward(each, later))
    assert_same_statistics(*found)
    plain.close()


def test_memory_of_the_attention_is_full(
    tiny_bundle: Path, cudart: StandInCudart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward that needs more of it is refused for its newest request. Others run as before."""
    monkeypatch.setattr("lopa.runtime.cuda.packed_forward._MIN_SCRATCH", 1024)
    opened = open_session(Bundle.open(tiny_bundle), "cuda:4")
    small, rng = random_rows(np.random.default_rng(1), {1: [8]}, {}), np.random.default_rng(2)
    ticket = opened.start(random_rows(rng, {2: [600]}, {}))
    opened.wait(ticket)
    opened.commit(ticket, 2, 0, 600)
    opened.release(ticket)
    before = _forward(opened, small)
    release = _with_free_bytes(cudart, 4)
    large = random_rows(rng, {1: [8], 2: [8]}, {2: 600})
    for _ in range(2):
        with pytest.raises(DeviceMemoryError) as caught:
            opened.start(large)
        assert caught.value.request == 2
        np.testing.assert_array_equal(_forward(opened, small).entropy, before.entropy)
    release()
    _forward(opened, large)
    opened.close()
    assert cudart.left == []


@pytest.mark.parametrize("capacity", [1 << 34, 1 << 20])
def test_an_engine_gives_the_answers_of_single_decodes(
    capacity: int, tiny_bundle: Path, cudart: StandInCudart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random requests in alternating groups, with shared prefixes and prompts in pieces, and with little memory
    beside what the session takes when it opens."""
    monkeypatch.setattr(pool, "MIN_GROUP_ROWS", 16)
    monkeypatch.setattr(PackedSession, "rows_per_forward", 128)
    monkeypatch.setattr("lopa.runtime.cuda.packed_session._RESERVE", 0)
    rng = np.random.default_rng(capacity)
    with Decoder.open(tiny_bundle, ["cpu"], threads=1) as plain:
        cases = [(random_prompt(rng, plain), random_config(rng, plain)) for _ in range(16)]
        cases += [cases[index] for index in rng.integers(0, len(cases), 8)]
        expected = [alone(plain, *case) for case in cases]
    with Decoder.open(tiny_bundle, ["cuda:3"]) as decoder, Engine(decoder, max_num_seqs=6) as engine:
        monkeypatch.setattr(cudart, "capacity", min(capacity + cudart.allocated(3), cudart.capacity))
        for handle, each in zip([engine.submit(*case) for case in cases], expected, strict=True):
            found = result_of(handle)
            assert found == with_stored_prompt(each, found)
    assert cudart.left == []


def test_soak(tiny_bundle: Path, session: Session, cudart: StandInCudart) -> None:
    """Random work with 64 requests at once mixes nothing up and leaks nothing."""
    bundle, capacity, before = Bundle.open(tiny_bundle), cudart.capacity, cudart.allocated(1)
    plain = open_session(bundle, "numpy")
    soak = Soak(session, plain, cache_shape_from_manifest(bundle.manifest), cudart, device=1)
    soak.run(SECONDS)
    cudart.capacity = capacity
    print(soak.counts, f"{soak.peak} bytes")
    assert soak.counts.keys() >= {"compared", "memory", "shortened"}
    _forward(session, random_rows(np.random.default_rng(0), {1: [8]}, {}))
    session.free(1)
    assert cudart.allocated(1) - before <= 1 << 25 < soak.peak  # memory of the attention grows and stays
    plain.close()

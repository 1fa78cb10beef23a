"""Agreement of tokens: pure comparisons, and a decode that runs on two sessions."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.params import params_of

from lopa.export.verify.token_gate import GateTolerance, Tally, agreement_of_sessions, check_reference, gate_tolerance
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Statistics
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.host_session import HostSession
from lopa.runtime.sessions.session import open_session
from lopa.runtime.sessions.tickets import Ticket

TOLERANCE = GateTolerance(margin=0.5, statistics=0.1, by_rms=False)


def statistics(ids: list[list[int]], logprobs: list[list[float]]) -> Statistics:
    """Return statistics of one branch with a row per list."""
    return Statistics(
        topk_ids=np.array([[ids]], np.int64),
        topk_logprobs=np.array([[logprobs]], np.float32),
        entropy=np.ones((1, 1, len(ids)), np.float32),
    )


def test_other_tokens_count_beyond_near_ties() -> None:
    tally = Tally(TOLERANCE)
    tally.compare(
        statistics([[1, 2], [1, 2], [1, 2], [1, 2]], [[-0.5, -0.9], [-0.5, -1.1], [-0.5, -1.1], [-0.5, -0.9]]),
        statistics([[2, 1], [1, 2], [3, 1], [1, 2]], [[-0.5, -0.9], [-0.5, -1.1], [-0.5, -1.1], [-0.5, -0.9]]),
    )
    found = tally.agreement("cpu")
    assert (found.rows, found.near_ties, found.other_tokens, found.forwards) == (4, 2, 1, 1)
    assert all(error.ok for error in found.errors)
    assert not found.ok


@pytest.mark.parametrize(("off", "ok"), [(0.05, True), (0.15, False), (float("nan"), False)])
def test_statistics_have_a_tolerance(off: float, ok: bool) -> None:
    tally = Tally(TOLERANCE)
    for shift in (0.0, off, 0.0):
        tally.compare(statistics([[1, 2]], [[-0.1, -0.9]]), statistics([[1, 2]], [[-0.1 + shift, -0.9]]))
    assert tally.agreement("cpu").ok == ok


@pytest.mark.parametrize(("by_rms", "ok"), [(True, True), (False, False)])
def test_one_large_error_of_many_rows_is_within_a_root_mean_square(by_rms: bool, ok: bool) -> None:
    tally = Tally(GateTolerance(margin=0.5, statistics=0.1, by_rms=by_rms))
    right, wrong = [[-0.1, -0.9]] * 9, [[-0.1, -0.75]] + [[-0.1, -0.9]] * 8
    tally.compare(statistics([[1, 2]] * 9, right), statistics([[1, 2]] * 9, wrong))
    assert tally.agreement("cpu").ok == ok


def test_near_ties_alone_prove_nothing() -> None:
    tally = Tally(TOLERANCE)
    same = statistics([[1, 2]], [[-0.5, -0.6]])
    tally.compare(same, same)
    assert not tally.agreement("cpu").ok


def test_tolerances_by_type(tiny_bundle: Path) -> None:
    manifest = Bundle.open(tiny_bundle).manifest
    half = msgspec.structs.replace(manifest, dtype="float16")
    assert gate_tolerance(manifest, "graph").statistics < gate_tolerance(half, "graph").statistics
    assert not gate_tolerance(half, "graph").by_rms
    assert gate_tolerance(half, "int8") == gate_tolerance(manifest, "int8")
    assert gate_tolerance(manifest, "fp8").by_rms


def test_an_engine_is_not_compared_with_its_own_kind() -> None:
    check_reference("cuda:0", "tensorrt:0")
    with pytest.raises(BadInputError, match="--against tensorrt:1"):
        check_reference("tensorrt:1", "tensorrt:0")


def test_every_forward_runs_on_both(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare ONNX Runtime with numpy: rounding differs, tokens do not. Different committed rows show later."""
    bundle = Bundle.open(tiny_bundle)
    prompt = np.random.default_rng(0).integers(bundle.manifest.dimensions.vocab_size, size=20)
    plan = params_of(max_new_tokens=16, block_size=8)
    shapes = [Sizes(requests=2, branches=2, window=8, prefix=64, wanted=4)]

    def agreement() -> tuple[bool, int]:
        sessions = [open_session(bundle, device, threads=1) for device in ("numpy", "cpu")]
        done: list[tuple[str, int, int]] = []
        found = agreement_of_sessions(
            *sessions, bundle.manifest, [prompt], [plan], shapes, tolerance, lambda *each: done.append(each)
        )
        assert done == [("comparing tokens", number, 2) for number in range(3)]
        assert [session.prefix_length(number) for session in sessions for number in range(1000)] == [0] * 2000
        for session in sessions:
            session.close()
        return found.ok, found.forwards

    tolerance = gate_tolerance(bundle.manifest, "graph")
    ok, forwards = agreement()
    assert ok
    assert forwards > 5
    commit = HostSession.commit

    def one_row_less(session: HostSession, ticket: Ticket, request: int, branch: int, count: int) -> None:
        commit(session, ticket, request, branch, count - (session.device == "cpu"))

    monkeypatch.setattr(HostSession, "commit", one_row_less)
    assert agreement() == (False, forwards)

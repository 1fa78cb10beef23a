"""Program of the ranks in a test's MPI job: python -m tests.runtime.mpi.mpi_ranks CASE BUNDLE ..., the same on each."""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.kept_rows import assert_rows_are_kept
from tests.runtime.random_windows import assert_same_statistics, block_causal_mask, random_batch
from tests.runtime.sequential import sequential
from tests.runtime.shortened import assert_shortened_equals_fresh
from tests.runtime.two_tickets import assert_misuse_is_refused, assert_two_forwards_in_flight

from lopa.runtime.bundle import Bundle
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.mpi.mpi_link import MpiLink, rank_of_job
from lopa.runtime.mpi.mpi_server import serve
from lopa.runtime.mpi.mpi_session import MpiSession
from lopa.runtime.requests.result import DoneEvent
from lopa.runtime.sessions.host_session import HostSession
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.text.tokenizer import Tokenizer


def decode(bundle: Path, work: str) -> None:
    """Print a line with the result and the branches of each commit, for every prompt under every config of `work`."""
    broadcasts = _record_calls(MpiLink, "broadcast")
    job = json.loads(Path(work).read_text(encoding="utf-8"))
    with Decoder.open(bundle, ["mpi"], threads=1) as decoder:
        for overrides in job["configs"]:
            for prompt in job["prompts"]:
                broadcasts.clear()
                steps: list[Step] = []
                *_, done = decoder.stream(prompt, decoder.config(**overrides), on_step=steps.append)
                committing = [len(step.branches) for step in steps if step.rows.commit]
                assert isinstance(done, DoneEvent)
                line = {"ids": done.result.token_ids, "steps": done.result.steps}
                line |= {"committing": committing, "broadcasts": len(broadcasts)}
                print(json.dumps(line), flush=True)


def session(bundle: Path) -> None:
    """Compare all methods of the session over all ranks with a single process's session."""
    opened = Bundle.open(bundle)
    distributed, single = open_session(opened, "mpi", threads=1), open_session(opened, "cpu", threads=1)
    assert distributed.device == "mpi"
    rng = np.random.default_rng(11)
    _same_on_random_windows(rng, distributed, single)
    _same_errors(rng, distributed)
    assert_two_forwards_in_flight(distributed)
    assert_misuse_is_refused(distributed)
    assert_rows_are_kept(distributed)
    assert_shortened_equals_fresh(distributed, single, exact=False)
    with pytest.raises(ValueError, match="received count 1, expected one from 0 to 0"):
        distributed.shorten(99, 1)
    distributed.close()
    distributed.close()
    distributed.free(1)
    assert distributed.prefix_length(1) == 0
    for use in (
        lambda: sequential(distributed).commit(8, 0, 1),
        lambda: sequential(distributed).forward(random_batch(rng, [1], 2, 3, 1)),
    ):
        with pytest.raises(RuntimeError, match=r"after close\(\)"):
            use()
    print("all the same")


def _same_on_random_windows(rng: np.random.Generator, distributed: Session, single: Session) -> None:
    """Run forwards of one and two requests with 1 to 6 branches. Block-causal ones start equal on all branches."""
    for turn, (requests, branches, width) in enumerate(
        [([1], 1, 9), ([1], 4, 30), ([2, 1], 3, 12), ([1, 2], 6, 400), ([2], 2, 12), ([1, 3, 2], 5, 12), ([1], 4, 12)]
    ):
        batch = random_batch(
            rng, requests, branches, width, 3, starts=[distributed.prefix_length(each) for each in requests]
        )
        if turn % 2:
            mask = block_causal_mask(batch.input_ids.shape, 6)
            batch = replace(batch, window_mask=mask)
            batch.input_ids[:, :, :6] = batch.input_ids[:, :1, :6]
        assert_same_statistics(sequential(distributed).forward(batch), sequential(single).forward(batch))
        for request in requests[::-1]:
            winner = int(rng.integers(branches))
            for each in (distributed, single):
                sequential(each).commit(request, winner, 6)
            assert distributed.prefix_length(request) == single.prefix_length(request) > 0
    distributed.free(2)
    single.free(2)
    assert distributed.prefix_length(2) == 0
    batch = random_batch(rng, [2, 3], 4, 8, 2)
    assert_same_statistics(sequential(distributed).forward(batch), sequential(single).forward(batch))


def _same_errors(rng: np.random.Generator, distributed: Session) -> None:
    batch = random_batch(rng, [2, 3], 4, 8, 2)
    with pytest.raises(ValueError, match="received temperature"):
        sequential(distributed).forward(replace(batch, temperature=batch.temperature[:1]))
    bad = batch.input_ids.copy()
    bad[:, 0, 0] = 1_000_000
    with pytest.raises(Exception, match=r"(?i)out of bounds|indices"):
        sequential(distributed).forward(
            replace(batch, input_ids=bad)
        )  # rank 0 computes branch 0; later forwards must work


def fault(bundle: Path, rank: str, kind: str, method: str) -> None:
    """Decode endlessly on rank 0, while `rank` dies, raises or stops at its third call of `method`."""
    if kind == "stop":
        opened = Bundle.open(bundle)
        engine = open_session(opened, "cpu", threads=1)
        impatient = MpiSession(MpiLink("mpi"), engine, opened.manifest, "mpi", patience=1.0)
        decoder = Decoder(opened, impatient, Tokenizer.open(opened))
    else:
        decoder = Decoder.open(bundle, ["mpi"], threads=1)
    with decoder:
        config = decoder.config(branches=4, attention="full", max_new_tokens=64)
        while True:
            print(decoder.generate("Question: 2 + 3?", config).tokens, flush=True)


def _install_fault(kind: str, method: str) -> None:
    calls = 0
    original = getattr(HostSession, method)

    def faulty(self: HostSession, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3 and kind == "raise":
            raise RuntimeError("the engine broke")
        if calls == 3:
            os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        return original(self, *arguments)

    setattr(HostSession, method, faulty)


def _record_calls(kind: type, method: str) -> list[tuple[Any, ...]]:
    """Record the arguments of every call from now on."""
    calls: list[tuple[Any, ...]] = []
    original: Callable[..., Any] = getattr(kind, method)

    def recording(self: object, *arguments: Any) -> Any:
        calls.append(arguments)
        return original(self, *arguments)

    setattr(kind, method, recording)
    return calls


def main(case: str, bundle: str, *arguments: str) -> None:
    with rank_of_job() as rank:
        if case == "fault" and rank == int(arguments[0]):
            _install_fault(*arguments[1:])
        if rank > 0:
            serve(bundle, "mpi", threads=1)
        else:
            {"decode": decode, "session": session, "fault": fault}[case](Path(bundle), *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])

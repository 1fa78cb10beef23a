"""Run an Ascend engine on a machine with an NPU, record every pyACL call, and compare it with the documentation.

Usage: python -m tools.vendors.record_ascend BUNDLE [--device N] -o TRANSCRIPT.json
       [--against EARLIER.json] [--mark]

Every shape bucket runs here and with ONNX Runtime on the CPU. Rows are committed and read. Two calls are made
to fail. The exit code is 1 if a call differs from runtime/ascend/acl_contract.json.
"""

import importlib
import sys
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
import numpy as np

from lopa.export.verify.cases import random_windows
from lopa.runtime.ascend.acl_contract import TABLE, acl_contract
from lopa.runtime.ascend.ascend_manifest import ASCEND_ENGINES
from lopa.runtime.ascend.process import THE_PROCESS
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.contract import Float32, Statistics, WindowBatch, float32_from_stored
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.sessions.sequential_session import SequentialSession
from lopa.runtime.sessions.session import open_session
from tools.report import exit_on_error
from tools.vendors.acl_recording import (
    RecordingAcl,
    Transcript,
    differences_from_contract,
    differences_of_transcripts,
    marked_contract,
)

_TOLERANCE = 1e-2
"""Tolerance relative to the largest number, for half precision."""
_RULES = ["thread", "model context", "input room", "alignment", "teardown"]
"""Rules confirmed by forwards of all buckets that agree with the CPU, and a close without an error."""


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--device", default=0, show_default=True, help="Index of the NPU.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="File of the transcript.")
@click.option("--against", type=click.Path(exists=True, path_type=Path), help="Earlier transcript to compare with.")
@click.option("--mark", is_flag=True, help=f"Mark confirmed entries as `recorded` in {TABLE.name}.")
def main(bundle: Path, device: int, output: Path, against: Path | None, mark: bool) -> None:
    """Write a transcript of the pyACL calls, and print differences from the documentation."""
    with exit_on_error():
        transcript = transcript_of_machine(Bundle.open(bundle), device)
    output.write_bytes(msgspec.json.format(msgspec.json.encode(transcript), indent=1) + b"\n")
    found = differences_from_contract(transcript, acl_contract())
    if against is not None:
        found += differences_of_transcripts(transcript, msgspec.json.decode(against.read_bytes(), type=Transcript))
    found += [
        f"the shape bucket {bucket} differs from the CPU by {difference:.1e} of the largest number"
        for bucket, difference in transcript.largest_difference.items()
        if not difference < _TOLERANCE
    ]
    for line in found:
        click.echo(line)
    kind = "the stand-in (no evidence about a real machine)" if transcript.stand_in else transcript.soc
    click.echo(f"{len(transcript.calls)} calls on {kind}, {len(found)} differences; written to {output}")
    if mark:
        if transcript.stand_in:
            click.echo("--mark: nothing marked, since pyACL is the stand-in", err=True)
            sys.exit(2)
        table = msgspec.json.encode(marked_contract(acl_contract(), transcript))
        TABLE.write_bytes(msgspec.json.format(table, indent=1) + b"\n")
    sys.exit(1 if found else 0)


def transcript_of_machine(bundle: Bundle, device: int) -> Transcript:
    """Run all forwards and return the transcript. Raises the errors of opening and running."""
    try:
        module = importlib.import_module("acl")
    except ImportError as error:
        raise MissingBackendError(
            f"pyACL cannot be imported: {error}",
            expected="a machine with an NPU and CANN",
            remedy="run this program on such a machine",
        ) from error
    recording = RecordingAcl(module, acl_contract())
    sys.modules["acl"] = recording  # type: ignore[assignment]  # imported by the adapter
    try:
        soc = str(recording.rt.get_soc_name())
        differences = _run_all(bundle, device)
        provoked = _provoke_errors(recording)
        THE_PROCESS.finalize()
    finally:
        sys.modules["acl"] = module
    agree = all(difference < _TOLERANCE for difference in differences.values())
    return Transcript(
        stand_in=bool(getattr(module, "STAND_IN", False)),
        soc=soc,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        calls=recording.calls,
        provoked=provoked,
        largest_difference=differences,
        rules=_RULES if agree else [],
    )


def _run_all(bundle: Bundle, device: int) -> dict[str, float]:
    """Return the difference of each bucket's statistics from the CPU."""
    plain = SequentialSession(open_session(bundle.with_dialect("portable"), "cpu"))
    session = SequentialSession(open_session(bundle, f"ascend:{device}"))
    differences = {}
    for request, bucket in enumerate(_buckets(bundle)):
        differences[str(msgspec.structs.astuple(bucket)[:5])] = _difference_of_bucket(
            bundle, bucket, request, session, plain
        )
    session.close()
    plain.close()
    return differences


def _difference_of_bucket(
    bundle: Bundle, bucket: ShapeBucket, request: int, session: SequentialSession, plain: SequentialSession
) -> float:
    """Return the difference of two forwards of the bucket's whole window, and of the rows committed between them."""
    requests = tuple(1000 * request + slot for slot in range(bucket.requests))
    batch = _batch(bundle, requests, bucket.branches, bucket.window, 0)
    found = _difference(session.forward(batch), plain.forward(batch))
    count = min(bucket.window, bucket.prefix)
    for each in requests:
        for one in (session, plain):
            one.commit(each, bucket.branches - 1, count)
        rows = zip(*(one.read_rows(each, 0, count).layers for one in (session, plain)), strict=True)
        found = max(found, *(_relative(float32_from_stored(a), float32_from_stored(b)) for a, b in rows))
    batch = _batch(bundle, requests, bucket.branches, bucket.window, count)
    found = max(found, _difference(session.forward(batch), plain.forward(batch)))
    for each in requests:
        session.free(each)
        plain.free(each)
    return found


def _provoke_errors(recording: RecordingAcl) -> dict[str, int]:
    """Return the codes of two calls that must fail: with a missing device, and without a context."""
    THE_PROCESS.calls()
    return {"rt.set_device": recording.rt.set_device(9999), "rt.malloc": recording.rt.malloc(64, 0)[1]}


def _buckets(bundle: Bundle) -> list[ShapeBucket]:
    return [each.bucket for each in ASCEND_ENGINES.read(ASCEND_ENGINES.folders(bundle)[0]).engine.buckets]


def _batch(bundle: Bundle, requests: tuple[int, ...], branches: int, width: int, start: int) -> WindowBatch:
    shape = (branches, width, min(width, 8))
    rng = np.random.default_rng(start)
    return random_windows(requests, shape, bundle.manifest.dimensions.vocab_size, rng, start=start)


def _difference(found: Statistics, expected: Statistics) -> float:
    return _relative(found.topk_logprobs, expected.topk_logprobs)


def _relative(found: Float32, expected: Float32) -> float:
    return float(np.abs(found - expected).max()) / float(np.abs(expected).max())


if __name__ == "__main__":
    main()

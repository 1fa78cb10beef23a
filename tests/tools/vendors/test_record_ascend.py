"""Recording of pyACL's calls with the stand-in, and the evaluation of differences."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.buckets import bucket
from tests.python_path import python_path
from tests.runtime.ascend.engines import bundle_with_engine
from tools.vendors.acl_recording import (
    RecordedCall,
    Transcript,
    differences_from_contract,
    differences_of_transcripts,
    marked_contract,
)

from lopa.runtime.ascend.acl_contract import TABLE, acl_contract

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def bundle(tiny_portable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    buckets = [bucket(1, 1, 48, 64), bucket(2, 2, 64, 128)]
    return bundle_with_engine(tiny_portable, tmp_path_factory.mktemp("record") / "bundle", buckets)


def run(*arguments: str, stand_in: bool = True) -> "subprocess.CompletedProcess[str]":
    path = [ROOT / "src", ROOT, *([ROOT / "tests" / "runtime" / "ascend" / "as_acl"] if stand_in else [])]
    return subprocess.run(
        [sys.executable, "-m", "tools.vendors.record_ascend", *arguments],
        env={**os.environ, "PYTHONPATH": python_path(*path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def transcript(bundle: Path) -> Transcript:
    output = bundle.parent / "transcript.json"
    done = run(str(bundle), "-o", str(output))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "the stand-in (no evidence about a real machine), 0 differences" in done.stdout
    return msgspec.json.decode(output.read_bytes(), type=Transcript)


def test_the_transcript_has_every_call_and_bucket(transcript: Transcript) -> None:
    assert transcript.stand_in
    assert {call.name for call in transcript.calls} == {call.name for call in acl_contract().calls}
    assert transcript.provoked == {"rt.set_device": 107001, "rt.malloc": 107002}
    assert set(transcript.largest_difference) == {"(1, 1, 48, 64, 48)", "(2, 2, 64, 128, 64)"}
    assert all(difference < 1e-4 for difference in transcript.largest_difference.values())
    assert "thread" in transcript.rules


def test_a_repeated_run_has_no_differences(bundle: Path, transcript: Transcript) -> None:
    earlier = bundle.parent / "earlier.json"
    earlier.write_bytes(msgspec.json.encode(msgspec.structs.replace(transcript, calls=transcript.calls[:-1])))
    before = TABLE.read_bytes()
    done = run(str(bundle), "-o", str(bundle.parent / "t.json"), "--against", str(earlier), "--mark")
    assert done.returncode == 2
    assert "nothing marked" in done.stderr
    number = sum(call.thread == "MainThread" for call in transcript.calls) - 1
    assert f"call {number} on MainThread: finalize() -> int, code 0, earlier none" in done.stdout
    assert TABLE.read_bytes() == before
    found = msgspec.json.decode((bundle.parent / "t.json").read_bytes(), type=Transcript)
    assert differences_of_transcripts(found, transcript) == []


CALLS = [
    RecordedCall("init", [], "int", 0),
    RecordedCall("rt.create_stream", [], "int, int", 0),
    RecordedCall("mdl.create_desc", [], "int", None),
]


def transcript_of(calls: list[RecordedCall], **changes: object) -> Transcript:
    made = Transcript(
        stand_in=False, soc="A", made="", calls=calls, provoked={}, largest_difference={}, rules=["thread"]
    )
    return msgspec.structs.replace(made, **changes)


def differences(calls: list[RecordedCall], **changes: object) -> list[str]:
    found = differences_from_contract(transcript_of(calls, **changes), acl_contract())
    return [line for line in found if "never called" not in line]


def test_differences_from_the_table() -> None:
    assert differences(CALLS) == []
    never = differences_from_contract(transcript_of(CALLS), acl_contract())
    assert "acl.finalize was never called" in never
    assert "acl.init was never called" not in never
    assert differences([RecordedCall("init", [], "int, int", 0)]) == ["acl.init returned (int, int), expected ret"]
    assert differences([RecordedCall("rt.create_stream", [], "int", 0)]) == [
        "acl.rt.create_stream returned (int), expected value, ret"
    ]
    assert differences([RecordedCall("init", [], "NoneType", None)]) == [
        "acl.init returned (NoneType), whose code is not an integer"
    ]
    failed = [RecordedCall("init", [], "int", 7)] * 2
    assert differences(failed) == ["acl.init returned the code 7"]
    assert differences(failed, provoked={"init": 107001}) == []
    assert differences(failed, provoked={"init": 7}) == [
        "acl.init was made to fail and returned 7, which is not in the table"
    ]


def test_only_confirmed_entries_are_marked() -> None:
    calls = [*CALLS[:2], RecordedCall("mdl.create_desc", [], "int, int", None)]
    marked = marked_contract(acl_contract(), transcript_of(calls, provoked={"rt.malloc": 107002}))
    recorded = {each.name for each in (*marked.calls, *marked.rules, *marked.codes) if each.evidence == "recorded"}
    assert recorded == {"init", "rt.create_stream", "thread", "ACL_ERROR_RT_CONTEXT_NULL"}
    with pytest.raises(ValueError, match="stand-in"):
        marked_contract(acl_contract(), transcript_of(calls, stand_in=True))

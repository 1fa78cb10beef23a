"""Holes are filled as in recorded loops: a plain loop in float64 without a cache, token by token and step by step.

tests/reference/infill/README.md describes the recordings.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conformance.family_traces import read_family_traces
from tests.conformance.infill_recordings import (
    infill_comparisons,
    infill_files,
    is_dreamon,
)
from tests.conformance.recorded import DEVICE, Record, check_comparisons
from tests.dreamon_checkpoint import HEAD_ROWS

from lopa.runtime import Decoder

FILES = infill_files()


@pytest.fixture(scope="module")
def decoder_of(
    family_bundle: Callable[..., Path], export_tiny: Callable[..., Path], expand_bundle: Path
) -> Callable[[Path], Decoder]:
    """Return a function that opens the model of a recording."""

    def opened(path: Path) -> Decoder:
        header, _ = read_family_traces(path)
        if is_dreamon(header):
            assert tuple(map(tuple, header["head_rows"])) == HEAD_ROWS
            return Decoder.open(expand_bundle, [device], threads=1)
        bundle = export_tiny(with_logits=False, lora=None) if header["shift"] else family_bundle("llada")
        return Decoder.open(bundle, [device], threads=1)

    device = DEVICE.format(0)
    return opened


@pytest.mark.parametrize("limit", [6, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_recorded_loops_are_reproduced(
    path: Path, limit: int, decoder_of: Callable[[Path], Decoder], record_property: Record
) -> None:
    with decoder_of(path) as decoder:
        found = infill_comparisons(path, decoder, limit)
    assert len(found) == limit
    check_comparisons(found, record_property)


def test_every_recording_is_there() -> None:
    assert [path.name.partition(".")[0] for path in FILES] == [
        "dream_eb05_all",
        "dream_t09_b4",
        "dreamon_entropy_pad",
        "dreamon_maskgit_nopad",
        "llada_one_all",
        "llada_t05_hole",
    ]
    steps = [step for path in FILES for trace in read_family_traces(path)[1] for step in trace["steps"]]
    assert {step["what"] for step in steps if "what" in step} == {"fill", "expand", "delete"}

"""Our decoder on ONNX Runtime reproduces every recorded trace of the published implementation."""

from pathlib import Path

import pytest
from tests.conformance.recorded import comparisons_of_file, read_traces, trace_files

from lopa.runtime.bundle import Bundle
from lopa.runtime.sessions.session import open_session


@pytest.mark.parametrize("path", trace_files(), ids=lambda path: path.name.split(".")[0])
def test_published_traces_are_reproduced(path: Path, tiny_bundle: Path, record_property) -> None:
    bundle = Bundle.open(tiny_bundle)
    session = open_session(bundle, "cpu", threads=1)
    comparisons = comparisons_of_file(path, session, bundle.manifest)
    session.close()

    mismatches = [each.mismatch for each in comparisons if each.mismatch is not None]
    assert not mismatches, "\n".join(mismatches)
    assert sum(each.whole for each in comparisons) > 0.9 * len(comparisons), "too many differences at near-ties"
    record_property("traces", len(comparisons))
    record_property("steps", sum(each.steps for each in comparisons))
    record_property("near_ties", sum(each.near_ties for each in comparisons))
    record_property("diverged", sum(each.diverged_at is not None for each in comparisons))


def test_every_recorded_trace_exists() -> None:
    assert len(trace_files()) == 31
    assert sum(len(read_traces(path)[1]) for path in trace_files()) == 1072

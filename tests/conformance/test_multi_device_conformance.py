"""A sample of every file of recorded traces, decoded on 2, 3, 4 and 8 devices that share the branches.

tools/reports/conformance.py decodes all of them with any number of devices.
"""

from pathlib import Path

import pytest
from tests.conformance.recorded import comparisons_of_file, trace_files

from lopa.runtime.bundle import Bundle
from lopa.runtime.multi_device.branch_session import BranchParallelSession
from lopa.runtime.sessions.session import open_session

DEVICES = (2, 3, 4, 8)
TRACES = 3
"""Number of traces per file."""


@pytest.mark.parametrize(
    ("path", "devices"),
    [(path, DEVICES[number % len(DEVICES)]) for number, path in enumerate(trace_files())],
    ids=lambda value: value.name.split(".")[0] if isinstance(value, Path) else str(value),
)
def test_devices_reproduce_the_recordings(path: Path, devices: int, tiny_bundle: Path, record_property) -> None:
    bundle = Bundle.open(tiny_bundle)
    session = BranchParallelSession([open_session(bundle, "cpu", threads=1) for _ in range(devices)])
    comparisons = comparisons_of_file(path, session, bundle.manifest, limit=TRACES)
    session.close()
    assert [each.mismatch for each in comparisons if each.mismatch is not None] == []
    assert sum(each.whole for each in comparisons) >= TRACES - 1, "too many differences at near-ties"
    assert session.lost == ()
    record_property("traces", len(comparisons))
    record_property("steps", sum(each.steps for each in comparisons))

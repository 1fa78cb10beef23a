"""A sample of the recorded traces on the portable graph. tools/reports/conformance.py runs all of them."""

from pathlib import Path

import pytest
from tests.conformance.recorded import TRACES, comparisons_of_file

from lopa.runtime.bundle import Bundle
from lopa.runtime.sessions.session import open_session

FILES = ["d2f_bs16_block", "lopa_bf4_bs16_block", "lopa_bf8_bs32_full", "x_lopa_bf4_new120_bs32"]


@pytest.mark.parametrize("name", FILES)
def test_published_traces_are_reproduced(name: str, tiny_portable: Path, record_property) -> None:
    bundle = Bundle.open(tiny_portable)
    session = open_session(bundle, "cpu", threads=1)
    comparisons = comparisons_of_file(TRACES / f"{name}.jsonl.gz", session, bundle.manifest)
    session.close()
    mismatches = [each.mismatch for each in comparisons if each.mismatch is not None]
    assert not mismatches, "\n".join(mismatches)
    assert sum(each.whole for each in comparisons) > 0.9 * len(comparisons), "too many differences at near-ties"
    record_property("steps", sum(each.steps for each in comparisons))

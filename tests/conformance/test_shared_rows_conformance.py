"""A sample of the recorded block-causal traces with lookahead, with equal rows of several branches computed once.

tools/reports/conformance.py --deduplicate-rows decodes all of them in this way.
"""

from pathlib import Path

import pytest
from tests.conformance.recorded import comparisons_of_file, read_traces, trace_files
from tests.params import params_of

from lopa.runtime.bundle import Bundle
from lopa.runtime.row_sharing import always
from lopa.runtime.sessions.session import open_session

TRACES = 2
"""Number of traces per file."""


def shares_rows(path: Path) -> bool:
    params = params_of(read_traces(path)[0])
    return params.attention == "block_causal" and params.lookaheads > 0


FILES = [path for path in trace_files() if shares_rows(path)]


def test_the_recordings_that_share_rows_exist() -> None:
    assert len(FILES) == 8


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.split(".")[0])
def test_recordings_are_reproduced(path: Path, tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    session = open_session(bundle, "cpu", threads=1)
    comparisons = comparisons_of_file(path, session, bundle.manifest, limit=TRACES, sharing=always)
    session.close()
    assert [each.mismatch for each in comparisons if each.mismatch is not None] == []
    assert sum(each.whole for each in comparisons) >= TRACES - 1, "too many differences at near-ties"

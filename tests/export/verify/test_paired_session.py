"""Two sessions that run the same forwards."""

from pathlib import Path

from tests.runtime.random_windows import assert_same_statistics
from tests.runtime.shortened import assert_shortened_equals_fresh

from lopa.export.verify.paired_session import PairedSession
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Statistics
from lopa.runtime.sessions.session import open_session


def test_both_forget_the_same_rows(tiny_bundle: Path) -> None:
    compared = 0

    def compare(expected: Statistics, found: Statistics) -> None:
        nonlocal compared
        compared += 1
        assert_same_statistics(found, expected)

    reference, candidate, fresh = (open_session(Bundle.open(tiny_bundle), "cpu", threads=1) for _ in range(3))
    pair = PairedSession(reference, candidate, compare)
    assert_shortened_equals_fresh(pair, fresh, exact=True, turns=4)
    assert compared > 8
    pair.close()
    fresh.close()

import re

import pytest

from lopa.export.ascend.contract import atc_contract, codes_of_output, failure_of_output


def test_a_code_belongs_to_one_failure() -> None:
    codes = [code for failure in atc_contract().failures for code in failure.codes]
    assert len(codes) == len(set(codes))
    assert all(codes_of_output(f"x {code}: y") == [code] for code in codes)
    for failure in atc_contract().failures:
        assert failure.codes or failure.pattern
        re.compile(failure.pattern or "")


@pytest.mark.parametrize(
    ("output", "known"),
    [
        ("ATC run failed\nE16002: Optype [Gelu]", "E16002"),
        ("EZ9999: Inner Error!\nE40021: failed to compile", "EZ9999"),
        ("E19999: Inner Error!\nE40021: failed to compile", "E40021"),
    ],
)
def test_the_first_known_code_counts(output: str, known: str) -> None:
    failure = failure_of_output(output)
    assert failure is not None
    assert known in failure.codes


def test_a_failure_without_a_code() -> None:
    failure = failure_of_output("[ERROR] the opp version 8.0 and the compiler's do not match: mismatch")
    assert failure is not None
    assert failure.codes == []
    assert failure.exit_code == 3


@pytest.mark.parametrize("output", ["", "E19999: Inner Error!", "0xE160021 FE10054", "Segmentation fault"])
def test_unknown_failures(output: str) -> None:
    assert failure_of_output(output) is None

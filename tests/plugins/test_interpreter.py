"""Kernels are interpreted if Triton supports it, and otherwise skipped with the reason."""

import pytest
from tests.plugins.conftest import reason_against_interpreter


@pytest.mark.parametrize(
    ("triton", "numpy", "reason"),
    [
        ((3, 7), (2, 4), None),
        ((4, 0), (3, 0), None),
        ((3, 6), (2, 3), None),
        ((3, 6), (2, 4), "Triton 3.6 interprets nothing with numpy 2.4"),
        ((3, 5), (2, 10), "Triton 3.5 interprets nothing with numpy 2.10"),
        (None, (2, 4), "needs Triton"),
    ],
)
def test_versions(triton: tuple[int, int] | None, numpy: tuple[int, int], reason: str | None) -> None:
    found = reason_against_interpreter(triton, numpy)
    assert (found is None) == (reason is None)
    assert (found or "").startswith(reason or "")

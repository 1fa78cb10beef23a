"""The table of ATC's operators, against the vendor's list for some of them."""

import pytest

from lopa.export.graph.portable_lint import ALLOWED, ascend_operators
from lopa.export.graph.portable_passes import OPSET


@pytest.mark.parametrize(
    ("operator", "domain", "opsets"),
    [
        ("TopK", "", set(range(8, 19))),
        ("GreaterOrEqual", "", {8, *range(12, 19)}),
        ("LayerNormalization", "ai.onnx", {17, 18}),
        ("NPURmsNorm", "npu", {1}),
        ("RMSNormalization", "", set()),
        ("Constant", "", set()),
        ("TopK", "com.microsoft", set()),
    ],
)
def test_registered_opsets(operator: str, domain: str, opsets: set[int]) -> None:
    assert ascend_operators().opsets_of(operator, domain) == opsets


def test_every_operator_of_the_dialect_is_registered_at_its_opset() -> None:
    assert all(OPSET in ascend_operators().opsets_of(operator) for operator in ALLOWED)
    assert len(ascend_operators().opsets) == 307

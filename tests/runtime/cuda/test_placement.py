"""No forward copies between host and device by itself: otherwise nothing could be captured as a CUDA graph."""

from pathlib import Path

import onnx
import onnx.parser
import pytest
from tests.runtime.cuda.placement import Copied, copied_values

from lopa.runtime.bundle import Bundle


def copied_in_bundle(path: Path) -> list[Copied]:
    return list(copied_values(onnx.load(Bundle.open(path).graph, load_external_data=False)))


def test_graphs_of_both_dialects_copy_nothing(tiny_bundle_logits: Path, tiny_portable: Path) -> None:
    assert copied_in_bundle(tiny_bundle_logits) == []
    assert copied_in_bundle(tiny_portable) == []


def test_quantized_graphs_copy_nothing(tiny_quantized: Path) -> None:
    assert copied_in_bundle(tiny_quantized) == []


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("s = Shape(x) y = Expand(x, s)", []),
        ("s = Shape(x) n = Squeeze(s) r = Range(zero, n, one) y = Add(x, r)", []),
        ("s = Shape(x) n = Squeeze(s) m = Mul(n, n) r = Range(zero, m, n) y = Add(x, r)", []),
        ("s = Shape(x) n = Squeeze(s) r = Range(zero, n, one) y = Mul(r, n)", [Copied("n", "Mul")]),
        ("h = Add(x, one) s = Shape(x) y = Add(h, s)", [Copied("s", "Add")]),
        ("h = Add(x, one) y = Reshape(x, h)", [Copied("h", "Reshape")]),
    ],
)
def test_copies_are_found(nodes: str, expected: list[Copied]) -> None:
    head = '<ir_version: 10, opset_import: ["": 20]> graph (int64[N] x) => (int64[M] y)'
    constants = "<int64 zero = {0}, int64 one = {1}>"
    model = onnx.parser.parse_model(f"{head} {constants} {{ {nodes} }}")
    assert list(copied_values(model)) == expected

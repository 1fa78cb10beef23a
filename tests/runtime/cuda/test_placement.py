"""Forwards need no copies between host and device. Otherwise they could not be captured as CUDA graphs."""

from pathlib import Path

import onnx
import onnx.parser
import pytest
from tests.runtime.cuda.placement import CopiedValue, copied_values

from lopa.runtime.bundle import Bundle


def copied_values_of_bundle(path: Path) -> list[CopiedValue]:
    return list(copied_values(onnx.load(Bundle.open(path).graph, load_external_data=False)))


def test_graphs_of_both_dialects_need_no_copies(tiny_bundle_logits: Path, tiny_portable: Path) -> None:
    assert copied_values_of_bundle(tiny_bundle_logits) == []
    assert copied_values_of_bundle(tiny_portable) == []


def test_quantized_graphs_need_no_copies(tiny_quantized: Path) -> None:
    assert copied_values_of_bundle(tiny_quantized) == []


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("s = Shape(x) y = Expand(x, s)", []),
        ("s = Shape(x) n = Squeeze(s) r = Range(zero, n, one) y = Add(x, r)", []),
        ("s = Shape(x) n = Squeeze(s) m = Mul(n, n) r = Range(zero, m, n) y = Add(x, r)", []),
        ("s = Shape(x) n = Squeeze(s) r = Range(zero, n, one) y = Mul(r, n)", [CopiedValue("n", "Mul")]),
        ("h = Add(x, one) s = Shape(x) y = Add(h, s)", [CopiedValue("s", "Add")]),
        ("h = Add(x, one) y = Reshape(x, h)", [CopiedValue("h", "Reshape")]),
    ],
)
def test_copies_are_found(nodes: str, expected: list[CopiedValue]) -> None:
    head = '<ir_version: 10, opset_import: ["": 20]> graph (int64[N] x) => (int64[M] y)'
    constants = "<int64 zero = {0}, int64 one = {1}>"
    model = onnx.parser.parse_model(f"{head} {constants} {{ {nodes} }}")
    assert list(copied_values(model)) == expected

"""Forwards need no copies between host and device. Otherwise they could not be captured as CUDA graphs."""

from pathlib import Path

import onnx
import onnx.parser
from tests.runtime.cuda.placement import CopiedValue, copied_values

from lopa.runtime.bundle import Bundle


def copied_values_of_bundle(path: Path) -> list[CopiedValue]:
    return list(copied_values(onnx.load(Bundle.open(path).graph, load_external_data=False)))


def test_graphs_of_both_dialects_need_no_copies(tiny_bundle_logits: Path, tiny_portable: Path) -> None:
    assert copied_values_of_bundle(tiny_bundle_logits) == []
    assert copied_values_of_bundle(tiny_portable) == []


def test_quantized_graphs_need_no_copies(tiny_quantized: Path) -> None:
    assert copied_values_of_bundle(tiny_quantized) == []

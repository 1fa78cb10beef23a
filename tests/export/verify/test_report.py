"""A bundle against the checkpoint it was made from, in two types."""

from pathlib import Path

import pytest

from lopa.export.verify.report import _rounding, report_from_bundle
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.tiny import ADAPTER, CHECKPOINT

OUTPUTS = ["topk_ids", "topk_logprobs", "entropy", "key", "value"]


def test_float32_agrees_with_both_references(tiny_bundle_logits: Path) -> None:
    received: list[str] = []
    report = report_from_bundle(
        Bundle.open(tiny_bundle_logits),
        checkpoint=CHECKPOINT,
        lora=ADAPTER,
        progress=lambda stage, _done, _total: received.append(stage),
    )
    assert report.ok
    outputs = [(error.reference, error.output.rpartition(".")[2]) for error in report.errors]
    of_graph = [*OUTPUTS[:3], "logits", *OUTPUTS[3:]]
    of_twin = ["cpu/topk_ids", "cpu/topk_logprobs", "cpu/entropy", "cpu/logits", *OUTPUTS[3:]]
    references = ("numpy", "transformers")
    assert outputs == [(name, output) for graph in (of_graph, of_twin) for name in references for output in graph]
    assert all(error.difference.relative < 5e-5 for error in report.errors)
    assert list(dict.fromkeys(received)) == [
        "digests",
        "digests of the checkpoint",
        "loading the checkpoint",
        "comparing",
        "comparing the cpu graph",
    ]


@pytest.mark.usefixtures("few_cases")
def test_float16_agrees_within_its_own_tolerance(tiny_half: Path) -> None:
    report = report_from_bundle(Bundle.open(tiny_half), checkpoint=CHECKPOINT, lora=ADAPTER)
    assert report.ok
    assert [error.tolerance for error in report.errors] == [3e-2] * 24
    rows = [error for error in report.errors if error.output.startswith("window_key_values")]
    assert all(1e-5 < error.difference.relative < 1e-2 for error in rows)


def test_tf32_has_a_tolerance_of_its_own(tiny_bundle: Path, tiny_quantized: Path) -> None:
    """No GPU runs here. Rounding of 10 bits passes bfloat16's tolerance, and would not pass float32's."""
    plain, quantized = Bundle.open(tiny_bundle), Bundle.open(tiny_quantized)
    for device, expected in {
        "cuda:0": None,
        "cuda:0:tf32": "bfloat16",
        "cuda:0+cuda:1": None,
        "cuda:0+cuda:1:tf32": "bfloat16",
        "qnn": "float16",
        "openvino:CPU:bf16": "bfloat16",
    }.items():
        assert _rounding(plain, device) == expected
    assert _rounding(quantized, "cuda:0:tf32") is None  # its matrices have a larger tolerance


def test_an_adapter_needs_its_base(tiny_bundle: Path) -> None:
    with pytest.raises(BadInputError, match="--lora without --checkpoint"):
        report_from_bundle(Bundle.open(tiny_bundle), lora=ADAPTER)

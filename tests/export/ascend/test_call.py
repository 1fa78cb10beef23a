"""Expected argument lists: tests/runtime/ascend/arguments.json."""

import json
from pathlib import Path

import onnx
import pytest
from tests.runtime.bundle.test_buckets import BUCKETS, bucket

from lopa.export.ascend.call import AtcCall, arguments_from_call, calls_from_inputs
from lopa.export.ascend.contract import atc_contract
from lopa.export.ascend.inputs import bucketed_inputs
from lopa.runtime.ascend.ascend_manifest import EngineInput, Precision
from lopa.runtime.bundle import Bundle

GOLDEN = json.loads((Path(__file__).parents[2] / "runtime" / "ascend" / "arguments.json").read_text())
ALIKE = [bucket(1, 4, 16, 64), bucket(1, 2, 32, 64)]
CASES: dict[str, tuple[list[object], str, Precision, bool]] = {
    "three buckets": (BUCKETS, "Ascend910_9392", "origin", False),
    "two buckets of one request, fp16": (BUCKETS[:2], "Ascend310P3", "fp16", False),
    "one bucket, bf16": (BUCKETS[:1], "Ascend910B1", "bf16", False),
    "two buckets that fold to one tuple": (ALIKE, "Ascend910B1", "origin", False),
    "int8, three buckets": (BUCKETS, "Ascend910B4-1", "fp16", True),
}


def commands_of(case: str, model: onnx.ModelProto) -> list[list[str]]:
    buckets, soc, precision, int8 = CASES[case]
    calls = calls_from_inputs(
        bucketed_inputs(model, buckets),  # type: ignore[arg-type]
        graph="portable.onnx",
        soc_version=soc,
        precision=precision,
        int8=int8,
    )
    return [arguments_from_call(call) for call in calls]


@pytest.mark.parametrize("case", CASES)
def test_argument_lists(case: str, tiny_portable: Path) -> None:
    model = onnx.load(Bundle.open(tiny_portable).graph, load_external_data=False)
    assert commands_of(case, model) == GOLDEN[case]


def test_every_flag_is_in_the_contract() -> None:
    known = {entry.name for entry in atc_contract().entries if entry.kind == "flag"}
    used = {argument.partition("=")[0] for commands in GOLDEN.values() for each in commands for argument in each[1:]}
    assert used == known


def test_a_scalar_has_no_numbers() -> None:
    inputs = (
        EngineInput(name="s", dtype="float32", dims=[]),
        EngineInput(name="x", dtype="float32", dims=[1, -1]),
    )
    arguments = arguments_from_call(AtcCall("g.onnx", "buckets", "Ascend910B1", "origin", False, inputs, ((8,), (16,))))
    assert "--input_shape=s:;x:1,-1" in arguments
    assert "--dynamic_dims=8;16" in arguments

"""Golden argument lists: tests/ascend/arguments.json."""

import json
from pathlib import Path

import onnx
import pytest
from tests.runtime.test_gears import GEARS, gear

from lopa.export.ascend_call import AtcCall, arguments_from_call, calls_from_inputs, number_of_dims
from lopa.export.ascend_contract import atc_contract
from lopa.export.ascend_inputs import GearedInputs, geared_inputs
from lopa.runtime.ascend_manifest import EngineInput, Precision
from lopa.runtime.bundle import Bundle

GOLDEN = json.loads((Path(__file__).parents[1] / "ascend" / "arguments.json").read_text())
ALIKE = [gear(1, 4, 16, 64), gear(1, 2, 32, 64)]
CASES: dict[str, tuple[list[object], str, Precision, bool]] = {
    "three gears": (GEARS, "Ascend910_9392", "origin", False),
    "two gears of one request, fp16": (GEARS[:2], "Ascend310P3", "fp16", False),
    "one gear, bf16": (GEARS[:1], "Ascend910B1", "bf16", False),
    "two gears that fold to one tuple": (ALIKE, "Ascend910B1", "origin", False),
    "int8, three gears": (GEARS, "Ascend910B4-1", "fp16", True),
}


def commands_of(case: str, model: onnx.ModelProto) -> list[list[str]]:
    gears, soc, precision, int8 = CASES[case]
    calls = calls_from_inputs(
        geared_inputs(model, gears),  # type: ignore[arg-type]
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
    arguments = arguments_from_call(AtcCall("g.onnx", "gears", "Ascend910B1", "origin", False, inputs, ((8,), (16,))))
    assert "--input_shape=s:;x:1,-1" in arguments
    assert "--dynamic_dims=8;16" in arguments


@pytest.mark.parametrize(("layers", "calls"), [(14, 1), (15, 3)])
def test_more_dims_than_can_be_set_take_an_om_for_each_gear(layers: int, calls: int) -> None:
    """Of the portable form's other inputs there are 15 dims."""
    ranks = [2, 2, 4, 4, 1, 2] + [4] * 2 * layers
    inputs = tuple(EngineInput(name=f"i{i}", dtype="float32", dims=[-1] * rank) for i, rank in enumerate(ranks))
    total = number_of_dims(inputs)
    assert total == 15 + 8 * layers
    geared = GearedInputs(inputs, tuple((size,) * total for size in (1, 2, 3)))
    found = calls_from_inputs(geared, graph="g.onnx", soc_version="Ascend910B1", precision="origin", int8=False)
    assert len(found) == calls
    assert [call.name for call in found] == (["gears"] if calls == 1 else ["gear-0", "gear-1", "gear-2"])
    assert all(bool(call.tuples) == (calls == 1) for call in found)

from pathlib import Path

import msgspec
import onnx
import pytest
from tests.runtime.ascend.graphs import quantized

from lopa.export.ascend.call import AtcCall
from lopa.export.ascend.rules import check_call, check_graph
from lopa.runtime.ascend.ascend_manifest import EngineInput, Precision
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError

X = EngineInput(name="x", dtype="int64", dims=[1, -1])
Y = EngineInput(name="y", dtype="float32", dims=[-1, 4])


def call(
    *tuples: tuple[int, ...],
    inputs: tuple[EngineInput, ...] = (X, Y),
    soc: str = "Ascend910B1",
    precision: Precision = "origin",
    int8: bool = False,
) -> AtcCall:
    return AtcCall("portable.onnx", "buckets", soc, precision, int8, inputs, tuples)


def many(count: int) -> list[tuple[int, int]]:
    return [(1, number) for number in range(1, count + 1)]


FIXED = tuple(msgspec.structs.replace(each, dims=[1, 4]) for each in (X, Y))


@pytest.mark.parametrize(
    "good",
    [
        call((1, 2), (3, 4)),
        call(*many(100)),
        call(*many(256), soc="Ascend950PR_9599"),
        call(inputs=FIXED),
        call(inputs=FIXED, int8=True, precision="fp16"),
        call((1, 2), (3, 4), soc="Ascend310P3", precision="fp16"),
    ],
)
def test_valid_calls(good: AtcCall) -> None:
    check_call(good, "float32")


@pytest.mark.parametrize(
    ("bad", "code", "message"),
    [
        (call(*many(101)), "E10036", "101 shape buckets for Ascend910B1, whose limit is 100"),
        (call(*many(257), soc="Ascend950PR_9599"), "E10036", "limit is 256"),
        (call(inputs=FIXED, int8=True), "", "int8 with precision origin"),
        (call((1, 2), (3, 4), soc="Ascend310P3", precision="bf16"), "", "precision bf16 for Ascend310P3"),
    ],
)
def test_calls_that_atc_rejects(bad: AtcCall, code: str, message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        check_call(bad, "float32")
    assert message in caught.value.received
    assert (f"({code})" if code else message) in caught.value.received
    assert caught.value.remedy


def test_a_bundle_in_bfloat16_is_not_for_310p() -> None:
    with pytest.raises(BadInputError, match="--dtype float16"):
        check_call(call((1, 2), (3, 4), soc="Ascend310P1"), "bfloat16")
    check_call(call((1, 2), (3, 4)), "bfloat16")


def test_several_faults_are_reported_together() -> None:
    with pytest.raises(BadInputError, match=r"E10036\); precision bf16 .*; a bundle in bfloat16"):
        check_call(call(*many(101), soc="Ascend310P3", precision="bf16"), "bfloat16")


@pytest.fixture
def model(tiny_portable: Path) -> onnx.ModelProto:
    return onnx.load(Bundle.open(tiny_portable).graph, load_external_data=False)


def test_an_unsupported_node_is_named(model: onnx.ModelProto) -> None:
    node = next(node for node in model.graph.node if node.op_type == "Sigmoid")
    node.op_type = "Gelu"
    with pytest.raises(BadInputError) as caught:
        check_graph(model, int8=False)
    assert f"Gelu {node.name} (opset 17" in caught.value.received
    assert "(E16002)" in caught.value.received


def test_three_of_many_faults_are_shown(model: onnx.ModelProto) -> None:
    for node in model.graph.node[:5]:
        node.op_type = "Gelu"
    with pytest.raises(BadInputError, match=r"\(and 2 more\)"):
        check_graph(model, int8=False)


def test_a_second_opset_import(model: onnx.ModelProto) -> None:
    model.opset_import.add(domain="com.microsoft", version=1)
    with pytest.raises(BadInputError, match=r"com\.microsoft 1.*E16005"):
        check_graph(model, int8=False)


def test_operators_of_amct_are_for_int8_only(model: onnx.ModelProto) -> None:
    quantized(model)
    check_graph(model, int8=True)
    with pytest.raises(BadInputError, match="AscendQuant q"):
        check_graph(model, int8=False)
    model.graph.node[0].op_type = "Attention"
    with pytest.raises(BadInputError, match="E16002"):
        check_graph(model, int8=True)

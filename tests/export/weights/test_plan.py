"""The weight plan: every family's tensors, and layers of two kinds."""

import pytest
from tests.two_kinds import EXPERTS, network_of_two_kinds

from lopa.export.families.family import QWEN2_LAYER, Architecture
from lopa.export.weights.plan import (
    WeightPart,
    tensor_records_from_plan,
    weight_plan_from_network,
)
from lopa.export.weights.quantization import QuantizationChoice, quantized_plan
from lopa.runtime.bundle.manifest import ModelDimensions
from lopa.runtime.errors import BadInputError

SIZES = ModelDimensions(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=96,
    layers=3,
    heads=4,
    kv_heads=2,
    head_size=8,
    max_positions=512,
    rope_theta=10000.0,
    rms_norm_eps=1e-6,
    qkv_bias=False,
)
NETWORK = network_of_two_kinds(SIZES, inner=64)
ARCHITECTURE = Architecture(
    "two-kinds",
    prediction_shift=0,
    layer_names=QWEN2_LAYER
    | {
        "mlp.router.weight": "mlp.gate.weight",
        "mlp.router.bias": "mlp.gate.expert_bias",
        "mlp.experts.up.weight": "mlp.experts.up_proj",
        "mlp.experts.down.weight": "mlp.experts.down_proj",
    },
)
PLAN = weight_plan_from_network(NETWORK, ARCHITECTURE)


def test_layers_of_two_kinds_have_their_own_tensors() -> None:
    by_name = {weight.name: weight for weight in PLAN}
    assert [weight.name for weight in PLAN] == list(NETWORK.tensors)
    assert len([name for name in by_name if name.startswith("layers.0.")]) == 9
    assert len([name for name in by_name if name.startswith("layers.2.")]) == 10
    gate, experts = by_name["layers.0.mlp.gate.weight"], by_name["layers.1.mlp.experts.up.weight"]
    assert gate.parts == (WeightPart("model.layers.0.mlp.gate_proj.weight", (96, 32), 0, 96),)
    stacked = "model.layers.1.mlp.experts.up_proj"
    assert experts.parts == tuple(WeightPart(stacked, (EXPERTS, 64, 32), 64 * i, 64) for i in range(EXPERTS))
    assert experts.shape == (EXPERTS, 32, 64)
    assert "layers.1.mlp.gate.weight" not in by_name


@pytest.mark.parametrize(
    ("kind", "scales", "length"),
    [("int8", [EXPERTS, 64], EXPERTS * 32 * 64), ("int4", [EXPERTS, 1, 64], EXPERTS * 32 * 64 // 2)],
)
def test_stacked_matrices_have_scales_of_their_own(kind: str, scales: list[int], length: int) -> None:
    choice = QuantizationChoice("int8" if kind == "int8" else "int4", exclude=("*.router.weight",))
    records = tensor_records_from_plan(quantized_plan(PLAN, choice), "float16")
    experts = records["layers.2.mlp.experts.up.weight"]
    assert (experts.dtype, experts.length) == (kind, length)
    assert records["layers.2.mlp.experts.up.weight_scale"].shape == scales
    assert records["layers.2.mlp.router.weight"].dtype == "float16"


def test_inputs_of_stacked_matrices_are_cut_into_blocks() -> None:
    plan = weight_plan_from_network(network_of_two_kinds(SIZES, inner=48), ARCHITECTURE)
    with pytest.raises(BadInputError, match=r"layers\.1\.mlp\.experts\.down\.weight has 48 inputs"):
        quantized_plan(plan, QuantizationChoice("int4", exclude=("*.router.weight",)))

"""The weight plan: every family's tensors, and layers of two kinds."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.two_kinds import EXPERTS, network_of_two_kinds

from lopa.export.families.family import QWEN2_LAYER, Architecture
from lopa.export.graph.module import ContractForward
from lopa.export.graph.portable_module import PortableContractForward
from lopa.export.source import source_from_checkpoint
from lopa.export.weights.plan import (
    WeightPart,
    check_stored_tensors,
    source_shapes,
    tensor_records_from_plan,
    weight_plan_from_network,
)
from lopa.export.weights.quantization import QuantizationChoice, quantized_plan
from lopa.runtime.bundle.manifest import ModelDimensions
from lopa.runtime.bundle.network import network_from_dimensions
from lopa.runtime.errors import BadInputError
from lopa.tiny import CHECKPOINT

FAMILIES = Path(__file__).parents[2] / "reference" / "families"
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


@pytest.fixture(params=["tiny", "llada", "sdar", "fast_dllm_v2", "wedlm", "stable_diffcoder"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    """Return each of the small checkpoints."""
    if request.param == "tiny":
        return CHECKPOINT
    recorded = FAMILIES / request.param
    return recorded if recorded.exists() else request.getfixturevalue(f"{request.param}_checkpoint")


def test_shapes_match_the_checkpoint_and_the_modules(checkpoint: Path) -> None:
    source = source_from_checkpoint(checkpoint, None)
    network = network_from_dimensions(source.config.dimensions)
    for weight in source.planned:
        assert all(source.stored[part.source].shape == part.source_shape for part in weight.parts)
    expected = {name: tensor.shape for name, tensor in network.tensors.items()}
    assert {weight.name: weight.shape for weight in source.planned} == expected
    for form in (ContractForward, PortableContractForward):
        module = form(network, dtype=torch.float32, with_logits=False)
        assert {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()} == expected


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


def _dense_throughout(shapes: dict[str, tuple[int, ...]]) -> None:
    shapes |= {name.replace("layers.0", "layers.1"): shape for name, shape in shapes.items() if "layers.0" in name}


def _fewer_experts(shapes: dict[str, tuple[int, ...]]) -> None:
    shapes["model.layers.2.mlp.experts.up_proj"] = (EXPERTS - 1, 64, 32)


def _no_router(shapes: dict[str, tuple[int, ...]]) -> None:
    del shapes["model.layers.2.mlp.gate.weight"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_dense_throughout, r"has the tensor model\.layers\.1\.mlp\.down_proj\.weight, which"),
        (_fewer_experts, r"model\.layers\.2\.mlp\.experts\.up_proj has the shape \[7, 64, 32\]"),
        (_no_router, r"has no tensor model\.layers\.2\.mlp\.gate\.weight"),
    ],
)
def test_a_checkpoint_has_the_tensors_of_each_layer(
    change: Callable[[dict[str, tuple[int, ...]]], None], message: str
) -> None:
    shapes = source_shapes(PLAN)
    check_stored_tensors(PLAN, shapes, ignored=(), source="checkpoint")
    change(shapes)
    with pytest.raises(BadInputError, match=message):
        check_stored_tensors(PLAN, shapes, ignored=(), source="checkpoint")

"""Choices of tensors to quantize, and invalid choices."""

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from tests.export.checkpoints import failed_export, small_checkpoint
from tools.checkpoint.likeness import LIKENESSES

from lopa.export.families import FAMILIES
from lopa.export.source import source_from_checkpoint
from lopa.export.weights.plan import PlannedWeight, tensor_records_from_plan, weight_plan_from_network
from lopa.export.weights.quantization import QuantizationChoice, quantized_plan
from lopa.runtime.bundle.network import network_from_dimensions
from lopa.runtime.errors import BadInputError
from lopa.tiny import CHECKPOINT

PLAN = source_from_checkpoint(CHECKPOINT, None).planned
MATRICES = {weight.name for weight in PLAN if len(weight.shape) == 2} - {"embedding.weight"}


def _integers(planned: list[PlannedWeight]) -> set[str]:
    return {weight.name for weight in planned if weight.quantized is not None}


def test_all_matrices_but_the_embedding() -> None:
    assert len(MATRICES) == 5 * 7 + 1
    planned = quantized_plan(PLAN, QuantizationChoice("int8"))
    assert [weight.name for weight in planned] == [weight.name for weight in PLAN]
    assert _integers(planned) == MATRICES
    assert {weight.quantized for weight in planned} == {None, "int8"}
    assert _integers(quantized_plan(PLAN, QuantizationChoice("int4", head=False))) == MATRICES - {"head.weight"}


def test_patterns() -> None:
    patterns = ("layers.*.mlp.down.weight", "layers.[13].attention.*", "head.weight")
    found = _integers(quantized_plan(PLAN, QuantizationChoice("int4", exclude=patterns)))
    assert found == {name for name in MATRICES if not any(fnmatchcase(name, pattern) for pattern in patterns)}
    assert len(found) == 36 - 5 - 2 * 4 - 1


@pytest.mark.parametrize("pattern", ["layers.5.*", "mlp.down", "embedding.weight", "*.bias", "HEAD.weight", ""])
def test_a_pattern_that_matches_nothing(pattern: str) -> None:
    with pytest.raises(BadInputError, match="matches no tensor") as raised:
        quantized_plan(PLAN, QuantizationChoice("int8", exclude=("*.down.weight", pattern)))
    assert repr(pattern) in raised.value.received
    assert "layers.0.attention.query.weight" in raised.value.expected


def test_excluding_every_matrix_is_rejected() -> None:
    with pytest.raises(BadInputError, match="leaves no tensor to quantize"):
        quantized_plan(PLAN, QuantizationChoice("int8", exclude=("*",)))


def test_inputs_that_cannot_be_cut_into_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes={"num_hidden_layers": 1})  # the MLP is 48 wide
    message = failed_export(capsys, checkpoint, "--quantize", "int4")
    assert "layers.0.mlp.down.weight has 48 inputs" in message
    assert "--quantize int8" in message


def test_seven_billion_weights_in_int4_fit_a_gpu_of_8_gb() -> None:
    """A twin holds each tensor once. The rest is for 32 rows and 1,024 cached ones."""
    like = LIKENESSES["dream-7b"]
    sizes, architecture = like.dimensions, FAMILIES[like.family].architecture
    plan = quantized_plan(
        weight_plan_from_network(network_from_dimensions(sizes), architecture), QuantizationChoice("int4")
    )
    weights = sum(record.length for record in tensor_records_from_plan(plan, "bfloat16").values())
    caches = (1024 + 32) * 2 * sizes.layers * sizes.kv_heads * sizes.head_size * 2
    parts = 8 * 256 * max(sizes.hidden_size + 2 * sizes.kv_heads * sizes.head_size, sizes.hidden_size) * 4
    rows = 32 * (sizes.vocab_size + 2 * sizes.intermediate_size + 8 * sizes.hidden_size) * 4
    assert 5.0e9 < weights < 5.1e9
    assert weights + caches + parts + rows < 5.3e9


def test_sizes_of_integers_and_their_scales() -> None:
    for kind, bits, shapes in (
        ("int8", 8, {"layers.0.mlp.down.weight": [192], "head.weight": [1024]}),
        ("int4", 4, {"layers.0.mlp.down.weight": [16, 192], "head.weight": [6, 1024]}),
    ):
        choice = QuantizationChoice("int8" if kind == "int8" else "int4", exclude=("layers.1.*",))
        records = tensor_records_from_plan(quantized_plan(PLAN, choice), "float16")
        for name, shape in shapes.items():
            inputs, outputs = records[name].shape
            assert (records[name].dtype, records[name].length) == (kind, inputs * outputs * bits // 8)
            scale = records[f"{name}_scale"]
            assert (scale.shape, scale.dtype) == (shape, "float32" if kind == "int8" else "float16")
            assert scale.offset >= records[name].offset + records[name].length
        assert records["layers.1.mlp.down.weight"].dtype == "float16"
        assert "layers.1.mlp.down.weight_scale" not in records


def test_the_record_of_a_choice() -> None:
    choice = QuantizationChoice("int8", exclude=("a*",))
    int8, int4 = choice.record_for(["standard"]), QuantizationChoice("int4", head=False).record_for(["standard"])
    assert (int8.kind, int8.block, int8.activation, int8.head, int8.excluded) == (
        "int8",
        None,
        "int8_per_row",
        True,
        ["a*"],
    )
    assert (int4.kind, int4.block, int4.activation, int4.head, int4.excluded) == ("int4", 32, "none", False, [])
    assert choice.record_for(["standard", "portable"]) == int8
    assert choice.record_for(["portable"]).activation == "none"

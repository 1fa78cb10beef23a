"""Every entry that transformers' configuration classes know is used, listed as harmless, or refused by name."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.cli.command import lopa_export
from tests.export.checkpoints import ONE_LAYER, small_checkpoint
from tests.export.families.test_config_fields import write_config
from tests.tools.miniature import MINIATURES
from tools.checkpoint.likeness import config_from_likeness

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.checkpoint.config import HARMLESS, CheckpointConfig, config_from_checkpoint
from lopa.runtime.errors import BadInputError

CLASSES: dict[str, tuple[Any, ...]] = {
    "dream": (transformers.Qwen2Config,),
    "fast-dllm-v2": (transformers.Qwen2Config,),
    "llada": (),
    "sdar": (transformers.Qwen3Config,),
    "wedlm": (transformers.Qwen2Config, transformers.Qwen3Config),
    "stable-diffcoder": (transformers.LlamaConfig,),
    "llada2-moe": (transformers.Glm4MoeConfig,),
    "sdar-moe": (transformers.Qwen3MoeConfig,),
    "llada-moe": (transformers.Qwen3MoeConfig,),
}
OTHERS: dict[str, Any] = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 12345.0},
    "rope_scaling": {"rope_type": "default", "rope_theta": 12345.0},
    "layer_types": ["sliding_attention", "sliding_attention"],
    "mlp_only_layers": [0],
    "architectures": ["SomethingElse"],
    "model_type": "something_else",
    "quantization_config": {"quant_method": "fp8"},
    "dtype": "float16",
    "rms_norm_eps": 1e-3,
    "partial_rotary_factor": 0.25,
    "_name_or_path": "a/b",
    "id2label": {"0": "a"},
    "label2id": {"a": 0},
    "transformers_version": "1.2.3",
    "problem_type": "regression",
    "hidden_act": "gelu",
    "moe_layer_freq": [0, 1],
    "head_dim": 32,
    "n_group": 2,
    "first_k_dense_replace": 0,
    "use_qk_norm": False,
    "router_num_group": 4,
    "router_topk_group": 4,
}
"""Values for entries whose default does not say what another value is."""


def known_names(family: str) -> list[str]:
    """Return the entries that transformers' classes for the family know, and those of its published files."""
    common = [*transformers.PretrainedConfig().to_dict(), "rope_theta", "rope_scaling", "partial_rotary_factor"]
    common += ["pruned_heads", "is_decoder", "add_cross_attention", "tie_encoder_decoder", "torch_dtype", "is_causal"]
    known = [field.name for each in CLASSES[family] for field in dataclasses.fields(each)]
    return list(dict.fromkeys([*common, *known, *config_from_likeness(MINIATURES[family])]))


def changed(name: str, value: object) -> Any:
    """Return another value of an entry."""
    if name in OTHERS:
        return OTHERS[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return [value] if isinstance(value, list) else 1 if value is None else f"other {value}"


def read(folder: Path) -> CheckpointConfig | str:
    """Return the content of config.json, or the error."""
    try:
        return config_from_checkpoint(folder)
    except BadInputError as error:
        return f"{error.received} {error.expected}"


def kind_of(folder: Path, family: str, name: str) -> str:
    """Return used, harmless, refused or warned for a changed entry."""
    default = next(
        (each.default for cls in CLASSES[family] for each in dataclasses.fields(cls) if each.name == name), None
    )
    before = read_with(folder, family)
    value = config_from_likeness(MINIATURES[family]).get(name, default)
    after = read_with(folder, family, **{name: changed(name, value)})
    assert isinstance(before, CheckpointConfig)
    assert before.warnings == ()
    if isinstance(after, str):
        assert NAMED_AS.get((family, name), name) in after, after
        return "refused"
    if after.warnings:
        assert name in after.warnings[0]
        return "warned"
    return "used" if after != before else "harmless"


def read_with(folder: Path, family: str, **changes: Any) -> CheckpointConfig | str:
    """Return what is read of the family's config.json with changes."""
    write_config(folder, family, **changes)
    return read(folder)


@pytest.mark.parametrize("family", MINIATURES)
def test_changed_entries_are_used_harmless_or_refused(tmp_path: Path, family: str) -> None:
    # A class that no family has leaves the choice to model_type.
    harmless = (*HARMLESS, *NO_EFFECT.get(family, ()), "architectures")
    for name in known_names(family):
        kind = kind_of(tmp_path, family, name)
        assert kind != "warned", name
        assert kind != "harmless" or name in harmless, name


NAMED_AS = {
    ("llada", "vocab_size"): "embedding_size",
    ("llada2-moe", "num_experts"): "of 9 experts",
    ("llada-moe", "num_hidden_layers"): "moe_layer_freq",
}
"""Words of the error for entries that contradict another entry."""
NO_EFFECT: dict[str, tuple[str, ...]] = {
    "llada": ("mlp_ratio",),  # without mlp_hidden_size only
    "llada-moe": ("intermediate_size", "dense_intermediate_size"),  # the latter with dense layers only
}
"""Entries that are known, but whose value makes no difference to these files."""


def test_an_unknown_entry_is_warned_of(tmp_path: Path) -> None:
    for family in MINIATURES:
        values: tuple[object, ...] = (None, False, "", [], {})
        for value in values:
            found = read_with(tmp_path, family, new_field=value)
            assert isinstance(found, CheckpointConfig)
            assert found.warnings == ()
        found = read_with(tmp_path, family, new_field=3, other="x", temperature=None)
        assert isinstance(found, CheckpointConfig)
        assert len(found.warnings) == 1
        assert "ignoring new_field, other, which" in found.warnings[0]


def test_the_command_and_the_function_warn(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path / "c", changes={**ONE_LAYER, "new_field": 3})
    made = lopa_export("onnx", checkpoint, "-o", tmp_path / "b", "--quiet")
    assert made.returncode == 0, made.stderr
    assert made.stderr == f"warning: {checkpoint}/config.json: ignoring new_field, which lopa-export does not know\n"
    stages: list[str] = []
    bundle_from_checkpoint(checkpoint, tmp_path / "other", progress=lambda stage, _done, _total: stages.append(stage))
    assert any("ignoring new_field" in stage for stage in stages)


@pytest.mark.parametrize("family", ["sdar", "sdar-moe"])
@pytest.mark.parametrize("changes", [{"block_size": 1}, {"block_size": 3}, {"use_regular_causal": True}])
def test_causal_models_under_the_name_of_sdar(tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    """Uno and I-DLM publish SDAR's model_type and class, but are causal and predict the next position."""
    found = read_with(tmp_path, family, **changes)
    assert isinstance(found, str)
    assert "I-DLM" in found
    assert isinstance(read_with(tmp_path, family, block_size=4, use_regular_causal=False), CheckpointConfig)


@pytest.mark.parametrize("family", ["sdar", "sdar-moe", "dream"])
def test_a_checkpoint_with_uno_s_adapter(tmp_path: Path, family: str) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    found = read_with(tmp_path, family)
    assert isinstance(found, CheckpointConfig) if family == "dream" else "Uno" in str(found)


ROPE: dict[str, dict[str, Any]] = {
    "top level": {"rope_theta": 5e5},
    "rope_parameters": {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "rope_scaling": {"rope_theta": None, "rope_scaling": {"type": "default", "rope_theta": 5e5}},
    "rope_parameters first": {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "rope_scaling first": {"rope_theta": 1e4, "rope_scaling": {"rope_type": "default", "rope_theta": 5e5}},
    "scaling before parameters": {
        "rope_scaling": {"rope_type": "default", "rope_theta": 5e5},
        "rope_parameters": {"rope_type": "default", "rope_theta": 7e5},
    },
    "scaling without theta": {
        "rope_theta": 5e5,
        "rope_scaling": {"rope_type": "default"},
        "rope_parameters": {"rope_type": "default", "rope_theta": 7e5},
    },
    "no type": {"rope_theta": None, "rope_parameters": {"rope_theta": 5e5}},
}


@pytest.mark.parametrize("family", [family for family in CLASSES if CLASSES[family]])
def test_rotary_positions_are_transformers(tmp_path: Path, family: str) -> None:
    for case, changes in ROPE.items():
        found = read_with(tmp_path, family, **changes)
        values = json.loads((tmp_path / "config.json").read_text())
        theirs = CLASSES[family][0].from_dict({name: value for name, value in values.items() if value is not None})
        assert isinstance(found, CheckpointConfig), case
        assert found.dimensions.rope_theta == theirs.rope_parameters["rope_theta"] == 5e5


def test_llada_reads_rope_theta_at_the_top_level_only(tmp_path: Path) -> None:
    assert isinstance(
        read_with(tmp_path, "llada", rope_theta=5e5, rope_scaling=ROPE["no type"]["rope_parameters"]), CheckpointConfig
    )
    assert "has rope_theta = " in str(read_with(tmp_path, "llada", rope_theta=1e4, rope_scaling={"rope_theta": 5e5}))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "type": "mrope", "mrope_section": [1, 2]},
        {"full_attention": {"rope_type": "default", "rope_theta": 3e5}},
        {"rope_type": "default", "factor": 4.0},
        {"rope_type": "linear", "factor": 1.0},
    ],
)
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_other_rotary_positions_are_refused(tmp_path: Path, place: str, rope: dict[str, Any]) -> None:
    for family in MINIATURES:
        assert f"has {place} = " in str(read_with(tmp_path, family, **{place: rope}))


@pytest.mark.parametrize("family", ["sdar-moe", "llada2-moe", "llada-moe"])
def test_the_number_of_experts_under_both_names(tmp_path: Path, family: str) -> None:
    own = MINIATURES[family].dimensions
    architectures = config_from_likeness(MINIATURES[family])["architectures"]
    both: list[dict[str, Any]] = [{"num_experts": ..., "num_local_experts": 8}, {"num_local_experts": 8}]
    for names in both:
        found = read_with(tmp_path, family, **names, architectures=architectures)
        assert isinstance(found, CheckpointConfig)
        assert found.dimensions == own
    assert "num_local_experts = 9" in str(read_with(tmp_path, family, num_local_experts=9))


def test_the_mask_of_generation_config(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"mask_token_id": 639, "temperature": 0.2, "new": 1}))
    found = read_with(tmp_path, "dream", mask_token_id=639)
    assert isinstance(found, CheckpointConfig)
    found = read_with(tmp_path, "dream", mask_token_id=None)
    assert isinstance(found, CheckpointConfig)
    assert found.token_ids["mask"] == 639
    assert "mask_token_id = 639 638, as in config.json" in str(read_with(tmp_path, "dream", mask_token_id=638))

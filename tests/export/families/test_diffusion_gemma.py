"""Checkpoints of DiffusionGemma: sizes as transformers reads them, defaults, and refusals by name."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tests.canvas_checkpoints import CHECKPOINTS, FOLDER, changed_config
from transformers import AutoConfig, DiffusionGemmaForBlockDiffusion

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.bundle_plan import BundleChoices, plan_from_checkpoint
from lopa.export.checkpoint.config import config_from_checkpoint
from lopa.export.source import source_from_checkpoint
from lopa.export.verify.canvas_check import TransformersCanvasReference, canvas_cases, canvas_network_from_checkpoint
from lopa.export.verify.report import report_from_bundle
from lopa.export.weights.quantization import QuantizationChoice
from lopa.runtime.errors import BadInputError


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_sizes_are_those_that_transformers_reads(name: str) -> None:
    found, theirs = config_from_checkpoint(FOLDER / name).dimensions, AutoConfig.from_pretrained(FOLDER / name)
    text, canvas, moe = theirs.text_config, found.canvas, found.moe
    assert canvas is not None
    assert moe is not None
    assert (found.hidden_size, found.intermediate_size, found.heads) == (
        *(text.hidden_size, text.intermediate_size),
        text.num_attention_heads,
    )
    for layer, kind in enumerate(text.layer_types):
        own = text.per_layer_config[layer]
        assert found.attention_heads(layer) == (own.num_key_value_heads, own.head_dim)
        assert (layer in canvas.full_layers) == (kind == "full_attention")
    assert (canvas.canvas_length, canvas.sliding_window) == (theirs.canvas_length, text.sliding_window)
    assert (canvas.logit_cap, found.rope_theta) == (text.final_logit_softcapping, 10_000.0)
    assert (moe.experts, moe.experts_per_token, moe.expert_size) == (
        *(text.num_experts, text.top_k_experts),
        text.moe_intermediate_size,
    )


def test_both_forms_of_full_heads_are_read(tmp_path: Path) -> None:
    name = CHECKPOINTS[0]
    saved = config_from_checkpoint(FOLDER / name).dimensions
    assert saved.canvas is not None
    keywords = {
        "per_layer_config": ...,
        "global_head_dim": saved.canvas.full_head_size,
        "num_global_key_value_heads": saved.canvas.full_kv_heads,
    }
    assert read(tmp_path, name, **keywords).dimensions == saved
    other = read(tmp_path, name, **{**keywords, "num_global_key_value_heads": ...}).dimensions
    assert other.attention_heads(other.layers - 1) == (saved.kv_heads, saved.canvas.full_head_size)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention = 'all'"),
        ({"hidden_activation": "silu"}, "hidden_activation = 'silu'"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings = True"),
        ({"num_experts": None}, "num_experts = None"),
        ({"layer_types": ["sliding_attention", "linear_attention", "full_attention"]}, "layer_types"),
        ({"per_layer_config": {"0": {"head_dim": 32}}}, "per_layer_config"),
        ({"per_layer_config": {"2": {"head_dim": 32, "rope": 1}}}, "per_layer_config"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_parameters"),
        ({"rope_scaling": {"factor": 2}}, "rope_scaling"),
        ({"sliding_window": 0}, "sliding_window = 0"),
        ({"final_logit_softcapping": 0}, "final_logit_softcapping = 0"),
    ],
)
def test_other_networks_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        read(tmp_path, "canvas16", **changes)


def test_its_generation_config_gives_the_defaults(tmp_path: Path) -> None:
    plan = plan_from_checkpoint(FOLDER / "canvas16", tmp_path / "new", BundleChoices(defaults={"t_max": 0.9}))
    assert plan.decoding.strategy == "canvas"
    assert plan.decoding.block_size == 16
    assert plan.choices.defaults == {
        **{"max_new_tokens": 64, "max_denoising_steps": 48, "entropy_bound": 0.1, "t_min": 0.4, "t_max": 0.9},
        **{"stability_threshold": 1, "confidence_threshold": 0.005},
    }
    copy = copied(tmp_path, "canvas16")
    path = copy / "generation_config.json"
    path.write_text(json.dumps({"sampler_config": {"_cls_name": "OtherSampler"}}))
    with pytest.raises(BadInputError, match="sampler_config"):
        config_from_checkpoint(copy)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"dialects": ("portable",), "quantization": QuantizationChoice("int4")}, "--quantize int4 with the portable"),
        ({"stages": 2}, "--stages 2"),
        ({"dialects": ("standard", "portable"), "stages": 2}, "--stages 2"),
        ({"plugins": True}, "--plugins"),
        ({"rotary_inputs": True}, "--rotary-inputs"),
    ],
)
def test_other_forms_of_graphs_are_refused_by_name(tmp_path: Path, choices: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        plan_from_checkpoint(FOLDER / "canvas16", tmp_path / "new", BundleChoices(**choices))


LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TEXT_ONLY = {"target_modules": LINEAR, "exclude_modules": ".*(vision_tower|embed_vision).*"}
OWN = {"target_modules": r".*self_conditioning\.\w+_proj"}
SECOND_ALPHA = {"alpha_pattern": {r"encoder\.language_model\.layers\.1\.self_attn\.q_proj": 16}}


def adapter(folder: Path, *, shared: bool = False, **settings: Any) -> Path:
    """Save an adapter with random matrices. With `shared`, encoder and decoder use the same ones."""
    torch.manual_seed(0)
    with warnings.catch_warnings(action="ignore"):
        network = DiffusionGemmaForBlockDiffusion.from_pretrained(FOLDER / "canvas16")
        adapted = get_peft_model(network, LoraConfig(r=4, lora_alpha=8, init_lora_weights=False, **settings))
        for name, module in adapted.named_modules() if shared else ():
            if hasattr(module, "lora_A") and ".encoder.language_model." in name:
                own = adapted.get_submodule(name.replace(".encoder.language_model.", ".decoder."))
                module.lora_A, module.lora_B = own.lora_A, own.lora_B
        adapted.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("settings", "quantize"),
    [
        ({"shared": True, **TEXT_ONLY}, None),
        ({"shared": True, "target_modules": "all-linear"}, "int4"),  # also the router and the vision tower
        ({**OWN, "modules_to_save": ["lm_head", "decoder.norm"]}, None),
    ],
)
def test_adapters_are_merged_as_peft_computes_them_unmerged(
    tmp_path: Path, settings: dict[str, Any], quantize: Any
) -> None:
    lora = adapter(tmp_path / "lora", **settings)
    choice = quantize and QuantizationChoice(quantize)
    bundle = bundle_from_checkpoint(FOLDER / "canvas16", tmp_path / "new", lora=lora, quantization=choice)
    report = report_from_bundle(bundle, checkpoint=FOLDER / "canvas16", lora=lora)
    assert report.ok
    assert {"transformers", "numpy"} <= {each.reference for each in report.errors}
    network = canvas_network_from_checkpoint(FOLDER / "canvas16", lora)
    layers = (network.model.decoder.layers[1], network.model.encoder.language_model.layers[1])
    assert len({each.self_attn.q_proj.weight.data_ptr() for each in layers}) == 1  # for a bundle's quantized values
    with warnings.catch_warnings(action="ignore"):
        plain = DiffusionGemmaForBlockDiffusion.from_pretrained(FOLDER / "canvas16", attn_implementation="eager")
        apart = PeftModel.from_pretrained(plain, lora).eval()
    for case in canvas_cases(bundle.manifest):
        found, exact = (TransformersCanvasReference(each).logits(case) for each in (network, apart.get_base_model()))
        np.testing.assert_allclose(found, exact, atol=2e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (TEXT_ONLY, "q_proj.weight in different ways"),
        ({"target_modules": r"model\.decoder\.layers.*q_proj"}, "q_proj.weight in different ways"),
        ({"target_modules": r"model\.encoder\.language_model.*q_proj"}, "q_proj.weight in different ways"),
        ({"shared": True, **TEXT_ONLY, **SECOND_ALPHA}, "layers.1.self_attn.q_proj.weight in different ways"),
        ({**OWN, "target_parameters": ["experts.gate_up_proj"]}, "target_parameters"),
        ({**OWN, "modules_to_save": ["decoder.embed_tokens"]}, "embed_tokens.weight in different ways"),
        ({**OWN, "modules_to_save": ["experts"]}, "experts.down_proj, which does not fit"),
    ],
)
def test_adapters_that_one_set_of_weights_cannot_hold_are_refused(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadInputError, match=words):
        source_from_checkpoint(FOLDER / "canvas16", adapter(tmp_path, **settings))


def copied(folder: Path, name: str) -> Path:
    return Path(shutil.copytree(FOLDER / name, folder / "copy", dirs_exist_ok=True))


def read(folder: Path, name: str, **changes: Any) -> Any:
    copy = copied(folder, name)
    (copy / "config.json").write_text(json.dumps(changed_config(name, **changes)))
    return config_from_checkpoint(copy)

"""DiffusionGemma: canvases of random tokens, denoised by a network that also reads its own last probabilities.

One set of layers encodes causally and denoises in both directions. Every layer has a dense MLP and experts side by
side. Text only: the vision tower is left out, and image tokens in a prompt have their own embeddings, as in
transformers without pictures.
"""

from typing import Any

from lopa.export.families.family import Architecture, Family
from lopa.export.families.settings import Setting, fixed
from lopa.export.families.sizes import MAX_EXPERTS, checked_sizes, rms_norm_eps, vocabulary
from lopa.export.json_file import JsonValues
from lopa.runtime.bundle.manifest import MAX_LAYERS, CanvasNetwork, MixtureOfExperts, ModelDimensions

_SLIDING, _FULL = "sliding_attention", "full_attention"
_PATTERN = 6
"""Every sixth layer is full, where layer_types is missing."""
_CAP = 30.0
"""Cap of the logits that transformers assumes, whose saved files do not have it."""
_LAYER = {
    "attention_norm.weight": "input_layernorm.weight",
    **{
        f"attention.{ours}.weight": f"self_attn.{theirs}_proj.weight"
        for ours, theirs in zip(("query", "key", "value", "output"), "qkvo", strict=True)
    },
    "attention.query_norm.weight": "self_attn.q_norm.weight",
    "attention.key_norm.weight": "self_attn.k_norm.weight",
    "attention_post_norm.weight": "post_attention_layernorm.weight",
    "mlp_norm.weight": "pre_feedforward_layernorm.weight",
    "mlp_post_norm.weight": "post_feedforward_layernorm_1.weight",
    "experts_norm.weight": "pre_feedforward_layernorm_2.weight",
    "experts_post_norm.weight": "post_feedforward_layernorm_2.weight",
    "post_norm.weight": "post_feedforward_layernorm.weight",
    "mlp.router.weight": "router.proj.weight",
    "mlp.router.scale": "router.scale",
    "mlp.experts.scale": "router.per_expert_scale",
    **{f"mlp.{part}.weight": f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")},
    **{f"mlp.experts.{part}.weight": f"experts.{{expert}}.{part}_proj.weight" for part in ("gate", "up", "down")},
    "scalar": "layer_scalar",
    "causal_scalar": "model.encoder.language_model.layers.{layer}.layer_scalar",
}


def _sizes(config: JsonValues) -> ModelDimensions:
    layers = config.get_int("num_hidden_layers", max=MAX_LAYERS)
    kinds = config.values.get("layer_types") or [
        _SLIDING if (layer + 1) % _PATTERN else _FULL for layer in range(layers)
    ]
    if not isinstance(kinds, list) or len(kinds) != layers or not {*kinds} <= {_SLIDING, _FULL}:
        raise config.error_for("layer_types", kinds, f"{layers} times {_SLIDING} or {_FULL}")
    full = [layer for layer, kind in enumerate(kinds) if kind == _FULL or layer == layers - 1]
    kv_heads, head_size = _full_heads(config, full)
    sliding_rope, full_rope = _rope(config)
    return checked_sizes(
        config,
        ("hidden_size", "num_attention_heads", "num_key_value_heads"),
        heads_share_hidden=False,
        vocab_size=vocabulary(config, "vocab_size"),
        hidden_size=config.get_int("hidden_size"),
        intermediate_size=config.get_int("intermediate_size"),
        layers=layers,
        heads=config.get_int("num_attention_heads"),
        kv_heads=config.get_int("num_key_value_heads"),
        head_size=config.get_int("head_dim"),
        max_positions=config.get_int("max_position_embeddings"),
        rope_theta=config.checked_float("rope_theta", sliding_rope["rope_theta"], min=1.0, max=1e12),
        rms_norm_eps=rms_norm_eps(config),
        qkv_bias=False,
        qk_norm=True,
        moe=MixtureOfExperts(
            experts=config.get_int("num_experts", max=MAX_EXPERTS),
            experts_per_token=config.get_int("top_k_experts", max=MAX_EXPERTS),
            expert_size=config.get_int("moe_intermediate_size"),
            score="softmax",
            normalize=True,
        ),
        canvas=CanvasNetwork(
            canvas_length=config.get_int("canvas_length", max=2**20),
            sliding_window=config.get_int("sliding_window", min=2, max=2**20),
            full_layers=full,
            full_kv_heads=kv_heads,
            full_head_size=head_size,
            full_rotary_size=2 * int(full_rope["partial_rotary_factor"] * head_size // 2),
            full_rope_theta=config.checked_float("rope_theta", full_rope["rope_theta"], min=1.0, max=1e12),
            logit_cap=config.checked_float(
                "final_logit_softcapping", config.values.get("final_logit_softcapping", _CAP), min=1e-3, max=1e6
            ),
        ),
    )


def _full_heads(config: JsonValues, full: list[int]) -> tuple[int, int]:
    """Return the key-value heads of full layers and their size, from per_layer_config or from the input keywords.

    transformers saves per_layer_config only. Without it, global_head_dim is 512 by default.
    """
    usual, saved = config.get_int("num_key_value_heads"), config.values.get("per_layer_config")
    if saved is None:
        given = config.values.get("num_global_key_value_heads")
        size = config.values.get("global_head_dim", 512)
        heads = usual if given is None else given
        found = (heads, size)
    else:
        own = {str(layer) for layer in full}
        if not isinstance(saved, dict) or not {*saved} <= own or not all(isinstance(e, dict) for e in saved.values()):
            raise config.error_for("per_layer_config", saved, f"entries for the full layers, {', '.join(sorted(own))}")
        records = [saved.get(name, {}) for name in sorted(own)]
        unknown = {name for record in records for name in record} - {"head_dim", "num_key_value_heads"}
        heads_and_sizes = {
            (each.get("num_key_value_heads", usual), each.get("head_dim", config.values.get("head_dim")))
            for each in records
        }
        if unknown or len(heads_and_sizes) != 1:
            raise config.error_for(
                "per_layer_config", saved, "the same head_dim and num_key_value_heads in every full layer"
            )
        (found,) = heads_and_sizes
    return (
        config.checked_int("num_global_key_value_heads", found[0], min=1, max=4096),
        config.checked_int("global_head_dim", found[1], min=2, max=4096),
    )


def _rope(config: JsonValues) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the rotary parameters of sliding and of full layers."""
    given = config.values.get("rope_parameters")
    if given is None:
        return {"rope_theta": 10_000.0}, {"rope_theta": 1_000_000.0, "partial_rotary_factor": 0.25}
    sliding, full = (given.get(kind) for kind in (_SLIDING, _FULL)) if isinstance(given, dict) else (None, None)
    expected = f"{_SLIDING} of rope_type default, and {_FULL} of rope_type proportional with partial_rotary_factor"
    for rope, kind, names in (
        (sliding, "default", {"rope_type", "rope_theta"}),
        (full, "proportional", {"rope_type", "rope_theta", "partial_rotary_factor"}),
    ):
        if not isinstance(rope, dict) or {*rope} != names or rope["rope_type"] != kind:
            raise config.error_for("rope_parameters", given, expected)
    assert isinstance(sliding, dict)
    assert isinstance(full, dict)
    config.checked_float("partial_rotary_factor", full["partial_rotary_factor"], min=0.01, max=1.0)
    return sliding, full


def _defaults(generation: JsonValues) -> dict[str, Any]:
    """Return the options of generation_config.json that published decodes have."""
    found = {name: generation.values[name] for name in _GENERATION if generation.values.get(name) is not None}
    sampler = generation.get_object("sampler_config", max_count=8)
    if {*sampler} - {"_cls_name", "entropy_bound"} or sampler.get("_cls_name", _SAMPLER) != _SAMPLER:
        raise generation.error_for("sampler_config", sampler, f"an {_SAMPLER} with an entropy_bound")
    return {**found, **{name: sampler[name] for name in ("entropy_bound",) if name in sampler}}


_SAMPLER = "EntropyBoundSamplerConfig"
_GENERATION = (
    *("max_new_tokens", "max_denoising_steps", "t_min", "t_max", "stability_threshold", "confidence_threshold"),
)
DIFFUSION_GEMMA = Family(
    architecture=Architecture(
        "diffusion-gemma",
        prediction_shift=0,
        layer_prefix="model.decoder.layers.{layer}.",
        shared_prefixes={
            f"model.decoder.{part}.": f"model.encoder.language_model.{part}." for part in ("layers", "embed_tokens")
        },
        layer_names=_LAYER,
        outer_names={
            "embedding.weight": "model.decoder.embed_tokens.weight",
            "final_norm.weight": "model.decoder.norm.weight",
            "head.weight": "lm_head.weight",
            "self_conditioning.norm.weight": "model.decoder.self_conditioning.pre_norm.weight",
            **{
                f"self_conditioning.{part}.weight": f"model.decoder.self_conditioning.{part}_proj.weight"
                for part in ("gate", "up", "down")
            },
        },
    ),
    model_names="DiffusionGemma-26B-A4B",
    model_type="diffusion_gemma",
    classes=("DiffusionGemmaForBlockDiffusion",),
    nested="text_config",
    ignored_tensors=("model.encoder.vision_tower.", "model.encoder.embed_vision."),
    block_size="canvas_length",
    generation=_defaults,
    sizes=_sizes,
    reads=(
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "layer_types"),
        *("num_experts", "top_k_experts", "moe_intermediate_size", "canvas_length", "sliding_window"),
        *("final_logit_softcapping", "rope_parameters", "per_layer_config", "global_head_dim"),
        *("num_global_key_value_heads", "vision_config", "boi_token_id", "eoi_token_id", "image_token_id"),
        *("text_config", "attention_k_eq_v"),
    ),
    settings=(
        fixed("hidden_activation", "gelu_pytorch_tanh", has="hidden_activation gelu_pytorch_tanh"),
        fixed("attention_bias", False, has="projections without biases"),
        fixed("tie_word_embeddings", True, has="layers and embeddings that encoder and decoder share", needed=True),
        fixed("use_bidirectional_attention", "vision", has="causal attention to encoded text"),
        Setting("rope_scaling", "rotary positions without scaling", lambda found: found is None),
    ),
    mask_id=0,  # padding: there is no mask token, and no position is masked
    more_ends=True,
    add_bos=True,
    decoding={"strategy": "canvas", "block_add_threshold": 1.0, "attention": "full"},
)

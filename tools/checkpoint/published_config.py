"""Contents of config.json of published checkpoints for given sizes, by family.

Token ids are not included, nor entries that would run a checkpoint's own code.
"""

from typing import Any

from lopa.runtime.bundle.manifest import MixtureOfExperts, ModelDimensions

_LLADA_OFF = (
    *("alibi", "attention_layer_norm", "bias_for_layer_norm", "include_bias"),
    *("input_emb_norm", "scale_logits", "use_cache", "weight_tying"),
)
_LLADA_ON = ("attention_layer_norm_with_affine", "layer_norm_with_affine", "rope", "rope_full_precision")


def dream(sizes: ModelDimensions) -> dict[str, Any]:
    """Return a config.json like DiffuCoder's."""
    return {**_qwen2(sizes), "architectures": ["DreamModel"], "model_type": "Dream"}


def fast_dllm_v2(sizes: ModelDimensions) -> dict[str, Any]:
    """Return a config.json with blocks of 32."""
    return {
        **_qwen2(sizes),
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "model_type": "Fast_dLLM_Qwen",
        "bd_size": 32,
        "layer_types": ["full_attention"] * sizes.layers,
    }


def sdar(sizes: ModelDimensions) -> dict[str, Any]:
    """Return a config.json with blocks of 4, as in the checkpoints without -b."""
    return {
        **_qwen2(sizes),
        "architectures": ["SDARForCausalLM"],
        "model_type": "sdar",
        "attention_bias": False,
        "block_size": 4,
        "head_dim": sizes.head_size,
    }


def sdar_moe(sizes: ModelDimensions) -> dict[str, Any]:
    """Return a config.json with blocks of 4, as in the recorded checkpoint."""
    moe = _experts(sizes)
    return {
        **sdar(sizes),
        "architectures": ["SDARMoeForCausalLM"],
        "model_type": "sdar_moe",
        "decoder_sparse_step": 1,
        "mlp_only_layers": moe.dense_layers,
        "moe_intermediate_size": moe.expert_size,
        "norm_topk_prob": moe.normalize,
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.experts_per_token,
    }


def llada2_moe(sizes: ModelDimensions) -> dict[str, Any]:
    """Return a config.json like LLaDA2.0-mini's. Its first layers are dense."""
    moe = _experts(sizes)
    return {
        **_transformers(sizes),
        "architectures": ["LLaDA2MoeModelLM"],
        "model_type": "llada2_moe",
        "first_k_dense_replace": len(moe.dense_layers),
        "head_dim": sizes.head_size,
        "max_window_layers": 28,
        "moe_intermediate_size": moe.expert_size,
        "moe_router_enable_expert_bias": moe.bias,
        "n_group": moe.groups,
        "norm_head": False,
        "norm_softmax": False,
        "norm_topk_prob": True,
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.experts_per_token,
        "num_shared_experts": moe.shared_size // moe.expert_size,
        "partial_rotary_factor": sizes.rotary_size / sizes.head_size,
        "rotary_dim": sizes.rotary_size,
        "routed_scaling_factor": moe.scale,
        "router_dtype": "fp32",
        "score_function": moe.score,
        "sliding_window": 4096,
        "topk_group": moe.groups_per_token,
        "use_bias": False,
        "use_qkv_bias": sizes.qkv_bias,
        "using_split_qkv_in_self_attention": False,
    }


def llada_moe(sizes: ModelDimensions) -> dict[str, Any]:
    """Return a config.json like LLaDA-MoE-7B-A1B's. It has the model_type of dense LLaDA."""
    moe = _experts(sizes)
    config = _transformers(sizes)
    del config["intermediate_size"]
    return config | {
        "architectures": ["LLaDAMoEModelLM"],
        "model_type": "llada",
        "attention_bias": False,
        "clip_qkv": None,
        "dense_intermediate_size": sizes.intermediate_size,
        "expert_intermediate_size": moe.expert_size,
        "moe_layer_freq": [int(i not in moe.dense_layers) for i in range(sizes.layers)],
        "moe_router_enable_expert_bias": False,
        "moe_router_score_function": moe.score,
        "norm_topk_prob": None,
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.experts_per_token,
        "partial_rotary_factor": 1,
        "qk_layernorm": sizes.qk_norm,
        "routed_scaling_factor": 1,
        "router_num_group": None,
        "router_topk_group": None,
        "shared_expert_intermediate_size": None,
    }


def wedlm(sizes: ModelDimensions) -> dict[str, Any]:
    """Return a config.json with layers of Qwen2.5 or Qwen3, depending on the sizes."""
    return {
        **_qwen2(sizes),
        "architectures": ["WeDLMForCausalLM"],
        "model_type": "wedlm",
        "attention_bias": sizes.qkv_bias,
        "head_dim": sizes.head_size,
        "qk_norm": sizes.qk_norm,
    }


def stable_diffcoder(sizes: ModelDimensions) -> dict[str, Any]:
    """Return a Llama config.json with another class."""
    return {
        **_transformers(sizes),
        "architectures": ["StableDiffcoderForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
    }


def llada(sizes: ModelDimensions) -> dict[str, Any]:
    """Return a config.json with OLMo's field names."""
    return {
        **dict.fromkeys(_LLADA_OFF, False),
        **dict.fromkeys(_LLADA_ON, True),
        **dict.fromkeys(("attention_dropout", "embedding_dropout", "residual_dropout"), 0.0),
        "architectures": ["LLaDAModelLM"],
        "model_type": "llada",
        "activation_type": "silu",
        "alibi_bias_max": 8.0,
        "block_group_size": 1,
        "block_type": "llama",
        "d_model": sizes.hidden_size,
        "embedding_size": sizes.vocab_size,
        "include_qkv_bias": sizes.qkv_bias,
        "layer_norm_type": "rms",
        "max_sequence_length": sizes.max_positions,
        "mlp_hidden_size": sizes.intermediate_size,
        "mlp_ratio": 4,
        "multi_query_attention": None,
        "n_heads": sizes.heads,
        "n_kv_heads": sizes.kv_heads,
        "n_layers": sizes.layers,
        "precision": "amp_bf16",
        "rms_norm_eps": sizes.rms_norm_eps,
        "rope_theta": sizes.rope_theta,
        "torch_dtype": "bfloat16",
        "vocab_size": sizes.vocab_size,
    }


def _experts(sizes: ModelDimensions) -> MixtureOfExperts:
    """Return the experts of a sparse network. Raises ValueError for a dense one."""
    if sizes.moe is None:
        raise ValueError("received dense layers, expected a mixture of experts")
    return sizes.moe


def _qwen2(sizes: ModelDimensions) -> dict[str, Any]:
    return {
        **_transformers(sizes),
        "max_window_layers": sizes.layers,
        "sliding_window": None,
        "use_sliding_window": False,
    }


def _transformers(sizes: ModelDimensions) -> dict[str, Any]:
    """Return the fields that Qwen2, Qwen3 and Llama share."""
    return {
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": sizes.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": sizes.intermediate_size,
        "max_position_embeddings": sizes.max_positions,
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.kv_heads,
        "rms_norm_eps": sizes.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": sizes.rope_theta,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": sizes.vocab_size,
    }

"""LLaDA-8B, LLaDA-1.5 and D2F-LLaDA: Llama's layers under OLMo's names. Each row predicts its own position.

Settings that config.json lacks have OLMo's defaults. Settings whose OLMo default means another network are required.
"""

from lopa.export.families.family import Architecture, Family
from lopa.export.families.settings import fixed
from lopa.export.families.sizes import checked_sizes, rms_norm_eps, rope_theta, vocabulary
from lopa.export.json_file import JsonValues
from lopa.runtime.bundle.manifest import MAX_LAYERS, ModelDimensions


def _sizes(config: JsonValues) -> ModelDimensions:
    """Return the dimensions. Entries that are null have OLMo's defaults.

    `n_kv_heads` defaults to `n_heads`, and `mlp_hidden_size` to `mlp_ratio` times `d_model`. `embedding_size`, the
    number of rows of embedding and head, defaults to the size of the vocabulary.
    """
    values = config.values
    hidden, heads = config.get_int("d_model"), config.get_int("n_heads")
    tokens = vocabulary(config, "vocab_size")
    rows = config.get_int("embedding_size", min=tokens) if values.get("embedding_size") is not None else tokens
    if rope_theta(config) != values.get("rope_theta"):
        raise config.error_for("rope_theta", values.get("rope_theta"), "the same in rope_scaling, which OLMo ignores")
    has_mlp = values.get("mlp_hidden_size") is not None
    return checked_sizes(
        config,
        ("d_model", "n_heads", "n_kv_heads"),
        heads_share_hidden=True,
        vocab_size=rows,
        hidden_size=hidden,
        intermediate_size=config.get_int("mlp_hidden_size" if has_mlp else "mlp_ratio") * (1 if has_mlp else hidden),
        layers=config.get_int("n_layers", max=MAX_LAYERS),
        heads=heads,
        kv_heads=config.get_int("n_kv_heads") if values.get("n_kv_heads") is not None else heads,
        head_size=hidden // heads,
        max_positions=config.get_int("max_sequence_length"),
        rope_theta=rope_theta(config),
        rms_norm_eps=rms_norm_eps(config),
        qkv_bias=config.get_bool("include_qkv_bias"),
        qk_norm=False,
    )


LLADA = Family(
    architecture=Architecture(
        "llada",
        prediction_shift=0,
        layer_prefix="model.transformer.blocks.{layer}.",
        layer_names={
            "attention_norm.weight": "attn_norm.weight",
            "attention.query.weight": "q_proj.weight",
            "attention.query.bias": "q_proj.bias",
            "attention.key.weight": "k_proj.weight",
            "attention.key.bias": "k_proj.bias",
            "attention.value.weight": "v_proj.weight",
            "attention.value.bias": "v_proj.bias",
            "attention.output.weight": "attn_out.weight",
            "mlp_norm.weight": "ff_norm.weight",
            "mlp.gate.weight": "ff_proj.weight",
            "mlp.up.weight": "up_proj.weight",
            "mlp.down.weight": "ff_out.weight",
        },
        outer_names={
            "embedding.weight": "model.transformer.wte.weight",
            "final_norm.weight": "model.transformer.ln_f.weight",
            "head.weight": "model.transformer.ff_out.weight",
        },
    ),
    model_names="LLaDA-8B, LLaDA-1.5, D2F-LLaDA",
    model_type="llada",
    classes=("LLaDAModelLM",),
    sizes=_sizes,
    tied="weight_tying",
    reads=(
        *("vocab_size", "embedding_size", "d_model", "n_heads", "n_kv_heads", "mlp_hidden_size", "mlp_ratio"),
        *("n_layers", "max_sequence_length", "rope_theta", "rms_norm_eps", "include_qkv_bias"),
    ),
    settings=(
        fixed("block_type", "llama", has="block_type llama", needed=True),
        fixed("layer_norm_type", "rms", has="layer_norm_type rms", needed=True),
        fixed("activation_type", "silu", has="activation_type silu", needed=True),
        fixed("rope", True, has="rotary positions", needed=True),
        fixed("include_bias", False, has="no biases except in query, key and value projections", needed=True),
        fixed("alibi", False, has="rotary positions, no ALiBi"),
        fixed("attention_layer_norm", False, has="queries and keys without a norm over all heads"),
        fixed("layer_norm_with_affine", True, has="norms with a weight"),
        fixed("bias_for_layer_norm", False, has="norms without a bias"),
        fixed("block_group_size", 1, has="a block_group_size of 1"),
        fixed("multi_query_attention", False, has="the number of key-value heads in n_kv_heads"),
        fixed("input_emb_norm", False, has="embeddings without a norm"),
        fixed("scale_logits", False, has="unscaled logits"),
        fixed("clip_qkv", has="unclipped queries, keys and values"),
    ),
    add_bos=True,
    # Attention is bidirectional: a cached row changes with every later token, so nothing is cached.
    decoding={"strategy": "threshold", "confidence": "probability", "cache": "none"},
    # A D2F adapter makes it block-causal.
    decoding_with_adapter={"attention": "block_causal"},
)

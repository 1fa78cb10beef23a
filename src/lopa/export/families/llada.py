"""LLaDA-8B, LLaDA-1.5 and D2F-LLaDA: Llama's layers under OLMo's names, each row speaking of its own position.

Settings have OLMo's defaults where config.json lacks them, and those ask for other networks: what differs is needed.
"""

from lopa.export.families.family import Architecture, Family
from lopa.export.families.settings import fixed
from lopa.export.families.sizes import checked_sizes, rms_norm_eps, rope_theta, vocabulary
from lopa.export.json_file import JsonValues
from lopa.runtime.bundle.manifest import MAX_LAYERS, ModelDimensions


def _sizes(config: JsonValues) -> ModelDimensions:
    """`n_kv_heads` null is as many as heads, `mlp_hidden_size` null is `mlp_ratio` times `d_model`.

    `embedding_size` are the rows of embedding and head; null: those of the vocabulary.
    """
    values = config.values
    hidden, heads = config.check_int("d_model"), config.check_int("n_heads")
    tokens = vocabulary(config, "vocab_size")
    rows = config.check_int("embedding_size", min=tokens) if values.get("embedding_size") is not None else tokens
    has_mlp = values.get("mlp_hidden_size") is not None
    return checked_sizes(
        config,
        ("d_model", "n_heads", "n_kv_heads"),
        heads_share_hidden=True,
        vocab_size=rows,
        hidden_size=hidden,
        intermediate_size=config.check_int("mlp_hidden_size" if has_mlp else "mlp_ratio") * (1 if has_mlp else hidden),
        layers=config.check_int("n_layers", max=MAX_LAYERS),
        heads=heads,
        kv_heads=config.check_int("n_kv_heads") if values.get("n_kv_heads") is not None else heads,
        head_size=hidden // heads,
        max_positions=config.check_int("max_sequence_length"),
        rope_theta=rope_theta(config),
        rms_norm_eps=rms_norm_eps(config),
        qkv_bias=config.flag("include_qkv_bias"),
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
    published="LLaDA-8B, LLaDA-1.5, D2F-LLaDA",
    model_type="llada",
    classes=("LLaDAModelLM",),
    sizes=_sizes,
    tied="weight_tying",
    settings=(
        fixed("block_type", "llama", has="block_type llama", needed=True),
        fixed("layer_norm_type", "rms", has="layer_norm_type rms", needed=True),
        fixed("activation_type", "silu", has="activation_type silu", needed=True),
        fixed("rope", True, has="rotary positions", needed=True),
        fixed("include_bias", False, has="biases in the products of queries, keys and values at most", needed=True),
        fixed("alibi", False, has="rotary positions, no ALiBi"),
        fixed("attention_layer_norm", False, has="queries and keys without a norm over all heads"),
        fixed("layer_norm_with_affine", True, has="norms with a weight"),
        fixed("bias_for_layer_norm", False, has="norms without a bias"),
        fixed("block_group_size", 1, has="blocks one by one"),
        fixed("multi_query_attention", False, has="key-value heads as n_kv_heads counts them"),
        fixed("input_emb_norm", False, has="embeddings as they are"),
        fixed("scale_logits", False, has="logits as they are"),
        fixed("clip_qkv", has="queries, keys and values as they are"),
    ),
    add_bos=True,
    # Bidirectional: a kept row changes with every token behind it, so none is kept.
    decoding={"strategy": "threshold", "confidence": "probability", "cache": "none"},
    # A D2F adapter makes it block-causal.
    decoding_with_adapter={"window": "block_causal"},
)

"""Entries of config.json that change nothing in a bundle, unless a family reads them."""

from collections.abc import Collection, Mapping
from typing import Any

_NAMES = """
_attn_implementation _attn_implementation_autoset _commit_hash _experts_implementation _name_or_path attn_implementation
auto_map chunk_size_feed_forward decoder_start_token_id dtype finetuning_task id2label is_decoder label2id name_or_path
output_attentions output_hidden_states prefix problem_type return_dict sep_token_id task_specific_params tf_legacy_loss
tie_encoder_decoder tokenizer_class torch_dtype torchscript transformers_version unsloth_fixed unsloth_version
use_bfloat16 use_cache attention_dropout embedding_dropout hidden_dropout output_dropout residual_dropout
init_cutoff_factor init_device init_fn init_std initializer_range precision output_router_logits router_aux_loss_coef
router_z_loss_coef conplemenrary_mask debug ep_size fuse_cross_entropy micro_forward skip_checkpoint use_deepep
alibi_bias_max attention_layer_norm_with_affine flash_attention max_window_layers norm_topk_prob num_mtp_layers
num_nextn_predict_layers pretraining_tp rope_full_precision sliding_window
effective_n_kv_heads tie_word_embeddings
"""
HARMLESS = frozenset(_NAMES.split())
"""Names of transformers and of the published code. They concern loading, training and caching, or parts that only a
refused entry turns on.
"""


def unknown_fields(values: Mapping[str, Any], used: Collection[str]) -> list[str]:
    """Return the names in `values` that are neither in `used` nor in HARMLESS, unless null, false or empty."""
    unset: tuple[object, ...] = (None, False, "", [], {})
    return [name for name, value in values.items() if value not in unset and name not in used and name not in HARMLESS]

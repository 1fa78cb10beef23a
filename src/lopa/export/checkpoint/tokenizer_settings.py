"""Entries of tokenizer_config.json: used, without effect on ids and texts, or refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models

from lopa.export.json_file import shown
from lopa.runtime.errors import BadInputError

USED = frozenset(
    (
        *("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"),
        *("chat_template", "tokenizer_class", "auto_map", "add_bos_token", "add_eos_token"),
    )
)
WITHOUT_EFFECT = frozenset(
    (
        *("model_max_length", "max_len", "max_length", "stride", "padding", "padding_side", "pad_to_multiple_of"),
        *("truncation", "truncation_side", "truncation_strategy", "pad_token_type_id", "model_input_names", "errors"),
        *("name_or_path", "special_tokens_map_file", "tokenizer_file", "vocab_file", "merges_file", "backend"),
        *("processor_class", "is_local", "local_files_only", "files_loaded", "verbose", "use_fast", "from_slow"),
        *("fast_tokenizer", "trust_remote_code"),
        *("response_template", "response_schema", "chat_control_tokens", "spaces_between_special_tokens"),
        # Classes with a tokenizer of their own use these; it is compared with tokenizer.json.
        *("add_prefix_space", "legacy", "sp_model_kwargs", "do_lower_case", "strip_accents", "unk_id", "trim_offsets"),
        *("clean_up_tokenization_spaces", "use_default_system_prompt"),
    )
)
"""Entries that change neither ids nor texts. Limits of length, padding and truncation belong to the caller."""
REFUSED = (
    *("split_special_tokens", "fix_mistral_regex", "init_inputs", "fast_tokenizer_files", "gguf_file", "vocab"),
    *("merges", "tokenizer_object", "post_processor", "tokenizer_padding", "tokenizer_truncation"),
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
)
"""Entries that make another tokenizer than tokenizer.json."""


def check_tokenizer_settings(checkpoint: Path, settings: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return a warning for each unknown entry of tokenizer_config.json, unless it is null, false or empty.

    `tokenizer` is the bundle's. Raises BadInputError for an entry that makes another tokenizer in transformers.
    """
    given = {name: value for name, value in settings.items() if value not in (None, False, "", [], {})}
    has_file = (checkpoint / "tokenizer.json").is_file()
    cleaned = () if isinstance(tokenizer.model, models.BPE) else ("clean_up_tokenization_spaces",)
    refused = (*REFUSED, *cleaned, *(() if has_file else ("add_prefix_space", "add_eos_token")))
    if name := next((each for each in refused if each in given), None):
        raise BadInputError(
            f"{checkpoint} has {name} = {shown(given[name])} in tokenizer_config.json",
            expected=f"{name} absent or false: it makes another tokenizer",
            remedy="make a tokenizer.json with the checkpoint's own tokenizer and add it to the checkpoint",
        )
    unknown = sorted(given.keys() - USED - WITHOUT_EFFECT - {name for name in given if name.endswith("_token")})
    return tuple(f"tokenizer_config.json: {name} is unknown and has no effect" for name in unknown)

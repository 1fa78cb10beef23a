"""Entries of tokenizer_config.json: used, without effect on ids and texts, or refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models

from lopa.export.checkpoint.auto_tokenizer import auto_tokenizer, find_difference
from lopa.export.json_file import shown
from lopa.runtime.errors import BadInputError

USED = frozenset(
    {
        *("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"),
        *("chat_template", "tokenizer_class", "auto_map", "add_bos_token", "add_eos_token"),
    }
)
WITHOUT_EFFECT = frozenset(
    {
        *(
            "model_max_length",
            "max_len",
            "max_length",
            "truncation",
            "truncation_side",
            "truncation_strategy",
            "stride",
        ),
        *("padding", "padding_side", "pad_to_multiple_of", "pad_token_type_id", "model_input_names", "errors"),
        *("name_or_path", "special_tokens_map_file", "tokenizer_file", "vocab_file", "merges_file", "backend"),
        *("processor_class", "is_local", "local_files_only", "files_loaded", "verbose", "use_fast"),
        *("response_template", "response_schema", "chat_control_tokens", "spaces_between_special_tokens"),
        # Classes other than the plain one use these. Their tokenizers are compared with tokenizer.json.
        *("add_prefix_space", "legacy", "sp_model_kwargs", "do_lower_case", "strip_accents", "unk_id"),
        *("use_default_system_prompt", "trim_offsets", "from_slow"),
    }
)
"""Entries that change neither ids nor texts. Limits of length, padding and truncation belong to the caller."""
_CLEAN_UP = "clean_up_tokenization_spaces"
_CLEAN_UP_OF_BPE = f"{_CLEAN_UP}_for_bpe_even_though_it_will_corrupt_output"
REFUSED = {
    "split_special_tokens": "special tokens that are encoded as such",
    "fix_mistral_regex": "a tokenizer.json with the corrected expression",
    "init_inputs": "no arguments of a Python class",
    "fast_tokenizer_files": "one tokenizer.json for all versions of transformers",
    **dict.fromkeys(("gguf_file", "vocab", "merges", "tokenizer_object"), "a tokenizer in files of its own"),
    **dict.fromkeys(("post_processor", "tokenizer_padding", "tokenizer_truncation"), "the parts of tokenizer.json"),
}
"""Entries that make another tokenizer, with what is expected instead."""
_PLAIN_CLASSES = (None, "PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that take tokenizer.json as it is."""


def check_tokenizer_settings(checkpoint: Path, settings: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return a warning for each unknown entry of tokenizer_config.json, unless it is null, false or empty.

    `tokenizer` is the bundle's. Raises BadInputError for an entry that makes another tokenizer in transformers. A class
    that builds its own tokenizer from the vocabulary must give the ids and texts of tokenizer.json.
    """
    given = {name: value for name, value in settings.items() if value not in (None, False, "", [], {})}
    refused = dict(REFUSED)
    if not (checkpoint / "tokenizer.json").is_file():  # with it the entry has no effect in transformers
        refused["add_eos_token"] = "prompts without an end-of-text token"
    if not isinstance(tokenizer.model, models.BPE) or given.get(_CLEAN_UP_OF_BPE):
        refused[_CLEAN_UP] = "texts whose spaces stay as they are"
    for name in (each for each in refused if each in given):
        raise BadInputError(
            f"{checkpoint} has {name} = {shown(given[name])} in tokenizer_config.json",
            expected=refused[name],
            remedy="remove the entry, or save the tokenizer without it: it is not supported",
        )
    _check_class(checkpoint, given.get("tokenizer_class"), tokenizer)
    known = {*USED, *WITHOUT_EFFECT, _CLEAN_UP, _CLEAN_UP_OF_BPE}
    unknown = sorted(name for name in given if name not in known and not name.endswith("_token"))
    return tuple(f"tokenizer_config.json: {name} is unknown and has no effect" for name in unknown)


def _check_class(checkpoint: Path, name: Any, tokenizer: Tokenizer) -> None:
    if name in _PLAIN_CLASSES or not (checkpoint / "tokenizer.json").is_file():
        return
    theirs = auto_tokenizer(checkpoint)
    if difference := find_difference(tokenizer, theirs):
        raise BadInputError(
            f"{checkpoint} has tokenizer_class = {shown(name)}, and transformers' {type(theirs).__name__} differs from "
            f"tokenizer.json: {difference}",
            expected="a tokenizer.json with the ids and texts of the class",
            remedy="save the tokenizer again with transformers; if tokenizer.json is right, set tokenizer_class to "
            "PreTrainedTokenizerFast",
        )

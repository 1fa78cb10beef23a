"""Fields of other servers in addition to OpenAI's: vLLM, SGLang, TGI, llama.cpp, Ollama and text-generation-webui.

Fields with an equivalent become lopa options. The others are accepted with a neutral value and rejected with any other,
since ignoring them would change the answer silently. This module does not depend on bundles.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lopa.runtime.checked_values import check_bool, check_int
from lopa.runtime.errors import BadInputError
from lopa.runtime.options.choices import MAX_POSITIONS, MAX_TOP_K

_META = frozenset("\\.+*?()|[]{}^$#&-~")
"""Characters with a meaning in regular expressions."""
_NEVER: tuple[object, ...] = ()

NEUTRAL: dict[str, tuple[object, ...]] = {
    # sampling
    "min_p": (0,),
    "typical_p": (0, 1),
    "tfs_z": (1,),
    "top_a": (0,),
    "top_n_sigma": (-1, 0),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "dynatemp_range": (0,),
    "xtc_probability": (0,),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "smoothing_factor": (0,),
    "temperature_last": (False,),
    "do_sample": (False,),
    "samplers": _NEVER,
    "min_tokens": (0,),
    "min_new_tokens": (0,),
    "min_length": (0,),
    "t_max_predict_ms": (-1, 0),
    # penalties
    "repetition_penalty": (1,),
    "repeat_penalty": (1,),
    "encoder_repetition_penalty": (1,),
    "length_penalty": (1,),
    "penalty_alpha": (0,),
    "no_repeat_ngram_size": (0,),
    "dry_multiplier": (0,),
    "guidance_scale": (1,),
    "repetition_detection": _NEVER,
    # several choices
    "use_beam_search": (False,),
    "num_beams": (1,),
    "early_stopping": (False,),
    "num_return_sequences": (1,),
    # stop conditions and allowed content
    "stop_token_ids": ([],),
    "stop_regex": ([], ""),
    "include_stop_str_in_output": (False,),
    "no_stop_trim": (False,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "bad_words_ids": ([],),
    "logits_processors": ([],),
    "custom_logit_processor": _NEVER,
    "skip_special_tokens": (True,),
    "structural_tag": _NEVER,
    "guided_whitespace_pattern": _NEVER,
    "format": ("",),
    # the prompt
    "documents": ([],),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "continue_final_message": (False,),
    "system_prompt": ("",),
    "lora": ([],),
    **dict.fromkeys(("chat_template", "truncate_prompt_tokens", "truncate", "session_params", "lora_path"), _NEVER),
    **dict.fromkeys(("input_ids", "input_embeds", "prompt_embeds", "web_search_options"), _NEVER),
    # output in addition to the text
    **dict.fromkeys(("prompt_logprobs", "moderation"), _NEVER),
    "n_probs": (0,),
    **dict.fromkeys(("logprob_token_ids", "token_ids_logprob"), ([],)),
    **dict.fromkeys(("return_tokens_as_token_ids", "return_token_ids", "return_hidden_states"), (False,)),
    **dict.fromkeys(("return_full_text", "return_prompt_text", "enable_response_messages"), (False,)),
    **dict.fromkeys(("watermark", "watermarking"), (False,)),
    # reasoning; chats read enable_thinking, thinking and reasoning
    **dict.fromkeys(("enable_thinking", "include_reasoning", "separate_reasoning"), (True,)),
    "thinking": _NEVER,
    "reasoning": ({},),
    "reasoning_format": ("auto", "deepseek", "parsed"),
    # other servers of diffusion models
    **dict.fromkeys(("diffusion_max_steps", "diffusion_seed_canvas", "num_denoising_steps", "block_length"), _NEVER),
    **dict.fromkeys(("max_nfe", "max_repetition_run"), _NEVER),
    **dict.fromkeys(("vllm_xargs", "custom_params", "options"), ({},)),
}
"""Neutral values of each field, which change nothing. null is always neutral."""
TEXT_ONLY: Mapping[str, tuple[object, ...]] = {"add_special_tokens": (True,)}
"""Other neutral values for a text of a completion. Token ids get no special tokens, whatever the value."""
HINTS = {
    **dict.fromkeys(("chat_template_kwargs", "enable_thinking", "thinking", "reasoning"), "send a chat"),
    **dict.fromkeys(("allowed_token_ids", "bad_words", "min_tokens"), "use a regex or a grammar"),
    **dict.fromkeys(("logprobs", "top_logprobs", "include"), "use /v1/chat/completions with logprobs"),
    **dict.fromkeys(("include_reasoning", "separate_reasoning"), "set reasoning_effort to none, or remove it"),
    "max_completion_tokens": "use max_output_tokens in /v1/responses, and max_tokens in /v1/messages",
    "add_special_tokens": "send the prompt as token ids, which get no special tokens",
    "chat_template": "start the server with --chat-template",
    "prompt_logprobs": "use /v1/score",
    "stop_token_ids": "use stop with the text of these tokens",
    **dict.fromkeys(("diffusion_max_steps", "num_denoising_steps", "max_nfe"), "put decoding options into lopa"),
    "block_length": 'write "lopa": {"block_size": ...}',
    "format": "use response_format",
    "options": "send each option as a field of the body",
    "guided_whitespace_pattern": "remove it, or use a regex for the whole answer",
}
"""Hints about replacements, by field name."""
_STRUCTURED = ("json", "regex", "choice", "grammar", "json_object")
"""Kinds in vLLM's structured_outputs. Exactly one is allowed, plus fields that do not change the answer."""
_NEUTRAL_IN_STRUCTURED: dict[str, tuple[object, ...]] = {
    "disable_any_whitespace": (False,),
    "disable_additional_properties": (False,),
    "whitespace_pattern": _NEVER,
    "structural_tag": _NEVER,
}
_IGNORED_IN_STRUCTURED = frozenset(("disable_fallback", "backend", "_backend", "_backend_was_auto"))


def is_neutral(value: object, values: tuple[object, ...]) -> bool:
    """Return whether `value` is one of `values`. As in JSON, 1 equals 1.0 but not true."""
    return any(_kind(value) is _kind(each) and value == each for each in values)


def _kind(value: object) -> type:
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def _top_k(value: Any) -> dict[str, Any]:
    """Return the option top_k; -1 and 0 mean no limit."""
    number = check_int("top_k", value, min=-1, max=MAX_TOP_K)
    return {"top_k": number} if number > 0 else {}


def _length(value: Any) -> dict[str, Any]:
    """Return llama.cpp's n_predict as max_new_tokens; -1 means no limit."""
    number = check_int("n_predict", value, min=-1, max=MAX_POSITIONS)
    return {"max_new_tokens": number} if number >= 0 else {}


def _ignore_eos(value: Any) -> dict[str, Any]:
    return {"stop_at_eos": False} if check_bool("ignore_eos", value) else {}


def _choice(value: Any) -> dict[str, Any]:
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise BadInputError(
            f"invalid choices {str(value)[:80]}",
            expected="a non-empty list of non-empty strings",
            remedy="correct the list",
        )
    return {"regex": "|".join(map(_literal, value))}


def _literal(text: str) -> str:
    return "".join(f"\\{each}" if each in _META else each for each in text)


def _json_object(value: Any) -> dict[str, Any]:
    return {"json_schema": {"type": "object"}} if check_bool("json_object", value) else {}


def _structured_outputs(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadInputError(
            f"structured_outputs {str(value)[:80]} is not an object",
            expected="an object",
            remedy='e.g. {"json": {...}}',
        )
    given = {name: each for name, each in value.items() if each is not None and name not in _IGNORED_IN_STRUCTURED}
    requested = [name for name in given if name in _STRUCTURED]
    unknown = [
        name
        for name, each in given.items()
        if name not in _STRUCTURED and not is_neutral(each, _NEUTRAL_IN_STRUCTURED.get(name, _NEVER))
    ]
    if unknown or len(requested) > 1:
        raise BadInputError(
            f"unknown or conflicting fields in structured_outputs: {', '.join(map(repr, unknown or requested))[:160]}",
            expected="one of " + ", ".join(_STRUCTURED),
            remedy="remove the others",
        )
    return {} if not requested else _STRUCTURED_READ[requested[0]](given[requested[0]])


def option_reader(name: str) -> Callable[[Any], dict[str, Any]]:
    """Return the function from a value to the option `name` with this value."""
    return lambda value: {name: value}


_STRUCTURED_READ: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "json": option_reader("json_schema"),
    "regex": option_reader("regex"),
    "choice": _choice,
    "grammar": option_reader("grammar"),
    "json_object": _json_object,
}
MAPPED: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "top_k": _top_k,
    "ignore_eos": _ignore_eos,
    "n_predict": _length,
    "guided_json": option_reader("json_schema"),
    "guided_regex": option_reader("regex"),
    "guided_choice": _choice,
    "guided_grammar": option_reader("grammar"),
    "structured_outputs": _structured_outputs,
    "thinking_token_budget": option_reader("reasoning_budget"),
    "json_schema": option_reader("json_schema"),
    "regex": option_reader("regex"),
    "grammar": option_reader("grammar"),
    "ebnf": option_reader("grammar"),
}
"""Fields with an equivalent, each with the function from its value to lopa options. Each raises BadInputError for an
invalid value."""

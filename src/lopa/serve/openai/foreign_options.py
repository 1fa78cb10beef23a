"""Fields that a server may get beside OpenAI's main ones, from OpenAI, Anthropic, vLLM, SGLang, TGI and llama.cpp.

Fields with an equivalent become lopa options. Fields in NEUTRAL are accepted with a value that changes nothing, and
those in IGNORED with any value. This module does not depend on bundles.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lopa.runtime.checked_values import check_bool, check_int, shown, wrong_type
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import did_you_mean
from lopa.runtime.options.option import MAX_POSITIONS, MAX_TOP_K

TYPES = ("text", "json_object", "json_schema")
_ANY_OBJECT = {"type": "object"}
_VALUES = {"json": ("json_schema", "value"), "regex": ("regex", "value"), "grammar": ("grammar", "grammar")}
"""Types of other servers (TGI, Fireworks), with lopa's option and the field with its value."""
_FIELDS = {
    "text": (),
    "json_object": ("schema",),
    "json_schema": ("json_schema",),
    **{kind: (field,) for kind, (_, field) in _VALUES.items()},
}
"""Fields beside the type, by type."""


def option_from_response_format(value: Any) -> dict[str, Any]:
    """Return the option that `value` requests, by name, or an empty dict for text.

    Raises BadInputError for an unknown type, and for a missing schema, regex or grammar. Other fields of a json_schema
    (name, description, strict) have no effect. A json_object may have a `schema`, as in llama.cpp.
    """
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind in _FIELDS:
        _check_fields(value, ("type", *_FIELDS[kind]))
    if kind == "json_object" and value.get("schema") is None:
        return {"json_schema": _ANY_OBJECT}
    if kind == "json_object":
        return {"json_schema": _schema(value, value)}
    if kind == "json_schema":
        return {"json_schema": _schema(value, value.get("json_schema"))}
    if isinstance(kind, str) and kind in _VALUES and value.get(_VALUES[kind][1]) is not None:
        option, field = _VALUES[kind]
        return {option: value[field]}
    if kind != "text":
        raise BadInputError(
            f"invalid response_format {shown(value)}",
            expected="an object with a type among " + ", ".join(TYPES),
            remedy="choose a type; put a regex or a grammar into lopa",
        )
    return {}


def _check_fields(value: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = next((name for name, each in value.items() if name not in known and each is not None), None)
    if unknown is not None:
        raise BadInputError(
            f"unknown field {unknown[:80]!r} of response_format",
            expected="fields among " + ", ".join(known),
            remedy=did_you_mean(unknown, known, otherwise="remove it"),
        )


def _schema(value: Any, holder: Any) -> dict[str, Any]:
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if isinstance(schema, dict):
        if holder is not value:
            _check_fields(holder, ("schema", "name", "description", "strict"))
        return schema
    raise BadInputError(
        f"invalid response_format {shown(value)}",
        expected='{"type": "json_schema", "json_schema": {"name": STRING, "schema": OBJECT}}',
        remedy="add the schema",
    )


_META = frozenset("\\.+*?()|[]{}^$#&-~")
"""Characters with a meaning in regular expressions."""
IGNORED = frozenset(
    (
        # of OpenAI
        *("model", "user", "metadata", "store", "service_tier", "stream_options", "parallel_tool_calls"),
        *("safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "prediction"),
        *("verbosity", "max_tool_calls", "client_metadata", "context_management", "background_options"),
        *("access_programs",),
        # of Anthropic
        *("betas", "anthropic_beta", "anthropic_version", "cache_control", "inference_geo", "speed", "fallbacks"),
        *("diagnostics", "user_profile_id", "workspace_id", "billing_policy", "fallback_credit_token"),
        # of other servers and of chat front ends
        *("guided_decoding_backend", "priority", "request_id", "session_id", "chat_id", "id", "stream_interval"),
        *("spaces_between_special_tokens", "truncation_side", "media_io_kwargs", "mm_processor_kwargs", "rid"),
        *("cache_prompt", "id_slot", "timings_per_token", "return_progress", "keep_alive", "kv_transfer_params"),
    )
)
"""Fields that change nothing in an answer."""
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(("penalty_alpha", "no_repeat_ngram_size"), (0,)),
    **dict.fromkeys(("top_a", "epsilon_cutoff", "eta_cutoff", "dynatemp_range", "xtc_probability", "n_probs"), (0,)),
    **dict.fromkeys(("mirostat", "mirostat_mode", "smoothing_factor", "dry_multiplier"), (0,)),
    **dict.fromkeys(("min_tokens", "min_new_tokens", "min_length"), (0,)),
    **dict.fromkeys(("top_n_sigma", "t_max_predict_ms"), (-1, 0)),
    "typical_p": (0, 1),
    **dict.fromkeys(("n", "best_of", "num_beams", "num_return_sequences", "tfs_z", "guidance_scale"), (1,)),
    **dict.fromkeys(("repeat_penalty", "encoder_repetition_penalty", "length_penalty"), (1,)),
    **dict.fromkeys(("stream", "echo", "background", "do_sample", "use_beam_search", "early_stopping"), (False,)),
    **dict.fromkeys(("temperature_last", "include_stop_str_in_output", "no_stop_trim", "watermark"), (False,)),
    **dict.fromkeys(("add_special_tokens", "continue_final_message", "return_hidden_states"), (False,)),
    **dict.fromkeys(("return_tokens_as_token_ids", "return_token_ids", "return_full_text"), (False,)),
    **dict.fromkeys(("skip_special_tokens", "add_generation_prompt"), (True,)),
    **dict.fromkeys(("enable_thinking", "include_reasoning", "separate_reasoning"), (True,)),
    **dict.fromkeys(("tools", "functions", "documents", "logits_processors", "lora"), ([],)),
    **dict.fromkeys(("allowed_token_ids", "bad_words", "bad_words_ids", "logprob_token_ids"), ([],)),
    **dict.fromkeys(("chat_template_kwargs", "reasoning", "vllm_xargs", "custom_params", "options"), ({},)),
    **dict.fromkeys(("suffix", "format", "system_prompt"), ("",)),
    **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto")),
    "stop_regex": ([], ""),
    "modalities": (["text"],),
    "truncation": ("disabled",),
    "reasoning_effort": ("none",),
    "reasoning_format": ("auto", "deepseek", "parsed"),
}
"""Values of each field that change nothing. null is always one of them."""
HINTS = {
    **dict.fromkeys(("chat_template_kwargs", "enable_thinking", "thinking", "reasoning"), "send a chat"),
    **dict.fromkeys(("allowed_token_ids", "bad_words", "min_tokens"), "use a regex or a grammar"),
    **dict.fromkeys(("logprobs", "top_logprobs", "include"), "use /v1/chat/completions with logprobs"),
    **dict.fromkeys(("previous_response_id", "conversation"), "send the whole conversation, since nothing is stored"),
    "n": "send a request for each answer",
    "max_completion_tokens": "use max_output_tokens in /v1/responses, and max_tokens in /v1/messages",
    "add_special_tokens": "send the prompt as token ids, which get no special tokens",
    "chat_template": "remove it; the server has its own template",
    "best_of": "set it to n, since all answers that are decoded are returned",
    "prompt_logprobs": "use /v1/score",
    "repeat_penalty": "use repetition_penalty, which counts the whole prompt and answer",
    "format": "use response_format",
}
"""Remedies by the name of a field that is refused."""
_STRUCTURED_IGNORED = frozenset(("disable_fallback", "backend", "_backend", "_backend_was_auto"))


def is_neutral(value: object, values: tuple[object, ...]) -> bool:
    """Return whether `value` is null or one of `values`. As in JSON, 1 equals 1.0 but not true."""
    return value is None or any(_kind(value) is _kind(each) and value == each for each in values)


def _kind(value: object) -> type:
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def _top_k(value: Any) -> dict[str, Any]:
    """Return the option top_k; -1 and 0 mean all candidates."""
    number = check_int("top_k", value, min=-1, max=MAX_TOP_K)
    return {"top_k": max(number, 0)}


def _length(value: Any) -> dict[str, Any]:
    """Return llama.cpp's n_predict as max_new_tokens; -1 means no limit."""
    number = check_int("n_predict", value, min=-1, max=MAX_POSITIONS)
    return {"max_new_tokens": number} if number >= 0 else {}


def _ignore_eos(value: Any) -> dict[str, Any]:
    return {"stop_at_eos": False} if check_bool("ignore_eos", value) else {}


def _choice(value: Any) -> dict[str, Any]:
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise BadInputError(
            f"invalid choices {shown(value)}",
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
            wrong_type("structured_outputs", value, "an object"),
            expected="an object",
            remedy='e.g. {"json": {...}}',
        )
    given = {
        name: each for name, each in value.items() if name not in _STRUCTURED_IGNORED and not is_neutral(each, (False,))
    }
    if len(given) > 1 or not given.keys() <= _STRUCTURED_READ.keys():
        raise BadInputError(
            f"unknown or conflicting fields in structured_outputs: {', '.join(map(repr, given))[:160]}",
            expected="one of " + ", ".join(_STRUCTURED_READ),
            remedy="remove the others",
        )
    return {option: each for name, found in given.items() for option, each in _STRUCTURED_READ[name](found).items()}


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
    **{name: option_reader(name) for name in ("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")},
    "logit_bias": lambda value: {"logit_bias": {} if value == [] else value},
    "stop_token_ids": option_reader("stop_token_ids"),
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

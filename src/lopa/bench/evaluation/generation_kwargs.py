"""Translate lm-eval's generation_kwargs into decoding options.

The fields have the same meaning as in lm-eval's own backends (models/utils.py, 0.4.13). If the length has several
names, the first one applies. A temperature applies unless `do_sample` is false.
"""

from collections.abc import Mapping
from typing import Any

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError

_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_COPIED = ("top_p", "top_k", "seed")
OPTIONS = "lopa"
"""Field with the options that other backends lack, as in HTTP requests (docs/how-to/serve.md)."""
_KNOWN = ("until", "do_sample", "temperature", *_LENGTHS, *_COPIED, OPTIONS)
_REMEDY = "change generation_kwargs in the task, or --gen_kwargs"


def options_from_kwargs(kwargs: Mapping[str, Any], *, default_tokens: int) -> dict[str, Any]:
    """Return options of GenerationConfig by name. Raises BadInputError for a field that would have no effect."""
    unknown = [name for name in kwargs if name not in _KNOWN]
    if unknown:
        raise BadInputError(
            f"unknown generation option {shown(unknown[0])}", expected=f"only {', '.join(_KNOWN)}", remedy=_REMEDY
        )
    own = kwargs.get(OPTIONS) or {}
    if not isinstance(own, Mapping):
        raise BadInputError(f"invalid {OPTIONS} {shown(own)}", expected="an object of options by name", remedy=_REMEDY)
    copied = {name: kwargs[name] for name in _COPIED if kwargs.get(name) is not None}
    return {
        "max_new_tokens": next((kwargs[name] for name in _LENGTHS if kwargs.get(name) is not None), default_tokens),
        "temperature": 0.0 if kwargs.get("do_sample") is False else kwargs.get("temperature") or 0.0,
        "stop": _stop_strings(kwargs.get("until")),
        **copied,
        **own,
    }


def _stop_strings(until: Any) -> tuple[str, ...]:
    """Return the stop strings of `until`: a text, a list of texts or None. Empty texts are ignored, as in lm-eval."""
    texts = [until] if isinstance(until, str) else list(until or ())
    if not all(isinstance(text, str) for text in texts):
        raise BadInputError(f"invalid until {shown(until)}", expected="a text or a list of texts", remedy=_REMEDY)
    return tuple(dict.fromkeys(text for text in texts if text))

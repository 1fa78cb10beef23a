"""What lm-eval asks of a generation, as options of ours. Knows neither lm-eval nor a model.

lm-eval's own backends read these fields so (its models/utils.py, 0.4.13): of the names for a length the first counts,
and a temperature counts only where sampling is asked for, or nothing is said of it.
"""

from collections.abc import Mapping
from typing import Any

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError

_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_TAKEN = ("top_p", "top_k", "seed")
OPTIONS = "lopa"
"""The field with options that only we have, as in requests over HTTP (docs/how-to/serve.md)."""
_KNOWN = ("until", "do_sample", "temperature", *_LENGTHS, *_TAKEN, OPTIONS)
_REMEDY = "change generation_kwargs in the task, or --gen_kwargs"


def options_from_asked(asked: Mapping[str, Any], *, default_tokens: int) -> dict[str, Any]:
    """Options of GenerationConfig by name. Raises BadInputError for a field that would change nothing."""
    unknown = [name for name in asked if name not in _KNOWN]
    if unknown:
        raise BadInputError(
            f"generation option {shown(unknown[0])}", expected=f"some of {', '.join(_KNOWN)}", remedy=_REMEDY
        )
    own = asked.get(OPTIONS) or {}
    if not isinstance(own, Mapping):
        raise BadInputError(f"{OPTIONS} {shown(own)}", expected="an object of options by name", remedy=_REMEDY)
    taken = {name: asked[name] for name in _TAKEN if asked.get(name) is not None}
    return {
        "max_new_tokens": next((asked[name] for name in _LENGTHS if asked.get(name) is not None), default_tokens),
        "temperature": 0.0 if asked.get("do_sample") is False else asked.get("temperature") or 0.0,
        "stop": _stop_strings(asked.get("until")),
        **taken,
        **own,
    }


def _stop_strings(until: Any) -> tuple[str, ...]:
    """`until` is a text, a list of texts or nothing; an empty text, which lm-eval passes over, ends nothing."""
    texts = [until] if isinstance(until, str) else list(until or ())
    if not all(isinstance(text, str) for text in texts):
        raise BadInputError(f"until {shown(until)}", expected="a text or a list of texts", remedy=_REMEDY)
    return tuple(dict.fromkeys(text for text in texts if text))

"""A request: a prompt and everything its answer depends on. Every front end reads its own format into it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.chat.chat import Chat
from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig, GenerationOptions
from lopa.runtime.text.text_with_holes import TextWithHoles

Messages = Sequence[Mapping[str, Any]]
"""Messages of a chat, each with "role" and "content"."""
Prompt = str | Sequence[int] | npt.NDArray[np.integer] | TextWithHoles | Chat | Messages
"""Text, token IDs, a text with holes, messages of a chat, or a Chat, which also has tools and template variables."""
MAX_CACHE_SALT = 256
"""Maximum characters of a cache_salt."""


@dataclass(frozen=True)
class Request:
    """A prompt with its own decoding options. `requests/job.py` checks it and makes it ready."""

    prompt: Prompt
    config: GenerationConfig = field(default_factory=GenerationConfig)
    """Requested options, choices and grammars among them."""
    cache_salt: str | None = None
    """Requests with different values share no rows of the prefix cache. Equal prompts of two users are then not
    visible in the speed of their answers."""
    shortens: bool = False
    """True if a prompt may leave less than max_new_tokens, for an answer of what is left."""


def request_from(prompt: Any, config: GenerationConfig | None, options: GenerationOptions) -> Request:
    """Return a single prompt with `config` (None: no options) and `options` changed as a Request, or a Request as it
    is. Raises BadInputError for a Request with other options.
    """
    if isinstance(prompt, Request):
        check_nothing_beside(prompt, config=config is not None, **dict.fromkeys(options, True))
    return request_among(prompt, changed_config(config, options))


def request_among(prompt: Any, config: GenerationConfig | None) -> Request:
    """Return one of several prompts as a Request, whose config is its own, or `config` (None: no options)."""
    if isinstance(prompt, Request):
        return prompt
    return Request(Chat(prompt) if _are_messages(prompt) else prompt, changed_config(config, {}))


def prompt_or_messages(prompt: Any, messages: Messages | None) -> Any:
    """Return `prompt`, or a Chat of `messages`. Raises BadInputError for both and for neither."""
    if (prompt is None) == (messages is None):
        raise BadInputError(
            "no prompt: prompts and messages are None" if prompt is None else "a prompt and messages",
            expected="a prompt: text, token IDs, a Chat or a list of messages; or the keyword messages",
            remedy='pass it as the first argument, e.g. "2 + 2 =", or messages=[{"role": "user", "content": "2 + 2?"}]',
        )
    return prompt if messages is None else Chat(messages)


def _are_messages(prompt: Any) -> bool:
    """Return True for a list of objects, which are the messages of one chat."""
    return isinstance(prompt, (list, tuple)) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def check_nothing_beside(request: object, **is_given: bool) -> None:
    """Raise BadInputError if an argument, by name, is given together with a complete `request`."""
    name = next((name for name, given in is_given.items() if given), None)
    if name is not None:
        kind = type(request).__name__
        raise BadInputError(
            f"{name} beside a {kind}",
            expected=f"a {kind} alone, since it has its own options",
            remedy=f"remove {name}, or make the {kind} with it",
        )


def changed_config(base: Any, options: GenerationOptions) -> GenerationConfig:
    """Return `base` (None: no options) with `options` changed and each value checked. Raises BadInputError."""
    if not isinstance(base, GenerationConfig | None):
        raise BadInputError(
            f"invalid config: a config of type {type(base).__name__}",
            expected="a GenerationConfig, or None for the bundle's own",
            remedy="make one with decoder.config(...)",
        )
    config = base or GenerationConfig()
    return GenerationConfig.from_mapping({**config.requested(), **options}) if options else config


def check_prompts(prompts: Iterable[Any]) -> None:
    """Raise BadInputError unless `prompts` are several prompts."""
    one, is_bytes = isinstance(prompts, str), isinstance(prompts, (bytes, bytearray))
    is_number = isinstance(prompts, np.ndarray) and not prompts.ndim  # NumPy's numbers only look iterable
    if one or is_bytes or is_number or isinstance(prompts, Mapping) or not isinstance(prompts, Iterable):
        remedy = "decode them, e.g. prompt.decode()" if is_bytes else 'e.g. ["text"]'
        raise BadInputError(
            f"invalid prompts {shown(prompts)}",
            expected="one prompt (text, token IDs, a Chat) or a list of prompts",
            remedy=f"for a single prompt use [{shown(prompts)}]" if one else remedy,
        )


def is_single_prompt(prompts: Any) -> bool:
    """Return True for one prompt or Request. Anything else may be several prompts."""
    if isinstance(prompts, (str, Request, TextWithHoles, Chat)) or _are_messages(prompts):
        return True
    if isinstance(prompts, np.ndarray):
        return prompts.ndim == 1 and prompts.dtype.kind in "iu"
    if isinstance(prompts, (bytes, bytearray, memoryview)) or not isinstance(prompts, Sequence) or not len(prompts):
        return False
    return isinstance(prompts[0], (int, np.integer)) and not isinstance(prompts[0], bool)


def check_cache_salt(value: Any) -> str | None:
    """Return `value` if it is a valid cache_salt. Raises BadInputError for others."""
    if value is None or (isinstance(value, str) and 0 < len(value) <= MAX_CACHE_SALT):
        return value
    raise BadInputError(
        f"invalid cache_salt {shown(value)}",
        expected=f"a string of 1 to {MAX_CACHE_SALT} characters",
        remedy="correct it, or remove it to share the prefix cache with all requests",
    )

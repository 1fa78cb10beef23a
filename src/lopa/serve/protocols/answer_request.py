"""Bodies of protocols other than OpenAI's, read as chats, and the client's names of fields in errors."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import FieldError
from lopa.serve.openai.body_options import CHATS, MESSAGES, PROMPT_FIELDS, check_neutral, replace_words
from lopa.serve.openai.request import AnswerRequest, request_from_body
from lopa.serve.serve_limits import ServeLimits

Fields = Mapping[str, Any]
"""Fields of a body by their names."""
_NOT_READ = {"n": (1,), "logprobs": (False,), "top_logprobs": (0,), "max_completion_tokens": ()}
"""Fields of a chat that other protocols lack or cannot show in a reply, with the values that change nothing."""


def request_from_own_fields(
    body: Fields,
    own: Fields,
    names: Mapping[str, str],
    endpoint: str,
    limits: ServeLimits,
    defaults: Fields,
    read: Collection[str],
) -> AnswerRequest:
    """Return the request in a body of another protocol, whose replies have one choice and no log-probabilities.

    `own` has the fields of a chat that the protocol's own fields in `read` stand for, and `names` the protocol's names
    of such fields. All other fields are read as those of a chat. Raises FieldError for an invalid field, in the
    client's names.
    """
    for name, neutral in _NOT_READ.items():
        check_neutral(name, body.get(name), neutral)
    for name in names.keys() & own.keys():
        if body.get(name) not in (None, own[name]):
            received = f"{name} {shown(body[name])} beside {names[name]}"
            raise FieldError(name, received, expected=names[name], remedy=f"remove {name}")
    names = {name: client for name, client in names.items() if body.get(name) is None}
    with renamed_fields(names):
        others = {name: value for name, value in body.items() if name not in read}
        found = request_from_body({**others, **own}, CHATS, limits, defaults, read)
    for name in ("logprobs", "top_logprobs"):
        check_neutral(found.options.params.get(name, name), found.options.values.get(name), _NOT_READ[name])
    chat = found.chat
    assert chat is not None
    prompts = (replace(chat, continues=endpoint == MESSAGES),)  # Anthropic's API continues a last assistant message
    return replace(found, endpoint=endpoint, prompts=prompts, param=PROMPT_FIELDS[endpoint], body=body, names=names)


@contextmanager
def renamed_fields(names: Mapping[str, str]) -> Iterator[None]:
    """Rename the fields of OpenAI's chats in errors to the client's `names`."""
    try:
        yield
    except FieldError as error:
        param = names.get(error.param, error.param)
        words = {error.param: param}
        raise error.of_field(param, lambda text: replace_words(text, words), code=error.code) from error

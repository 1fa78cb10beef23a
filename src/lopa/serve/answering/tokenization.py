"""Answers about tokens, without a decode: /tokenize and /detokenize as in vLLM, and Anthropic's count of tokens."""

from collections.abc import Mapping
from typing import Any

from lopa.runtime.checked_values import check_bool, wrong_type
from lopa.runtime.errors import FieldError, field_errors
from lopa.runtime.generation_config import did_you_mean
from lopa.runtime.options import MAX_POSITIONS
from lopa.runtime.text.prompt_ids import is_token_id
from lopa.serve.answering.service import Service
from lopa.serve.answering.submission import prompt_ids, read_request
from lopa.serve.openai.body_options import CHATS, COMPLETIONS, MESSAGES
from lopa.serve.protocols.answer_request import renamed_fields

_Body = Mapping[str, Any]


def count_tokens(service: Service, body: _Body) -> dict[str, Any]:
    """Return the number of tokens of a prompt of /v1/messages, tools and system included. Raises FieldError."""
    longest = service.limits.max_tokens or MAX_POSITIONS
    requested = read_request(service, MESSAGES, {"max_tokens": longest, **body})
    with renamed_fields(requested.names):
        return {"input_tokens": len(prompt_ids(service, requested))}


def tokenize(service: Service, body: _Body) -> dict[str, Any]:
    """Return the token ids of a text or chat, as answers are given to them. Raises FieldError."""
    decoder, is_chat = service.engine.decoder, body.get("messages") is not None
    prompt = body.get("prompt")
    if is_chat != (prompt is None) or not isinstance(prompt, str | None):
        wrong = "prompt beside messages" if is_chat else wrong_type("prompt", prompt, "a text")
        raise FieldError("prompt", wrong, expected="a text as prompt, or messages", remedy="send one of the two")
    fields = {"model": service.name, **{name: value for name, value in body.items() if value is not None}}
    with_texts = _switch(fields, "return_token_strs", default=False)
    add_bos = is_chat or _switch(fields, "add_special_tokens", default=True)  # a chat's template adds its own
    requested = read_request(service, CHATS if is_chat else COMPLETIONS, fields)
    ids = prompt_ids(service, requested, add_bos=add_bos)
    return {
        "count": len(ids),
        "max_model_len": decoder.bundle.manifest.dimensions.max_positions,
        "tokens": ids,
        "token_strs": decoder.tokenizer.token_texts(ids) if with_texts else None,
    }


def _switch(fields: dict[str, Any], name: str, *, default: bool) -> bool:
    with field_errors(name):
        return check_bool(name, fields.pop(name, default))


def detokenize(service: Service, body: _Body) -> dict[str, Any]:
    """Return the text of token ids, special tokens included. Raises FieldError."""
    decoder, ids = service.engine.decoder, body.get("tokens")
    for name in body.keys() - {"model", "tokens"}:
        expected, remedy = "model and tokens", did_you_mean(name, ("model", "tokens"), otherwise="remove it")
        raise FieldError(name[:80], f"unknown field {name[:80]!r}", expected=expected, remedy=remedy)
    if body.get("model") is not None:
        service.check_model(body["model"])
    vocabulary = decoder.bundle.manifest.dimensions.vocab_size
    wanted = f"a list of integers from 0 to {vocabulary - 1}"
    if not isinstance(ids, list) or not all(is_token_id(each, vocabulary) for each in ids):
        raise FieldError("tokens", wrong_type("tokens", ids, wanted), expected=wanted, remedy=f"send {wanted}")
    return {"prompt": decoder.tokenizer.decode(ids, special_tokens=True)}

"""Comparison of a bundle's tokenizer and chat template with transformers' AutoTokenizer of the checkpoint."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from lopa.export.checkpoint.auto_tokenizer import auto_tokenizer, find_difference, sample_texts
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError, CheckFailedError
from lopa.runtime.text.tokenizer import Tokenizer

Chat = Sequence[Mapping[str, Any]]

_TEXTS = {"system": "Answer in one word.", "user": " What is 2 + 3?\n", "assistant": "5, naïvely 🙂"}
_CHATS: tuple[Chat, ...] = tuple(
    [{"role": role, "content": _TEXTS[role]} for role in roles.split()]
    for roles in ("user", "system user", "user assistant user", "system user assistant user assistant user")
)
_PARAMETERS = {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}
_TOOL = {"type": "function", "function": {"name": "add", "description": "Add a.", "parameters": _PARAMETERS}}


def check_tokenizer(bundle: Bundle, checkpoint: Path) -> None:
    """Raise CheckFailedError if the bundle gives other ids, texts or chat prompts than the checkpoint's AutoTokenizer.

    Chats are rendered with the bundle's template, since an export or an edit may replace the checkpoint's. Message
    texts that only a list of content parts brings into the prompt are given to transformers in that form.
    """
    ours, theirs = Tokenizer.open(bundle), auto_tokenizer(checkpoint)
    found = find_difference(Backend.from_str(ours.definition()), theirs)
    if difference := found or next(_prompt_differences(ours, theirs, bundle), None):
        raise CheckFailedError(
            f"the tokenizer of {bundle.path} differs from AutoTokenizer of {checkpoint}: {difference}",
            expected="the same ids and texts",
            remedy="export the checkpoint again",
        )


def _prompt_differences(ours: Tokenizer, theirs: Any, bundle: Bundle) -> Iterator[str]:
    """Yield differences of plain prompts, of the beginning-of-text token and of chats."""
    manifest = bundle.manifest
    bos, add_bos = manifest.special_tokens.bos, manifest.decoding.add_bos
    if theirs.bos_token_id not in (None, bos):
        yield f"bos is {bos}, in transformers {theirs.bos_token_id}"
    for text in sample_texts(()):
        found, expected = ours.encode(text, add_bos=add_bos, special_tokens=True), theirs(text).input_ids
        if add_bos and expected[:1] != [bos]:
            expected = [bos, *expected]  # by the rule of the family's published loop
        if found != expected:
            yield f"the prompt {text!r} becomes {found}, in transformers {expected}"
    if theirs.chat_template and not ours.has_chat_template:
        yield "the bundle has no chat template"
    for tools in (None, [_TOOL]) if ours.has_chat_template else ():
        template = ours.chat_template(with_tools=tools is not None)
        for chat in _CHATS:
            expected = _chat_ids(theirs, chat, tools, template)
            with suppress(BadInputError):  # chats that are refused are not wrong
                if expected is not None and (found := ours.chat(chat, tools=tools)) != expected:
                    yield f"the chat {chat} becomes {found}, in transformers {expected}"


def _chat_ids(theirs: Any, chat: Chat, tools: Any, template: str) -> list[int] | None:
    """Return the ids of a chat in transformers, with its contents in the form that brings most of them into the prompt.

    Return None for a chat that the template rejects.
    """
    best: tuple[int, str] | None = None
    for roles in ((), ("user",), ("system", "user", "assistant")):
        given = [
            {**each, "content": [{"type": "text", "text": each["content"]}]} if each["role"] in roles else each
            for each in chat
        ]
        with suppress(Exception):  # templates raise what they like
            text = theirs.apply_chat_template(
                given, tools=tools, chat_template=template, tokenize=False, add_generation_prompt=True
            )
            count = sum(each["content"].strip() in text for each in chat)
            if best is None or count > best[0]:
                best = (count, text)
    return None if best is None else list(theirs(best[1], add_special_tokens=False).input_ids)

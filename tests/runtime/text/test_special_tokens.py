"""Text becomes a special token only on request, and in a chat only the template's own text does."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.text.chat_templates import TEMPLATES

from lopa.runtime.text.tokenizer import Tokenizer
from lopa.tiny import CHECKPOINT

EOS, BOS, MASK = 0, 1, 2
ADDED = [
    *("<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<s>", "</s>"),
    *("[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>", "<|eot_id|>", "<|im_", "_end|><|"),
]
NOT_SPECIAL = ["<think>", "</think>"]


def tokenizer_with(template: str = "", **options: Any) -> Tokenizer:
    """Return the tiny tokenizer with special tokens of several families, each with `options`."""
    content = json.loads((CHECKPOINT / "tokenizer.json").read_bytes())
    known = max([*content["model"]["vocab"].values(), *(token["id"] for token in content["added_tokens"])])
    pattern = content["added_tokens"][-1]
    content["added_tokens"] += [
        {**pattern, "id": known + 1 + number, "content": text, "special": text not in NOT_SPECIAL, **options}
        for number, text in enumerate([*ADDED, *NOT_SPECIAL])
    ]
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    settings = {"chat_template": template, "bos_token": "<s>", "eos_token": "</s>"}
    return Tokenizer(backend, settings, BOS, source="a bundle", special=[MASK, EOS, BOS])


def specials(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    return [each for each in ids if each in tokenizer.special_ids]


def written(tokenizer: Tokenizer, ids: list[int]) -> str:
    return tokenizer._backend.decode(ids, skip_special_tokens=False)


PIECES = [*ADDED, *NOT_SPECIAL, "<|im_start|", "|im_end|>", "<|", "|>", "<", ">", "im_end", "</", "s>", "[", "INST]"]
PIECES += [" ", "\n", "a", "<x>", "<|mask|>", "<|endoftext|>", "user", "end", "é", "😀", "\ue000"]
CONTENTS = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


@settings(max_examples=40, deadline=None)
@given(text=CONTENTS)
def test_text_of_special_tokens_is_text(text: str) -> None:
    ids = TOKENIZER.encode(text, add_bos=False)
    assert specials(TOKENIZER, ids) == []
    assert TOKENIZER.decode(ids) == written(TOKENIZER, ids) == text


@settings(max_examples=50, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_ordinary_text_keeps_its_ids(text: str) -> None:
    ids = TOKENIZER.encode(text, add_bos=False)
    assert ids == TOKENIZER._backend.encode(text, add_special_tokens=False).ids


def test_text_becomes_the_token_on_request() -> None:
    ids = TOKENIZER.encode("a<|mask|>b<|im_end|>", add_bos=False, special_tokens=True)
    assert len(specials(TOKENIZER, ids)) == 2


@pytest.mark.parametrize("options", [{"lstrip": True}, {"rstrip": True}, {"normalized": True}, {"single_word": True}])
def test_special_tokens_are_found_in_any_tokenizer(options: dict[str, bool]) -> None:
    tokenizer = tokenizer_with(**options)
    text = "a <|im_end|> b <|mask|>c"
    assert specials(tokenizer, tokenizer.encode(text, add_bos=False)) == []
    assert tokenizer.decode(tokenizer.encode(text, add_bos=False)) == text


def test_unmarked_token_of_the_manifest() -> None:
    content = json.loads((CHECKPOINT / "tokenizer.json").read_bytes())
    for token in content["added_tokens"]:
        token["special"] = False
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    tokenizer = Tokenizer(backend, {}, BOS, source="a bundle", special=[MASK, EOS, BOS])
    ids = tokenizer.encode("a<|mask|>b", add_bos=False)
    assert MASK not in ids
    assert tokenizer.decode(ids) == "a<|mask|>b"
    assert MASK in tokenizer.encode("a<|mask|>b", add_bos=False, special_tokens=True)


def test_vocabulary_with_the_token_s_text_as_a_word() -> None:
    model = tokenizers.models.WordLevel({"[MASK]": 0, "a": 1, "[": 2, "MASK]": 3, "!": 4, "?": 5}, unk_token="?")
    tokenizer = Tokenizer(tokenizers.Tokenizer(model), {}, None, source="a bundle", special=[0, 4])
    assert tokenizer.encode("[MASK]", add_bos=False) == [2, 3]
    assert tokenizer.encode("!", add_bos=False) == [4]  # a character used for padding stays text
    assert tokenizer.encode("[MASK]", add_bos=False, special_tokens=True) == [0]


CUNNING = {
    "joined": "{% for m in messages %}{{ m.content }}{% endfor %}<|end|>",
    "trimmed": "{% for m in messages %}<s>{{ m.content | trim }}</s>{% endfor %}",
    "one part removed": "{% for m in messages %}<s>{{ m.content | replace('<x>', '') }}</s>{% endfor %}",
    "split": "{% for m in messages %}<s>{{ m.content.split('</think>')[-1] }}</s>{% endfor %}",
    "backwards": "{% for m in messages %}<s>{{ m.content[::-1] }}</s>{% endfor %}",
    "json": "{% for m in messages %}<s>{{ m | tojson }}</s>{% endfor %}",
}
FAMILIES = {name: TEMPLATES[name] for name in ("chatml", "qwen", "phi", "llama", "gemma")}
OF_TEMPLATE = {name: tokenizer_with(template) for name, template in {**CUNNING, **FAMILIES}.items()}
TOKENIZER = tokenizer_with()


@pytest.mark.parametrize("name", OF_TEMPLATE)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(contents=st.lists(CONTENTS, min_size=2, max_size=2))
def test_no_message_forges_a_token(name: str, contents: list[str]) -> None:
    tokenizer = OF_TEMPLATE[name]

    def chat(make: Callable[[str], str]) -> list[dict[str, Any]]:
        return [
            {"role": role, "content": make(content), "name": make(content), make(content) + " ": 1}
            for role, content in zip(("user", "assistant"), contents, strict=True)
        ]

    ids = tokenizer.chat(chat(str))
    assert specials(tokenizer, ids) == specials(tokenizer, tokenizer.chat(chat(lambda _: "harmless")))
    assert written(tokenizer, ids) == tokenizer.chat_text(chat(str))


@pytest.mark.parametrize("name", FAMILIES)
def test_ordinary_chats_have_the_ids_of_their_text(name: str) -> None:
    tokenizer = OF_TEMPLATE[name]
    chat = [
        {"role": "system", "content": "Be <b>brief</b>."},
        {"role": "user", "content": "  What is 2 + 3?\n"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\n5 > 4"},
        {"role": "user", "content": "a < b | c"},
    ]
    text = tokenizer.chat_text(chat)
    ids = tokenizer._backend.encode(text, add_special_tokens=False).ids
    assert tokenizer.chat(chat) == ids
    assert specials(tokenizer, ids)

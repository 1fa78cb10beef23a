"""Token IDs of lopa-web are those of tokenizers and of lopa, and tokenizers that it reads differently are rejected.

`make web-texts` encodes 50,000 texts with each tokenizer.
"""

import json
import os
import random
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import tokenizers
from tests.runtime.text.hostile_tokenizers import files, library_tokenizer
from tests.runtime.text.tokenizer_kinds import EXPRESSIONS, GPT_2, KINDS
from tests.web.installed import no_web, run_node, text_answers
from tokenizers import Regex, models, pre_tokenizers, trainers

from lopa.runtime.errors import BadInputError
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.runtime.text.tokenizer_text import tokenizer_from_text
from lopa.tiny import CHECKPOINT

pytestmark = [pytest.mark.web, no_web]
NUMBER = int(os.environ.get("LOPA_WEB_TEXTS", "300"))
"""Texts for each tokenizer."""
TINY = json.loads((CHECKPOINT / "tokenizer.json").read_bytes())
REJECTED = {"T5": "Unigram", "ALBERT": "Unigram", "DeBERTa 2": "Unigram", "BERT": "WordPiece"}
"""Kinds that lopa-web rejects, and what its error names."""
EQUAL = [*(kind for kind in KINDS if kind not in REJECTED), "the toy", *EXPRESSIONS]
PIECES = (
    *(" ", "  ", "\n", "\r\n", "\t", "\u0085", "\ufeff", "\u00a0", "\u3000", "\u2028", "\x1c", "\0", "\x7f", "\u200d"),
    *("'s", "'S", "'\u017f", "'LL", "don't", "hello", "Hello WORLD", "3", "1234567", "½", "\u0663", "Ⅷ", "²", "日本語"),
    *("한국어", "\u1100\u1161\u11a8", "é", "e\u0301", "👩\u200d👩\u200d👧", "🇩🇪", "👍🏽", "...", "!?", "/", "\\", "_"),
    *("ʕ", "\u212a", "ǅ", "ß", "İ", "<s>", "</s>", "<|endoftext|>", "<unk>", "▁", "x", "A", "\ufffd"),
)
DIFFERENT = (
    "  ½",
    "2  \u0663",
    "a \u0085b",
    "\ufeff \ufeff",
    "'\u017fx 'ſs",
    "a\u2028\r\nb",
    "\t\n\r\n 3",
    "ʕA ʕAb",
    "12345",
    "K's",
)
"""Texts that the npm package encodes differently by itself."""
CATEGORIES = re.findall("[A-Z][a-z]", "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCo")
NEVER_ASSIGNED = "".join(map(chr, (*range(0xFDD0, 0xFDF0), *range(0x40000, 0x41000), 0x1FFFE, 0x10FFFF)))
UNICODE_17 = "".join(
    map(chr, (0x88F, 0xA7CE, 0xFBC3, *range(0x1ACF, 0x1AEC), *range(0x11DB0, 0x11DEA), *range(0x323B0, 0x32400)))
)
"""Characters that node knows and tokenizers does not."""


@lru_cache(maxsize=1)
def characters() -> tuple[str, ...]:
    """Return the characters of each general category of Unicode 16, Oniguruma's, and unassigned ones."""
    text = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    found = [NEVER_ASSIGNED, UNICODE_17]
    for category in CATEGORIES:
        split = pre_tokenizers.Split(Regex(rf"\p{{{category}}}+"), "removed", invert=True)
        found.append("".join(piece for piece, _ in split.pre_tokenize_str(text)))
    return tuple(found)


def texts(number: int, seed: str) -> Iterator[str]:
    """Yield texts that need care, and random texts of all kinds of characters."""
    yield from DIFFERENT
    rng = random.Random(seed)
    for _ in range(number):
        parts = [
            rng.choice(PIECES) if rng.random() < 0.5 else "".join(rng.choices(rng.choice(characters()), k=2))
            for _ in range(rng.randrange(1, 9))
        ]
        yield "".join(parts)


@lru_cache(maxsize=1)
def joining_model() -> dict[str, Any]:
    """Return a model with tokens across all boundaries, so that each difference in splitting changes the ids."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=12_000,
        min_frequency=1,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    corpus = [*DIFFERENT * 50, *texts(12_000, "model")]
    tokenizer.train_from_iterator((each.replace("s>", "") for each in corpus), trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model


def definition(kind: str) -> dict[str, Any]:
    """Return the tokenizer.json of a kind, with the joining model if its tokens are bytes."""
    content = KINDS[kind]() if kind in KINDS else TINY
    if kind in EXPRESSIONS:
        split = {"type": "Split", "pattern": {"Regex": EXPRESSIONS[kind]}, "behavior": "Isolated", "invert": False}
        content = with_splits(split)
    if content["decoder"]["type"] != "ByteLevel":
        return content
    names = [token for token in content["added_tokens"] if token["content"] in ("<s>", "</s>")]
    ignore = {"ignore_merges": content["model"].get("ignore_merges", False)}
    return {**content, "added_tokens": names, "model": {**joining_model(), **ignore}}


def with_splits(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the toy's tokenizer with other parts before its bytes."""
    to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {**TINY, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*parts, to_bytes]}}


def check_ids(content: dict[str, Any], number: int, seed: str) -> None:
    """Compare the ids and the decoded texts of random texts with lopa's, and with those of tokenizers itself."""
    text = json.dumps(content)
    backend = tokenizer_from_text(text.encode(), Path("tokenizer.json"), expected="a tokenizer", remedy="another")
    product, library = Tokenizer(backend, {}, None, source="a bundle"), library_tokenizer(content)
    marks = [token["content"] for token in content["added_tokens"]]
    given = list(texts(number, seed))
    opened, *found = text_answers({"tokenizer": text}, *given)
    assert opened == {}
    for each, answer in zip(given, found, strict=True):
        ids = product.encode(each, add_bos=False)
        assert answer == {"ids": ids, "text": product.decode(ids)}, ascii(each)
        if not any(mark in each for mark in marks):
            assert ids == library.encode(each, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", EQUAL)
def test_token_ids_are_those_of_python(kind: str) -> None:
    check_ids(definition(kind), NUMBER, kind)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "Digits", "individual_digits": False},
        {"type": "Split", "pattern": {"Regex": GPT_2}, "behavior": "Removed", "invert": True},
        {"type": "Split", "pattern": {"String": "3"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    ],
)
def test_other_parts_split_as_in_python(part: dict[str, Any]) -> None:
    content = with_splits(part) if part["type"] != "ByteLevel" else {**TINY, "pre_tokenizer": part}
    check_ids({**content, "added_tokens": [], "model": joining_model()}, 300, part["type"])


def test_dollars_and_settings_of_added_tokens_are_those_of_python() -> None:
    """JavaScript's replace reads `$&` as what was found."""
    dollars = {"type": "Replace", "pattern": {"String": "a"}, "content": "$&$$"}
    check_ids({**TINY, "normalizer": dollars}, 300, "dollars")
    new = {**TINY["added_tokens"][0], "id": 1 + max(TINY["model"]["vocab"].values())}
    new |= {"content": "hello", "special": False, "rstrip": True}
    check_ids({**TINY, "added_tokens": [*TINY["added_tokens"], new]}, 300, "rstrip")


@pytest.mark.parametrize("kind", ["Qwen 2", "Llama 2", "Gemma"])
def test_added_tokens_are_found_and_written_as_in_python(kind: str) -> None:
    """White space that two tokens claim fails in the library, and normalized special tokens are shown."""
    rng = random.Random(kind)
    lines: list[Any] = []
    expected: list[dict[str, Any]] = []
    for _ in range(40):
        content = KINDS[kind]()
        first = 1 + max(content["model"]["vocab"].values())
        for number, text in enumerate(rng.sample(["<a b>", "<b>", " ", "  ", "\n", "b c", "\u3000"], 3), first):
            options = {name: rng.random() < 0.5 for name in ("lstrip", "rstrip", "normalized", "special")}
            content["added_tokens"].append({"id": number, "content": text, "single_word": False, **options})
        backend = tokenizer_from_text(json.dumps(content).encode(), Path("t"), expected="e", remedy="r")
        product = Tokenizer(backend, {}, None, source="a bundle")
        lines.append({"tokenizer": json.dumps(content)})
        expected.append({})
        for _ in range(25):
            lines.append("".join(rng.choices([*"ab \n\u3000x", "  ", "<a b>", "<b>", "b c"], k=5)))
            try:
                ids = product.encode(lines[-1], add_bos=False)
                expected.append({"ids": ids, "text": product.decode(ids)})
            except BadInputError:
                expected.append({"error": "in the white space of another token"})
        lines.append([rng.randrange(first + 3) if rng.random() < 0.5 else first + rng.randrange(3) for _ in range(9)])
        expected.append({"text": product.decode(lines[-1])})
    for line, wanted, found in zip(lines, expected, text_answers(*lines), strict=True):
        assert wanted.get("error", "") in found.get("error", "")
        assert "error" in wanted or wanted.items() <= found.items(), line
    assert sum("error" in wanted for wanted in expected) > 1


def test_a_byte_order_mark_is_rejected_as_in_python() -> None:
    (found,) = text_answers({"tokenizer": "\ufeff" + json.dumps(TINY)})
    assert "tokenizer.json is not JSON" in found["error"]


@pytest.mark.parametrize("kind", REJECTED)
def test_other_kinds_are_rejected_by_name(kind: str) -> None:
    (found,) = text_answers({"tokenizer": json.dumps(KINDS[kind]())})
    named = f'model.type = "{REJECTED[kind]}" is not supported'
    assert found["error"].startswith(f"BadInputError: the tokenizer of bundle: {named}")
    assert "decode in Python" in found["error"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"normalizer": {"type": "Lowercase"}}, 'normalizer = "Lowercase"'),
        ({"pre_tokenizer": {"type": "Punctuation", "behavior": "Isolated"}}, 'pre_tokenizer = "Punctuation"'),
        ({"decoder": {"type": "CTC"}}, 'decoder = "CTC"'),
        ({"model": {**TINY["model"], "merges": None}}, "model.merges = null"),
        ({"model": {**TINY["model"], "dropout": 0.5}}, "dropout"),
        ({"added_tokens": [{**TINY["added_tokens"][0], "single_word": True}]}, "single_word"),
        (
            with_splits({"type": "Split", "pattern": {"String": "a"}, "behavior": "Contiguous", "invert": False}),
            'behavior = "Contiguous"',
        ),
        (
            with_splits({"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}),
            "(a+)+$",
        ),
    ],
)
def test_what_differs_is_rejected_by_name(change: dict[str, Any], named: str) -> None:
    (found,) = text_answers({"tokenizer": json.dumps({**TINY, **change})})
    assert named in found["error"]


def test_merges_that_write_a_special_token_are_split_as_in_python() -> None:
    mark = "<|mask|>"
    steps = [mark[:size] for size in range(2, len(mark) + 1)]
    vocab = {**TINY["model"]["vocab"]}
    for step in steps:
        vocab.setdefault(step, len(vocab))
    merges = [
        *([step[:-1], step[-1]] for step in steps),
        *(merge.split(" ") if isinstance(merge, str) else merge for merge in TINY["model"]["merges"]),
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    content = {**TINY, "model": {**TINY["model"], "vocab": vocab, "merges": merges}, "pre_tokenizer": byte_level}
    assert library_tokenizer(content).encode(f"a{mark}", add_special_tokens=False).ids[-1] == vocab[mark]
    backend = tokenizer_from_text(json.dumps(content).encode(), Path("t"), expected="e", remedy="r")
    product = Tokenizer(backend, {}, None, source="a bundle")
    given = [mark, f"a{mark}é{mark}", f"{mark[:-1]}{mark} {mark}|>", f"🙂{mark}{mark[1:]}"]
    _, *found = text_answers({"tokenizer": json.dumps(content)}, *given)
    assert [answer["ids"] for answer in found] == [product.encode(each, add_bos=False) for each in given]


def test_an_old_engine_rejects_characters_that_it_does_not_know() -> None:
    """The module stands in for a browser of 2023."""
    old = "const { test } = RegExp.prototype; RegExp.prototype.test = function (text) "
    old += '{ return text !== "\\u{10d4a}" && test.call(this, text); };'
    options = {"NODE_OPTIONS": f"--import=data:text/javascript,{quote(old)}"}
    lines = ({"tokenizer": json.dumps(TINY)}, "a", "a\U00040000")
    _, known, new = map(json.loads, run_node("texts.mjs", requests=lines, environment=options).stdout.splitlines())
    assert known["text"] == "a"
    assert "newer than this browser" in new["error"]


HARMLESS = ("post_processor: template", "decoder: strip", "token", "added tokens")
"""Files that cost lopa-web no more than their size."""


def test_hostile_tokenizers_are_rejected() -> None:
    """They would take minutes or gigabytes. Opening them all takes seconds."""
    hostile = [(name, text) for name, text in files() if name not in HARMLESS]
    replaces = [{"type": "Replace", "pattern": {"String": "a"}, "content": "aaaa"}] * 20
    hostile.append(("twenty", json.dumps({**TINY, "normalizer": {"type": "Sequence", "normalizers": replaces}})))
    found = text_answers(*({"tokenizer": text} for _, text in hostile))
    accepted = [name for (name, _), answer in zip(hostile, found, strict=True) if "error" not in answer]
    assert accepted == []
    assert len(hostile) > 90

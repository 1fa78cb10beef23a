"""lopa-web reads a tokenizer.json with random changes as tokenizers does, or rejects it.

LOPA_WEB_MUTATIONS is the number of changed files, and LOPA_WEB_SEED changes all of them.
"""

import copy
import json
import os
import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.text.hostile_tokenizers import library_tokenizer
from tests.runtime.text.tokenizer_kinds import KINDS
from tests.web.installed import no_web, text_answers
from tests.web.test_web_token_ids import texts

from lopa.runtime.errors import BadInputError
from lopa.runtime.text.text_stream import TextStream
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.runtime.text.tokenizer_text import tokenizer_from_text
from lopa.tiny import CHECKPOINT

pytestmark = [pytest.mark.web, no_web]
NUMBER = int(os.environ.get("LOPA_WEB_MUTATIONS", "150"))
TEXTS, DECODES, BATCH = 12, 8, 500
WITHOUT = {"padding": None, "truncation": None}
"""Fields that lopa does not read."""
BASES: dict[str, Callable[[], dict[str, Any]]] = {
    **{kind: KINDS[kind] for kind in ("Qwen 2", "Llama 3", "GPT-2", "Llama 2", "Gemma")},
    "the toy": lambda: dict(json.loads((CHECKPOINT / "tokenizer.json").read_bytes())),
}
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, -1, 300, 1.0, 0.5, "", " ", "a", "▁", "<unk>", "<s>", "é", "\ud800", "<0x41>"),
    *([], {}, ["a"], "Isolated", "Removed", "MergedWithPrevious", "Contiguous", "BPE", "NFC", "NFKC", "ByteLevel"),
)
EXPRESSIONS = (
    *(
        r"\p{L}?+a",
        r"\w++a",
        "a{2}+",
        r"\p{punct}",
        "(?i:ss)",
        ".",
        r"\s*",
        "x??y",
        r"[\w]+",
        r"[^\W]",
        r"\h",
        r"[[:alpha:]]",
    ),
    *(
        r"\p{Alpha}+",
        r"\p{L}{2,3}",
        r" ?\p{L}+|\p{N}{1,3}+",
        r"[a-z&&[^b]]",
        r"\R",
        r"^a",
        r"a$",
        r"\s+$|.",
        r"\++|a",
        r"[]a]",
    ),
    *(
        r"[\-a-c]+",
        r"\bx",
        r"(?i:'s)",
        r"\P{^L}",
        r"[^\p{Han}]",
        r"\x61",
        r"\u0061",
        r"[\x61]",
        r"a\-b",
        r"\p{N}{2}?",
        "a|",
        "🙂+",
    ),
    *(
        r"[\u0061-\u0063]",
        "a{,2}",
        "a{2,1}",
        r"(?<=a)b",
        r"\p{Lu}*a",
        r"\w?\d+$",
        "[a-]",
        "[-a]",
        "[a^]",
        "#",
        r"a++|b*+",
        r"\n",
    ),
)
PARTS: dict[str, list[dict[str, Any]]] = {
    "normalizer": [
        *({"type": name} for name in ("NFC", "NFD", "NFKC", "Lowercase", "StripAccents", "Nmt", "ByteLevel")),
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": "$&"},
        {"type": "Strip", "strip_left": True, "strip_right": True},
    ],
    "pre_tokenizer": [
        *({"type": name} for name in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer")),
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        {"type": "Digits", "individual_digits": False},
        {"type": "Digits", "individual_digits": True},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
        *(
            {"type": "Split", "pattern": {"String": " "}, "behavior": behavior, "invert": invert}
            for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext")
            for invert in (False, True)
        ),
    ],
    "decoder": [
        *({"type": name} for name in ("ByteFallback", "Fuse")),
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "Replace", "pattern": {"Regex": r"\p{L}"}, "content": "$1"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        {"type": "Strip", "content": "a", "start": 2, "stop": 1},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
    ],
    "post_processor": [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}],
}
INNER = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "decoder": "decoders",
    "post_processor": "processors",
}


def changed(content: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a tokenizer.json with one to three changes."""
    content = copy.deepcopy(content)
    for _ in range(rng.choice((1, 1, 1, 2))):
        rng.choice((change_field, change_field, change_part, change_part, change_model, change_added))(content, rng)
    return content


def change_field(content: dict[str, Any], rng: random.Random) -> None:
    """Drop, change, add or reorder a value anywhere but in the vocabulary."""
    places: list[Any] = [content]
    for each in places:
        values = each.values() if isinstance(each, dict) else each
        big = (
            [content["model"].get("vocab"), content["model"].get("merges")]
            if isinstance(content.get("model"), dict)
            else []
        )
        places += [value for value in values if isinstance(value, dict | list) and value and value not in big]
    place = rng.choice(places)
    if isinstance(place, list):
        rng.choice((place.reverse, lambda: place.append(copy.deepcopy(rng.choice(place))), place.pop))()
        return
    name = rng.choice([*place, "new"])
    if name != "new" and rng.random() < 0.3:
        del place[name]
    elif name not in ("vocab", "merges"):
        place[name] = rng.choice(EXPRESSIONS) if name == "Regex" else rng.choice(VALUES)


def change_part(content: dict[str, Any], rng: random.Random) -> None:
    """Put another part into a field, alone, before or behind its parts."""
    field = rng.choice(list(PARTS))
    part = copy.deepcopy(rng.choice(PARTS[field]))
    if field != "post_processor" and rng.random() < 0.3:
        pattern = {"Regex": rng.choice(EXPRESSIONS)}
        split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        part = split if field == "pre_tokenizer" else {"type": "Replace", "pattern": pattern, "content": "x"}
    old = content.get(field)
    parts = rng.choice(([part], [part, old], [old, part])) if old else [part]
    content[field] = {"type": "Sequence", INNER[field]: parts} if len(parts) > 1 or rng.random() < 0.3 else part


def change_model(content: dict[str, Any], rng: random.Random) -> None:
    """Change settings, the vocabulary or the merges of a model."""
    model = content.get("model")
    if (
        not isinstance(model, dict)
        or not isinstance(model.get("vocab"), dict)
        or not isinstance(model.get("merges"), list)
    ):
        return
    vocab, merges = model["vocab"], model["merges"]
    kind = rng.randrange(8)
    if kind == 0 and vocab:
        del vocab[rng.choice(list(vocab))]
    elif kind == 1 and vocab:
        for name in rng.sample(list(vocab), min(5, len(vocab))):
            vocab[name] = rng.choice(list(vocab.values()))
    elif kind == 2 and vocab:
        vocab[rng.choice(("new", "é", "日", "\u0120new", "<0x00>", "▁▁", "", "<s>"))] = rng.choice(
            (max(vocab.values()) + 1, 7, 5000)
        )
    elif kind == 3 and len(merges) > 2:
        rng.shuffle(merges)
    elif kind == 4 and merges:
        merges[rng.randrange(len(merges))] = rng.choice(
            (["a", "b"], "a b", "a b c", ["a"], ["<0xE2>", "<0x96>"], "#version: 1", 5)
        )
    elif kind == 5:
        left, right = rng.sample(list(vocab), 2) if len(vocab) > 1 else ("a", "b")
        if left + right not in vocab and rng.random() < 0.8:
            vocab[left + right] = 1 + max(vocab.values(), default=0)
        merges.insert(
            rng.randrange(len(merges) + 1),
            [left, right] if isinstance((merges or [[]])[0], list) else f"{left} {right}",
        )
    elif kind == 6:
        flags = ("fuse_unk", "byte_fallback", "ignore_merges")
        model[rng.choice(flags)] = rng.choice((True, False, None))
        model["unk_token"] = rng.choice((None, "<unk>", "a", "<s>", "nothing"))
    else:
        for name in [name for name in vocab if len(name) == 1 and rng.random() < 0.3]:
            del vocab[name]
        model["merges"] = [
            m for m in merges if all(p in vocab for p in (m if isinstance(m, list) else str(m).split(" ")))
        ]


def change_added(content: dict[str, Any], rng: random.Random) -> None:
    """Add, move or change added tokens."""
    added = content.get("added_tokens")
    if not isinstance(added, list):
        return
    vocab = content["model"].get("vocab") if isinstance(content.get("model"), dict) else {}
    last = max(
        [
            *(vocab.values() if isinstance(vocab, dict) else ()),
            *(each.get("id", 0) for each in added if isinstance(each, dict) and isinstance(each.get("id", 0), int)),
        ],
        default=0,
    )
    new = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    new = {name: name != "single_word" and rng.random() < 0.5 for name in new}
    text = rng.choice(
        (
            "é",
            "日本",
            "hello",
            "<tool_call>",
            " x",
            "  ",
            "\n",
            "A",
            "e\u0301",
            "▁",
            "<|a|>",
            "a b",
            "ʕ",
            "he",
            "\ufeff",
            "don't",
            "🙂",
        )
    )
    added.insert(
        rng.choice((len(added), len(added), len(added), 0)),
        {"id": rng.choice((last + 1, last + 1, last + 1, 3, 9999)), "content": text, **new},
    )


def outcome(run: Callable[[], Any]) -> Any:
    """Return what `run` returns, or None if the library refuses. A panic is no Exception."""
    try:
        return run()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return None


def opened(content: dict[str, Any]) -> Tokenizer | None:
    """Return the tokenizer as lopa opens it, or None."""
    try:
        backend = tokenizer_from_text(json.dumps(content).encode(), Path("t"), expected="e", remedy="r", trusted=True)
    except BadInputError:
        return None
    return Tokenizer(backend, {}, None, source="a bundle")


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Return the pieces of lopa's stream of text."""
    stream = TextStream(tokenizer)
    return [*(stream.push([each]) for each in ids), stream.finish()]


def cases(seed: str, number: int) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Yield changed files with texts to encode and ids to decode."""
    rng = random.Random(seed)
    bases = {name: make() for name, make in BASES.items()}
    for _ in range(number):
        content = changed(bases[rng.choice(list(bases))], rng)
        added = content.get("added_tokens")
        tokens = [each for each in added if isinstance(each, dict)] if isinstance(added, list) else []
        marks = [token["content"] for token in tokens if isinstance(token.get("content"), str)]
        glue = [*marks, " ", "\u0085", "\ufeff", "\u00a0", "a"]
        given: list[Any] = [
            "".join(random.Random(f"{each}{seed}").sample([each, *rng.choices(glue, k=3)], k=4))
            for each in list(texts(TEXTS, repr(rng.random())))[-TEXTS:]
        ]
        given = [each for each in given if not any(0xD800 <= ord(mark) < 0xE000 for mark in each)]
        given += [
            [rng.randrange(420) if rng.random() < 0.5 else rng.randrange(3, 259) for _ in range(12)]
            for _ in range(DECODES)
        ]
        yield content, given


def batches(given: Iterator[Any]) -> Iterator[list[Any]]:
    """Yield lists of up to BATCH values."""
    while batch := list(islice(given, BATCH)):
        yield batch


def differences(content: dict[str, Any], given: list[Any], answers: list[dict[str, Any]]) -> Iterator[Any]:
    """Yield what lopa-web answers otherwise than lopa."""
    product = opened(content)
    if product is None or outcome(lambda: library_tokenizer({**content, **WITHOUT})) is None:
        yield "refused in Python", content
        return
    for each, answer in zip(given, answers, strict=True):
        if isinstance(each, str):
            ids = outcome(lambda: product.encode(each, add_bos=False))  # noqa: B023
            expected = {"ids": ids, "text": product.decode(ids)} if ids is not None else None
        else:
            expected = {"text": product.decode(each), "pieces": pieces(product, each)}
        if (None if "error" in answer else answer) != expected:
            yield each, answer, expected, content


def test_changed_files_are_read_as_by_python_or_rejected() -> None:
    accepted, wrong = 0, []
    for batch in batches(cases(os.environ.get("LOPA_WEB_SEED", "1"), NUMBER)):
        lines = [line for content, given in batch for line in ({"tokenizer": json.dumps(content)}, *given)]
        answers = iter(text_answers(*lines))
        for content, given in batch:
            first, *found = [next(answers) for _ in range(1 + len(given))]
            if "error" in first:
                assert first["error"].startswith("BadInputError: ")
            else:
                accepted += 1
                wrong += list(differences(content, given, found))[:1]
    assert not wrong, f"{len(wrong)} of {NUMBER}: {wrong[0]!a}"
    assert accepted > NUMBER // 5

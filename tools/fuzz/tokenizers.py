"""Cases from tokenizer.json: generated chains of parts, expressions, tables, models and added tokens.

Most are valid for the library, so they are opened and used. The texts make a bad tokenizer use much memory or time.
"""

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.runtime.text.tokenizer_kinds import EXPRESSIONS, charsmap, precompiled, random_expression

from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.text.tokenizer import Tokenizer
from tools.fuzz.bundles import copy_bundle, update_record
from tools.fuzz.case import Case, Material
from tools.fuzz.decode import answer_of_bundle
from tools.fuzz.mutations import changed_bytes, changed_document, changed_json, number, short, text_of_json
from tools.fuzz.worker import limit_addresses

ADDRESS_BYTES = 3 * 2**29
"""Bytes of address space beyond the process's own, far more than a valid tokenizer needs."""
TEXTS = (
    *("", "a" * 2500, "ab" * 1200 + "c", " " * 2500, "e" * 2500, "é🙂\n\n  1234" * 200, "\u0301" * 900, "ﷺ" * 900),
    *("a" * 5000, "é🙂\n\n  1234", "<|mask|><|endoftext|>" * 50, "<a><b></a>" * 100, "aaa \n" * 500 + "b", "1" * 2500),
    *("a b" * 800, "e<a>" * 400),
)
_SMALL = ("", "e", " ", "\u2581", "ab", "e" * 4, "e" * 17, "é", "\n", "Z", "e" * 100, "x" * 5000)
_CTC_TOKENS = ("pad_token", "word_delimiter_token")


def tokenizer_case(rng: random.Random, folder: Path, material: Material) -> Case:
    """Mutate tokenizer.json or tokenizer_config.json, or insert a part that has revealed bugs."""
    bundle, _ = copy_bundle(rng, folder, material, modes=("cpu",))
    path = bundle / rng.choice(["tokenizer.json", "tokenizer.json", "tokenizer_config.json"])
    tree = json.loads(path.read_bytes())
    if path.name == "tokenizer.json" and rng.random() < 0.6:
        name = rng.choice(["normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding"])
        tree[name] = rng.choice(_PARTS)
        text, words = text_of_json(rng, tree), f"{name} = {short(tree[name])}"
    else:
        text, words = changed_document(rng, json.dumps(tree, indent=2).encode(), bytes_share=0.3)
    return _tokenizer_case_of(f"{path.name}: {words}", path, text, material)


def chains_case(rng: random.Random, folder: Path, material: Material) -> Case:
    """Replace one to three parts of the bundle's tokenizer by others."""
    bundle, _ = copy_bundle(rng, folder, material, modes=("cpu",))
    path = bundle / "tokenizer.json"
    tree = json.loads(path.read_bytes())
    words = [_change_field(rng, tree) for _ in range(rng.choice([1, 1, 2, 3]))]
    if rng.random() < 0.1:
        tree, word = changed_json(rng, tree)
        words.append(word)
    text = text_of_json(rng, tree)
    if rng.random() < 0.05:  # the first of two duplicate keys is hostile
        text = b'{"normalizer": ' + json.dumps(precompiled(b"\xfc\xff\xff\xff")).encode() + b", " + text[1:]
        words.append("duplicate normalizer")
    return _tokenizer_case_of("; ".join(words), path, text, material)


def _tokenizer_case_of(words: str, path: Path, text: bytes, material: Material) -> Case:
    """Write a file of a bundle's tokenizer, and return the case that uses it."""
    path.write_bytes(text)
    update_record(path.parent, path.name)

    def run() -> object:
        limit_addresses(ADDRESS_BYTES)
        answer = answer_of_bundle(path.parent)
        tokenizer = Tokenizer.open(Bundle.open(path.parent))
        for each in TEXTS:
            with suppress(BadInputError):
                tokenizer.decode(tokenizer.encode(each, add_bos=True)[:4000])
        tokenizer.decode(list(range(1000)))
        return answer

    return Case(words, run, material.answers["cpu"], may_differ=True)


def _change_field(rng: random.Random, tree: dict[str, Any]) -> str:
    """Change one field of a tokenizer, and describe the change."""
    field = rng.choice([*_CHAINS] * 4 + ["model", "added_tokens", "padding", "truncation"])
    if field in _CHAINS:
        tree[field] = _chain(rng, field)
    elif field == "model":
        return _change_model(rng, tree["model"])
    elif field == "added_tokens":
        for content in rng.sample(["<a>", "</a>", "<b>", "e", " ", "aa", "é", "", "e" * 3000, "x" * 5000], 4):
            flags = {name: rng.random() < 0.3 for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
            tree[field].append({"id": rng.choice([1000, 1023, 2**20, 2**24]), "content": content, **flags})
    elif field == "padding":
        size = rng.choice([3, 10**9, 2**40])
        tree[field] = {"strategy": {"Fixed": size}, "direction": "Left", "pad_to_multiple_of": rng.choice([None, 0, 8])}
        tree[field] |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
    else:
        strategy = {"strategy": "LongestFirst", "direction": "Right"}
        tree[field] = {"max_length": number(rng), "stride": number(rng), **strategy}
    return f"{field} = {json.dumps(tree[field], ensure_ascii=False)[-200:]}"


def _change_model(rng: random.Random, model: dict[str, Any]) -> str:
    vocab = model["vocab"]
    kind = rng.choice(["Unigram", "WordPiece", "WordLevel", "BPE", "no type", "field"])
    if kind == "Unigram":
        scores = [-1.0, -10.5, 0.0, 1e308, -1e308]
        words = [[text, rng.choice(scores)] for text in vocab]
        model.clear()
        model.update(type=kind, vocab=words, unk_id=rng.choice([0, 5, None, 10**6]), byte_fallback=rng.random() < 0.3)
    elif kind in ("WordPiece", "WordLevel"):
        model.clear()
        model.update(type=kind, vocab=vocab, unk_token=rng.choice(["a", "<none>"]))
        if kind == "WordPiece":
            model.update(continuing_subword_prefix=rng.choice(["", "##", "x" * 100]))
            model.update(max_input_chars_per_word=rng.choice([0, 100, 1024, 2**40]))
    elif kind == "no type":
        model.pop("type")
    else:
        names = ["dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "fuse_unk"]
        name = rng.choice([*names, "ignore_merges", "merges", "max_input_chars_per_word"])
        model[name] = rng.choice([None, True, 0.5, 1, "", "a", "</w>", "x" * 1000, [], ["a b"], [["a", "b"]], 2**60])
        return f"model.{name} = {model[name]!r}"[:80]
    return f"model {kind}"


def _chain(rng: random.Random, field: str, depth: int = 0) -> Any:
    """Return a part, or a sequence of parts."""
    sequence, parts = _CHAINS[field]
    if rng.random() < (0.5 if depth == 0 else 0.15):
        count = rng.choice([0, 1, 2, 3, 5, 9, 20, 64, 65, 1000]) if depth == 0 else rng.randrange(4)
        inner = [_chain(rng, field, depth + 1) for _ in range(min(count, 20))] * (1 if count <= 20 else count // 20)
        return {"type": "Sequence", sequence: inner}
    if rng.random() < 0.03:
        part = _chain(rng, field, depth + 1)
        for _ in range(rng.choice([5, 15, 17, 60, 200])):
            part = {"type": "Sequence", sequence: [part]}
        return part
    return parts(rng)


def _replace(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _pattern(rng: random.Random) -> dict[str, str]:
    if rng.random() < 0.4:
        return {"String": rng.choice(_SMALL)}
    return {"Regex": rng.choice([*EXPRESSIONS.values()]) if rng.random() < 0.2 else random_expression(rng)}


def _table(rng: random.Random) -> dict[str, Any]:
    texts = {rng.choice(["e", "é", "ab", "ﷺ", "🙂", " ", "a"]): rng.choice(_SMALL) for _ in range(rng.randrange(1, 5))}
    data = charsmap(texts)
    if rng.random() < 0.6:
        data, _ = changed_bytes(rng, data)
    elif rng.random() < 0.3:
        size = rng.choice([0, 4, 2048, 2**31, 2**32 - 4])
        data = size.to_bytes(4, "little") + rng.randbytes(rng.choice([0, 8, 4096]))
    return precompiled(data)


def _normalizer(rng: random.Random) -> dict[str, Any]:
    name = rng.choice(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt", "StripAccents", "ByteLevel", "BertNormalizer"])
    choices: list[dict[str, Any]] = [
        {"type": name, "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        {"type": "Strip", "strip_left": rng.random() < 0.5, "strip_right": rng.random() < 0.5},
        {"type": "Prepend", "prepend": rng.choice(_SMALL)},
        *[_replace(**_pattern(rng), content=rng.choice(_SMALL)) for _ in range(2)],
        _table(rng),
    ]
    return rng.choice(choices)


def _pre_tokenizer(rng: random.Random) -> dict[str, Any]:
    behavior = rng.choice(["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"])
    plain = ["BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts"]
    mark = rng.choice(["\u2581", "ab", "", "🙂", "e"])
    choices: list[dict[str, Any]] = [
        {"type": rng.choice(plain)},
        {"type": "ByteLevel", "add_prefix_space": rng.random() < 0.5, "trim_offsets": True, "use_regex": True},
        {"type": "Metaspace", "replacement": mark, "prepend_scheme": rng.choice(["always", "first", "never"])},
        {"type": "CharDelimiterSplit", "delimiter": rng.choice(["e", "", "é"])},
        {"type": "Digits", "individual_digits": rng.random() < 0.5},
        {"type": "FixedLength", "length": rng.choice([0, 1, 5, 2**63, -1])},
        {"type": "Punctuation", "behavior": behavior},
        *[{"type": "Split", "pattern": _pattern(rng), "behavior": behavior, "invert": rng.random() < 0.3}] * 3,
    ]
    return rng.choice(choices)


def _decoder(rng: random.Random) -> dict[str, Any]:
    size = rng.choice([0, 1, 3, 2**16, 2**40, 2**63])
    choices: list[dict[str, Any]] = [
        {"type": rng.choice(["ByteFallback", "Fuse", "ByteLevel"]), "trim_offsets": True},
        {"type": "BPEDecoder", "suffix": rng.choice(_SMALL)},
        {"type": "WordPiece", "prefix": rng.choice(_SMALL), "cleanup": True},
        {"type": "Metaspace", "replacement": rng.choice("\u2581e"), "prepend_scheme": "always", "split": True},
        {"type": "CTC", **{name: rng.choice(_SMALL) for name in _CTC_TOKENS}, "cleanup": True},
        {"type": "Strip", "content": rng.choice(["e", " ", ""]), "start": size, "stop": rng.choice([0, 1, size])},
        *[_replace(**_pattern(rng), content=rng.choice(_SMALL))] * 2,
    ]
    return rng.choice(choices)


def _post_processor(rng: random.Random) -> dict[str, Any]:
    text, token = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "B", "type_id": 0}}
    pieces = [rng.choice([text, token]) for _ in range(rng.choice([0, 1, 2, 3, 500]))]
    ends = {"sep": ["x", 1], "cls": ["y", 1]}
    special = {"B": {"id": "B", "ids": [1] * rng.choice([1, 1, 5000]), "tokens": ["x"]}}
    choices: list[dict[str, Any]] = [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": rng.random() < 0.5, "use_regex": True},
        {"type": rng.choice(["BertProcessing", "X"]), "sep": ["x", 10**9], "cls": ["y", 1]},
        {"type": "RobertaProcessing", **ends, "trim_offsets": True, "add_prefix_space": True},
        {"type": "TemplateProcessing", "single": pieces, "pair": [text], "special_tokens": special},
    ]
    return rng.choice(choices)


_PAD = {"pad_type_id": 0, "pad_token": ""}
_CLIP = {"strategy": "LongestFirst", "direction": "Right"}
_PARTS: tuple[Any, ...] = (
    _replace("yy", String=""),
    _replace("x", Regex="(a*)*b"),
    _replace("x", Regex="("),
    _replace("x" * 1000, Regex=""),
    {"type": "Split", "pattern": {"Regex": "(a|aa)*$"}, "behavior": "Isolated", "invert": False},
    {"type": "Split", "pattern": {"String": ""}, "behavior": "Removed", "invert": True},
    {"type": "Prepend", "prepend": "x" * 100_000},
    {"type": "Sequence", "normalizers": [{"type": "NFD"}] * 100},
    {"type": "Sequence", "normalizers": [_replace("aaaa", String="a")] * 14},
    *({"type": "Precompiled", "precompiled_charsmap": text} for text in ("AAAA", "")),
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "Metaspace", "replacement": "ab", "prepend_scheme": "always"},
    *({"type": "Strip", "content": "a", "start": start, "stop": stop} for start, stop in ((2**63, 2**63), (2**40, 7))),
    *(
        {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}
        for single in ([], [{"SpecialToken": {"id": "x", "type_id": 0}}])
    ),
    {"type": "BertProcessing", "sep": ["x", 10**9], "cls": ["y", 10**9]},
    {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
    {"type": "WordPiece", "prefix": "", "cleanup": True},
    *({"type": name} for name in ("Fuse", "ByteFallback", "Lowercase")),
    *({"max_length": length, "stride": 2 * length, **_CLIP} for length in (0, 1)),
    {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, **_PAD},
    {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": 0, "pad_id": 2**32 - 1, **_PAD},
    *(None, 7),
)
"""Parts that have made tokenizers fail or hang."""
_CHAINS = {
    "normalizer": ("normalizers", _normalizer),
    "pre_tokenizer": ("pretokenizers", _pre_tokenizer),
    "decoder": ("decoders", _decoder),
    "post_processor": ("processors", _post_processor),
}
"""Key of a sequence's parts, and the function that returns a part, by field."""

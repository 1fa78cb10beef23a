"""Tokenizers of the usual kinds, built with the tokenizers library, and tables for its `Precompiled` normalizer."""

import base64
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

LINES = [
    "Question: Ivy buys 4 shells for 3 dollars each. How much does Ivy pay?",
    "The total is 12 dollars, isn't it?",
    "naïve café: 日本語 テスト 🙂",
] * 3
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace("{1,3}", "")
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SIGNS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
SEED = (
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+"
    "|\\s+(?!\\S)|\\s+"
)
KIMI = (
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
EXPRESSIONS = {
    **{"GPT-2": GPT_2, "GPT-4": CL100K, "GPT-4o": O200K, "Llama 3": LLAMA_3, "Kimi K2": KIMI},
    **{"Qwen2, Dream, SDAR, Fast-dLLM v2": QWEN_2, "Ling, LLaDA": LING, "Seed-Coder, Stable-DiffCoder": SEED},
    "Qwen3.5": QWEN_2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"),
    "Tekken": O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", ""),
    "MiniCPM5": QWEN_2.replace(r"\p{N}|", r"\p{N}+|"),
    **{"DeepSeek V3": SIGNS, "DeepSeek V3 as written": SIGNS.replace(r"\r", "\r").replace(r"\n", "\n")},
    **{"DeepSeek V3, digits": r"\p{N}{1,3}", "DeepSeek V3, CJK": "[一-龥\u3040-ゟ゠-ヿ]+"},
    **{"DeepSeek LLM, letters": r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿⅅ-ⅉ𐐀-𐑏𞤀-𞥃]+", "DeepSeek LLM, end": r"\s+$"},
    **{"DeepSeek LLM, signs": r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", "DeepSeek Coder": r"\s?\p{P}+"},
    **{"CJK": "[一-龥ࠀ-一가-퟿]+", "BLOOM": r" ?[^(\s|[.,!?…。，、।۔،])]+", "Falcon": "[0-9][0-9][0-9]"},
    **{"Tiny Aya": r"\d{1,3}(?=(?:\d{3})*\b)", "digits": r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))"},
    "CLIP": r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    **{"T5": " {2,}", "DeBERTa 2": r"\s{2,}|[\n\r\t]", "Gemma 4": r"[^\n]+|[\n]+", "StarCoder": r"\p{N}"},
}
"""Expressions of published tokenizers. The sources are in lopa.runtime.text.known_expressions."""

_ITEMS = ["a", "b", "[ab]", "[^c]", ".", r"\w", r"\p{L}", r"\s", "é", "&", r"\<"] * 3
_ITEMS += ["(?:a|ab)", "(a)", "(?=a)", "(?i)", "[[ab]]", "[]a]", "[^]", "[a&&b]", "[[:alpha:]]", r"\R", r"\x{61}", "$"]
_COUNTS = ["", "", "", "?", "*", "+", "+", "*?", "++", "{2}", "{1,3}", "{2,}", "{,3}", "{0,2}"]


def random_expression(rng: random.Random) -> str:
    """Return a regular expression in Oniguruma's syntax. Most are valid, and a fourth is known."""
    items = [rng.choice(_ITEMS) + rng.choice(_COUNTS) * (rng.random() < 0.4) for _ in range(rng.randrange(1, 5))]
    return "".join(items) + ("|" + random_expression(rng) if rng.random() < 0.3 else "")


def charsmap(texts: Mapping[str, str]) -> bytes:
    """Return the table that maps the keys of `texts` to their values: a length, a Darts trie, and the values."""
    pool, units = b"", [0] * 256
    places = {b"": 0}
    keys = {key.encode(): value.encode() for key, value in texts.items()}
    for key in sorted({mark_whole[:size] for mark_whole in keys for size in range(len(mark_whole) + 1)}, key=len):
        base, place = len(units), places[key]
        units += [0] * 256
        if key in keys:
            units[base] = 1 << 31 | len(pool)
            pool += keys[key] + b"\0"
        units[place] |= (base ^ place) << 10 | (key in keys) << 8 | (key[-1] if key else 0)
        for other in {other[: len(key) + 1] for other in keys if other.startswith(key) and len(other) > len(key)}:
            places[other] = base ^ other[-1]
    trie = b"".join(unit.to_bytes(4, "little") for unit in units)
    return len(trie).to_bytes(4, "little") + trie + pool


NMT = charsmap({"ﬁ": "fi", "①": "1", "ﷺ": "صلى الله عليه وسلم", "\u00a0": " ", "\u212b": "\u00c5"})


def precompiled(table: bytes) -> dict[str, Any]:
    """Return a normalizer with the table, as in tokenizer.json."""
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


def _trained(tokenizer: tokenizers.Tokenizer, trainer: Any) -> dict[str, Any]:
    tokenizer.train_from_iterator(LINES, trainer)
    made: dict[str, Any] = json.loads(tokenizer.to_str())
    return made


def _byte_level(expression: str, *, normalizer: Any = None, **model: Any) -> dict[str, Any]:
    tokenizer = tokenizers.Tokenizer(models.BPE(**model))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    split = pre_tokenizers.Split(Regex(expression), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained(
        tokenizer,
        trainers.BpeTrainer(
            vocab_size=320, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
        ),
    )


def _sentence_piece(normalizer: Any, pre_tokenizer: Any, decoder: Any) -> dict[str, Any]:
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    made = _trained(tokenizer, trainers.BpeTrainer(vocab_size=400, special_tokens=names, show_progress=False))
    return {**made, "added_tokens": made["added_tokens"][:3]}


def _unigram(*normalizers_: dict[str, Any], pre_tokenizer: Any) -> dict[str, Any]:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    made = _trained(tokenizer, trainer)
    return {**made, "normalizer": {"type": "Sequence", "normalizers": list(normalizers_)}}


def _word_piece() -> dict[str, Any]:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return _trained(tokenizer, trainers.WordPieceTrainer(vocab_size=200, special_tokens=names, show_progress=False))


def _old_gpt_2() -> dict[str, Any]:
    """Return a file of 2020, which lacks the type of its model."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made = _trained(tokenizer, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    del made["model"]["type"]
    return made


_MARK = "\u2581"
_SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
_FROM_PIECES = decoders.Sequence(
    [decoders.Replace(_MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
_METASPACE = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "Qwen 2": lambda: _byte_level(QWEN_2, normalizer=normalizers.NFC()),
    "Llama 3": lambda: _byte_level(LLAMA_3, ignore_merges=True),
    "GPT-4": lambda: _byte_level(CL100K),
    "GPT-4o": lambda: _byte_level(O200K),
    "GPT-2": _old_gpt_2,
    "Llama 2": lambda: _sentence_piece(
        normalizers.Sequence([normalizers.Prepend(_MARK), normalizers.Replace(" ", _MARK)]), None, _FROM_PIECES
    ),
    "Gemma": lambda: _sentence_piece(
        normalizers.Replace(" ", _MARK), pre_tokenizers.Split(" ", "merged_with_previous"), _FROM_PIECES
    ),
    "T5": lambda: _unigram(precompiled(NMT), {"type": "Strip", "strip_left": False, "strip_right": True},
        {**_SPACES, "content": _MARK}, pre_tokenizer=pre_tokenizers.Metaspace()),
    "ALBERT": lambda: _unigram(
        *({"type": "Replace", "pattern": {"String": quote}, "content": '"'} for quote in ("``", "''")),
        *({"type": name} for name in ("NFKD", "StripAccents", "Lowercase")),
        precompiled(NMT), _SPACES, pre_tokenizer=pre_tokenizers.Metaspace()),
    "DeBERTa 2": lambda: _unigram(
        {"type": "Strip", "strip_left": True, "strip_right": True}, precompiled(NMT), _SPACES,
        pre_tokenizer=_METASPACE),
    "BERT": _word_piece,
}  # fmt: skip

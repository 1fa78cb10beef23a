r"""Regular expressions of published tokenizers, whose search takes linear time at each position of a text.

Oniguruma backtracks, so a short expression can take years on a short text. An expression is known if each of its
alternatives is listed below or simple. A simple one is a sequence of characters and classes. The first of them may be
optional, and the last may repeat. A line break may stand for itself or be written as \r and \n.
"""

import re

MAX_EXPRESSION = 16_384
"""Maximum characters of an expression. The longest known one, DeepSeek's list of letters, has a few thousand."""
_MAX_ALTERNATIVES = 32
"""Maximum alternatives. The longest known list, CLIP's, has twelve."""

_KNOWN = (
    # GPT-2 (encoder.py of openai/gpt-2), and most of those below
    r"\s+(?!\S)",
    # Llama 3 (TikTokenConverter of transformers 5.23) and Qwen2 (Qwen2Tokenizer of transformers 5.23), which Dream,
    # DiffuCoder, Fast-dLLM v2, SDAR and WeDLM use; Stable-DiffCoder (Seed-Coder in llama.cpp's llama-vocab.cpp)
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    # Qwen3.5 (Qwen3_5Tokenizer of transformers 5.23)
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    # LLaDA, LLaDA-MoE and LLaDA2, with Ling's expression (bailingmoe in llama.cpp's llama-vocab.cpp)
    r"'(?i:[sdmt]|ll|ve|re)",
    r"[^\r\n\p{L}\p{N}]?+\p{L}+",
    r" ?[^\s\p{L}\p{N}]++[\r\n]*",
    r"\s*[\r\n]",
    # GPT-4 and GPT-4o (tiktoken_ext/openai_public.py of tiktoken 0.14)
    r"\s++$",
    r"[^\r\n\p{L}\p{N}]?+\p{L}++",
    r"\p{N}{1,3}+",
    r" ?[^\s\p{L}\p{N}]++[\r\n]*+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    # Mistral's Tekken (PreTrainedTokenizerFast of transformers 5.23)
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    # Kimi K2 (tokenization_kimi.py of moonshotai/Kimi-K2-Instruct)
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    # DeepSeek V3 and DeepSeek LLM (deepseek-v3 and deepseek-llm in llama.cpp's llama-vocab.cpp)
    r" ?[\p{P}\p{S}]+[\r\n]*",
    r"\s+$",
    # BLOOM (tokenizer.json of bigscience/bloom)
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    # Groups of three digits from the right: Tiny Aya (tiny_aya in llama.cpp's llama-vocab.cpp), and a variant of
    # GPT-4o's expression that papers on digits train with
    r"\d{1,3}(?=(?:\d{3})*\b)",
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))",
)
_LITERAL = "|".join(re.escape(each).replace(r"\\r", r"(?:\\r|\r)").replace(r"\\n", r"(?:\\n|\n)") for each in _KNOWN)
_ITEM = (
    r"(?:\[\^?+(?:\\.|&(?!&)|[^\[\]\\&])+\]"  # a class without nested classes
    r"|\\[pP]\{\^?\w+\}|\\[wWsSdDhHrntfv]|\\[^\w\s]|[^\\\[\](){}|?*+^$])"
)
_ALTERNATIVE = re.compile(
    rf"(?:{_LITERAL}|(?:{_ITEM}\?)?(?P<items>{_ITEM}+)(?P<count>[+*?]|\{{[0-9]{{1,3}}(?:,[0-9]{{0,3}})?\}})?)(?=\||\Z)"
)


def shortest_match(expression: str) -> int | None:
    """Return a number of characters that `expression` matches at least, or None for an unknown expression."""
    if len(expression) > MAX_EXPRESSION:
        return None
    shortest, position = MAX_EXPRESSION, 0
    alternatives: set[str] = set()
    for _ in range(_MAX_ALTERNATIVES):
        found = _ALTERNATIVE.match(expression, position)
        if found is None or found[0] in alternatives:  # a repeated one only takes time
            return None
        alternatives.add(found[0])
        shortest = min(shortest, 1 if found["items"] is None else _items_length(found["items"], found["count"] or ""))
        if found.end() == len(expression):
            return shortest
        position = found.end() + 1
    return None


def _items_length(items: str, count: str) -> int:
    """Return the minimum length of a simple alternative whose last item has the quantifier `count`."""
    last = min(map(int, re.findall(r"[0-9]+", count)), default=int(count in ("", "+")))
    return len(re.findall(_ITEM, items)) - 1 + last

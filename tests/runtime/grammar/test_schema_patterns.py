"""Patterns of schemas by the rules of ECMA-262 and of Python's re, and escapes of GBNF by llama.cpp's."""

import json
import re

import pytest
from tests.runtime.grammar.test_exact_schema import TOKENIZER, accepts, grammar_of

from lopa.runtime.errors import BadInputError
from lopa.runtime.grammar.grammar_source import GrammarRequest, library_grammar, matcher_from_request
from lopa.runtime.grammar.llguidance_library import is_empty, lark_from_regex, matcher
from lopa.runtime.grammar.schema_patterns import pattern_for_library
from lopa.runtime.grammar.vocabulary import Vocabulary

pytestmark = pytest.mark.filterwarnings("ignore:Possible:FutureWarning")  # of Python's re, about [a~~b]
CHARACTERS = "aZ_09-.&~[]^\\/ \t\n\x0b\x1c\x85\xa0é٣²\u0300\u2028\u2029\u3000\ufeff😀"
ECMA_SPACE = " \t\n\x0b\x0c\r\xa0\ufeff\u1680\u2028\u2029\u202f\u205f\u3000"
ECMA = {r"\d": "[0-9]", r"\w": "[A-Za-z0-9_]", r"\s": f"[{ECMA_SPACE}\u2000-\u200a]", ".": "[^\n\r\u2028\u2029]"}
"""Python's expressions of ECMA-262's characters."""
ECMA |= {r"\D": "[^0-9]", r"\W": "[^A-Za-z0-9_]", r"\S": f"[^{ECMA_SPACE}\u2000-\u200a]"}


@pytest.mark.parametrize(
    "pattern",
    [
        *ECMA,
        r"[^\d]",
        r"[^\s]",
        r"[^\S]",
        r"[\w\-]",
        "[&&]",
        "[--/]",
        r"[\]\[]",
    ],
)
def test_characters_match_by_both_rules(pattern: str) -> None:
    inner = re.sub(r"\\[dDwWsS]", lambda found: ECMA[found[0]].strip("[]"), pattern)
    is_nested = pattern.startswith("[") and re.search(r"\\[DWS]", pattern)
    ecma = {r"[^\D]": "[0-9]", r"[^\S]": ECMA[r"\s"]}[pattern] if is_nested else ECMA.get(pattern, inner)
    grammar = grammar_of({"type": "string", "pattern": f"^{pattern}$"})
    for each in CHARACTERS:
        is_both = bool(re.fullmatch(pattern, each) and re.fullmatch(ecma, each))
        is_writable = each not in "\x0b\x1c"  # the library has only \uXXXX for these
        assert accepts(grammar, json.dumps(each, ensure_ascii=False)) == (is_both and is_writable), ascii(each)


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        ("a[b[c]d]", ["abd]", "a[d]"], ["ab", "abd"]),
        ("[[:alpha:]]", ["a]", ":]"], ["b"]),
        (r"^a\<b\u00e9\x41$", ["a<béA"], []),
        ("^a{b}$", ["a{b}"], []),
        ("(?s:^.)b.$", ["\nbc"], ["ab\n"]),
        ("^a|b$", ["ax", "xb"], ["xax"]),
    ],
)
def test_patterns(pattern: str, right: list[str], wrong: list[str]) -> None:
    grammar = grammar_of({"type": "string", "pattern": pattern})
    for texts, is_right in ((right, True), (wrong, False)):
        assert all(accepts(grammar, json.dumps(text, ensure_ascii=False)) == is_right for text in texts)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\bfoo",
        "(?=a)",
        r"(a)\1",
        "a++",
        "a{,3}",
        "[a--c]",
        "(?m)^a",
        r"[\b]",
        r"[\w-.]",
    ],
)
def test_other_patterns_are_refused_with_the_place(pattern: str) -> None:
    with pytest.raises(BadInputError, match="at character"):
        grammar_of({"type": "string", "pattern": pattern})


@pytest.mark.parametrize("pattern", ["^(?i)abc$", "^(?:a(?s).)$", "(?-i)a", "^*a", "(?P<a>b)(?P<a>c)", "a)(?:b"])
def test_patterns_that_python_cannot_read_are_refused(pattern: str) -> None:
    with pytest.raises(BadInputError, match="pattern"):
        grammar_of({"type": "string", "pattern": pattern})


EVERY = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))
FOLDED = ["i", "\u212a", r"\u0130"]
CLASSES = ["H-J", r"\W\u0131"]


def spans(characters: str) -> str:
    """Return the class of `characters`, which are in order."""
    codes = list(map(ord, characters))
    starts = [each for last, each in zip([-2, *codes], codes, strict=False) if each != last + 1]
    ends = [last for last, each in zip(codes, [*codes[1:], -2], strict=True) if each != last + 1]
    return "".join(f"\\x{{{start:x}}}-\\x{{{end:x}}}" for start, end in zip(starts, ends, strict=True))


@pytest.mark.parametrize(
    "pattern",
    [
        *(f"(?i){each}" for each in (*FOLDED, *(f"[{each}]" for each in CLASSES), *(f"[^{each}]" for each in CLASSES))),
        *(r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", "[^i]"),
    ],
)
def test_every_character_matches_as_in_python(pattern: str) -> None:
    """A pattern has no character that Python does not have, and a pattern of keys has each of them."""
    found = "".join(re.findall(pattern, EVERY))
    python, written = spans(found), spans(re.sub(r"[\x00-\x1f]", "", found))
    both, either = (lark_from_regex(pattern_for_library(pattern, either=each)).strip() for each in (False, True))
    assert is_empty(f"{both} & ~{lark_from_regex(f'[{python}]').strip()}")
    assert is_empty(f"{lark_from_regex(f'[{written}]').strip()} & ~{either}")


@pytest.mark.parametrize("regex", ["[a--c]", "[a~~b]", "[a[b]c]", "[&&]", r"x[^\]a&&b]"])
def test_set_operations_in_expressions_are_refused(vocabulary: Vocabulary, regex: str) -> None:
    with pytest.raises(BadInputError, match="operation on sets"):
        matcher_from_request(GrammarRequest("regex", regex, 0), vocabulary)


@pytest.mark.parametrize(
    ("gbnf", "right", "wrong"),
    [
        ('root ::= . "."', ["\n.", "é."], ["aa"]),
        (r'root ::= "\u00e9\U0001F600\x41\[\]"', ["é😀A[]"], []),
        (r"root ::= [\u0430-\u044f\U0001F600]+", ["я😀"], ["a"]),
        ("root ::= [&&]+ [^a~~b]", ["&&c"], ["&~", "&a"]),
        ("root ::= [a[b]", ["["], ["c"]),
        ('# . "\nroot ::= "tab\there" # [', ["tab\there"], []),
    ],
)
def test_gbnf_is_read_as_llama_cpp_does(gbnf: str, right: list[str], wrong: list[str]) -> None:
    grammar = matcher(TOKENIZER, library_grammar(GrammarRequest("grammar", gbnf, 0)))
    for texts, is_right in ((right, True), (wrong, False)):
        assert all(accepts(grammar, text) == is_right for text in texts)


@pytest.mark.parametrize(
    "gbnf",
    [
        "root ::= [a--c]",
        r'root ::= "\ud83d"',
        "root ::= other",
        'root ::= "' + '[\\"' * 4_000 + "\\",
    ],
)
def test_errors_of_gbnf_do_not_show_its_conversion(vocabulary: Vocabulary, gbnf: str) -> None:
    with pytest.raises(BadInputError) as error:
        matcher_from_request(GrammarRequest("grammar", gbnf, 0), vocabulary)
    assert "%llguidance" not in str(error.value)
    assert "start:" not in str(error.value)


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r'^[^"]$', '"a"', r'"\""'),
        (r'^[^"\\]+$', '"a b"', r'"\\"'),
        (r'^([^"\\]|\\.)*$', r'"a\\b"', r'"\""'),
        (r"^[\x00-\x1f]$", r'"\n"', r'"\""'),
        (r"^\p{Cc}$", r'"\t"', r'"\\"'),
        ("^.$", r'"\""', '"ab"'),
    ],
)
def test_classes_of_control_characters_have_no_other_characters(pattern: str, right: str, wrong: str) -> None:
    """The library writes a class of all control characters with every escape, those of " and \\ too."""
    schema = json.dumps({"type": "string", "pattern": pattern})
    grammar = matcher(TOKENIZER, library_grammar(GrammarRequest("json_schema", schema, 0)))
    assert (accepts(grammar, right), accepts(grammar, wrong)) == (True, False)

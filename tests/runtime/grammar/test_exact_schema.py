"""Answers to JSON schemas, compared with the package jsonschema: drawn from the grammar, and changed at random."""

import json
import random
import re
from decimal import Decimal, localcontext
from typing import Any

import jsonschema
import pytest
from tools.random_schemas import wide_schema

from lopa.runtime.errors import BadInputError
from lopa.runtime.grammar.byte_order import rank_bytes
from lopa.runtime.grammar.grammar_source import GrammarRequest, library_grammar
from lopa.runtime.grammar.llguidance_library import byte_tokenizer, matcher

pytestmark = pytest.mark.filterwarnings("ignore:Possible:FutureWarning")  # of Python's re, about [&&]
TOKENIZER = byte_tokenizer()
NAMES = ("a", "b", "é", "a b", 'q"', "x_1", "0")
TEXTS = ("\n", "\r", "\u2028", "٣", "\ufeff", "\x85", "\x1c", "2023-02-29", "0000-01-01", "a\n", "12:00:60Z", "K", "&")
STRING, NUMBER = r'"(?:[^"\\]|\\.)*"', r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
MEMBER = re.compile(rf"{STRING}: (?:{STRING}|{NUMBER}|true|false|null)")
SHIFTS = ("0", "1e-30", "-1e-30", "1e-12", "-1e-12", "1", "-1", "0.01", "-0.01", "0.5")


def grammar_of(schema: dict[str, Any]) -> Any:
    return matcher(TOKENIZER, library_grammar(GrammarRequest("json_schema", json.dumps(schema), 0)))


def accepts(grammar: Any, text: str) -> bool:
    position, content = grammar.deep_copy(), list(text.encode())
    return position.try_consume_tokens(content) == len(content) and bool(position.is_accepting())


def drawn(grammar: Any, rng: random.Random) -> str | None:
    """Return a text drawn byte by byte among those that the grammar allows, or None if it becomes too long."""
    position, content, stop = grammar.deep_copy(), b"", rng.choice([0.1, 0.5, 0.9])
    while len(content) < 200:
        allowed = rank_bytes(position.compute_bitmask())
        if position.is_accepting() and (not allowed or rng.random() < stop):
            return content.decode()
        content += bytes([rng.choice(list(allowed))])
        assert position.try_consume_tokens([content[-1]]) == 1
    return None


def changed(text: str, rng: random.Random, schema: dict[str, Any]) -> str:
    """Return `text` with a repeated member, another string, an escaped one, or a number near one of the schema."""
    members, tokens = list(MEMBER.finditer(text)), list(re.finditer(f"{STRING}|{NUMBER}", text))
    if members and rng.random() < 0.3:
        place = rng.choice(members).end()
        return f"{text[:place]}, {rng.choice(members)[0]}{text[place:]}"
    if not tokens:
        return text
    found = rng.choice(tokens)
    if found[0].startswith('"'):
        other = rng.choice((*TEXTS, *NAMES))
        is_escaped = rng.random() < 0.25
        escaped = "".join("\\u" + format(ord(each), "04x") for each in other)
        new = f'"{escaped}"' if is_escaped else json.dumps(other, ensure_ascii=False)
    else:
        with localcontext(prec=80):
            bound = Decimal(rng.choice(["0", *re.findall(NUMBER, json.dumps(schema))]))
            new = format(bound + Decimal(rng.choice(SHIFTS)), "f")
    return text[: found.start()] + new + text[found.end() :]


def faults(schema: dict[str, Any], text: str) -> list[str]:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    found = jsonschema.Draft202012Validator(schema, format_checker=checker).iter_errors(json.loads(text))
    return [f"{schema} got {text!r}: {error.message}" for error in found]


@pytest.mark.parametrize("seed", range(2))
def test_drawn_and_changed_answers_are_valid(seed: int) -> None:
    rng, read, accepted = random.Random(seed), 0, 0
    while read < 30:
        schema = wide_schema(rng)
        try:
            grammar = grammar_of(schema)
        except (BadInputError, ValueError):
            continue
        read += 1
        for text in filter(None, (drawn(grammar, rng) for _ in range(4))):
            for answer in (text, *(changed(text, rng, schema) for _ in range(10))):
                is_infinite = re.search(
                    r"[eE][+]?[1-9]\d{2}", answer
                )  # Python's matcher, which jsonschema cannot divide
                if not is_infinite and accepts(grammar, answer):
                    accepted += 1
                    assert not faults(schema, answer)
    assert accepted > 150


INTEGER, ANY_OBJECT = {"type": "integer"}, {"type": "object"}
NAMED = {**ANY_OBJECT, "properties": {"a": INTEGER}, "additionalProperties": {"type": "boolean"}}
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array"}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (NAMED, ['{"a": 1, "b": true}', '{"b": true, "b": false}'], ['{"\\u0061": true}', '{"a": true}']),
        ({**ANY_OBJECT, "minProperties": 1}, ['{"a": 1}', '{"a": 1, "a": 2}'], ["{}"]),
        ({"type": "number", "exclusiveMaximum": 5}, ["4.9", "4.999999", "-7.25"], ["5", "4." + "9" * 30]),
        ({"type": "integer", "exclusiveMinimum": 4.5, "exclusiveMaximum": 7}, ["5", "6"], ["4", "7"]),
        ({"$schema": DRAFT_4, "minimum": 5, "exclusiveMinimum": True, "type": "integer"}, ["6"], ["5"]),
        ({"type": "number", "multipleOf": 0.5}, ["1.5", "-2"], ["0.25"]),
        (
            {"type": "array", "prefixItems": [{"const": 1}], "items": INTEGER, "additionalItems": {}},
            ["[1, 2]"],
            ["[2]"],
        ),
        ({**DRAFT_7, "items": [INTEGER], "allOf": [{}], "additionalItems": False}, ["[1]"], ["[1, 2]"]),
        ({"format": "date", "type": "string"}, ['"2024-02-29"', '"2000-02-29"'], ['"2023-02-29"', '"1900-02-29"']),
        ({"format": "hostname", "type": "string"}, ['"a.b"'], [json.dumps("a." * 127 + "a")]),
        ({"$ref": "#/components/x", "components": {"x": {"type": "number", "exclusiveMinimum": 1}}}, ["1.5"], ["1"]),
        ({"type": "array", "x-guidance": {"item_separator": r"\s?,\s"}}, ["[1 ,\n2]"], ["[1,\u00a02]"]),
    ],
    ids=str,
)
def test_exact_keywords(schema: dict[str, Any], right: list[str], wrong: list[str]) -> None:
    grammar = grammar_of(schema)
    assert [text for text in right if not accepts(grammar, text)] == []
    assert [text for text in wrong if accepts(grammar, text)] == []


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({**ANY_OBJECT, "additionalProperties": INTEGER, "minProperties": 3}, "minProperties 3"),
        ({"const": 12345678901234567890}, "const or enum 12345678901234567890"),
        ({"type": "number", "multipleOf": 0.01}, "multipleOf 0.01"),
        ({"allOf": [{**INTEGER, "multipleOf": 86400}, {"multipleOf": 86400}]}, "multipleOf 86400"),
        ({"patternProperties": {r"^\w+$": INTEGER}, "additionalProperties": {"type": "string"}}, "patternProperties"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "draft-03"),
        ({"x-guidance": {"item_separator": ";"}}, "item_separator"),
        ({"type": "string", "format": "color"}, "Unknown format: color"),
    ],
    ids=str,
)
def test_keywords_that_grammars_cannot_guarantee_are_refused_by_name(schema: dict[str, Any], keyword: str) -> None:
    with pytest.raises((BadInputError, ValueError), match=keyword):
        grammar_of(schema)


DATE, INVALID = {"type": "string", "format": "date"}, "2023-02-29"
PAIRS = [{"type": "integer"}, DATE]


@pytest.mark.parametrize(
    ("reference", "more"),
    [
        ("#/$defs/a~0b", {"$defs": {"a~b": DATE}}),
        ("#/other/a~1b%20%25%C3%A9", {"other": {"a/b %é": DATE}}),
        ("#/components/properties", {"components": {"properties": DATE}}),
        ("#/$defs/u/enum/0", {"$defs": {"u": {"enum": [DATE]}}}),
        ("#/patternProperties/%5Eb", {"patternProperties": {"^b": DATE}}),
        ("#named", {"$defs": {"u": {"$anchor": "named", **DATE}}}),
        ("#named", {**DRAFT_7, "type": "object", "definitions": {"u": {"$id": "#named", **DATE}}}),
        ("b.json#/$defs/u", {"$id": "http://x/a.json", "$defs": {"t": {"$id": "b.json", "$defs": {"u": DATE}}}}),
        ("http://x/b", {"$schema": DRAFT_4, "definitions": {"u": {"id": "http://x/b", **DATE}}}),
        (
            "#/$defs/t",
            {"$defs": {"t": {"$id": "http://x/t", "$ref": "#/$defs/u", "$defs": {"u": DATE}}, "u": {"type": "null"}}},
        ),
        ("#/x-y/0", {"x-y": [{"anyOf": [{"type": "integer"}, {"$ref": "#/x-y/1"}]}, DATE]}),
    ],
    ids=str,
)
def test_schemas_that_references_reach_are_exact(reference: str, more: dict[str, Any]) -> None:
    whole = {**ANY_OBJECT, "properties": {"a": {"$ref": reference}}, "additionalProperties": False, **more}
    default = jsonschema.Draft202012Validator
    kind = jsonschema.validators.validator_for(whole, default=default)
    grammar, valid = grammar_of(whole), kind(whole, format_checker=default.FORMAT_CHECKER).is_valid
    for day, is_valid in (("2024-02-29", True), (INVALID, False)):
        assert valid({"a": day}) == is_valid == accepts(grammar, json.dumps({"a": day}))


@pytest.mark.parametrize("reference", ["#/$defs/b", "#/$defs/a~2b/c", "#/title", "#b", "http://x/", "#/prefixItems/1"])
def test_references_to_no_schema_are_refused(reference: str) -> None:
    schema = {"title": "t", "prefixItems": [{}], "$defs": {"a": {}}, "allOf": [{"$ref": reference}]}
    with pytest.raises(BadInputError, match=re.escape(f"$ref {reference}")):
        grammar_of(schema)


@pytest.mark.parametrize("names", [{"$id": "http://x/a"}, {"$anchor": "a"}])
def test_a_name_leads_to_one_schema(names: dict[str, Any]) -> None:
    """Two schemas with one name are refused, unless they are equal: readers take either."""
    reference = names.get("$id", "#a")
    first, other = {**names, "type": "integer"}, {**names, "type": "string"}
    one: dict[str, Any] = {"$id": "http://x/", "$ref": reference, "$defs": {"a": first, "b": first}}
    grammar = grammar_of(one)
    assert (accepts(grammar, "3"), accepts(grammar, '"a"')) == (True, False)
    with pytest.raises(BadInputError, match="two schemas with the name"):
        grammar_of({**one, "$defs": {"a": first, "b": other}})


@pytest.mark.parametrize("limit", ["exclusiveMinimum", "exclusiveMaximum"])
@pytest.mark.parametrize(("draft", "value"), [(DRAFT_4, 5), (DRAFT_4, -0.5), (None, True)])
def test_exclusive_limits_of_another_draft_are_refused(limit: str, draft: str | None, value: object) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "number", limit: value}}}
    with pytest.raises(BadInputError, match=f"exclusiveMaximum {json.dumps(value)}"):
        grammar_of(schema if draft is None else {"$schema": draft, **schema})


DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize(
    ("more", "is_read"),
    [
        ({}, True),  # as pydantic 1 writes
        ({"$schema": DRAFT_2020}, False),
        ({"prefixItems": PAIRS}, False),
        ({**DRAFT_7, "prefixItems": PAIRS}, True),
        ({"$schema": DRAFT_2020, "items": {"items": PAIRS, **DRAFT_7}}, True),
        ({**DRAFT_7, "items": {"items": PAIRS, "$schema": DRAFT_2020}}, False),
    ],
)
def test_list_of_items_belongs_to_older_drafts(more: dict[str, Any], is_read: bool) -> None:
    schema = {"type": "array", "items": PAIRS, **more}
    if is_read:
        grammar_of(schema)
    else:
        with pytest.raises(BadInputError, match="items a list"):
            grammar_of(schema)

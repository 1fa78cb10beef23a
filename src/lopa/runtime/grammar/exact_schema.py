"""JSON schemas in the form in which every text of the library's grammar is valid by the original schema.

The library reads some keywords more loosely than the specification. `exact_schema` narrows these, or refuses the schema
and names the keyword. Validity is that of Python's `jsonschema`.
"""

import json
import math
import re
from decimal import ROUND_CEILING, ROUND_DOWN, Context, Decimal
from functools import lru_cache
from typing import Any

from lopa.runtime.errors import BadInputError, raise_if_from_handler
from lopa.runtime.grammar.llguidance_library import is_empty, lark_from_regex
from lopa.runtime.grammar.schema_patterns import pattern_for_library
from lopa.runtime.grammar.schema_references import keyword_error, map_schemas, with_definitions

_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON style unless the schema specifies another. With a single style, much of the text is forced."""
_ESCAPES = {"json_allowed_escapes": 'nrbtf\\"', "json_allow_general_unicode_escapes": False}
"""Escapes with one spelling per character, so that an escaped key is no other key."""
_BLANK = r"[ \t\r\n]*"
_SPACING = {"item_separator": f"{_BLANK},{_BLANK}", "key_separator": f"{_BLANK}:{_BLANK}", "whitespace_pattern": _BLANK}
"""Expressions of all separators and white space of JSON."""
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_MONTH_DAY = "(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
_DATE = f"(?:{_YEAR}-{_MONTH_DAY}|{_LEAP_YEAR}-02-29)"
_HOUR = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR}:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-]{_HOUR})"
_FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[tT]{_TIME}$",
    "hostname": r"^(?s:.{1,253})$",
}
"""Patterns of formats of which the library also accepts texts that are not valid, such as February 29 in any year."""
_MAX_EXACT = 2**53
"""Largest number up to which a float holds each integer."""
_MAX_BOUND = Decimal("9.223e18")
_DIGITS = 15
"""Decimal digits that a float keeps."""
_MAX_PARTS = 2**16
"""Largest denominator of a factor, a power of two."""


@lru_cache(maxsize=1)  # a request needs it for its grammar, then for hints about endings
def exact_schema(text: str, *, lenient: bool = False) -> str:
    """Return the schema `text` in the library's form. With `lenient` what grammars cannot guarantee is ignored.

    Raises BadInputError for a keyword whose answers could be invalid.
    """
    schema = json.loads(text, parse_constant=_refuse_constant)
    try:
        made = _exact(with_definitions(schema), "", lenient)
    except RecursionError as error:
        raise keyword_error("a depth", "beyond Python's recursion limit", "fewer nested schemas") from error
    if not lenient:
        _check_document(schema, json.dumps(schema))
    own = made.get("x-guidance")
    style = {**_STYLE, **(_spacing(own) if isinstance(own, dict) else {}), **_ESCAPES}
    return json.dumps({**made, "x-guidance": {**style, "lenient": lenient, "coerce_one_of": lenient}})


def _refuse_constant(name: str) -> None:
    raise ValueError(f"json_schema has {name}, which JSON does not")


def _check_document(schema: dict[str, Any], written: str) -> None:
    if "draft-03" in str(schema.get("$schema")):
        raise keyword_error("$schema", schema["$schema"], "draft 4, 6, 7, 2019-09 or 2020-12")
    is_draft_4 = "draft-04" in str(schema.get("$schema"))
    if found := re.search(r'"exclusiveM(?:in|ax)imum": ' + (r"([\d.e+-]+)" if is_draft_4 else "(true)"), written):
        expected = "true or false in draft 4" if is_draft_4 else "a number, or $schema of draft 4"
        raise keyword_error("exclusiveMinimum or exclusiveMaximum", found[1], expected)
    factors = [Decimal(each) for each in re.findall(r'"multipleOf": ([\d.e+-]+)', written)]
    if len(factors) > 1 and re.search(r'"(?:allOf|anyOf|oneOf|\$ref)": ', written):
        scale = max(0, *(-int(each.as_tuple().exponent) for each in factors))
        scaled = [int(each.scaleb(scale)) for each in factors]
        if math.lcm(*scaled) * max(scaled) >= 2**32:  # the library combines factors in 32 bits
            raise keyword_error("multipleOf", " and ".join(map(str, factors)), "factors with a small common multiple")


def _spacing(own: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of white space. Raises BadInputError for one whose texts are not JSON."""
    made = dict(own)
    for name in _SPACING.keys() & own.keys():
        made[name] = str(own[name]).replace("\\s", "[ \\t\\r\\n]")
        try:
            is_json = is_empty(f"{lark_from_regex(made[name]).strip()} & ~/{_SPACING[name]}/")
        except ValueError as error:
            raise_if_from_handler(error)
            is_json = False
        if not is_json:
            raise keyword_error("x-guidance", f"{name} {own[name]!r}", "white space of JSON")
    return made


def _exact(value: Any, draft: str, lenient: bool) -> Any:
    """Return a schema and those in it in their exact form. `draft` is the `$schema` around it."""
    if not isinstance(value, dict):
        return value
    draft = str(value.get("$schema", draft))
    made = map_schemas(value, lambda part: _exact(part, draft, lenient))
    # Without $schema a list of items is one of an older draft.
    is_new = "2020-12" in draft or ("prefixItems" in made and not draft)
    if is_new and not lenient and isinstance(made.get("items"), list):
        raise keyword_error("items", "a list", "prefixItems, or $schema of an older draft")
    for convert in (_with_additional_items, _with_exact_keys, _with_bounds, _with_multiple, _with_strings):
        try:
            made = convert(made)
        except BadInputError:
            if not lenient:
                raise
        except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise_if_from_handler(error)
            continue  # the library reports a malformed keyword
    return made


def _with_additional_items(schema: dict[str, Any]) -> dict[str, Any]:
    """Keep additionalItems only beside a list of items, where it counts, and directly behind it."""
    made = {key: schema[key] for key in schema if key != "additionalItems"}
    if "additionalItems" in schema and isinstance(made.get("items"), list):
        made |= {"items": made.pop("items"), "additionalItems": schema["additionalItems"]}
    return made


def _with_exact_keys(schema: dict[str, Any]) -> dict[str, Any]:
    """Check the keys that `properties` does not name, which the library lets repeat."""
    more, patterns = schema.get("additionalProperties", True), schema.get("patternProperties", {})
    names, least = {*schema.get("properties", ()), *schema.get("required", ())}, schema.get("minProperties", 0)
    if (more is not False or patterns) and least > len(set(schema.get("required", ()))) + 1:
        raise keyword_error("minProperties", least, "one key more than required names, or additionalProperties false")
    made: dict[str, Any] = {}
    for pattern, each in patterns.items():
        both, either = pattern_for_library(pattern), pattern_for_library(pattern, either=True)
        made[either if more in (True, {}) else both] = each
        if both == either or more in (True, {}):
            continue
        # Other keys may not match by the other rule. Python's $ also matches before a line end.
        is_plain = all(name.isascii() and name.isprintable() for name in names)
        if not is_plain or (more is not False and either != f"{both[:-1]}\\n?$"):
            raise keyword_error("patternProperties", repr(pattern), "patterns without flags, and names, of plain ASCII")
        made |= {} if more is False else {f"{both[:-1]}\\n$": False}
    return {**schema, "patternProperties": made} if patterns else schema


def _with_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """Turn exclusive bounds into inclusive ones, and round all inwards to numbers that floats hold."""
    made = dict(schema)
    is_integer = "integer" in str(made.get("type")) and "number" not in str(made.get("type"))
    for name, sign in (("minimum", 1), ("maximum", -1)):
        inclusive, exclusive = made.get(name), made.pop(f"exclusive{name.capitalize()}", None)
        given = ((None, inclusive) if exclusive is True else (inclusive, exclusive), (False, True))
        found = [
            sign * _rounded_up(sign * Decimal(repr(value)), is_strict=is_strict, is_integer=is_integer)
            for value, is_strict in zip(*given, strict=True)
            if isinstance(value, int | float) and not isinstance(value, bool)
        ]
        if not found:
            continue
        bound = sign * max(sign * each for each in found)
        made[name] = _number(bound)
        if sign * bound < 0 and bound != int(bound):
            # The library does not write a beginning of the digits of such a bound, as 0.99 below 1.
            shorter = {bound.quantize(Decimal(1).scaleb(-digits), ROUND_DOWN) for digits in range(1, _DIGITS)}
            either = [{name: made.pop(name)}, {"enum": [_number(each) for each in sorted(shorter)]}]
            made["allOf"] = [*made.get("allOf", ()), {"anyOf": either}]
    return made


def _rounded_up(value: Decimal, *, is_strict: bool, is_integer: bool) -> Decimal:
    """Return the smallest convenient number that is at least `value`, or above it if `is_strict`."""
    if abs(value) <= _MAX_EXACT:
        if is_integer:
            return Decimal(math.floor(value) + 1 if is_strict else math.ceil(value))
        if not is_strict and value == int(value):
            return value
    value = max(value, -_MAX_BOUND)
    found = Context(_DIGITS, ROUND_CEILING).plus(value)
    if found == value and (is_strict or abs(value) > _MAX_EXACT):
        unit = Decimal(1).scaleb(value.adjusted() - _DIGITS + 1) if value else Decimal("1e-15")
        found = Context(_DIGITS, ROUND_CEILING).add(value, unit)
    return found


def _number(value: Decimal) -> int | float:
    return int(value) if value == int(value) else float(value)


def _with_multiple(schema: dict[str, Any]) -> dict[str, Any]:
    """Refuse a factor whose multiples are no exact floats, and bound those of other fractions to exact ones."""
    factor = schema.get("multipleOf", 1)
    parts = factor.as_integer_ratio()[1] if factor > 0 else _MAX_EXACT
    if parts > _MAX_PARTS:
        raise keyword_error("multipleOf", factor, "an integer above 0, or a fraction such as 0.5 and 0.25")
    if not isinstance(factor, float):
        return schema
    limit = _MAX_EXACT // 2 // parts
    minimum, maximum = max(schema.get("minimum", -limit), -limit), min(schema.get("maximum", limit), limit)
    return {**schema, "minimum": minimum, "maximum": maximum}


def _with_strings(schema: dict[str, Any]) -> dict[str, Any]:
    """Check constants, and replace patterns and formats."""
    waiting = [schema.get("const"), *schema.get("enum", ())]
    for value in waiting:
        if isinstance(value, dict | list):
            waiting += [*value, *value.values()] if isinstance(value, dict) else value
        elif not _is_writable(value):
            raise keyword_error(
                "const or enum", repr(value), "numbers that floats hold, and text without control characters"
            )
    made = dict(schema)
    if "pattern" in made:
        made["pattern"] = pattern_for_library(made["pattern"])
    if made.get("format") in _FORMATS:
        made["allOf"] = [*made.get("allOf", ()), {"pattern": _FORMATS[made["format"]]}]
    return made


def _is_writable(value: Any) -> bool:
    """Return whether the library's grammar of a constant has exactly that constant."""
    if isinstance(value, str):
        return not re.search(r"[\x00-\x07\x0b\x0e-\x1f\x7f]", value)
    number = Decimal(repr(value + 0 if isinstance(value, int | float) else 0)).normalize()
    _, digits, exponent = number.as_tuple()
    mantissa = int("".join(map(str, digits)))
    return abs(number) <= _MAX_EXACT and mantissa <= _MAX_EXACT and int(exponent) >= -22

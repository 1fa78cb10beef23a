"""JSON schemas in the form in which every text of the library's grammar is valid by the original schema.

The library reads some keywords more loosely than the specification. `exact_schema` narrows these, or refuses the schema
and names the keyword. Validity is that of Python's `jsonschema`.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_DOWN, Context, Decimal
from typing import Any

from lopa.runtime.errors import BadInputError
from lopa.runtime.grammar.llguidance_library import is_empty, lark_from_regex
from lopa.runtime.grammar.schema_patterns import pattern_for_library

_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON style unless the schema specifies another. With a single style, much of the text is forced."""
_ESCAPES = {"json_allowed_escapes": 'nrbtf\\"', "json_allow_general_unicode_escapes": False}
"""Escapes with one spelling per character, so that an escaped key is no other key."""
_BLANK = r"[ \t\r\n]*"
_SPACING = {"item_separator": f"{_BLANK},{_BLANK}", "key_separator": f"{_BLANK}:{_BLANK}", "whitespace_pattern": _BLANK}
"""Expressions of all separators and white space of JSON."""
_DATA = frozenset(("const", "enum", "default", "examples", "required", "x-guidance"))
"""Keywords whose values are no schemas."""
_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions"))
_SCHEMAS = frozenset(("additionalProperties", "items", "additionalItems", "prefixItems", "allOf", "anyOf", "oneOf"))
_DRAFT_3 = "http://json-schema.org/draft-03/schema"
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_MONTH_DAY = "(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
_DATE = f"(?:{_YEAR}-{_MONTH_DAY}|{_LEAP_YEAR}-02-29)"
_HOUR = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR}:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-]{_HOUR})"
_FORMATS = {"date": _DATE, "time": _TIME, "date-time": f"{_DATE}[tT]{_TIME}"}
"""Expressions of formats of which the library also accepts texts that are not valid, such as February 29 in any year.
"""
_MAX_HOSTNAME = 253
_MAX_EXACT = 2**53
"""Largest number up to which a float holds each integer."""
_MAX_BOUND = Decimal("9.223e18")
_DIGITS = 15
"""Decimal digits that a float keeps."""
_MAX_PARTS = 2**16
"""Largest denominator of a factor, a power of two."""
_MAX_MULTIPLE = 2**32


def exact_schema(text: str, *, lenient: bool = False) -> str:
    """Return the schema `text` in the library's form. With `lenient` what grammars cannot guarantee is ignored.

    Raises BadInputError for a keyword whose answers could be invalid.
    """
    schema = json.loads(text)
    own = schema.get("x-guidance")
    own = _spacing(own) if isinstance(own, dict) else {}
    refs = frozenset(re.split("[/#]", "/".join(re.findall(r'"\$ref": "([^"]*)"', json.dumps(schema)))))
    made = _Exact(lenient, refs).schema(schema)
    if not lenient:
        _check_multiples(schema)
    style = {**_STYLE, **own, **_ESCAPES, "lenient": lenient, "coerce_one_of": lenient}
    return json.dumps({**made, "x-guidance": style}, ensure_ascii=False)


def _spacing(own: dict[str, Any]) -> dict[str, Any]:
    """Return settings of white space whose texts are JSON."""
    made = {
        name: str(value).replace("\\s", "[ \\t\\r\\n]") if name in _SPACING else value for name, value in own.items()
    }
    for name in _SPACING.keys() & made.keys():
        try:
            is_json = is_empty(f"{lark_from_regex(made[name]).strip()} & ~/{_SPACING[name]}/")
        except (ValueError, TypeError):
            is_json = False
        if not is_json:
            raise _error(
                "x-guidance",
                f"{name} {own[name]!r:.100}, which allows text that is not JSON",
                f"texts of {_SPACING[name]}",
            )
    return made


def _error(keyword: str, found: str, expected: str) -> BadInputError:
    return BadInputError(f"json_schema has {keyword} {found}", expected=expected, remedy=f"change or remove {keyword}")


@dataclass(frozen=True)
class _Exact:
    """Conversion of one document."""

    lenient: bool
    refs: frozenset[str]
    """Segments of the paths of all references. A keyword among them may hold schemas."""

    def schema(self, value: Any) -> Any:
        """Return a schema and those in it in their exact form."""
        if isinstance(value, list):
            return [self.schema(each) for each in value]
        if not isinstance(value, dict):
            return value
        made: dict[str, Any] = {}
        for key, each in value.items():
            if key in _MAPS and isinstance(each, dict):
                made[key] = {name: self.schema(part) for name, part in each.items()}
            elif key in _SCHEMAS or (key in self.refs and key not in _DATA):
                made[key] = self.schema(each)
            else:
                made[key] = each
        for check in (_draft, _array, _keys, _bounds, _multiple, _constants, _strings):
            try:
                check(made)
            except BadInputError:
                if not self.lenient:
                    raise
            except (TypeError, ValueError, AttributeError, ArithmeticError):
                continue  # the library reports a malformed keyword
        return made


def _draft(made: dict[str, Any]) -> None:
    if str(made.get("$schema")).rstrip("#") == _DRAFT_3:
        raise _error("$schema", "of draft 3", "draft 4, 6, 7, 2019-09 or 2020-12")


def _array(made: dict[str, Any]) -> None:
    """Keep additionalItems only beside a list of items, where it counts, and directly behind it."""
    more = made.pop("additionalItems", None)
    if more is not None and isinstance(made.get("items"), list):
        pairs = [pair for key in made for pair in ((key, made[key]), *([("additionalItems", more)] * (key == "items")))]
        made.clear()
        made.update(pairs)


def _keys(made: dict[str, Any]) -> None:
    """Check the keys that `properties` does not name: the library lets them repeat."""
    more, patterns = made.get("additionalProperties", True), made.get("patternProperties")
    named = {*made.get("properties", ()), *made.get("required", ())}
    if isinstance(patterns, dict):
        exact: dict[str, Any] = {}
        for pattern, schema in patterns.items():
            both, either = pattern_for_library(pattern), pattern_for_library(pattern, either=True)
            exact[either if more is True else both] = schema
            if both == either or more is True:
                continue
            if more is not False and either != f"{both[:-1]}\\n?$":
                raise _error("patternProperties", f"{pattern!r:.100}, whose keys differ by ECMA-262 and Python", _PLAIN)
            if not all(name.isascii() and name.isprintable() for name in named):
                raise _error("patternProperties", f"{pattern!r:.100} beside names that are not ASCII", _PLAIN)
            if more is not False:
                exact[f"{both[:-1]}\\n$"] = False
        made["patternProperties"] = exact
    least = made.get("minProperties", 0)
    if (more is not False or patterns) and least > len(set(made.get("required", ()))) + 1:
        raise _error(
            "minProperties",
            f"{least} with {len(set(made.get('required', ())))} required keys: other keys may repeat",
            "at most one key more than the required ones, or additionalProperties false",
        )


_PLAIN = r"a pattern of plain ASCII characters, without \w, \d, \s and ."


def _bounds(made: dict[str, Any]) -> None:
    """Turn exclusive bounds into inclusive ones, and round all inwards to numbers that floats hold."""
    for name, sign in (("minimum", 1), ("maximum", -1)):
        inclusive, exclusive = made.get(name), made.pop(f"exclusive{name.capitalize()}", None)
        if exclusive is True:
            inclusive, exclusive = None, inclusive
        is_integer = made.get("type") == "integer"
        found = [
            sign * _rounded_up(sign * Decimal(repr(value)), is_strict=is_strict, is_integer=is_integer)
            for value, is_strict in ((inclusive, False), (exclusive, True))
            if isinstance(value, int | float) and not isinstance(value, bool)
        ]
        if not found:
            continue
        bound = sign * max(sign * each for each in found)
        made[name] = _number(bound)
        if sign * bound < 0 and bound != int(bound):
            # The library does not write a beginning of the bound's digits, such as 0.99 below 1.
            shorter = {bound.quantize(Decimal(1).scaleb(-digits), ROUND_DOWN) for digits in range(1, _DIGITS)}
            if len(shorter) > 1:
                either = [{name: made.pop(name)}, {"enum": [_number(each) for each in sorted(shorter)]}]
                made["allOf"] = [*made.get("allOf", ()), {"anyOf": either}]


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


def _multiple(made: dict[str, Any]) -> None:
    """Refuse fractions whose multiples are no exact floats, and bound the others to exact ones."""
    factor = made.get("multipleOf")
    if not isinstance(factor, int | float):
        return
    parts = factor.as_integer_ratio()[1] if factor > 0 else _MAX_EXACT
    if parts > _MAX_PARTS:
        raise _error(
            "multipleOf", f"{factor}, whose multiples are no exact floats", "a positive integer or 0.5, 0.25 .."
        )
    if isinstance(factor, float):
        limit = _MAX_EXACT // 2 // parts
        made["minimum"] = max(made.get("minimum", -limit), -limit)
        made["maximum"] = min(made.get("maximum", limit), limit)


def _check_multiples(schema: dict[str, Any]) -> None:
    """Refuse factors that the library would combine in 32 bits."""
    found = [
        Decimal(repr(each["multipleOf"])) for each in _dicts(schema) if isinstance(each.get("multipleOf"), int | float)
    ]
    if len(found) > 1 and any(
        not each.keys().isdisjoint(("allOf", "anyOf", "oneOf", "$ref")) for each in _dicts(schema)
    ):
        scale = max(0, *(-int(each.as_tuple().exponent) for each in found))
        scaled = [int(each.scaleb(scale)) for each in found]
        if math.lcm(*scaled) * max(scaled) >= _MAX_MULTIPLE:
            raise _error("multipleOf", "several times with large factors", "factors with a common multiple below 2**32")


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _dicts(each)


def _constants(made: dict[str, Any]) -> None:
    waiting = [made.get("const"), *(made["enum"] if isinstance(made.get("enum"), list) else ())]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list):
            waiting += [*value, *value.values()] if isinstance(value, dict) else value
        elif isinstance(value, int | float):
            number = Decimal(repr(value + 0)).normalize()
            _, digits, exponent = number.as_tuple()
            if abs(number) > _MAX_EXACT or int("".join(map(str, digits))) > _MAX_EXACT or int(exponent) < -22:
                raise _error(
                    "const or enum",
                    f"{value}, which the grammar cannot write exactly",
                    "numbers up to 2**53 with 15 digits",
                )
        elif isinstance(value, str) and re.search(r"[\x00-\x07\x0b\x0e-\x1f\x7f]", value):
            raise _error(
                "const or enum", f"{value!r:.100}", "text without control characters but \\b, \\f, \\n, \\r, \\t"
            )


def _strings(made: dict[str, Any]) -> None:
    if isinstance(made.get("pattern"), str):
        made["pattern"] = pattern_for_library(made["pattern"])
    if made.get("format") in _FORMATS:
        expression = f"^{_FORMATS[made.pop('format')]}$"
        if "pattern" in made:
            made["allOf"] = [*made.get("allOf", ()), {"pattern": expression}]
        else:
            made["pattern"] = expression
    elif made.get("format") == "hostname":
        made["maxLength"] = min(made.get("maxLength", _MAX_HOSTNAME), _MAX_HOSTNAME)

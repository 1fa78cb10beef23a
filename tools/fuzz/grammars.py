"""Cases from a request's grammar: cheap parts whose combination may cost seconds or gigabytes."""

import json
import random
from pathlib import Path
from typing import Any

from lopa import Decoder, GrammarLimits
from tools.fuzz.case import Case, Material
from tools.fuzz.decode import answer_of_decoder
from tools.fuzz.mutations import changed_bytes, changed_json, short

_LIMITS = GrammarLimits(cpu_seconds=1.0, memory_bytes=256 * 2**20)
_CLASSES = (r"\p{L}", r"\w", r"\d", ".", r"[^x]", "[a-z]", r"(?s:.)", r"\p{Han}", r"\S", "(?i:k)")
_FACTORS = (2, 3, 7, 97, 991, 997, 9973, 10**6 + 3, 0.1, 0.25, 2**31 - 1, 10**18 + 9)
_SIZES = (0, 1, 2, 5, 20, 200, 2000, 10**5, 10**9)


def hostile_grammar(rng: random.Random) -> dict[str, Any]:
    """Return one option of GenerationConfig: json_schema, regex or grammar."""
    option = rng.choice(["json_schema", "json_schema", "json_schema", "json_schema", "regex", "grammar"])
    if option == "regex":
        return {option: hostile_regex(rng, 0)}
    if option == "grammar":
        return {option: _lark(rng)}
    schema: Any = _schema(rng, 0)
    if isinstance(schema, dict) and rng.random() < 0.4:
        schema["$defs"] = {name: _schema(rng, 1) for name in "ab"}
    if rng.random() < 0.2:
        schema, _ = changed_json(rng, schema)
    return {option: json.dumps(schema if isinstance(schema, dict) else {"const": str(schema)})}


def hostile_regex(rng: random.Random, depth: int) -> str:
    """Return a regular expression with nested repetitions and alternatives."""
    if depth > 3 or rng.random() < 0.3:
        return rng.choice(_CLASSES) + rng.choice(["", "*", "+", f"{{{rng.choice(_SIZES[:6])}}}", "?"])
    inner = hostile_regex(rng, depth + 1)
    choices = [
        f"({inner}){{{rng.choice(_SIZES[:7])}}}",
        f"({inner})*",
        f"({inner}|{hostile_regex(rng, depth + 1)})+",
        f".*{rng.choice('abcdef')}.*{inner}",
        f"{inner}{hostile_regex(rng, depth + 1)}",
        "|".join(f"{inner}{letter}" for letter in "abcdefgh"),
    ]
    return rng.choice(choices)


def _schema(rng: random.Random, depth: int) -> dict[str, Any]:
    schemas: list[dict[str, Any]] = [
        {"type": "string", "pattern": hostile_regex(rng, 1)},
        {"type": "integer", "multipleOf": rng.choice(_FACTORS)},
        {"type": "number", "multipleOf": rng.choice(_FACTORS), "minimum": -rng.choice(_SIZES)},
        {"type": "string", "minLength": rng.choice(_SIZES), "maxLength": rng.choice(_SIZES)},
        {"enum": [f"{rng.random()}" for _ in range(rng.choice([1, 5, 500]))]},
        {"const": {str(number): list(range(rng.choice([1, 50]))) for number in range(rng.choice([1, 40]))}},
        {"type": "string", "format": rng.choice(["email", "uri", "date-time", "uuid", "ipv6", "nothing"])},
    ]
    if depth > 2:
        return rng.choice(schemas)
    count = rng.choice([1, 2, 3, 8, 20])
    subschemas = [_schema(rng, depth + 1) for _ in range(count)]
    schemas += [
        {"allOf": subschemas},
        {"anyOf": subschemas},
        {"oneOf": subschemas},
        {"allOf": [{"type": "string", "pattern": f".*{chr(97 + number)}.*"} for number in range(count)]},
        {"allOf": [{"type": "integer", "multipleOf": rng.choice(_FACTORS[:8])} for _ in range(min(count, 4))]},
        {"$ref": rng.choice(["#/$defs/a", "#/$defs/b", "#", "#/$defs/missing", "http://localhost/x"])},
        {
            "type": "object",
            "properties": {f"p{number}": each for number, each in enumerate(subschemas)},
            "required": [f"p{number}" for number in range(count) if rng.random() < 0.5],
            "additionalProperties": rng.choice([False, True, {"$ref": "#/$defs/a"}]),
            "patternProperties": {hostile_regex(rng, 2): {} for _ in range(rng.choice([0, 0, 2]))},
        },
        {"type": "array", "items": subschemas[0], "minItems": rng.choice(_SIZES), "maxItems": rng.choice(_SIZES)},
    ]
    return rng.choice(schemas[len(schemas) - 8 :])


def _lark(rng: random.Random) -> str:
    names = "abcdef"
    lines = [f"start: {rng.choice(names)}"]
    for name in names:
        parts = [rng.choice([*names, f"/{hostile_regex(rng, 2)}/", '"x"', f'"{name}"?']) for _ in range(3)]
        bound = rng.choice(["", "", f" ({parts[0]} {parts[1]}){{{rng.choice(_SIZES[:7])}}}"])
        lines.append(f"{name}: {' '.join(parts[:2])} | {parts[2]}{bound}")
    text = "\n".join(lines)
    if rng.random() < 0.2:
        text = changed_bytes(rng, text.encode())[0].decode("utf-8", "replace")
    return text


def grammar_case(rng: random.Random, folder: Path, material: Material) -> Case:  # noqa: ARG001
    """Decode with such a grammar, compiled in the helper process as in servers."""
    options = hostile_grammar(rng)

    def run() -> object:
        with Decoder.open(material.bundle, threads=1, grammar_limits=_LIMITS) as decoder:
            return answer_of_decoder(decoder, decoder.config(max_new_tokens=32, block_size=8, **options))

    return Case(short(options), run)

"""Tokenizer files that try to use up memory or time. As a program it prints their outcomes.

It is a separate program with little memory, since the tokenizers library aborts the process when a file gets through.
"""

import json
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tests.runtime.text.tokenizer_kinds import precompiled

from lopa.runtime.errors import BadInputError
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.runtime.text.tokenizer_text import tokenizer_from_text
from lopa.tiny import CHECKPOINT

BASE = json.loads((CHECKPOINT / "tokenizer.json").read_bytes())
PROMPT = "Question: Ivy buys 4 shells for 3 dollars each. How much does Ivy pay?\nAnswer:"
ADDRESS_BYTES = 700 * 2**20
"""Bytes of address space beyond those at the start of the process."""
EXPRESSIONS = [
    r"(a+)+$", r"(?:(?:\w|\s|.)+)+[ZQ]", r"(.*)*(.*)*(.*)*[ZQ]", r"^(([A-Za-z :])+.)+[ZQ]([a-z])+$",
    r"(?:.|\s|[^Z])+[ZQ]",
    r"(?=(.*)+(.*)+(.*)+[ZQ])x", r"(.+)+\1[ZQ]", r"((?:.?){40}){40}[ZQ]", r"(?:(?:(?:.*)?)*)*[ZQ]", r".*.*[ZQ]",
    r"(?:.{0,50}){4}[ZQ]", "|".join(f"w{number}" for number in range(20_000)), "(" * 5000 + "a" + ")" * 5000,
    r"(((a{1000}){1000}){1000})", "[" + "a-z" * 20_000 + "]", r"(?<x>a|b\g<x>c)+", r"(?<x>\g<x>|a)", r"(?~Z)*Z",
    r"(?<=(?:a|b)*)c", r"a\K", r"(?(1)a|b)", r"[]](a+)+$[]", r"(?x)(a+)#)", r"\k<a>", "(", "[", "(a{2,1})+b",
]  # fmt: skip


def _grown(times: int, parts: int) -> list[dict[str, Any]]:
    return [{"type": "Replace", "pattern": {"String": "e"}, "content": "e" * times}] * parts


def _sequence(kind: str, parts: list[Any]) -> dict[str, Any]:
    return {"type": "Sequence", kind: parts}


def files() -> Iterator[tuple[str, str]]:
    """Yield hostile files with their names. None of them may open."""
    normalizers: dict[str, Any] = {
        f"{times} times, {parts} parts": _sequence("normalizers", _grown(times, parts))
        for times, parts in ((100, 2), (100, 3), (100, 6), (60, 5), (2, 64))
    }
    normalizers["prepend"] = {"type": "Prepend", "prepend": "x" * 10**6}
    normalizers["prepends"] = _sequence("normalizers", [{"type": "Prepend", "prepend": "x" * 1000}] * 9)
    normalizers["nothing"] = {"type": "Replace", "pattern": {"String": ""}, "content": "yy"}
    normalizers["100,000 parts"] = _sequence("normalizers", [{"type": "Lowercase"}] * 100_000)
    normalizers["nested"] = {"type": "Lowercase"}
    for _ in range(60):
        normalizers["nested"] = _sequence("normalizers", [normalizers["nested"]])
    normalizers["unknown"] = {"type": "Shell", "command": "x"}
    normalizers["no type"] = {"prepend": "x"}
    tables = [b"", b"\xff" * 4, b"\xfc\xff\xff\xff", b"\x00\x04\x00\x00" + b"\xff" * 1100, b"\x04\0\0\0\x01\0\0\0aa\0"]
    tables += [b"\x03\0\0\0abc", b"\0\0\0\0abc\0", (1024).to_bytes(4, "little") + bytes(1024) + b"\xff\0"]
    tables += [(2048).to_bytes(4, "little") + random.Random(seed).randbytes(2048) + b"abc\0" for seed in range(9)]
    normalizers |= {f"table {number}": precompiled(table) for number, table in enumerate(tables)}
    normalizers["no base64"] = {"type": "Precompiled", "precompiled_charsmap": "%"}
    for name, part in normalizers.items():
        yield f"normalizer: {name}", json.dumps({**BASE, "normalizer": part})
    yield "twice", json.dumps(BASE)[:-1] + ',"normalizer":' + json.dumps(normalizers["table 2"]) + "}"
    for expression in EXPRESSIONS:
        split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
        replace = {"type": "Replace", "pattern": {"Regex": expression}, "content": ""}
        yield f"split: {expression[:40]}", json.dumps({**BASE, "pre_tokenizer": split})
        yield f"decoder: {expression[:40]}", json.dumps({**BASE, "decoder": replace})
    many = _sequence("pretokenizers", [{"type": "Whitespace"}] * 100_000)
    yield "pre_tokenizer: 100,000 parts", json.dumps({**BASE, "pre_tokenizer": many})
    spaces = _sequence("pretokenizers", [{"type": "Metaspace", "replacement": "🙂", "prepend_scheme": "always"}] * 20)
    yield "pre_tokenizer: spaces", json.dumps({**BASE, "pre_tokenizer": spaces})
    yield "decoder: growth", json.dumps({**BASE, "decoder": _sequence("decoders", _grown(100, 5))})
    yield (
        "decoder: strip",
        json.dumps({**BASE, "decoder": {"type": "Strip", "content": "a", "start": 2**40, "stop": 7}}),
    )
    repeated = [{"Sequence": {"id": "A", "type_id": 0}}] * 1000
    template = {"type": "TemplateProcessing", "single": repeated, "pair": [], "special_tokens": {}}
    yield "post_processor: template", json.dumps({**BASE, "post_processor": template})
    model = BASE["model"]
    word = {"type": "WordPiece", "vocab": model["vocab"], "unk_token": "a", "continuing_subword_prefix": ""}
    yield "words", json.dumps({**BASE, "model": {**word, "max_input_chars_per_word": 2**60}})
    yield "prefix", json.dumps({**BASE, "model": {**model, "continuing_subword_prefix": "x" * 10**6}})
    yield "token", json.dumps({**BASE, "model": {**model, "vocab": {**model["vocab"], "z" * 2**20: 1000}}})
    yield "model", json.dumps({**BASE, "model": {**model, "type": "Pickle"}})
    added = [{**BASE["added_tokens"][0], "id": 1024 + number, "content": f"t{number}"} for number in range(140_000)]
    yield "added tokens", json.dumps({**BASE, "added_tokens": added})
    yield "values", '{"model": {"vocab": {' + ",".join(f'"{number}":1' for number in range(2**21 + 2)) + "}}}"


def library_tokenizer(content: dict[str, Any]) -> tokenizers.Tokenizer:
    """Return the library's own tokenizer of the file, unchecked."""
    return tokenizers.Tokenizer.from_str(json.dumps(content))


def outcome(text: str) -> str:
    """Return "refused" or another outcome of opening the file."""
    try:
        backend = tokenizer_from_text(text.encode(), Path("tokenizer.json"), expected="e", remedy="r")
        ids = Tokenizer(backend, {}, None, source="a bundle").encode(PROMPT, add_bos=False)
        return f"{len(ids)} ids"
    except BadInputError:
        return "refused"
    except BaseException as error:
        return repr(error)[:200]


def main() -> None:
    """Print the name, the outcome and the seconds of processor time of every file."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ADDRESS_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for name, text in files():
        start = time.process_time()
        print(json.dumps([name, outcome(text), time.process_time() - start]), flush=True)


if __name__ == "__main__":
    main()

"""Mutations of bytes and JSON values for any kind of case."""

import copy
import json
import os
import random
from pathlib import Path
from typing import Any

NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 5, 7, 8, 31, 32, 63, 64, 65, 127, 255, 256, 1000, 4096, 65535, 10**6, 10**7),
    *(2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, -(10**30)),
    *(0.0, -0.0, 0.5, 1.5, -1.5, 1e-300, 1e300, 1e-9, float("nan"), float("inf"), -float("inf")),
)
TEXTS = (
    *("", " ", "a", "0", "-1", "null", "\0", "a\0b", "\ud800", "é", "\u202e", "🙂", "<|mask|>", "<|endoftext|>", ".."),
    *(".", "/", "../..", "/etc/passwd", "a/../../b", "a" * 300, "a/" * 3000, "model.onnx", "manifest.json", "float16"),
    *("bfloat16", "int4", "standard", "portable", "cpu", "numpy", "x" * 100_000, "%s%n", "{{ 7*7 }}", "(.*)*$"),
)
PIECES = (
    *(b"\xff", b"\x00", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"', b"{", b"}", b"[", b"]", b",", b":"),
    *(b"\\ud800", b"null", b"true", b"NaN", b"Infinity", b"-1", b"1e400", b"9" * 400, b"9" * 5000, b"\n", b"\r\n"),
    *(b"/*", b"\\u0000"),
)


def number(rng: random.Random) -> Any:
    """Return a number that often reveals bugs, or a random one near a power of two."""
    if rng.random() < 0.7:
        return rng.choice(NUMBERS)
    near = 2 ** rng.randrange(0, 70) + rng.randrange(-2, 3)
    return rng.choice([near, -near, near / 3])


def value(rng: random.Random, depth: int = 0) -> Any:
    """Return any JSON value."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind < 2:
        return number(rng)
    if kind == 2:
        return rng.choice(TEXTS)
    if kind == 3:
        return rng.choice([None, True, False])
    if kind == 4:
        return rng.choice([[], {}, [[]], {"": {}}, [None], ["a"], [0] * 1000])
    if kind == 5:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return {rng.choice(TEXTS): value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return nested(rng.choice([10, 40, 150]))


def nested(levels: int) -> Any:
    """Return nested lists."""
    result: Any = []
    for _ in range(levels):
        result = [result]
    return result


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of everything inside a JSON value."""
    found = [path] if path else []
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, below in inner:
        found += places(below, (*path, key))
    return found


def changed_json(rng: random.Random, tree: Any) -> tuple[Any, str]:
    """Return a copy of `tree` with one to three changes, and their description."""
    tree = copy.deepcopy(tree)
    words = [_change_one(rng, tree) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    return tree, "; ".join(words)


def _change_one(rng: random.Random, tree: Any) -> str:
    found = places(tree)
    if not found:
        return "nothing to change"
    path = rng.choice(found)
    parent = tree
    for key in path[:-1]:
        parent = parent[key]
    key = path[-1]
    old = parent[key]
    action = rng.randrange(10)
    where = ".".join(map(str, path))[:80]
    if action == 0:
        del parent[key]
        return f"{where} deleted"
    if action == 1 and isinstance(parent, dict):
        new = rng.choice(TEXTS)
        parent[new] = parent.pop(key)
        return f"{where} renamed {new[:20]!r}"
    if action == 2 and isinstance(parent, dict):
        parent[rng.choice(TEXTS)] = value(rng)
        return f"{where}: added a sibling"
    if action == 3 and isinstance(parent, list):
        parent.extend([copy.deepcopy(old)] * rng.choice([1, 3, 1000]))
        return f"{where} repeated"
    if action == 4:
        other = tree
        for step in rng.choice(found):
            other = other[step] if isinstance(other, dict) and step in other else other
        parent[key] = copy.deepcopy(other) if other is not tree else value(rng)
        return f"{where} = a value from elsewhere"
    if isinstance(old, int | float) and action < 9:
        parent[key] = number(rng)
    elif isinstance(old, str) and action < 8:
        parent[key] = rng.choice(TEXTS) if rng.random() < 0.6 else _changed_text(rng, old)
    else:
        parent[key] = value(rng)
    return f"{where} = {short(parent[key])}"


def _changed_text(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return rng.choice([text[:at], text[at:], text + text, text[:at] + rng.choice(TEXTS[:14]) + text[at:], text.upper()])


def changed_document(rng: random.Random, text: bytes, *, bytes_share: float) -> tuple[bytes, str]:
    """Return JSON with changed bytes or changed values, and the description of the changes."""
    if rng.random() < bytes_share:
        return changed_bytes(rng, text)
    tree, words = changed_json(rng, json.loads(text))
    return text_of_json(rng, tree), words


def put_in_place(path: Path, kind: str, outside: Path = Path()) -> None:
    """Put a folder, a FIFO, an empty file, a link or nothing ("missing") in place of a file."""
    targets = {"loop": Path(path.name), "device": Path("/dev/zero"), "outside": outside}
    targets |= {"up": Path(".."), "dangling": Path("nothing")}
    if kind in targets:
        path.symlink_to(targets[kind])
    elif kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "empty":
        path.touch()


def short(what: object) -> str:
    """Return the repr of a value, shortened."""
    text = repr(what)
    return text if len(text) < 60 else f"{text[:50]}... ({len(text)} characters)"


def text_of_json(rng: random.Random, tree: Any) -> bytes:
    """Return JSON that may contain NaN and halves of surrogate pairs."""
    return json.dumps(tree, ensure_ascii=rng.random() < 0.7 or _has_half(tree)).encode("utf-8", "replace")


def _has_half(tree: Any) -> bool:
    return "\\ud800" in json.dumps(tree)


def changed_bytes(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """Return `data` with one to four changes, and their description."""
    words = []
    for _ in range(rng.choice([1, 1, 2, 4])):
        data, word = _change_bytes(rng, data)
        words.append(word)
    return data, "; ".join(words)


def _change_bytes(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice([1, 1, 4, 40, 400]))
    action = rng.randrange(10)
    if action == 0:
        return data[:at], f"cut at {at}"
    if action == 1:
        return data[:at] + data[end:], f"{end - at} bytes removed at {at}"
    if action == 2:
        return data[:end] + data[at:], f"{end - at} bytes repeated at {at}"
    if action == 3:
        levels = rng.choice([100, 900, 5000, 100_000])
        opening, closing = rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
        return data[:at] + opening * levels + b"1" + closing * levels + data[end:], f"{levels} levels at {at}"
    if action == 4:
        return b"", "empty"
    if action in (5, 6):
        piece = rng.choice(PIECES)
        return data[:at] + piece + data[end if action == 5 else at :], f"{piece[:10]!r} at {at}"
    if action == 7:
        return data[:at] + rng.randbytes(end - at) + data[end:], f"{end - at} random bytes at {at}"
    if action == 8:
        digits = [i for i, byte in enumerate(data[:100_000]) if 48 <= byte <= 57]
        if digits:
            at = rng.choice(digits)
            return data[:at] + str(rng.choice(NUMBERS)).encode() + data[at + 1 :], f"another number at {at}"
    if data:
        at = min(at, len(data) - 1)
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :], f"bit flipped at {at}"
    return b"\0", "one byte"

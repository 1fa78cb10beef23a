"""Every problem with a file or its text raises BadInputError."""

import json
import os
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
import tokenizers

from lopa.runtime.errors import BadInputError, CheckFailedError, errors_as_bad_input
from lopa.runtime.files.untrusted_input import bytes_from_file, object_from_json, value_from_json
from lopa.tiny import CHECKPOINT

TEXTS = {"expected": "a small file", "remedy": "write another"}


class Point(msgspec.Struct):
    x: Annotated[int, msgspec.Meta(ge=0)]
    name: str


class Points(msgspec.Struct):
    points: list[Point]
    named: dict[str, Point] = {}


@pytest.mark.parametrize(
    "text", [b'{"a": 1, "a": 1}', b'{"x": [{"b": {}, "a": 1, "a": 2}]}', b'{"\\u0061": 1, "a": 2}']
)
def test_a_key_that_occurs_twice_is_refused_where_it_matters(text: bytes) -> None:
    assert object_from_json(text, source="body", **TEXTS)
    with pytest.raises(BadInputError, match="body: the key 'a' occurs twice"):
        object_from_json(text, source="body", **TEXTS, unique=True)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"x": 1}',
        b'{"x": "1", "name": "a"}',
        b'{"x": 1, "name": "\xff"}',
        b'{"x": 1, "name": "\\ud800"}',
        b'{"x": 1, "name": "a", "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x": 1, "name": "a", "more": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        b'{"x": 1, "name": "a"',
        b'\xef\xbb\xbf{"x": 1, "name": "a"}',
        b'{"x": 1' + b"0" * 5000 + b', "name": "a"}',
    ],
)
def test_text_of_another_type_raises(text: bytes) -> None:
    with pytest.raises(BadInputError, match=r"point\.json"):
        value_from_json(text, Point, source="point.json", **TEXTS)


def test_file_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert bytes_from_file(path, max=5, **TEXTS) == b"12345"
    with pytest.raises(BadInputError, match="more than 4 bytes"):
        bytes_from_file(path, max=4, **TEXTS)


def test_special_files_raise_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    for name, message in [
        ("fifo", "not a regular file"),
        (".", "not a regular file"),
        ("loop", "symbolic links"),
        ("absent", "absent does not exist"),
        ("a\0b", "null byte"),
        ("n" * 300, "too long"),
    ]:
        with pytest.raises(BadInputError, match=message):
            bytes_from_file(tmp_path / name, **TEXTS)


def test_panic_of_an_extension_raises() -> None:
    settings = json.loads((CHECKPOINT / "tokenizer.json").read_bytes())
    settings["normalizer"] = {"type": "Replace", "pattern": {"String": ""}, "content": "yy"}
    settings["added_tokens"][0]["normalized"] = True
    broken = json.dumps(settings)
    with pytest.raises(BadInputError), errors_as_bad_input("a tokenizer", **TEXTS):
        tokenizers.Tokenizer.from_str(broken).encode("text")


def test_own_errors_and_interrupts_pass() -> None:
    for error in (CheckFailedError("x", expected="y", remedy="z"), KeyboardInterrupt(), SystemExit(3)):
        with pytest.raises(type(error)) as caught, errors_as_bad_input("a", **TEXTS):
            raise error
        assert caught.value is error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"points": [{"x": 1, "name": "a"}, {"x": -7, "name": "b"}]}', "`$.points[1].x`, where it has -7"),
        (b'{"points": [{"x": 1e3, "name": "a"}]}', "`$.points[0].x`, where it has 1000.0"),
        (b'{"points": [{"x": [1], "name": "a"}]}', "`$.points[0].x`"),
        (b'{"points": [], "named": {"a.b[0]": {"x": "1", "name": "a"}}}', "`$.named[...].x`"),
        (b'{"points": [{"x": 1}]}', "missing required field `name` - at `$.points[0]`"),
    ],
)
def test_error_names_field_and_value(text: bytes, message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        value_from_json(text, Points, source="points.json", **TEXTS)
    assert caught.value.received.endswith(message)

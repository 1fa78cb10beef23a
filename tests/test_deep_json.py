"""JSON that is nested deeply is refused by every reader, as bad input, from any depth of calls."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lopa.bench.gpu.results import results_from_file
from lopa.export.json_file import json_object_from_file
from lopa.runtime import Bundle, Decoder
from lopa.runtime.bundle.buckets import bucket_plan_from_file
from lopa.runtime.bundle.costs import costs_from_file
from lopa.runtime.bundle.manifest_checks import manifest_from_json
from lopa.runtime.errors import FieldError, LopaError
from lopa.runtime.files.untrusted_input import object_from_json
from lopa.runtime.signature.signature_file import file_from_json
from lopa.runtime.text.chat_template import template_from_file
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.serve.openai.request import request_from_body
from lopa.serve.serve_limits import ServeLimits

DEPTHS = (2, 60, 95, 199, 201, 490, 900, *range(970, 1001, 10), 5000)
CALLS = (0, 850)
"""Frames below a reader; the interpreter allows 1,000."""
Read = Callable[[str], object]


@pytest.fixture(scope="module")
def readers(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Read]]:
    """Yield functions that read a nested value at a place of a file or a body."""
    copy = Path(shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("deep") / "bundle"))
    bundle, tokenizer = Bundle.open(copy), json.loads((copy / "tokenizer.json").read_text())
    decoder, manifest = Decoder.open(tiny_bundle, devices=["numpy"]), (copy / "manifest.json").read_text().rstrip()

    def write(text: str, name: str = "written.json") -> Path:
        (copy / name).write_text(text)
        return copy / name

    def open_tokenizer(part: str) -> object:
        write(json.dumps({**tokenizer, "normalizer": "PART"}).replace('"PART"', part), "tokenizer.json")
        return Tokenizer.open(bundle)

    def read_body(body: str) -> object:
        content = object_from_json(body, source="body", expected="", remedy="", unique=True)
        return request_from_body(content, "/v1/completions", ServeLimits())

    yield {
        "manifest": lambda deep: manifest_from_json(f'{manifest[:-1]}, "x": {deep}}}'.encode(), source="x"),
        "shape_buckets.json": lambda deep: bucket_plan_from_file(write(deep), bundle),
        "costs": lambda deep: costs_from_file(write(deep)),
        "signature": lambda deep: file_from_json(deep.encode(), source="x"),
        "template": lambda deep: template_from_file(write(deep)),
        "tokenizer.json": open_tokenizer,
        "config.json": lambda deep: json_object_from_file(write(f'{{"a": {deep}}}'), remedy=""),
        "gpu results": lambda deep: results_from_file(write(deep)),
        "schema": lambda deep: decoder.config(json_schema=f'{{"a": {deep}}}'),
        "model": lambda deep: read_body(f'{{"model": {deep}}}'),
        "prompt": lambda deep: read_body(f'{{"model": "x", "prompt": {deep}}}'),
        "stop": lambda deep: read_body(f'{{"model": "x", "prompt": "x", "stop": {deep}}}'),
        "option": lambda deep: read_body(f'{{"model": "x", "prompt": "x", "lopa": {{"steps": {deep}}}}}'),
    }
    decoder.close()


def below(frames: int, call: Callable[[], object]) -> object:
    return call() if frames == 0 else below(frames - 1, call)


@pytest.mark.parametrize("frames", CALLS)
def test_nested_json_never_exceeds_the_recursion_limit(readers: dict[str, Read], frames: int) -> None:
    for name, read in readers.items():
        for depth in DEPTHS:
            for deep in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
                try:
                    below(frames, partial(read, deep))
                except (LopaError, FieldError):
                    continue
                except RecursionError:
                    pytest.fail(f"{name} at depth {depth}")


def test_objects_of_any_content_have_at_most_200_levels() -> None:
    texts: dict[str, Any] = {"expected": "", "remedy": "", "source": "x"}
    for deepest in ("1", "[]", "{}"):
        inner = 198 if deepest == "1" else 197
        deep = "[" * (inner + 1) + deepest + "]" * (inner + 1)
        assert object_from_json(f'{{"a": {deep}}}', **texts)
        with pytest.raises(LopaError, match="nested too deeply"):
            object_from_json(f'{{"a": [{deep}]}}', **texts)

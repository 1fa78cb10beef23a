"""deploy/cpp under the address and undefined-behaviour sanitizers, with random bundles, defaults and prompts.

It answers as Python does, or it ends with exit code 2 and one line that names the wrong value. What Python accepts, it
refuses only for an option that it does not have.
"""

import json
import os
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.deploy.cpp_program import answer, built_program, run

from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import LopaError
from lopa.runtime.generation_config import DEFAULT_OPTIONS
from lopa.runtime.text import tokenizer
from lopa.tiny import EVAL

pytestmark = pytest.mark.cpp
FLAGS = "-Werror -O1 -fsanitize=address,undefined -fno-sanitize-recover=all"
COUNT = 100
"""Number of mutants of each kind."""
LENGTH = 24
READ = (
    *("schema", "contract", "architecture", "prediction_shift", "graph", "defaults", "special_tokens/stops"),
    *(f"dimensions/{name}" for name in ("max_positions", "vocab_size", "layers", "kv_heads", "head_size")),
    *("special_tokens/mask", "special_tokens/eos", "decoding"),
    *(f"decoding/{name}" for name in ("block_size", "block_add_threshold", "decoded_token_threshold")),
    *("decoding/skip_threshold", "decoding/attention", "decoding/sub_block", "decoding/block_steps"),
)
"""Places of a manifest that the program reads."""
LIMITS = {
    "schema": (1, 4),
    "contract": (0, 2),
    "prediction_shift": (-1, 5),
    "dimensions/max_positions": (0, 2**24 + 1),
    "dimensions/vocab_size": (7, 2**24 + 1),
    "dimensions/layers": (0, 4097),
    "dimensions/kv_heads": (-5, 4097),
    "dimensions/head_size": (0, 4097),
    "special_tokens/mask": (-1, 1024),
    "special_tokens/eos": (-1, 1024),
    "decoding/block_size": (0, -5, 2**20 + 1),
    "decoding/block_add_threshold": (-0.1, 1.1),
    "decoding/decoded_token_threshold": (-0.1, 1.1),
    "decoding/skip_threshold": (-0.1, 1.1),
}
"""Numbers just outside of the range of each number that the program reads."""
NOT_READ = ("add_bos", "branches", "max_new_tokens", "preset", "strategy")
"""Options that its arguments replace, or that D2F does not read."""
VALUES: tuple[Any, ...] = (
    *(0, -1, -5, 1, 2, 3, 5, 7, 8, 31, 33, 64, 200, 974, 1024, 2**20, 2**20 + 1, 2**24, 2**31, 2**32, 2**63, -(2**63)),
    *(
        2**64,
        10**30,
        0.0,
        -0.0,
        0.05,
        0.3,
        0.5,
        0.99,
        1.0,
        1.5,
        32.0,
        1e-320,
        1e308,
        -1e308,
        True,
        False,
        None,
        "",
        "5",
    ),
    *("full", "dream", "llada", "inf", [], {}, [3, 5], [7], [2], [0.5], {"a": {}}, ["~"], "\N{ROCKET}" * 200),
)
ABSENT_OPTIONS = re.compile(
    r"manifest\.json has /(?:defaults|decoding)/\S+ = .*, expected"
    r" (?:no such option|\"(?:full|prompt|blocks|neg_entropy)\")\n"
)
"""Error for an option that the program does not have, or has with another value only."""
REFUSAL = re.compile(
    r"error: (?:"
    r"\S*/?manifest\.json has /\S* = .*, expected .+"
    r"|.*/manifest\.json is not JSON, expected that of lopa-export onnx"
    r"|.* has no manifest\.json"
    r"|expected the arguments BUNDLE MAX_NEW_TOKENS ID\.\.\."
    r"|(?:ID|MAX_NEW_TOKENS) '[^']*' is no number from 0 to -?\d+"
    r"|model\.onnx has other caches than manifest\.json, expected a standard graph in float32"
    r")\n"
)
"""Everything that the program says of a bundle whose graph is right (docs/how-to/deploy.md)."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_program(tmp_path_factory.mktemp("cpp"), FLAGS, "Debug")


@pytest.fixture(autouse=True)
def any_special_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python also compares the ids with the tokenizer, which the program does not read."""
    monkeypatch.setattr(tokenizer, "find_role_errors", lambda *_: [])


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """Return a copy of the bundle, whose manifest a test replaces."""
    for path in tiny_bundle.iterdir():
        os.link(path.resolve(), tmp_path / path.name)
    (tmp_path / "manifest.json").unlink()
    return tmp_path


def placed(manifest: dict[str, Any], path: str) -> tuple[Any, str]:
    """Return the object that holds the value at `path`, and its name there."""
    *objects, name = path.split("/")
    found: Any = manifest
    for each in objects:
        found = found.setdefault(each, {}) if isinstance(found, dict) else {}
    return found, name


def mutant_of_values(manifest: dict[str, Any], chance: random.Random) -> None:
    """Replace, remove or add one or two values, mostly by others that are near."""
    for _ in range(chance.choice((1, 1, 2))):
        holder, name = placed(manifest, chance.choice(READ))
        if not isinstance(holder, dict):
            return
        former, kind = holder.get(name), chance.random()
        if kind < 0.1:
            holder.pop(name, None)
        elif kind < 0.4 and isinstance(former, int):
            holder[name] = former + chance.choice((-1, 1, 2, -former, 16))
        elif kind < 0.6 and isinstance(former, float):
            holder[name] = round(chance.random(), 2)
        else:
            holder[name] = chance.choice(VALUES)


def mutant_of_defaults(manifest: dict[str, Any], chance: random.Random) -> None:
    """Set defaults as `lopa-export edit --default` does."""
    numbers = {name: chance.choice((0.2, 0.5, 0.8, 0.97, 1.0)) for name in ("skip_threshold", "block_add_threshold")}
    sizes = {name: chance.choice((1, 2, 5, 8, 16, 40)) for name in ("block_size", "sub_block", "max_new_tokens")}
    others = {name: chance.choice(VALUES) for name in chance.sample(sorted(DEFAULT_OPTIONS), 2)}
    usual = {**numbers, **sizes, "attention": "full", "cache": "blocks", "strategy": "lopa", "branches": 3}
    everything = {**usual, **(others if chance.random() < 0.3 else {})}
    manifest["defaults"] = {name: everything[name] for name in chance.sample(sorted(everything), chance.randint(1, 3))}


def mutant_of_bytes(text: bytes, chance: random.Random) -> bytes:
    """Change, remove or repeat some bytes, mostly where the program reads."""
    for _ in range(chance.choice((1, 1, 3))):
        at = chance.randrange(text.index(b'"tensors"') if b'"tensors"' in text else len(text))
        piece = chance.choice((b"0", b"-", b"9", b'"', b"{", b"}", b"]", b"e", b"\\", b"\0", b"\xff", b"", b"," * 3))
        text = text[:at] + piece + text[at + chance.choice((0, 1, 1, 5)) :]
    return text[: chance.randrange(len(text))] if chance.random() < 0.1 else text


def what_is_read(text: bytes) -> Any:
    """Return what the program reads of a manifest, or None if it is not JSON or has no objects there."""
    try:
        manifest = json.loads(text)
        places = [placed(manifest, path) for path in READ if path not in ("decoding", "defaults")]
        defaults = {name: value for name, value in (manifest.get("defaults") or {}).items() if name not in NOT_READ}
        return [
            {name: value for name, value in defaults.items() if value is not None},
            *(holder.get(name) for holder, name in places),
        ]
    except (ValueError, AttributeError, RecursionError):
        return None


def check(program: Path, bundle: Path, text: bytes, words: Sequence[str], original: bytes) -> str:
    """Run the program with the manifest `text` and compare it with Python. Return the error, or nothing."""
    (bundle / "manifest.json").write_bytes(text)
    done = run(program, bundle, *words, environment={"ASAN_OPTIONS": "detect_leaks=0"})
    context = f"{words}: {done.stderr[-2000:]}"
    assert done.returncode in (0, 2), context
    expected = python_answer(bundle, words)
    if done.returncode == 0:
        if expected is None:  # Python also refuses what the program does not read
            assert what_is_read(text) == what_is_read(original), context
            (bundle / "manifest.json").write_bytes(original)
            expected = python_answer(bundle, words)
        assert answer(done) == expected, context
        return ""
    assert done.stdout == ""
    assert REFUSAL.fullmatch(done.stderr), context
    assert expected is None or ABSENT_OPTIONS.search(done.stderr), context
    return done.stderr


def python_answer(bundle: Path, words: Sequence[str]) -> tuple[list[int], int] | None:
    """Return the ids and steps of Python's answer, or None if it refuses the bundle or the request."""
    try:
        max_new_tokens, *ids = (int(each) for each in words)
        with Decoder.open(bundle) as decoder:
            found = decoder.generate(ids, strategy="d2f", max_new_tokens=max_new_tokens)
    except (LopaError, ValueError):
        return None
    return list(found.token_ids), found.steps


def prompt_ids(bundle: Path, chance: random.Random) -> list[str]:
    """Return the arguments of a prompt of the evaluation."""
    with Decoder.open(bundle) as decoder:
        prompt = json.loads(chance.choice(EVAL.read_text(encoding="utf-8").splitlines()))["prompt"]
        return [str(LENGTH), *map(str, decoder.generate(prompt, max_new_tokens=1).prompt_ids)]


@pytest.mark.parametrize("mutate", [mutant_of_values, mutant_of_defaults])
def test_mutated_values(
    mutate: Callable[[dict[str, Any], random.Random], None], program: Path, bundle: Path, tiny_bundle: Path
) -> None:
    original, chance = (tiny_bundle / "manifest.json").read_bytes(), random.Random(60)
    words, errors = prompt_ids(tiny_bundle, chance), []
    for _ in range(COUNT):
        manifest = json.loads(original)
        mutate(manifest, chance)
        errors.append(check(program, bundle, json.dumps(manifest).encode(), words, original))
    assert COUNT // 8 < errors.count("") < COUNT * 9 // 10


@pytest.mark.parametrize("path", LIMITS)
def test_numbers_out_of_range_are_named(path: str, program: Path, bundle: Path, tiny_bundle: Path) -> None:
    original = (tiny_bundle / "manifest.json").read_bytes()
    for value in (*LIMITS[path], 2**70, "5", True, None, [1]):
        manifest = json.loads(original)
        holder, name = placed(manifest, path)
        holder[name] = value
        error = check(program, bundle, json.dumps(manifest).encode(), ["8", "5"], original)
        assert error.startswith(f"error: manifest.json has /{path} = "), error


def test_mutated_bytes(program: Path, bundle: Path, tiny_bundle: Path) -> None:
    original, chance = (tiny_bundle / "manifest.json").read_bytes(), random.Random(61)
    words = prompt_ids(tiny_bundle, chance)
    errors = [check(program, bundle, mutant_of_bytes(original, chance), words, original) for _ in range(COUNT)]
    assert COUNT // 20 < errors.count("") < COUNT


def test_mutated_prompts(program: Path, bundle: Path, tiny_bundle: Path) -> None:
    original, chance = (tiny_bundle / "manifest.json").read_bytes(), random.Random(62)
    words, errors = prompt_ids(tiny_bundle, chance), []
    strange = ("-1", "1024", "1023", "2", "0", "1", "5x", "0x5", "", "1e3", "5.0", "9" * 40, "2049", "\N{ROCKET}", "-")
    for _ in range(COUNT // 2):
        mutant = list(words)
        for _ in range(chance.choice((1, 2, 5))):
            at = chance.randrange(len(mutant))
            mutant[at : at + chance.choice((0, 1))] = [chance.choice((*strange, str(chance.randrange(1024))))]
        if len(mutant[0]) == 4 and mutant[0].isdecimal():
            mutant[0] = "40"  # a long decode takes minutes under sanitizers
        errors.append(check(program, bundle, original, mutant[: chance.choice((len(mutant), 3, 9))], original))
    assert COUNT // 10 < errors.count("") < COUNT // 2


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"x" * 400_000,
        b'{"decoding": "' + b"x" * 400_000,
        b"[" * 400_000,
        b"[" * 200_000 + b"]" * 200_000,
        b'{"decoding": {"block_size": ' + b"[" * 200_000 + b"]" * 200_000 + b"}}",
        b'{"schema": ' + b'{"a": ' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b"\xef\xbb\xbf{}",
        bytes(range(256)) * 1000,
    ],
    ids=["empty", "x", "open text", "open lists", "lists", "size of lists", "objects", "byte order mark", "bytes"],
)
def test_large_and_deep_files(text: bytes, program: Path, bundle: Path) -> None:
    assert check(program, bundle, text, ["8", "5"], b"{}") != ""


@pytest.mark.parametrize(
    ("output", "values", "error"),
    [
        ("", [], "model.onnx has other caches than manifest.json"),
        ("topk_ids", [3] * 7 + [-5], "the forward returned token ids outside the vocabulary"),
        ("topk_ids", [3] * 7 + [1024], "the forward returned token ids outside the vocabulary"),
        ("topk_ids", [2, 2, *range(6)], "the forward returned the mask token twice"),
        ("topk_logprobs", [-0.1] * 7 + [float("inf")], "the forward returned NaN or infinity"),
    ],
)
def test_wrong_graphs(
    output: str, values: list[float], error: str, program: Path, bundle: Path, tiny_bundle: Path
) -> None:
    """Every row of one output has these values, or the last input is a sequence."""
    model = onnx.load(bundle / "model.onnx", load_external_data=False)
    if output:
        kind = onnx.TensorProto.INT64 if output == "topk_ids" else onnx.TensorProto.FLOAT
        [node] = [each for each in model.graph.node if output in each.output]
        node.output[list(node.output).index(output)] = "right"
        model.graph.initializer.append(onnx.helper.make_tensor("wrong", kind, [8], values))
        model.graph.initializer.append(onnx.helper.make_tensor("never", onnx.TensorProto.BOOL, [], [False]))
        model.graph.node.append(onnx.helper.make_node("Where", ["never", "right", "wrong"], [output]))
    else:
        model.graph.input.append(onnx.helper.make_tensor_sequence_value_info("last", onnx.TensorProto.FLOAT, None))
    (bundle / "model.onnx").unlink()
    onnx.save(model, bundle / "model.onnx")
    (bundle / "manifest.json").write_bytes((tiny_bundle / "manifest.json").read_bytes())
    done = run(program, bundle, 8, 5, environment={"ASAN_OPTIONS": "detect_leaks=0"})
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith(f"error: {error}"), done.stderr

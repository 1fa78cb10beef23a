"""deploy/cpp, built with ONNX Runtime's C++ headers and the library of its Python wheel, compared with Python."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import onnxruntime
import pytest
from tests.cli.command import lopa_export

from lopa.tiny import EVAL

SOURCES = Path(__file__).resolve().parents[2] / "deploy" / "cpp"
PROMPTS = [json.loads(line)["prompt"] for line in EVAL.read_text(encoding="utf-8").splitlines()[:8]]
pytestmark = pytest.mark.cpp


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the program, or skip the test if something for it is missing."""
    for needed in ("cmake", "c++"):
        if shutil.which(needed) is None:
            pytest.skip(f"needs {needed}")
    headers = os.environ.get("ONNXRUNTIME_HEADERS")
    if headers is None:
        pytest.skip("needs ONNX Runtime's headers in ONNXRUNTIME_HEADERS: make test-cpp unpacks them")
    libraries = list((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"))
    if not libraries:
        pytest.skip("needs a wheel of ONNX Runtime for Linux")
    build = tmp_path_factory.mktemp("cpp")
    paths = [f"-DONNXRUNTIME_HEADERS={headers}", f"-DONNXRUNTIME_LIBRARY={libraries[0]}", "-DCMAKE_CXX_FLAGS=-Werror"]
    for command in (["cmake", "-S", str(SOURCES), "-B", str(build), *paths], ["cmake", "--build", str(build)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "d2f"


def run(program: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False, timeout=120)


def answer(program: Path, bundle: Path, max_new_tokens: int, ids: Sequence[int]) -> tuple[list[int], int]:
    """Return the answer's ids and the number of forwards."""
    done = run(program, bundle, max_new_tokens, *ids)
    assert done.returncode == 0, done.stderr
    return [int(each) for each in done.stdout.split()], int(done.stderr.removesuffix(" forwards\n"))


def test_the_program_is_short() -> None:
    lines = (SOURCES / "d2f.cpp").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("options", [(), ("--max-new-tokens", 40), ("--attention", "full", "--skip-threshold", 0.9)])
def test_answers_equal_generate(program: Path, tiny_bundle: Path, tmp_path: Path, options: tuple[object, ...]) -> None:
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": each}) + "\n" for each in PROMPTS))
    common = ("--strategy", "d2f", "--threads", 1, "--prompts", prompts, "--output", output)
    done = lopa_export("generate", tiny_bundle, *common, *options)
    assert done.returncode == 0, done.stderr
    length = 40 if "--max-new-tokens" in options else 256
    expected = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert len(expected) == len(PROMPTS)
    for line in expected:
        assert answer(program, tiny_bundle, length, line["prompt_ids"]) == (line["token_ids"], line["steps"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("BUNDLE", 8), "expected the arguments"),
        (("missing", 8, 5), "missing does not exist"),
        (("/", 8, 5), "/ has no manifest.json"),
        (("BUNDLE", 2047, 5, 6), "MAX_NEW_TOKENS '2047' is no number from 0 to 2046"),
        (("BUNDLE", 8, 1024), "ID '1024' is no number from 0 to 1023"),
        (("BUNDLE", 8, 5, "-1"), "ID '-1' is no number"),
        (("BUNDLE", 8, "9" * 30), "ID '999999999999999999999999999999' is no number"),
    ],
)
def test_bad_input(program: Path, tiny_bundle: Path, words: tuple[object, ...], message: str) -> None:
    done = run(program, *(tiny_bundle if word == "BUNDLE" else word for word in words))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}")


def test_bundles_that_the_program_cannot_decode(program: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    manifest = json.loads((tiny_bundle / "manifest.json").read_text())
    for change, message in (
        ({"decoding": {**manifest["decoding"], "attention": "block_causal"}}, "whose rows all attend to each other"),
        ({"dimensions": {}}, "manifest.json has no number dimensions.max_positions"),
        ({}, "model.onnx"),
    ):
        (tmp_path / "manifest.json").write_text(json.dumps(manifest | change))
        done = run(program, tmp_path, 8, 5)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr

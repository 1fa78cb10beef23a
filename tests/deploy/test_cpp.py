"""deploy/cpp decodes as Python does, and refuses bundles and arguments that it cannot decode."""

import json
from pathlib import Path

import pytest
from tests.cli.command import lopa_export
from tests.deploy.cpp_program import SOURCES, answer, built_program, run

from lopa.tiny import EVAL

PROMPTS = [json.loads(line)["prompt"] for line in EVAL.read_text(encoding="utf-8").splitlines()[:8]]
pytestmark = pytest.mark.cpp


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_program(tmp_path_factory.mktemp("cpp"), "-Werror")


def test_the_program_is_short() -> None:
    lines = (SOURCES / "d2f.cpp").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 228
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
        done = run(program, tiny_bundle, length, *line["prompt_ids"])
        assert answer(done) == (line["token_ids"], line["steps"])


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
        (
            {"decoding": {**manifest["decoding"], "attention": "block_causal"}},
            '/decoding/attention = "block_causal", expected "full"',
        ),
        ({"quantization": {"kind": "fp8"}}, '/quantization/kind = "fp8", expected "int8" or "int4"'),
        ({"contract": 2, "special_tokens": {}}, "/contract = 2, expected a whole number from 1 to 1"),
        ({"dimensions": {}}, "/dimensions/max_positions = null, expected a whole number from 1 to 16777216"),
        ({}, "model.onnx"),
    ):
        (tmp_path / "manifest.json").write_text(json.dumps(manifest | change))
        done = run(program, tmp_path, 8, 5)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr

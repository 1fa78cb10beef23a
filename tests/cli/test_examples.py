"""The examples at the end of every command's help: all of them run on the embedded toy model."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from tests.cli.command import lopa_export
from tests.runtime.tensorrt.buckets import DEVICE, plan_file
from tests.runtime.tensorrt.recorded_api import RTX
from tests.runtime.tensorrt.stand_in_tensorrt import stand_in_tensorrt

from lopa.bench.comparison import quality_run
from lopa.bench.comparison.ladder import MIN_QUESTIONS
from lopa.bench.forward import cost_measurement as costs
from lopa.cli.commands import COMMANDS
from lopa.cli.measure.bench import SUBCOMMANDS
from lopa.cli.program.grouped_command import EXAMPLES_TITLE
from lopa.export.verify.cases import cases_from_manifest
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BUCKETS_NAME
from lopa.tiny import ADAPTER, CHECKPOINT, EVAL

NAMES = [name for name in COMMANDS if name != "bench"] + [f"bench {name}" for name in SUBCOMMANDS]
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def help_of(name: str, *options: str) -> str:
    done = lopa_export(*name.split(), *options or ("--help",))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def examples_of(text: str) -> list[list[str]]:
    """Return the words of the command lines at the end of a help text, without the program."""
    _, title, section = text.partition(f"\n{EXAMPLES_TITLE}:\n")
    assert title
    lines = [shlex.split(line) for line in section.split("\n\n")[0].splitlines()]
    assert all(line[0] == "lopa-export" for line in lines)
    return [line[1:] for line in lines]


@pytest.fixture
def folder(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a file for every placeholder of an input, in the current folder."""
    shutil.copytree(tiny_bundle, tmp_path / "BUNDLE")
    (tmp_path / "CHECKPOINT").symlink_to(CHECKPOINT)
    (tmp_path / "ADAPTER").symlink_to(ADAPTER)
    lines = EVAL.read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "EVAL.jsonl").write_text(lines[0])
    (tmp_path / "PROMPTS.jsonl").write_text('{"prompt": "Question: 2 + 3?", "max_new_tokens": 4}\n' * MIN_QUESTIONS)
    (tmp_path / "GSM8K.jsonl").write_text('{"question": "Two and three?", "answer": "#### 5"}\n')
    (tmp_path / "TEMPLATE.jinja").write_text(TEMPLATE)
    (tmp_path / "KEYS.txt").write_text("secret-key-of-a-client\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the measurements."""
    monkeypatch.setattr(quality_run, "MAX_NEW_TOKENS", 8)
    monkeypatch.setattr(costs, "GRIDS", (costs.Grid(branches=(1, 2), blocks=(1, 2), prefixes=(64, 128)),))
    monkeypatch.setattr(costs, "_MAX_ROUNDS", 3)
    monkeypatch.setattr(costs, "_HOST_PROMPTS", 1)
    monkeypatch.setattr(costs, "_HOST_SECONDS", 0.2)
    monkeypatch.setattr("lopa.cli.measure.cold.STARTS", 1)
    monkeypatch.setattr("lopa.cli.compile.plan._PROMPTS", 1)
    monkeypatch.setattr("lopa.cli.start.fastest_device._ROUNDS", 1)
    place = "lopa.export.verify.session_check.cases_from_manifest"
    monkeypatch.setattr(place, lambda manifest: islice(cases_from_manifest(manifest), 4))


def test_every_command_has_examples() -> None:
    for name in NAMES:
        found = examples_of(help_of(name))
        assert found
        assert all(words[: len(name.split())] == name.split() for words in found), name
    for group in ("", "bench"):
        assert examples_of(help_of(group))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "tune" else name
        for name in NAMES
        if name not in ("serve", "push", "demo")  # tests/test_readme.py runs `make demo`
    ],
)
def test_examples_run(folder: Path, name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "plan":
        trace = ("--step-log", "STEPS.jsonl", "--max-new-tokens", 8)
        assert lopa_export("generate", "BUNDLE", "Question: 2 + 3?", *trace).returncode == 0
    if name == "tensorrt":
        monkeypatch.setitem(sys.modules, "tensorrt", stand_in_tensorrt(11))
        monkeypatch.setitem(sys.modules, "tensorrt_rtx_bindings", stand_in_tensorrt(RTX))
        monkeypatch.setattr("lopa.cli.compile.tensorrt.cuda_device", lambda _number: DEVICE)
        shutil.copy(plan_file(Bundle.open(folder / "BUNDLE"), folder / "PLAN.json"), folder / "BUNDLE" / BUCKETS_NAME)
    if name == "qnn":
        pytest.importorskip("onnxruntime_qnn", reason="needs onnxruntime-qnn: make test-qnn")
        shutil.copy(plan_file(Bundle.open(folder / "BUNDLE"), folder / "PLAN.json"), folder / "BUNDLE" / BUCKETS_NAME)
    if name == "page":
        web = Path(__file__).resolve().parents[2] / "web"
        if not (web / "node_modules" / "ready").is_file() or not (web / "dist" / "index.js").is_file():
            pytest.skip("needs npm packages: make test-web")
        (folder / "web").symlink_to(web)
    if name == "fill":
        shutil.rmtree(folder / "BUNDLE")
        shutil.copytree(request.getfixturevalue("export_tiny")(with_logits=False, lora=None), folder / "BUNDLE")
    if name in ("ascend", "inspect"):
        request.getfixturevalue("atc_calls")
        shutil.rmtree(folder / "BUNDLE")
        request.getfixturevalue("planned_bundle").rename(folder / "BUNDLE")
    if name == "tune":
        lines = [json.loads(line) | {"max_new_tokens": 4} for line in EVAL.read_text(encoding="utf-8").splitlines()]
        (folder / "EVAL.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:MIN_QUESTIONS]))
    if name in ("sign", "verify"):
        pytest.importorskip("cryptography")
        from tests.runtime.signature.certificates import Authority, write_keys

        private, public = write_keys(folder, "signer")
        authority = Authority()
        authority.issue(public, folder / "SIGNER.pem")
        authority.write(folder / "ISSUER.pem")
        private.rename(folder / "KEY.pem")
        public.rename(folder / "PUBLIC.pem")
    if name == "verify":
        assert lopa_export("sign", "BUNDLE", "--key", "KEY.pem").returncode == 0
    if name == "bench speed":
        monkeypatch.setattr(pytest.importorskip("lopa.bench.speed.speed_measurement"), "ROUNDS", 1)
    for words in examples_of(help_of(name)):
        done = lopa_export(*words, stdin="/quit\n")
        assert done.returncode == 0, (words, done.stderr)


def test_examples_of_serve_run(folder: Path) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    environment = {**os.environ, "LOPA_SERVE__PORT": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "lopa.cli.main"]
    started = [
        subprocess.Popen([*command, *words], stderr=subprocess.PIPE, text=True, env=environment, cwd=folder)
        for words in examples_of(help_of("serve"))
    ]
    for process in started:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any(re.search(r"http://\S+/v1\b", line) for line in lines), process.args
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors

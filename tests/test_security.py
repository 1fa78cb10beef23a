"""The product never does what SECURITY.md excludes, and a server's log contains no user text."""

import ast
import base64
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from tests.chat_bundles import with_tokenizer_files
from tests.serve.servers import serving

from lopa.tiny import CHECKPOINT

PROJECT = Path(__file__).resolve().parents[1]
PRODUCT = PROJECT / "src" / "lopa"
SOURCES = sorted(PRODUCT.rglob("*.py"))
NEVER_IMPORTED = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "imp", "runpy", "yaml"}
NEVER_CALLED = {"eval", "exec", "compile", "__import__"}
NEVER_ACCESSED = {"register_custom_ops_library", "load_library"}
"""Functions that load libraries of operators, in ONNX Runtime, torch and TensorRT."""
REGISTERS_OPERATORS = "runtime/cpu_kernels/operator_library.py"
"""The file that gives the libraries of this package to ONNX Runtime."""
OWN_KERNELS = {"runtime/cpu_kernels/kernel_library.py", "runtime/cuda_kernels/cuda_library.py"}
"""The files that load the libraries of this package, from their folders."""
LIBRARIES = {
    "export/tensorrt/builder.py",
    *OWN_KERNELS,
    "runtime/cuda/driver.py",
    "runtime/denormals.py",
}
"""Files that open a system or driver library by name. No file opens a library that a bundle names."""
PROCESSES = {
    "bench/forward/cold_start.py",
    "bench/gpu/device.py",
    "export/ascend/build.py",
    "export/checkpoint/module_patterns.py",
    "plugins/kernels/ahead_of_time.py",
    "runtime/cuda_kernels/kernel_archive.py",
    "runtime/grammar/helper.py",
}
"""Files that start a process: measurements, the compiler for Ascend, and Python for grammars, adapter patterns and
kernels."""


@cache
def trees() -> list[tuple[str, ast.Module]]:
    return [(str(path.relative_to(PRODUCT)), ast.parse(path.read_text(encoding="utf-8"))) for path in SOURCES]


def modules_of(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def names_called(tree: ast.Module) -> set[str]:
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {each.id for each in calls if isinstance(each, ast.Name)}


def attributes_of(tree: ast.Module) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def loads_and_shells(tree: ast.Module) -> set[str]:
    """Return calls such as torch.load, which unpickles, and os.system, which starts a shell."""
    names = {"torch.load", "np.load", "numpy.load", "os.system", "os.popen"}
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    return {f"{node.value.id}.{node.attr}" for node in found if isinstance(node.value, ast.Name)} & names


def test_no_code_from_files_is_run() -> None:
    for name, tree in trees():
        assert not modules_of(tree) & NEVER_IMPORTED, name
        assert not names_called(tree) & NEVER_CALLED, name
        assert name == REGISTERS_OPERATORS or not attributes_of(tree) & NEVER_ACCESSED, name
        assert not loads_and_shells(tree), name


def test_violations_are_detected() -> None:
    """The checks above detect violations."""
    assert modules_of(ast.parse("import pickle\nfrom joblib import load")) == {"pickle", "joblib"} <= NEVER_IMPORTED
    assert names_called(ast.parse("def f(x):\n    return eval(x)")) & NEVER_CALLED
    assert attributes_of(ast.parse("options.register_custom_ops_library(path)")) & NEVER_ACCESSED
    assert loads_and_shells(ast.parse("torch.load(path)\nos.system(path)")) == {"torch.load", "os.system"}


def test_code_of_a_checkpoint_is_never_requested() -> None:
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"trust_remote_code\s*=\s*True|allow_pickle\s*=\s*True|weights_only\s*=\s*False", text), (
            path
        )


def test_libraries_and_processes_are_opened_in_few_places() -> None:
    found = {name for name, tree in trees() if attributes_of(tree) & {"CDLL", "LoadLibrary"}}
    assert found == LIBRARIES
    assert {name for name, tree in trees() if "subprocess" in modules_of(tree)} == PROCESSES


def test_a_server_s_log_has_no_prompts_answers_or_keys(tiny_bundle: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("the-only-key\n")
    right, wrong = ({"Authorization": f"Bearer {key}"} for key in ("the-only-key", "a-guessed-key"))
    body = {"model": "tiny", "prompt": "Question: of a patient, 2 + 3?\nAnswer:", "max_tokens": 16}
    with serving(tiny_bundle, "--api-keys", keys) as server:
        answered = server.http.post("/v1/completions", json=body, headers=right)
        assert answered.status_code == 200
        assert server.http.post("/v1/completions", json=body, headers=wrong).status_code == 401
        assert server.http.post("/v1/completions", json={**body, "top_p": "patient"}, headers=right).status_code == 400
        assert server.http.post("/v1/completions", content=b"{patient", headers=right).status_code == 400
        code, logged = server.stop()
    assert code == 0
    for secret in ("patient", "the-only-key", "a-guessed-key", answered.json()["choices"][0]["text"].strip()):
        assert secret
        assert secret not in logged


HOSTILE_TOKENIZERS: dict[str, dict[str, object]] = {
    "a table that promises 4 GB": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\xfc\xff\xff\xff").decode()}
    },
    "a text that grows without end": {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 100}] * 6,
        }
    },
    "an answer that grows without end": {
        "decoder": {
            "type": "Sequence",
            "decoders": [{"type": "Replace", "pattern": {"Regex": "."}, "content": "e" * 100}] * 6,
        }
    },
}
LITTLE_MEMORY = 2**31
"""Address space of a process in bytes, less than any of these files requests."""
READ_A_CHECKPOINT = """
import sys
from pathlib import Path
from lopa.export.checkpoint.config import config_from_checkpoint
from lopa.export.checkpoint.tokenizer_files import tokenizer_files_from_checkpoint
from lopa.runtime.errors import LopaError
folder = Path(sys.argv[1])
try:
    tokenizer_files_from_checkpoint(folder, config_from_checkpoint(folder))
except LopaError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def in_little_memory(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Return the output of a program with little memory, where libraries may end the process. The files request more
    memory than the limit allows.
    """

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (LITTLE_MEMORY, LITTLE_MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))

    environment = {
        **os.environ,
        "PYTHONPATH": str(PROJECT / "src"),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        preexec_fn=limit,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", HOSTILE_TOKENIZERS)
def test_a_bundle_s_tokenizer_does_not_end_the_process(name: str, tiny_bundle: Path, tmp_path: Path) -> None:
    changed = HOSTILE_TOKENIZERS[name]
    copy = with_tokenizer_files(tiny_bundle, tmp_path / "bundle", lambda settings: settings, lambda own: own | changed)
    ran = in_little_memory("-m", "lopa.cli.main", "generate", copy, "2 + 3?", "--max-new-tokens", "8", "--threads", "1")
    assert ran.returncode == 2, (ran.returncode, ran.stderr[:500])
    assert str(copy / "tokenizer.json") in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("name", HOSTILE_TOKENIZERS)
def test_a_checkpoint_s_tokenizer_does_not_end_the_process(name: str, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(CHECKPOINT, tmp_path / "checkpoint"))
    path = copy / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **HOSTILE_TOKENIZERS[name]}))
    ran = in_little_memory("-c", READ_A_CHECKPOINT, copy)
    assert ran.returncode == 2, (ran.returncode, ran.stderr[:500])
    assert str(path) in ran.stderr

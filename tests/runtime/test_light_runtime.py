"""The runtime and the command line work without torch, transformers and onnx."""

import json
import subprocess
import sys
from pathlib import Path

from lopa import tiny
from lopa.runtime.install_hint import pip_install

_BLOCKED = """
import sys

REFUSED = {"torch", "transformers", "onnx", "onnxscript", "safetensors", "tensorrt", "acl", "mpi4py"}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"{name} is refused", name=name)

sys.meta_path.insert(0, Refuse())
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", _BLOCKED + code, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_module_imports_and_both_engines_decode(tiny_bundle: Path) -> None:
    result = run(
        """
import importlib, pkgutil
import lopa.cli, lopa.plugins, lopa.runtime
KERNELS = ("lopa.plugins.kernels.", "lopa.runtime.cpu_kernels._", "lopa.runtime.cuda_kernels._")
for package in (lopa.runtime, lopa.plugins, lopa.cli):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        # The first have torch and Triton, and the others are libraries without a Python interface.
        if not module.name.startswith(KERNELS):
            importlib.import_module(module.name)
from lopa.runtime.decoder import Decoder
for device in ("cpu", "numpy"):
    with Decoder.open(sys.argv[1], [device]) as decoder:
        result = decoder.generate("Question: 2 + 3?", decoder.config(max_new_tokens=8))
        print(device, result.tokens)
assert not {"torch", "transformers", "onnx", "matplotlib"} & set(sys.modules)
""",
        str(tiny_bundle),
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "cpu 8\nnumpy 8\n"


def test_export_commands_name_the_extra_to_install(tiny_bundle: Path, tmp_path: Path) -> None:
    commands = [
        ["onnx", str(tiny.CHECKPOINT), "-o", str(tmp_path / "bundle")],
        ["verify", str(tiny_bundle), "--checkpoint", str(tiny.CHECKPOINT), "--lora", str(tiny.ADAPTER)],
        ["demo", "-o", str(tmp_path / "bundle")],
    ]
    result = run(
        """
import json
from lopa.cli.main import main
codes = []
for command in json.loads(sys.argv[1]):
    try:
        main(command)
    except SystemExit as ended:
        codes.append(ended.code)
print(codes)
""",
        json.dumps(commands),
    )
    assert result.stdout.endswith("[3, 3, 3]\n"), result.stderr
    assert result.stderr.count(pip_install("export")) == 3
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "bundle").exists()

"""`lopa` exports its public names, loads each on first use, and comes from a single checkout."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lopa
import lopa.runtime

PROJECT = Path(__file__).resolve().parents[1]
HEAVY = "{'numpy', 'onnxruntime', 'tokenizers', 'jinja2', 'msgspec'}"


def run(code: str, path: str = str(PROJECT / "src")) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_lopa_loads_the_standard_library_alone() -> None:
    code = (
        "import sys; before = set(sys.modules); import lopa; print(lopa.__version__); "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - sys.stdlib_module_names), dir(lopa) == sorted({*dir(lopa), *lopa.__all__}))"
    )
    assert run(code) == f"{lopa.__version__}\n['lopa'] True\n"


def test_importing_the_runtime_loads_no_more() -> None:
    """ORT_DISABLE_TELEMETRY is set before anything can import onnxruntime."""
    code = "import os, sys, lopa.runtime; print({heavy} & set(sys.modules), os.environ['ORT_DISABLE_TELEMETRY'])"
    assert run(code.replace("{heavy}", HEAVY)) == "set() 1\n"


@pytest.mark.parametrize("module", ["errors", "generation_config", "contract"])
def test_a_module_loads_only_its_own_imports(module: str) -> None:
    heavy = "{'onnxruntime', 'tokenizers', 'jinja2', 'lopa.runtime.decoder'}"
    assert run(f"import sys, lopa.runtime.{module}; print({heavy} & set(sys.modules))") == "set()\n"


@pytest.mark.parametrize("package", ["lopa", "lopa.runtime"])
def test_every_name_is_loaded_on_first_use(package: str) -> None:
    code = f"""
import {package} as package
assert set(package.__all__) <= set(dir(package))
for name in package.__all__:
    assert getattr(package, name) is not None, name
try:
    package.Decodr
except AttributeError as error:
    print(error)
scope = {{}}
exec("from {package} import *", scope)
print(set(package.__all__) - set(scope), scope["Decoder"].__module__)
"""
    assert run(code) == f"module '{package}' has no attribute 'Decodr'\nset() lopa.runtime.decoder\n"


def test_both_packages_have_the_same_names() -> None:
    assert lopa.runtime.__all__ == lopa.__all__
    assert all(getattr(lopa.runtime, name) is getattr(lopa, name) for name in lopa.__all__)


def test_names_for_type_checkers_match_the_loaded_ones() -> None:
    imports = [
        (alias.name, node.module)
        for node in ast.walk(ast.parse(Path(lopa.__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("lopa.")
        for alias in node.names
    ]
    assert dict(imports) == lopa._MODULES
    assert sorted([*lopa._MODULES, "__version__"]) == sorted(lopa.__all__)

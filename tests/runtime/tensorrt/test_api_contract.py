"""The TensorRT API that our code uses exists in the oldest and newest supported bindings and in RTX."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.tensorrt.bindings import PINS, installed_bindings, installed_rtx
from tests.runtime.tensorrt.recorded_api import MAJORS, RTX, surface

ROOT = Path(__file__).resolve().parents[3]
SOURCES = sorted(
    path
    for folder in ("export", "runtime", "cli", "plugins")
    for path in (ROOT / "src" / "lopa" / folder).rglob("*.py")
)


@pytest.mark.parametrize("pin", PINS)
def test_record_matches_the_real_bindings(pin: str, pytestconfig: pytest.Config, tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler to build stand-ins for the libraries")
    major = pin.split("==")[1].split(".")[0]
    assert _record_again(installed_bindings(pin, pytestconfig), tmp_path) == _record(major)


def test_record_matches_the_real_rtx_bindings(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    assert _record_again(installed_rtx(pytestconfig), tmp_path) == _record(RTX)


def _record_again(bindings: Path, folder: Path) -> str:
    recorder = ROOT / "tools" / "vendors" / "record_tensorrt_api.py"
    command = [sys.executable, recorder, bindings, "-o", folder / "api.json"]
    made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert made.returncode == 0, made.stderr
    return (folder / "api.json").read_text()


def _record(major: str) -> str:
    return (Path(__file__).parent / f"api-{major}.json").read_text()


@pytest.mark.parametrize("major", [*MAJORS, RTX])
def test_all_used_names_exist(major: int | str) -> None:
    recorded = surface(major)
    module = "rtx" if major == RTX else "trt"  # the source calls the module rtx where it uses RTX-only functions
    texts = [text for text in map(Path.read_text, SOURCES) if "trt" in text or "rtx" in text]
    used = {name for text in texts for name in _used_names(ast.parse(text), module)}
    known = {"trt.Builder", "trt.BuilderFlag.TF32", "trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED"}
    assert known | {"trt.Refitter", "trt.ExecutionContextAllocationStrategy.USER_MANAGED"} <= used
    if major == RTX:  # plugins are for Enterprise: RTX has no module for Python plugins
        assert "plugin" not in recorded
        assert "trt.DynamicShapesKernelSpecializationStrategy.EAGER" in used
        used = {name for name in used if not name.startswith("trtp.")}
    assert [name for name in sorted(used) if not _exists(name, recorded)] == []


def test_names_removed_in_11_are_detected() -> None:
    (flag,) = _used_names(ast.parse("trt.BuilderFlag.FP16"))
    assert [_exists(flag, surface(major)) for major in MAJORS] == [True, False]


def _used_names(tree: ast.AST, module: str = "trt") -> Iterator[str]:
    """Yield the names used from tensorrt and tensorrt.plugin, imported as trt and trtp: trt.A, trt.A.B.

    With `module` "rtx", names used from a module called rtx count too, as trt.
    """
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            found = re.search(rf"(?:\b|_)(?:trt|{module})(p?\.\w+(\.\w+)?)(\.\w+)*$", ast.unparse(node))
            if found is not None:
                yield f"trt{found[1]}"


def _exists(name: str, recorded: dict[str, Any]) -> bool:
    module, outer, *inner = name.split(".")
    if module == "trtp":
        plugin = recorded["plugin"]
        names = plugin["classes"].get(outer, {}).get("names", ())
        return (outer in plugin["functions"] or outer in plugin["classes"]) and set(inner) <= set(names)
    if outer in recorded["values"]:
        return True
    if not inner:
        return outer == "__version__" or any(outer in recorded[part] for part in ("classes", "functions"))
    one = recorded["classes"].get(outer, {})
    if inner[0] == "__members__":
        return "members" in one
    return any(inner[0] in one.get(part, ()) for part in ("members", "values", "methods", "properties"))

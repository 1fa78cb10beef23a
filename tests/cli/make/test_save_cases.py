"""lopa-export verify --save-cases: when the folder is written, and when it is not."""

import shutil
from pathlib import Path

import pytest
from tests.cli.make.test_verify import another_epsilon, rewrite_graph, verify

pytestmark = pytest.mark.usefixtures("few_cases")


def files(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


SAVED = {"inputs.json", "outputs.json", "compare.py", "rule.json", "trt-shapes.txt"}


def test_cases_are_saved_once(tiny_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "some" / "cases"
    code, output, errors = verify(tiny_bundle, "--save-cases", folder)
    assert code == 0
    assert f"{folder}: cases with numpy's results, for Polygraphy (docs/how-to/engines.md)\nok: " in output
    assert "saving cases (4)" in errors
    assert files(folder) == SAVED
    code, output, errors = verify(tiny_bundle, "--save-cases", folder)
    assert (code, output) == (2, "")
    assert f"{folder} exists" in errors
    assert "digests" not in errors  # rejected before anything is read
    assert files(folder) == SAVED


def test_an_altered_file_saves_nothing(tiny_bundle: Path, tmp_path: Path) -> None:
    altered = Path(shutil.copytree(tiny_bundle, tmp_path / "altered"))
    content = bytearray((altered / "model.onnx.data").read_bytes())
    content[999] ^= 4
    (altered / "model.onnx.data").write_bytes(content)
    assert verify(altered, "--save-cases", tmp_path / "cases")[0] == 1
    assert files(tmp_path) == {"altered"}


def test_without_polygraphy_the_error_names_the_extra(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    code, output, errors = verify(tiny_bundle, "--save-cases", tmp_path / "cases")
    assert (code, output) == (3, "")
    assert "polygraphy is not installed" in errors
    assert files(tmp_path) == set()


def test_a_wrong_graph_has_its_cases(tiny_bundle: Path, tmp_path: Path) -> None:
    altered = Path(shutil.copytree(tiny_bundle, tmp_path / "altered"))
    rewrite_graph(altered, another_epsilon)
    code, output, _ = verify(altered, "--save-cases", tmp_path / "cases")
    assert code == 1
    assert f"{tmp_path / 'cases'}: cases with numpy" in output
    assert files(tmp_path / "cases") == SAVED

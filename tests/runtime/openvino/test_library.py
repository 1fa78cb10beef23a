"""OpenVINO absent, too old, and imported so that it reports nothing."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import pip_install
from lopa.runtime.openvino.library import openvino_module, version_numbers

REPORTER = """
class Telemetry:
    def __init__(self, **_):
        raise SystemExit("it reports")
"""


def test_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingBackendError, match=r"2026\.4 or later") as caught:
        openvino_module("openvino:CPU")
    assert pip_install("openvino") in caught.value.remedy
    assert "'openvino:CPU'" in caught.value.received
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("version", ["2026.3.0-1-x", "2025.9.1", "nonsense"])
def test_too_old(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(__version__=version))
    with pytest.raises(MissingBackendError, match=f"OpenVINO here is {version}") as caught:
        openvino_module("openvino:CPU")
    assert pip_install("openvino") in caught.value.remedy


def test_versions() -> None:
    assert version_numbers("2026.4.1-22982-e213a147257-releases/2026/4") == (2026, 4)
    assert version_numbers("2027.0.0") > (2026, 4)


@pytest.mark.parametrize(
    ("imported", "said"),
    [
        ("from lopa.runtime.openvino.library import openvino_module as m; m('openvino:CPU')", ""),
        ("import openvino", "it reports"),  # what the other line prevents
    ],
)
def test_it_reports_nothing(tmp_path: Path, imported: str, said: str) -> None:
    """With its telemetry package installed, which sends that OpenVINO was imported; here one that ends the process."""
    pytest.importorskip("openvino")
    package = tmp_path / "openvino_telemetry"
    package.mkdir()
    (package / "__init__.py").write_text(REPORTER)
    (package / "backend.py").write_text("backend_ga4 = None\n")
    command = f"import sys; sys.path[:0] = {[str(tmp_path), *sys.path]!r}; {imported}"
    command += "; assert 'openvino_telemetry' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == said
    assert done.returncode == (1 if said else 0)

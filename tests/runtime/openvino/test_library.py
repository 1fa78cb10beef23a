"""OpenVINO missing, too old, and imported without telemetry."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import pip_install
from lopa.runtime.openvino.openvino_library import openvino_module, version_numbers

REPORTER = """
class Telemetry:
    def __init__(self, **_):
        raise SystemExit("telemetry")
"""


def test_missing_openvino_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingBackendError, match=r"2026\.4 or later") as caught:
        openvino_module("openvino:CPU")
    assert pip_install("openvino") in caught.value.remedy
    assert "'openvino:CPU'" in caught.value.received
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("version", ["2026.3.0-1-x", "2025.9.1", "nonsense"])
def test_old_openvino_raises(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(__version__=version))
    with pytest.raises(MissingBackendError, match=f"OpenVINO is {version}") as caught:
        openvino_module("openvino:CPU")
    assert pip_install("openvino") in caught.value.remedy


def test_version_numbers() -> None:
    assert version_numbers("2026.4.1-22982-e213a147257-releases/2026/4") == (2026, 4)
    assert version_numbers("2027.0.0") > (2026, 4)


@pytest.mark.parametrize(
    ("imported", "message"),
    [
        ("from lopa.runtime.openvino.openvino_library import openvino_module as m; m('openvino:CPU')", ""),
        ("import openvino", "telemetry"),  # the behavior that openvino_module prevents
    ],
)
def test_import_without_telemetry(tmp_path: Path, imported: str, message: str) -> None:
    """Install a telemetry package that ends the process. The real one would report the import."""
    pytest.importorskip("openvino")
    package = tmp_path / "openvino_telemetry"
    package.mkdir()
    (package / "__init__.py").write_text(REPORTER)
    (package / "backend.py").write_text("backend_ga4 = None\n")
    command = f"import sys; sys.path[:0] = {[str(tmp_path), *sys.path]!r}; {imported}"
    command += "; assert 'openvino_telemetry' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False, timeout=300)
    assert done.stderr.strip() == message
    assert done.returncode == (1 if message else 0)


SIGNALS = """
import gc, signal, sys
from concurrent.futures import ThreadPoolExecutor
from lopa.runtime import Decoder

received = []
signal.signal(signal.SIGUSR1, lambda *_: received.append(1))
decoders = [Decoder.open(sys.argv[1], ("openvino:CPU",), threads=threads) for threads in (1, 2)]
while decoders:
    decoders.pop(0).close()
    gc.collect()
    signal.raise_signal(signal.SIGUSR1)
with ThreadPoolExecutor(1) as thread:
    decoder = thread.submit(Decoder.open, sys.argv[1], ("openvino:CPU",)).result()
    decoder.close()
    decoder = Decoder.open(sys.argv[1], ("openvino:CPU",))
    thread.submit(decoder.close).result()
    signal.raise_signal(signal.SIGUSR1)
assert received == [1, 1, 1]
"""


@pytest.mark.skipif(sys.platform != "linux", reason="OpenVINO changes the stack of signal handlers on Linux only")
def test_signals_after_the_end_of_models(tiny_bundle: Path) -> None:
    """Models end in the order of their start and on another thread. A crash here is memory that OpenVINO freed."""
    done = subprocess.run([sys.executable, "-c", SIGNALS, tiny_bundle], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr)

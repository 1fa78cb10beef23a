"""lopa-export doctor: what it finds, and remedies that can be followed."""

import re
import tomllib
from pathlib import Path

import pytest
from tests.cli.command import lopa_export

from lopa.cli.start import doctor
from lopa.runtime.install_hint import installed_version, pip_install


def test_doctor_lists_abilities_and_devices() -> None:
    result = lopa_export("doctor")
    assert result.returncode == 0
    for part in ("python", "decode (runtime): numpy", "export and verify: torch", "Ascend", "cpu: ready", "cuda:N:"):
        assert part in result.stdout
    asked = re.findall(r" install (.*)", result.stdout)
    assert asked
    assert not any("lopa" in words for words in asked)  # no remedy asks an index for this project


def test_every_extra_is_looked_for() -> None:
    """But for that of the clients, which nothing here imports, and that of CUDA, whose device has a line of its own."""
    project = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].keys() - {"clients", "gpu"}
    remedies = [ability.remedy() for ability in doctor._ABILITIES]
    assert len(extras) > 10
    for extra in extras:
        assert any(remedy.startswith(pip_install(extra)) for remedy in remedies), extra
    looked_for = {name for ability in doctor._ABILITIES for name in ability.distributions}
    assert looked_for >= {"simpy", "ray", "llguidance", "lm_eval"}


@pytest.mark.parametrize(("version", "state"), [("2025.4.1", "missing"), ("2026.4.0", "ok"), ("2027.0.0", "ok")])
def test_an_openvino_that_is_too_old_is_no_openvino(monkeypatch: pytest.MonkeyPatch, version: str, state: str) -> None:
    def found(name: str) -> str | None:
        return version if name == "openvino" else installed_version(name)

    monkeypatch.setattr(doctor, "installed_version", found)
    lines = lopa_export("doctor").stdout.splitlines()
    place = next(i for i, line in enumerate(lines) if "decode with OpenVINO" in line)
    assert lines[place].split() == [state, *f"decode with OpenVINO (docs/openvino.md): openvino {version}".split()]
    assert ("needs openvino" in lines[place + 1]) == (state == "missing")

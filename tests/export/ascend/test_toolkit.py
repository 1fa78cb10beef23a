from pathlib import Path

import pytest
from tests.runtime.ascend.stand_in_toolkit import stand_in_toolkit

from lopa.export.ascend.build import atc_of_machine, cann_version
from lopa.runtime.errors import MissingBackendError


@pytest.fixture(autouse=True)
def no_toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"):
        monkeypatch.delenv(name, raising=False)


def test_atc_is_found_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingBackendError, match=r"set_env\.sh"):
        atc_of_machine()
    binaries = stand_in_toolkit(tmp_path / "toolkit")
    monkeypatch.setenv("PATH", str(binaries))
    assert atc_of_machine() == binaries / "atc"


def test_the_version_is_found_above_the_program_through_a_link(tmp_path: Path) -> None:
    binaries = stand_in_toolkit(tmp_path / "toolkit", "8.5.0")
    link = tmp_path / "atc"
    link.symlink_to(binaries / "atc")
    assert cann_version(binaries / "atc") == cann_version(link) == "8.5.0"
    stand_in_toolkit(tmp_path / "toolkit", None)
    assert cann_version(link) is None


@pytest.mark.parametrize("name", ["ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"])
def test_set_env_gives_the_toolkit_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    stand_in_toolkit(tmp_path / "toolkit", "8.5.0")
    monkeypatch.setenv(name, str(tmp_path / "toolkit"))
    assert cann_version(Path("/elsewhere/atc")) == "8.5.0"


def test_an_install_file_without_a_version(tmp_path: Path) -> None:
    binaries = stand_in_toolkit(tmp_path / "toolkit", "8.5.0")
    (info,) = tmp_path.glob("toolkit/*/ascend_toolkit_install.info")
    info.write_text("package_name=Ascend-cann-toolkit\n")
    assert cann_version(binaries / "atc") is None

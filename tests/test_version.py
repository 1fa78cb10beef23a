"""The version is defined once, in lopa; metadata, bundles and reports read it from there."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from setuptools.config.pyprojecttoml import read_configuration

from lopa import __version__
from lopa.bench.report import machine_now
from lopa.runtime.bundle import Bundle

PROJECT = Path(__file__).resolve().parents[1]


def test_the_package_has_the_version() -> None:
    assert read_configuration(PROJECT / "pyproject.toml")["project"]["version"] == __version__


def lopa_export(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from lopa.cli.main import main; main()", *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=True)


def test_the_command_prints_the_version() -> None:
    """--version prints the metadata's version, which the build reads from the source."""
    done = lopa_export("--version")
    assert (done.stdout, done.stderr) == (f"lopa-export, version {version('lopa-export')}\n", "")
    assert f" lopa-export {__version__}, Python" in lopa_export("completion", "bash", "--verbose").stderr


def test_bundles_and_reports_contain_the_version(tiny_bundle: Path) -> None:
    assert Bundle.open(tiny_bundle).manifest.origin.tools["lopa-export"] == __version__
    assert machine_now().versions["lopa-export"] == __version__


def test_the_version_is_defined_once() -> None:
    literal = f'"{__version__}"'
    folders = ("src", "tools")
    sources = [PROJECT / "pyproject.toml", *(path for folder in folders for path in (PROJECT / folder).rglob("*.py"))]
    assert [path for path in sources if literal in path.read_text(encoding="utf-8")] == [
        PROJECT / "src" / "lopa" / "__init__.py"
    ]
    assert f"## {__version__} - " in (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")

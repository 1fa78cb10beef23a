"""A release needs a clean commit with matching version and changelog. Its archives contain the kernels.

Two builds give the same wheel.
"""

import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
from tests.release_programs import release_program
from tools.release.__main__ import archives_of_tree, check_changelog, check_clean, output_of

from lopa.runtime.cpu_kernels.kernel_library import kernel_status
from lopa.runtime.errors import BadInputError, CheckFailedError

PROJECT = Path(__file__).resolve().parents[3]


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", folder, *who, *arguments], check=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    (folder / "src" / "lopa").mkdir(parents=True)
    (folder / "src" / "lopa" / "__init__.py").write_text('__version__ = "0.2.0"\n')
    (folder / "CHANGELOG.md").write_text("# Changelog\n\n## 0.2.0 - unreleased\n\n## 0.1.0 - 2026-01-01\n")
    git(tmp_path, "init", "--quiet", "checkout")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


def test_a_clean_commit_with_a_section_is_accepted(checkout: Path) -> None:
    check_clean(checkout)
    check_changelog(checkout)
    (checkout / "left over").write_text("")
    with pytest.raises(BadInputError, match=r"1 uncommitted files, e\.g\. .left over."):
        check_clean(checkout)


def test_a_tag_requires_a_date(checkout: Path) -> None:
    git(checkout, "tag", "v0.2.0")
    with pytest.raises(BadInputError, match=r"exactly one section for 0\.2\.0") as caught:
        check_changelog(checkout)
    assert caught.value.expected == '"## 0.2.0 - " and a date'
    (checkout / "CHANGELOG.md").write_text("## 0.2.0 - 2026-11-22\n")
    check_changelog(checkout)


@pytest.mark.parametrize("text", ["", "## 0x2.0 - unreleased\n", "## 0.2.0 - soon\n", "## 0.2.0 - unreleased\n" * 2])
def test_a_changelog_without_the_version(checkout: Path, text: str) -> None:
    (checkout / "CHANGELOG.md").write_text(text)
    with pytest.raises(BadInputError, match=r"exactly one section for 0\.2\.0"):
        check_changelog(checkout)


def test_failing_programs_are_reported() -> None:
    with pytest.raises(CheckFailedError, match=r"(?s)sh -c echo .*exit code 3: because"):
        output_of("sh", "-c", "echo because >&2; exit 3")


EPOCH = "1700000000"
DECODE = """
import sys
import lopa
from lopa.runtime import Decoder
from lopa.runtime.bundle.quantized_form import cpu_form
from lopa.runtime.cpu_kernels.kernel_library import kernel_status
assert lopa.__file__.startswith(sys.argv[1]), lopa.__file__
with Decoder.open(sys.argv[2], threads=1) as decoder:
    result = decoder.generate("Question: 2 + 3?\\nAnswer:", decoder.config(max_new_tokens=16))
    print(cpu_form(decoder.bundle), result.tokens, kernel_status(), sep="|")
"""


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the wheel and the source archive of this commit."""
    programs, folder = release_program("python").parent, tmp_path_factory.mktemp("first")
    output_of("git", "clone", "--quiet", PROJECT, folder / "tree")
    return archives_of_tree(folder / "tree", folder / "made", EPOCH, programs)


def decoded(archive: Path, bundle: Path, site: Path, **variables: str) -> list[str]:
    """Install an archive into the folder `site`, decode `bundle` with it, and return what DECODE prints."""
    pip = (release_program("python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    output_of(*pip, "--no-deps", "--no-build-isolation", "--target", site, archive, **variables)
    return output_of(sys.executable, "-c", DECODE, site, bundle, PYTHONPATH=str(site)).strip().split("|")


@pytest.mark.release
def test_two_builds_of_this_project_give_the_same_wheel(archives: tuple[Path, Path], tmp_path: Path) -> None:
    programs = release_program("python").parent
    output_of("git", "clone", "--quiet", PROJECT, tmp_path / "second one")
    wheel, _ = archives_of_tree(tmp_path / "second one", tmp_path / "made", EPOCH, programs)
    assert wheel.name == archives[0].name
    assert sha256(wheel.read_bytes()).hexdigest() == sha256(archives[0].read_bytes()).hexdigest()


@pytest.mark.release
def test_an_index_accepts_the_wheel_and_it_contains_the_kernels(archives: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = archives
    assert wheel.name.endswith("-cp311-abi3-manylinux_2_28_x86_64.whl")
    output_of(release_program("twine"), "check", "--strict", wheel, sdist)
    output_of(release_program("check-wheel-contents"), wheel)
    with zipfile.ZipFile(wheel) as files:
        (kernels,) = (name for name in files.namelist() if ".so" in name)
        assert kernels == "lopa/runtime/cpu_kernels/_kernels.abi3.so"
        library = files.read(kernels)
    assert len(library) > 10_000
    assert str(archives[0].parent.parent).encode() not in library
    assert str(Path.home()).encode() not in library


@pytest.mark.release
@pytest.mark.parametrize("kind", ["wheel", "source archive"])
def test_installed_archives_use_the_kernels(
    archives: tuple[Path, Path], kind: str, tiny_quantized: Path, tmp_path: Path
) -> None:
    form, tokens, status = decoded(archives[kind != "wheel"], tiny_quantized, tmp_path / "site")
    assert (form, tokens, status) == ("mapped", "16", kernel_status())


@pytest.mark.release
def test_a_release_without_the_kernels_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CC", "CXX"):
        monkeypatch.setenv(name, "/bin/false")
    output_of("git", "clone", "--quiet", PROJECT, tmp_path / "tree")
    programs = release_program("python").parent
    with pytest.raises(CheckFailedError, match=r"linux_x86_64\.whl has no lopa/runtime/cpu_kernels/_kernels\.abi3\.so"):
        archives_of_tree(tmp_path / "tree", tmp_path / "made", EPOCH, programs)


@pytest.mark.release
def test_the_source_archive_installs_without_a_compiler(
    archives: tuple[Path, Path], tiny_quantized: Path, tmp_path: Path
) -> None:
    form, tokens, status = decoded(archives[1], tiny_quantized, tmp_path / "site", CC="/bin/false", CXX="/bin/false")
    assert form == "packed"
    assert tokens == "16"
    assert status.startswith("not installed; ONNX Runtime's kernels are used")

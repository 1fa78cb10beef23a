"""python -m tools.release: build, check, describe and try a release. It uploads nothing (tools/release/README.md)."""

import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from lopa.runtime.errors import BadInputError, CheckFailedError
from tools.shown_errors import errors_shown

PROJECT = Path(__file__).resolve().parents[2]
_PROMPT = "Question: 2 + 3?\nAnswer:"
_LIGHT = "import importlib.util, sys; sys.exit(any(map(importlib.util.find_spec, ('torch', 'onnx', 'transformers'))))"
_DECODE = """
import sys
from lopa.runtime import Decoder
with Decoder.open(sys.argv[1], threads=1) as decoder:
    config = decoder.config(branches=4, max_new_tokens=48)
    print([result.text for result in decoder.generate([sys.argv[2]], config)])
"""


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("out/release"), show_default=True)
@click.option(
    "--programs",
    type=click.Path(path_type=Path),
    default=Path(".venv-release/bin"),
    show_default=True,
    help="Folder of build, twine and the other packaging tools.",
)
def main(output: Path, programs: Path) -> None:
    """Make a release of the commit of this checkout. OUTPUT is replaced."""
    with errors_shown(), TemporaryDirectory() as work:
        make_release(output.resolve(), programs.absolute(), Path(work))


def make_release(output: Path, programs: Path, work: Path) -> None:
    """Fill `output`. Raises BadInputError for a commit that cannot be released, CheckFailedError for a failed step."""
    check_clean(PROJECT)
    epoch = said("git", "-C", PROJECT, "show", "-s", "--format=%ct").strip()
    tree, bundle, made = work / "tree", work / "bundle", work / "made"
    said("git", "clone", "--quiet", "--no-hardlinks", PROJECT, tree)
    check_changelog(tree)
    wheel, sdist = archives_of_tree(tree, made, epoch, programs)
    said(programs / "validate-pyproject", tree / "pyproject.toml")
    said(programs / "twine", "check", "--strict", wheel, sdist)
    said(programs / "check-wheel-contents", wheel)
    said(sys.executable, "-m", "venv", "--without-pip", work / "venv")
    python = work / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check")
    said(*pip, "--constraint", tree / "constraints.txt", wheel)
    sbom = made / (wheel.name.partition("-py3")[0] + ".cdx.json")
    said(
        *(programs / "cyclonedx-py", "environment", "--pyproject", tree / "pyproject.toml", "--mc-type", "library"),
        *("--output-reproducible", "-o", sbom, python),
        epoch=epoch,
    )
    said(python.parent / "lopa-export", "--version")
    said(python, "-c", _LIGHT)
    tiny = PROJECT / "src" / "lopa" / "tiny"
    said(Path(sys.executable).parent / "lopa-export", "onnx", tiny / "base", "--lora", tiny / "d2f_lora", "-o", bundle)
    checkout, installed = (said(each, "-c", _DECODE, bundle, _PROMPT) for each in (sys.executable, python))
    if checkout != installed:
        raise CheckFailedError(f"the wheel answers {installed}", expected=checkout, remedy="compare it with src/")
    digests = [f"{sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made.iterdir())]
    (made / "SHA256SUMS").write_text("".join(digests))
    shutil.rmtree(output, ignore_errors=True)
    shutil.copytree(made, output)
    click.echo("".join(digests) + f"in {output}")


def check_clean(checkout: Path) -> None:
    """Raise BadInputError where `checkout` has files that are not those of its commit."""
    changed = said("git", "-C", checkout, "status", "--porcelain").splitlines()
    if changed:
        raise BadInputError(
            f"{len(changed)} files that are not committed, among them {changed[0][3:]}",
            expected="a checkout whose files are those of its commit",
            remedy="commit or remove them (git status)",
        )


def check_changelog(checkout: Path) -> None:
    """Raise BadInputError unless the changelog has a section of the version, with a date where the commit is tagged."""
    face = (checkout / "src" / "lopa" / "__init__.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "(.+)"$', face, re.MULTILINE)
    tagged = f"v{version}" in said("git", "-C", checkout, "tag", "--points-at", "HEAD").split()
    date = r"\d{4}-\d{2}-\d{2}" + ("" if tagged else "|unreleased")
    changelog = (checkout / "CHANGELOG.md").read_text(encoding="utf-8")
    if len(re.findall(rf"^## {re.escape(version)} - (?:{date})$", changelog, re.MULTILINE)) != 1:
        raise BadInputError(
            f"CHANGELOG.md without one section of {version}",
            expected=f'"## {version} - " and a date' + ("" if tagged else ', or "unreleased"'),
            remedy="write it, or correct __version__",
        )


def archives_of_tree(tree: Path, output: Path, epoch: str, programs: Path) -> tuple[Path, Path]:
    """Build wheel and source archive into `output`, the wheel from the source archive."""
    said(programs / "python", "-m", "build", "--no-isolation", "--outdir", output, tree, epoch=epoch)
    (wheel,), (sdist,) = output.glob("*.whl"), output.glob("*.tar.gz")
    return wheel, sdist


def said(*command: str | Path, epoch: str | None = None) -> str:
    """Return what a program writes to standard output. Raises CheckFailedError where its exit code is not 0."""
    shown = " ".join(Path(part).name if isinstance(part, Path) else part for part in command if "\n" not in str(part))
    click.echo(shown, err=True)
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    if epoch is not None:
        variables["SOURCE_DATE_EPOCH"] = epoch
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CheckFailedError(
            f"{shown}: exit code {done.returncode}: {(done.stdout + done.stderr).strip()[-2000:]}",
            expected="exit code 0",
            remedy="correct what it reports",
        )
    return done.stdout


if __name__ == "__main__":
    main()

"""lopa-export page: writes a web page that decodes a bundle in the browser."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import click

from lopa.cli.program.grouped_command import INPUT, OUTPUT, GroupedCommand, option
from lopa.cli.program.verbosity import quiet
from lopa.export.staging import Product, staged_folder
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.bundle import check_no_canvases
from lopa.runtime.bundle.manifest import MANIFEST_NAME
from lopa.runtime.errors import BadInputError
from lopa.serve.page.response import page_text_without_server, scripts_without_server

_PAGE = Product("page", "service_worker.js")
_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "onnxruntime-web": (
        "dist/ort.wasm.min.mjs",
        "dist/ort-wasm-simd-threaded.mjs",
        "dist/ort-wasm-simd-threaded.wasm",
        "dist/ort.webgpu.min.mjs",
        "dist/ort-wasm-simd-threaded.asyncify.mjs",
        "dist/ort-wasm-simd-threaded.asyncify.wasm",
    ),
}
"""Files of npm packages that the page needs, by package."""


@click.command(
    name="page",
    cls=GroupedCommand,
    examples=("lopa-export page BUNDLE -o FOLDER",),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@option("-o", "--output", type=click.Path(path_type=Path), required=True, group=OUTPUT, help="New folder.")
@option("--overwrite", is_flag=True, group=OUTPUT, help="Replace a page in --output.")
@option(
    "--packages",
    type=click.Path(path_type=Path),
    default=Path("web"),
    show_default=True,
    group=INPUT,
    help="Folder in which npm has installed lopa-web's packages (docs/how-to/browser.md).",
)
def command(bundle: Path, output: Path, overwrite: bool, packages: Path) -> None:
    """Write a folder of static files that decode BUNDLE in a browser tab.

    Any host of files can serve it, over https or on this machine. Browsers open no modules from a file's path.
    """
    opened = Bundle.open(bundle)
    check_no_canvases(opened, "a page")
    names = [MANIFEST_NAME, *(file.path for file in opened.manifest.files)]
    copies = {f"packages/lopa-web/{path}": file for path, file in _own_files(packages).items()}
    for package, files in _PACKAGES.items():
        copies |= {f"packages/{package}/{name}": packages / "node_modules" / package / name for name in files}
    copies |= {f"bundle/{name}": opened.path / name for name in names}
    missing = next((path for path in copies.values() if not path.is_file()), None)
    if missing is not None:
        raise _missing(missing)
    size = sum(path.stat().st_size for path in copies.values())
    with staged_folder(output, overwrite=overwrite, needed_bytes=size, product=_PAGE) as folder:
        for name, source in copies.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / name)
        for name, content in scripts_without_server().items():
            (folder / name).write_bytes(content)
        text = page_text_without_server(opened.path.resolve().name)
        (folder / "index.html").write_text(text, encoding="utf-8")
    if not quiet():
        click.echo(f"{output}: {len(copies) + 3} files, {size / 1e6:.1f} MB", err=True)


def _own_files(packages: Path) -> dict[str, Path]:
    """Return the built files of lopa-web, by name: of a checkout, or of an installed package."""
    for folder in (packages / "dist", packages / "node_modules" / "lopa-web" / "dist"):
        if (folder / "index.js").is_file():
            return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.js"))}
    raise _missing(packages / "dist" / "index.js")


def _missing(path: Path) -> BadInputError:
    return BadInputError(
        f"{path} is missing",
        expected="a folder with lopa-web, built, and the npm packages that it needs",
        remedy="in lopa-export's project run: npm ci --prefix web --ignore-scripts && npm run --prefix web build. "
        "From another folder, add --packages CHECKOUT/web",
    )

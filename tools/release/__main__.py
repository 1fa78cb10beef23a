"""python -m tools.release: everything that comes before an upload, which is left to others (docs/releasing.md)."""

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from lopa.bench.table import Table, show_table
from lopa.export.staging import Product, staged_folder
from tools.release.programs import Programs
from tools.release.run import NAME, SUMS, Run, make_release
from tools.release.source import source_of_checkout
from tools.shown_errors import errors_shown

_Folder = click.Path(path_type=Path)


@click.command()
@click.option("-o", "--output", type=_Folder, default=Path("out/release"), show_default=True)
@click.option("--checkout", type=_Folder, default=Path(), show_default=True, help="What is released.")
@click.option(
    "--programs", type=_Folder, default=Path(".venv-release/bin"), show_default=True, help="Where packaging tools are."
)
def main(output: Path, checkout: Path, programs: Path) -> None:
    """Build, check, describe and try a release, and print a table of it. An older release at OUTPUT is replaced."""
    with errors_shown():
        source, tools = source_of_checkout(checkout), Programs(programs.resolve())
        product = Product("release", SUMS)
        with staged_folder(output, overwrite=True, product=product) as staged, TemporaryDirectory() as work:
            run = Run(checkout, source, tools, staged, Path(work), lambda text: click.echo(text, err=True))
            make_release(run)
        show_table(Table(f"{NAME} {source.version} in {output}", ("step", "result"), tuple(run.rows)))


main()

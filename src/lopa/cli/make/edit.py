"""lopa-export edit: other defaults and another chat template for a bundle that is there."""

from pathlib import Path

import click

from lopa.cli.options.chat_template import chat_template_option
from lopa.cli.options.config import defaults_from_texts, defaults_option
from lopa.cli.shown.defaults import defaults_text
from lopa.export.tensorrt.bucket_coverage import check_buckets_cover_defaults
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import bucket_plan_from_file, bucket_plan_path
from lopa.runtime.bundle.edit import CHAT_TEMPLATE, edited_bundle, write_manifest
from lopa.runtime.errors import BadInputError
from lopa.runtime.text.tokenizer import Tokenizer


@click.command(name="edit")
@click.argument("bundle", type=click.Path(path_type=Path))
@chat_template_option
@defaults_option("Default of a decoding option, e.g. strategy=eb or branches=4. Repeatable.")
@click.option(
    "--unset",
    multiple=True,
    metavar="NAME",
    help="Go back to what was exported for this option, or for chat_template. Repeatable.",
)
def command(bundle: Path, chat_template: str | None, defaults: tuple[str, ...], unset: tuple[str, ...]) -> None:
    """Change the defaults of decoding and the chat template of BUNDLE.

    Requests and flags still override them. Only manifest.json is replaced, in one step: weights, graphs, engines and
    cost tables stay valid, and a server that runs keeps what it opened. Older defaults that cannot be used together
    with the new ones are removed.
    """
    if chat_template is None and not defaults and not unset:
        raise click.UsageError("give --chat-template, --default or --unset: there is nothing to change")
    names = [name.removeprefix("--").replace("-", "_") for name in unset]
    if chat_template is not None and CHAT_TEMPLATE in names:
        raise click.UsageError("--chat-template and --unset chat_template: choose one")
    before = Bundle.open(bundle)
    given = defaults_from_texts(defaults)
    edited = edited_bundle(before, defaults=given, unset=names, chat_template=chat_template)
    if chat_template is not None:
        Tokenizer.open(edited).check_chat_template()
    write_manifest(edited)
    for name, value in before.manifest.defaults.items():
        if name not in edited.manifest.defaults and name not in names:
            click.echo(f"{bundle}: removed {name} {value}, which does not go with the new defaults", err=True)
    _warn_of_buckets(edited)
    template = "as exported" if edited.manifest.chat_template is None else "set by edit"
    click.echo(f"{bundle}: defaults: {defaults_text(edited.manifest.defaults)}; chat template: {template}")


def _warn_of_buckets(bundle: Bundle) -> None:
    """Say where the bundle's plan of shapes is too small for its new defaults."""
    path = bucket_plan_path(bundle.path)
    if path.is_file():
        try:
            check_buckets_cover_defaults(bucket_plan_from_file(path, bundle).buckets, bundle.manifest, str(path))
        except BadInputError as error:
            click.echo(f"warning: {error.received}, too little for the new defaults; {error.remedy}", err=True)

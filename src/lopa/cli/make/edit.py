"""lopa-export edit: changes the decoding defaults and the chat template of a bundle."""

from pathlib import Path

import click

from lopa.cli.options.decoding_options import chat_template_option, defaults_from_texts, defaults_option, option_name
from lopa.cli.program.grouped_command import GroupedCommand, option
from lopa.cli.terminal.opening import defaults_text
from lopa.export.tensorrt.bucket_coverage import check_buckets_cover_defaults
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import bucket_plan_from_file, bucket_plan_path
from lopa.runtime.bundle.edit import CHAT_TEMPLATE, edit_bundle, write_manifest
from lopa.runtime.errors import BadInputError
from lopa.runtime.hub.hub_bundle import check_own_bundle
from lopa.runtime.options.option import QUALITY
from lopa.runtime.text.tokenizer import Tokenizer


@click.command(
    name="edit",
    cls=GroupedCommand,
    examples=(
        "lopa-export edit BUNDLE --default strategy=eb --default gamma=0.3",
        "lopa-export edit BUNDLE --chat-template TEMPLATE.jinja",
        "lopa-export edit BUNDLE --unset strategy --unset gamma --unset chat_template",
    ),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@chat_template_option
@defaults_option("Default of a decoding option, e.g. strategy=eb or branches=4. Repeatable.")
@option(
    "--unset",
    multiple=True,
    metavar="NAME",
    group=QUALITY,
    help="Restore the exported value of this decoding option, or of chat_template. Repeatable.",
)
def command(bundle: Path, chat_template: str | None, defaults: tuple[str, ...], unset: tuple[str, ...]) -> None:
    """Change the decoding defaults and the chat template of BUNDLE.

    Options of a request or of the command line override defaults. Only manifest.json is replaced, atomically: weights,
    graphs, engines and cost tables stay valid, and a running server keeps the values it read. Existing defaults that
    cannot be combined with the new ones are removed.
    """
    if chat_template is None and not defaults and not unset:
        raise click.UsageError("nothing to change: give --chat-template, --default or --unset")
    names = [option_name(name) for name in unset]
    if chat_template is not None and CHAT_TEMPLATE in names:
        raise click.UsageError("--chat-template and --unset chat_template: choose one")
    check_own_bundle(bundle)
    before = Bundle.open(bundle)
    given = defaults_from_texts(defaults)
    edited = edit_bundle(before, defaults=given, unset=names, chat_template=chat_template)
    if chat_template is not None:
        Tokenizer.open(edited).check_chat_template()
    write_manifest(edited)
    for name, value in before.manifest.defaults.items():
        if name not in edited.manifest.defaults and name not in names:
            click.echo(f"{bundle}: removed {name} {value}, which the new defaults exclude", err=True)
    _warn_of_buckets(edited)
    template = "as exported" if edited.manifest.chat_template is None else "set by edit"
    click.echo(f"{bundle}: defaults: {defaults_text(edited.manifest.defaults)}; chat template: {template}")


def _warn_of_buckets(bundle: Bundle) -> None:
    """Warn if the bundle's shape buckets are too small for its new defaults."""
    path = bucket_plan_path(bundle.path)
    if path.is_file():
        try:
            check_buckets_cover_defaults(bucket_plan_from_file(path, bundle).buckets, bundle.manifest, str(path))
        except BadInputError as error:
            click.echo(f"warning: {error.received}, too small for the new defaults; {error.remedy}", err=True)

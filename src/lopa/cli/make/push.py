"""lopa-export push: uploads a bundle to the Hugging Face Hub."""

from pathlib import Path
from typing import Any

import click

from lopa.cli.program.grouped_command import GroupedCommand, option
from lopa.cli.program.lazy_group import FOLDER
from lopa.export.model_card import card_text, is_unchanged, with_marker
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BUCKETS_NAME
from lopa.runtime.bundle.manifest import MANIFEST_NAME, Manifest
from lopa.runtime.errors import BadInputError, CheckFailedError
from lopa.runtime.extra import extra_needed
from lopa.runtime.hub.checked_api import checked_api
from lopa.runtime.hub.hub_bundle import check_own_bundle
from lopa.runtime.hub.hub_id import HubId, hub_id_from_uri
from lopa.runtime.hub.snapshot import hub_errors
from lopa.runtime.signature.folder_signature import SIGNATURE_NAME

_CARD = "README.md"


@click.command(
    name="push",
    cls=GroupedCommand,
    examples=("lopa-export push BUNDLE ORG/NAME --private --license apache-2.0",),
)
@click.argument("bundle", type=FOLDER)
@click.argument("repository", metavar="ORG/NAME")
@option("--private", is_flag=True, help="Make a new repository private.")
@option("--license", "license_id", metavar="ID", help="Licence of the weights, e.g. apache-2.0, for the model card.")
@option("--overwrite-card", is_flag=True, help="Replace a model card that was not written by this command.")
def command(bundle: Path, repository: str, private: bool, license_id: str | None, overwrite_card: bool) -> None:
    """Upload BUNDLE to the repository ORG/NAME of the Hugging Face Hub, in one commit, with a model card.

    A missing repository is created. Log in first: "hf auth login", or set HF_TOKEN. Compiled engines are not uploaded.
    Without --license, the licence of the checkpoint's own repository is used if the bundle was exported from the Hub.
    """
    check_own_bundle(bundle)
    hub_id = hub_id_from_uri(f"hf://{repository.removeprefix('hf://')}")
    if hub_id is None or hub_id.revision is not None:
        raise BadInputError(f"the repository {repository!r:.120}", expected="ORG/NAME", remedy="correct the name")
    opened = Bundle.open(bundle)
    altered = opened.altered_files()
    if altered:
        raise CheckFailedError(
            f"{bundle} changed since its export: {', '.join(altered)}",
            expected="files with the digests of the manifest",
            remedy="export the checkpoint again",
        )
    url = _upload(opened, hub_id, private=private, license_id=license_id, overwrite_card=overwrite_card)
    click.echo(f"{url}\nopen it with: hf://{hub_id.repository}")


def _upload(bundle: Bundle, hub_id: HubId, *, private: bool, license_id: str | None, overwrite_card: bool) -> str:
    """Upload the files and the card, and return the commit's address."""
    with extra_needed("hub", {"huggingface_hub"}, "huggingface_hub"):
        from huggingface_hub import CommitOperationAdd
    api = checked_api()
    with hub_errors(hub_id):
        api.create_repo(hub_id.repository, private=private or None, exist_ok=True)
        if not overwrite_card:
            _check_card(api, hub_id)
        license_id = license_id or _license_of_source(bundle.manifest)
        card = _metadata(bundle.manifest, license_id) + card_text(bundle.manifest, hub_id.repository, license_id)
        files = {name: bundle.path / name for name in _names(bundle)}
        operations = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(path)) for name, path in files.items()]
        operations.append(CommitOperationAdd(path_in_repo=_CARD, path_or_fileobj=with_marker(card).encode()))
        message = f"Upload a bundle of {bundle.manifest.architecture} by lopa-export"
        done = api.create_commit(hub_id.repository, operations, commit_message=message)
    return str(done.commit_url)


def _names(bundle: Bundle) -> list[str]:
    """Return the names of the files to upload: all but engines."""
    listed = [record.path for record in bundle.manifest.files]
    optional = [BUCKETS_NAME, SIGNATURE_NAME, *(path.name for path in sorted(bundle.path.glob("costs.*.json")))]
    return [MANIFEST_NAME, *listed, *(name for name in optional if (bundle.path / name).is_file())]


def _check_card(api: Any, hub_id: HubId) -> None:
    """Raise BadInputError if the repository has a card that a person wrote or changed."""
    from huggingface_hub.errors import EntryNotFoundError

    try:
        card = Path(api.hf_hub_download(hub_id.repository, _CARD)).read_text(encoding="utf-8")
    except EntryNotFoundError:
        return
    if not is_unchanged(card):
        raise BadInputError(
            f"{hub_id.repository} has a model card that this command did not write",
            expected="no card, or one by lopa-export push",
            remedy="keep a copy of it, then replace it with --overwrite-card",
        )


def _license_of_source(manifest: Manifest) -> str | None:
    """Return the licence in the card of the checkpoint's repository, or None."""
    source = manifest.origin.checkpoint_hub
    if source is None:
        return None
    found = checked_api().model_info(source.repository).card_data
    return None if found is None else found.get("license")


def _metadata(manifest: Manifest, license_id: str | None) -> str:
    from huggingface_hub import ModelCardData

    source = manifest.origin.checkpoint_hub
    data = ModelCardData(
        license=license_id,
        library_name="lopa-export",
        pipeline_tag="text-generation",
        tags=["onnx", "diffusion-language-model", "lopa"],
        base_model=None if source is None else source.repository,
        base_model_relation=None if source is None else "quantized" if manifest.quantization else "finetune",
    )
    return f"---\n{data.to_yaml()}\n---\n\n"

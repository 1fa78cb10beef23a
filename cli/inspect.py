"""lopa-export inspect: what a bundle holds."""

from pathlib import Path

import click

from lopa.runtime.bundle import Bundle
from lopa.runtime.manifest import Manifest, json_from_manifest


@click.command(name="inspect")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the manifest itself.")
def command(bundle: Path, as_json: bool) -> None:
    """Show what BUNDLE holds: the model, its files, its origin, its decoding defaults."""
    manifest = Bundle.open(bundle).manifest
    click.echo(json_from_manifest(manifest).decode() if as_json else _summary(manifest), nl=not as_json)


def _summary(manifest: Manifest) -> str:
    model, tokens = manifest.dimensions, manifest.special_tokens
    parameters = sum(_product(tensor.shape) for tensor in manifest.tensors.values())
    rows = [
        ("model", f"{manifest.architecture}, {parameters:,} parameters, {manifest.dtype}, {manifest.quantization}"),
        ("layers", f"{model.layers} of hidden size {model.hidden_size}, MLP {model.intermediate_size}"),
        ("attention", f"{model.heads} heads, {model.kv_heads} key-value heads of {model.head_size}"),
        ("positions", f"{model.max_positions}, RoPE theta {model.rope_theta:g}"),
        ("vocabulary", f"{model.vocab_size}; mask {tokens.mask}, eos {tokens.eos}, pad {tokens.pad}, bos {tokens.bos}"),
        ("contract", f"version {manifest.contract}, {manifest.dialect} dialect, logits {manifest.with_logits}"),
        ("decoding", ", ".join(f"{name} {value}" for name, value in _fields(manifest))),
        *(("file", f"{file.path}  {file.size:,} bytes  sha256 {file.sha256[:12]}…") for file in manifest.files),
        *(("from", f"{name}  sha256 {digest[:12]}…") for name, digest in _sources(manifest)),
        ("made with", ", ".join(f"{name} {version}" for name, version in manifest.origin.tools.items())),
    ]
    return "\n".join(f"{name:11} {value}" for name, value in rows)


def _fields(manifest: Manifest) -> list[tuple[str, object]]:
    return [(name, getattr(manifest.decoding, name)) for name in manifest.decoding.__struct_fields__]


def _sources(manifest: Manifest) -> list[tuple[str, str]]:
    origin = manifest.origin
    return [*origin.checkpoint.items(), *((f"adapter {name}", digest) for name, digest in origin.adapter.items())]


def _product(shape: list[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product

"""lopa-export verify: checks the files of a bundle and the results of its engine."""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import click

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.progress import Progress, duration_text
from lopa.cli.options.devices import DEVICE_NAMES, complete_device, software_gpu_option
from lopa.cli.program.grouped_command import GroupedCommand, option
from lopa.cli.program.verbosity import quiet
from lopa.export.progress import ProgressCallback
from lopa.export.verify.differences import OutputError
from lopa.export.verify.report import report_from_bundle
from lopa.export.verify.token_gate import Agreement, agreement_of_sessions, check_reference, gate_tolerance
from lopa.runtime.bundle import Bundle
from lopa.runtime.cuda.cuda_operators import VARIABLE, graph_text
from lopa.runtime.decoder import Decoder
from lopa.runtime.device_families import find_device, parse_device
from lopa.runtime.errors import CheckFailedError
from lopa.runtime.hub.hub_bundle import folder_of_bundle
from lopa.runtime.sessions.session import open_session
from lopa.runtime.sessions.wrapped_session import TypedSession
from lopa.runtime.signature import check_signature, trust_from_files
from lopa.runtime.tensorrt.tensorrt_library import is_tensorrt
from lopa.runtime.tensorrt.tensorrt_manifest import StoredTensorRTEngine
from lopa.runtime.tensorrt.tensorrt_session import engine_from_device, mark_verified_on, session_from_engine
from lopa.runtime.text.prompt_ids import ids_from_prompt
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.tiny import EVAL

_FOLDER = click.Path(path_type=Path)
_HEADER = ("output", "reference", "max abs", "max rel", "rms rel", "tolerance", "ok")
_LEGEND = """max abs    largest difference, in nats for log-probabilities and the entropy; for topk_ids, the nats by
           which the candidates are less probable than the best ones
max rel    max abs over the largest value of the reference
rms rel    root mean square of the differences over that of the reference
tolerance  limit of rms rel where it is shown (rounded numbers move single values far), otherwise of max rel"""
_GATE_PROMPTS = 2
"""Number of embedded prompts of each kind that the token comparison decodes."""
_GATE_TOKENS = 64


@click.command(
    name="verify",
    cls=GroupedCommand,
    examples=(
        "lopa-export verify BUNDLE --checkpoint CHECKPOINT --lora ADAPTER",
        "lopa-export verify BUNDLE --signature --trusted-key PUBLIC.pem",
    ),
)
@click.argument("bundle", type=_FOLDER)
@option(
    "--checkpoint",
    type=_FOLDER,
    metavar="DIR",
    help="Checkpoint that BUNDLE was exported from, to compare with transformers.",
)
@option("--lora", type=_FOLDER, metavar="DIR", help="Adapter that BUNDLE was exported with.")
@software_gpu_option
@option("--device", default="cpu", shell_complete=complete_device, help=f"Device to check: {DEVICE_NAMES}.")
@option(
    "--against",
    metavar="DEVICE",
    show_default="cpu; in bfloat16 cuda:N",
    help="Reference device for the tokens of tensorrt:N or tensorrt-rtx:N.",
)
@option("--signature", is_flag=True, help="Check only that BUNDLE is as it was signed. Needs --trusted-key.")
@option(
    "--trusted-key",
    "trusted_keys",
    multiple=True,
    type=_FOLDER,
    metavar="FILE",
    help="Public key or root certificate in PEM of a trusted signer. Repeatable.",
)
def command(
    bundle: Path,
    checkpoint: Path | None,
    lora: Path | None,
    device: str,
    against: str | None,
    signature: bool,
    trusted_keys: tuple[Path, ...],
) -> None:
    """Check BUNDLE: the digests of its files, then its engine on random windows with and without cached tokens.

    The engine is compared with the numpy reference on the bundle's weights. With --checkpoint it is also compared with
    transformers' network on the checkpoint and its adapter, in float32. The weights of a quantized bundle are compared
    with the checkpoint's: rounding may change a value by at most half a step. Exits with 1 if a check fails.

    The tokens of a TensorRT engine are also compared with another device (--against), in every forward of a few
    decodes. One forward in each optimization profile is compared as well. The engine is enabled for decoding only when
    they agree.
    """
    if signature != bool(trusted_keys):
        raise click.UsageError("--signature needs --trusted-key, and the other way round")
    if signature:
        checked = check_signature(folder_of_bundle(bundle), trust_from_files(trusted_keys))
        click.echo(f"ok: {len(checked.digests)} files are as signed by a trusted key")
        return
    began = time.monotonic()
    opened = Bundle.open(bundle)
    gated = is_tensorrt(device)
    if against is not None and not gated:
        raise click.UsageError("--against needs --device tensorrt:N or tensorrt-rtx:N")
    with Progress(quiet=quiet()) as progress:
        report = report_from_bundle(opened, checkpoint=checkpoint, lora=lora, device=device, progress=progress)
    _print_errors(report.errors)
    named = find_device(device)
    graph = graph_text(opened, named.number) if named is not None and named.family.name == "cuda" else None
    if graph is not None:
        click.echo(f"{device} ran {graph}")
    if not report.ok:
        wrong = [f"{error.output} against {error.reference}" for error in report.errors if not error.ok]
        raise CheckFailedError(
            f"{len(wrong)} of {len(report.errors)} outputs exceed the tolerance on {device}: {', '.join(wrong)}",
            expected="differences within rounding error",
            remedy="do not use this bundle on this device; export the checkpoint again and verify the new bundle"
            + ("" if graph is None else f"; verify with {VARIABLE}=off to learn whether the plain graph is right"),
        )
    if gated:
        _gate(opened.with_dialect("standard"), device, against)
    files = len(opened.manifest.files)
    click.echo(
        f"ok: {files} files unchanged; {device} agrees with the references in {report.cases} cases, "
        + ("" if checkpoint is None else "tensors, tokenizer and chats with the checkpoint, ")
        + f"in {duration_text(time.monotonic() - began)}"
    )
    if checkpoint is None:
        click.echo("The weights were not compared with a checkpoint; add --checkpoint DIR to compare them.")


def _gate(bundle: Bundle, device: str, against: str | None) -> None:
    """Compare the engine's tokens with another device's, and enable the engine for decoding when they agree."""
    reference = _default_reference(bundle, device) if against is None else against
    check_reference(reference, device)
    found = engine_from_device(bundle, device)
    with Progress(quiet=quiet()) as progress:
        agreement = agreement_of_engine(bundle, device, found, reference, progress)
    _print_errors(agreement.errors)
    counts = (
        f"{agreement.rows} rows of {agreement.forwards} forwards, {agreement.near_ties} near-ties, "
        f"{agreement.other_tokens} other tokens"
    )
    if not agreement.ok:
        raise CheckFailedError(
            f"{found.folder} on {device} compared with {reference}: {counts}",
            expected="the same token wherever the other device clearly prefers one, and statistics within tolerance",
            remedy="do not use this engine: see docs/how-to/engines.md, Troubleshooting, wrong tokens",
        )
    mark_verified_on(found, device)
    click.echo(f"{found.folder}: verified, {counts}, compared with {reference}")


def _default_reference(bundle: Bundle, device: str) -> str:
    """Return the device on which ONNX Runtime runs the bundle: the CPU, or in bfloat16 the same GPU."""
    return "cpu" if bundle.manifest.dtype != "bfloat16" else f"cuda:{parse_device(device).number}"


def agreement_of_engine(
    bundle: Bundle, device: str, found: StoredTensorRTEngine, against: str, progress: ProgressCallback
) -> Agreement:
    """Compare the engine on "tensorrt:N" or "tensorrt-rtx:N" with the device `against`, in each optimization profile.

    Embedded prompts are decoded with the bundle's defaults, with full and with block-causal attention if its
    decoding supports both.
    """
    engine, manifest, tokenizer = found.engine, bundle.manifest, Tokenizer.open(bundle)
    with (
        closing(TypedSession(open_session(bundle, against))) as reference,
        closing(TypedSession(session_from_engine(bundle, device, found))) as candidate,
    ):
        decoder = Decoder(bundle, reference, tokenizer)
        own = decoder.params(decoder.config(max_new_tokens=_GATE_TOKENS))
        plain = (own.alignment, own.cache) == ("prompt", "blocks")
        plans = [replace(own, attention=attention) for attention in ("full", "block_causal")] if plain else [own]
        items = eval_set_from_jsonl(EVAL, limit=_GATE_PROMPTS)
        prompts = [ids_from_prompt(item.prompt, own, tokenizer, manifest) for item in items]
        shapes = [*engine.buckets, engine.prefill.min, engine.prefill.max]
        tolerance = gate_tolerance(manifest, engine.flags.products)
        return agreement_of_sessions(reference, candidate, manifest, prompts, plans, shapes, tolerance, progress)


def _print_errors(errors: Sequence[OutputError]) -> None:
    """Print the errors in aligned columns, and what the columns mean."""
    rows = [
        _HEADER,
        *(
            (
                error.output,
                error.reference,
                f"{error.difference.absolute:.1e}",
                f"{error.difference.relative:.1e}",
                f"{error.difference.relative_rms:.1e}" if error.by_rms else "-",
                f"{error.tolerance:.0e}",
                "yes" if error.ok else "NO",
            )
            for error in errors
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if not quiet():
        click.echo(_LEGEND, err=True)

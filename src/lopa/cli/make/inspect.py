"""lopa-export inspect: shows the contents of a bundle, and checks its graph for compilers of the portable dialect."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from lopa.cli.program.grouped_command import GroupedCommand, option
from lopa.cli.terminal.opening import defaults_text
from lopa.export.extra import export_extra_needed
from lopa.runtime.ascend.ascend_manifest import ASCEND_ENGINES
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.bundle import sha256_of_file
from lopa.runtime.bundle.engine_file import EngineKind
from lopa.runtime.bundle.manifest import (
    CanvasNetwork,
    GraphTwin,
    Manifest,
    MixtureOfExperts,
    SpecialTokens,
    scale_name,
)
from lopa.runtime.bundle.network import network_from_dimensions
from lopa.runtime.bundle.quantized_form import cpu_form
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.cuda.cuda_operators import unsupported_size
from lopa.runtime.errors import BadInputError, CheckFailedError
from lopa.runtime.generation_config import GenerationConfig, reason_against_lookahead
from lopa.runtime.options import DecodingParams
from lopa.runtime.qnn.qnn_manifest import QNN_ENGINES
from lopa.runtime.tensorrt.tensorrt_manifest import TENSORRT_ENGINES

_NO_TWIN = "no graph with this project's operators, so cuda:N runs the plain graph (docs/how-to/devices.md)"


@click.command(
    name="inspect",
    cls=GroupedCommand,
    examples=("lopa-export inspect BUNDLE", "lopa-export inspect BUNDLE --json", "lopa-export inspect BUNDLE --lint"),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@option("--json", "as_json", is_flag=True, help="Print the manifest and the parameters of a request without options.")
@option(
    "--lint",
    is_flag=True,
    help="List what ATC rejects in the portable graph, or in the standard graph if there is no other.",
)
def command(bundle: Path, as_json: bool, lint: bool) -> None:
    """Show the contents of BUNDLE: the model, its files, its origin and its decoding defaults."""
    if as_json and lint:
        raise click.UsageError("--json and --lint: choose one")
    opened = Bundle.open(bundle)
    if lint:
        _lint(opened)
    elif as_json:
        manifest = opened.manifest
        click.echo(
            json.dumps({**json.loads(json_from_record(manifest)), "params": manifest.params().as_json()}, indent=1)
        )
    else:
        click.echo(_summary(opened))


def _lint(bundle: Bundle) -> None:
    """Print the violations of the portable dialect, without repeating equal ones.

    Raises CheckFailedError if there are any.
    """
    with export_extra_needed("reading ONNX graphs"):
        import onnx

        from lopa.export.graph.portable_lint import violations_of_model
    graph = bundle.with_dialect("portable" if "portable" in bundle.dialects else "standard").graph
    model = onnx.load(graph, load_external_data=False)
    violations = violations_of_model(model)
    alike = Counter((each.rule, each.operator) for each in violations)
    for violation in violations:
        more = alike.pop((violation.rule, violation.operator), 0) - 1  # print only the first of equal violations
        if more >= 0:
            click.echo(f"{violation.rule}: {violation}" + (f" (and {more} more)" if more else ""))
    if violations:
        raise CheckFailedError(
            f"{graph} violates the portable dialect at {len(violations)} places",
            expected="a graph that Ascend's ATC can read",
            remedy="export the checkpoint with --dialect portable or both, and without --quantize",
        )
    click.echo(f"ok: {graph}: {len(model.graph.node)} nodes, no violation of the portable dialect")


def _summary(bundle: Bundle) -> str:
    manifest = bundle.manifest
    model, tokens = manifest.dimensions, manifest.special_tokens
    scales = {scale_name(name) for name in manifest.tensors}
    parameters = sum(math.prod(tensor.shape) for name, tensor in manifest.tensors.items() if name not in scales)
    rows = [
        ("model", f"{manifest.architecture}, {parameters:,} parameters"),
        ("weights", _weights(bundle)),
        ("layers", f"{model.layers} of hidden size {model.hidden_size}, MLP {model.intermediate_size}"),
        *([] if model.moe is None else [("experts", _experts(model.moe)), ("", _touched_experts(manifest))]),
        ("attention", f"{model.heads} heads, {model.kv_heads} key-value heads of {model.head_size}"),
        *([] if model.canvas is None else _canvas_rows(model.canvas)),
        ("positions", f"{model.max_positions}, RoPE theta {model.rope_theta:g}"),
        ("vocabulary", f"{model.vocab_size}; {_special(tokens)}"),
        (
            "graph",
            f"contract version {manifest.contract}, {' and '.join(bundle.dialects)} dialect, "
            f"{'with' if manifest.with_logits else 'without'} logits",
        ),
        *(
            [("angles", f"inputs of the {' and '.join(manifest.rotary_inputs)} graph")]
            if manifest.rotary_inputs
            else []
        ),
        *([("plugins", ", ".join(manifest.plugins))] if manifest.plugins else []),
        *(("stage", f"{each.graph}  layers {each.first_layer} to {each.end_layer - 1}") for each in manifest.stages),
        *((f"for {each.provider}", _twin(bundle, each)) for each in manifest.twins),
        *([("for cuda", _NO_TWIN)] if model.canvas is None and not _has_cuda_twin(manifest) else []),
        ("decoding", _decoding(manifest.params())),
        *([("defaults", defaults_text(manifest.defaults))] if manifest.defaults else []),
        *(
            ("preset", f"{name}: {defaults_text(each.options)}; on {', '.join(each.devices)}: {each.measured}")
            for name, each in manifest.presets.items()
        ),
        *_lookahead(manifest),
        *([("chat", "template in manifest.json, set by lopa-export edit")] if manifest.chat_template else []),
        *(("file", f"{file.path}  {file.size:,} bytes  sha256 {file.sha256[:12]}…") for file in manifest.files),
        *(("engine", line) for line in engine_lines(bundle)),
        *(("from", f"{name}  sha256 {digest[:12]}…") for name, digest in _sources(manifest)),
        ("made with", ", ".join(f"{name} {version}" for name, version in manifest.origin.tools.items())),
    ]
    return "\n".join(f"{name:11} {value}" for name, value in rows)


def _twin(bundle: Bundle, twin: GraphTwin) -> str:
    size = unsupported_size(bundle.manifest.dimensions) if twin.provider == "cuda" else None
    fits = sha256_of_file(bundle.file(twin.source)) == twin.source_sha256
    if fits and size is None:
        return f"{twin.graph}  replaces {twin.source}"
    return f"{twin.graph}  not used: " + (f"no kernels for {size}" if fits else f"made from ANOTHER {twin.source}")


def _special(tokens: SpecialTokens) -> str:
    stops = "".join(f" and {stop}" for stop in tokens.stops)
    expand = "" if tokens.expand is None else f", expand {tokens.expand}"
    return f"mask {tokens.mask}, eos {tokens.eos}{stops}, pad {tokens.pad}, bos {tokens.bos}{expand}"


def _experts(moe: MixtureOfExperts) -> str:
    parts = [f"{moe.experts} of {moe.expert_size}", f"{moe.experts_per_token} per token"]
    if moe.shared_size:
        parts.append(f"shared expert of {moe.shared_size}")
    router = f"router {moe.score}"
    if moe.groups > 1:
        router += f" in {moe.groups_per_token} of {moe.groups} groups"
    parts.append(router)
    if moe.dense_layers:
        parts.append("dense layers " + ", ".join(map(str, moe.dense_layers)))
    return ", ".join(parts)


def _has_cuda_twin(manifest: Manifest) -> bool:
    return any(each.provider == "cuda" for each in manifest.twins)


def _canvas_rows(canvas: CanvasNetwork) -> list[tuple[str, str]]:
    full = (
        f"{len(canvas.full_layers)} full layers with {canvas.full_kv_heads} key-value heads of {canvas.full_head_size}"
    )
    return [
        ("", f"a window of {canvas.sliding_window}; {full}"),
        ("canvas", f"{canvas.canvas_length} tokens, denoised together"),
    ]


def _touched_experts(manifest: Manifest) -> str:
    """Return the expected share of a layer's experts that windows of some sizes read."""
    layers = network_from_dimensions(manifest.dimensions).layers
    stacked = next(layer.tensors["mlp.experts.gate.weight"] for layer in layers if layer.kind != "dense")
    block = manifest.decoding.block_size
    sizes = {"1 row": 1, f"a block of {block}": block, f"4 branches of {block}": 4 * block}
    shares = (f"{name} {stacked.share_of_rows(rows):.0%}" for name, rows in sizes.items())
    return "read by " + ", ".join(shares) + " (if rows choose independently)"


def _weights(bundle: Bundle) -> str:
    """Return the types of the weights, and the form in which the device cpu opens quantized ones here."""
    manifest = bundle.manifest
    found = manifest.quantization
    if found is None:
        return manifest.dtype
    integers = [tensor for tensor in manifest.tensors.values() if tensor.is_quantized]
    return ", ".join(
        [
            f"{len(integers)} matrices in {found.kind}",
            "a scale for each output" if found.block is None else f"a scale for each output and {found.block} inputs",
            f"the rest in {manifest.dtype}",
            *([] if found.activation == "none" else [f"rows of activations rounded to {found.kind}"]),
            *([] if found.head else ["without the head"]),
            *(f"without {pattern}" for pattern in found.excluded),
            _cpu_form_text(bundle),
        ]
    )


def _cpu_form_text(bundle: Bundle) -> str:
    if bundle.manifest.dtype == "bfloat16":
        return "not for the device cpu"
    form = "float32" if bundle.manifest.is_fp8 else cpu_form(bundle)
    return f"opened as {form} on this machine's CPU"


def _lookahead(manifest: Manifest) -> list[tuple[str, str]]:
    """Return a row with the reason if lookahead branches do not pay with the bundle's blocks, otherwise no row."""
    options = manifest.resolve(GenerationConfig()).options
    reason = reason_against_lookahead(options["block_size"], options["sub_block"], options["block_add_threshold"])
    return [] if reason is None else [("lookahead", f"{reason}: lopa has 1 branch unless more are requested")]


def _decoding(params: DecodingParams) -> str:
    """Return what a request without options does on a CPU."""
    drawn = f"temperature {params.temperature:g}" if params.temperature else "the most probable tokens"
    if "t_max" in params.own:
        drawn = f"temperatures from {params.own['t_max']:g} to {params.own['t_min']:g}"
    return (
        f"strategy {params.strategy}, blocks of {params.block_size} tokens, at most {params.max_new_tokens} tokens, "
        f"{drawn} (--json shows every option)"
    )


def _sources(manifest: Manifest) -> list[tuple[str, str]]:
    origin = manifest.origin
    return [*origin.checkpoint.items(), *((f"adapter {name}", digest) for name, digest in origin.adapter.items())]


def engine_lines(bundle: Bundle) -> Iterator[str]:
    """Yield a line per engine, Ascend's first: folder, target, shape buckets, build, and whether the weights match."""
    described: tuple[tuple[EngineKind[Any], Callable[[Any], list[str]]], ...] = (
        (ASCEND_ENGINES, _ascend),
        (QNN_ENGINES, lambda each: [f"for {each.soc}", f"{len(each.buckets)} buckets", f"QNN {each.sdk_version}"]),
        (TENSORRT_ENGINES, _tensorrt),
    )
    for engines, text_of in described:
        for folder in engines.folders(bundle):
            try:
                found = engines.read(folder)
                fits = "matches the weights" if found.fits(bundle) else "made from OTHER weights: build it again"
                text = ", ".join([*text_of(found.engine), fits])
            except BadInputError as error:
                text = f"cannot be used: {error.received}"
            yield f"{folder.name}  {text}"


def _ascend(engine: Any) -> list[str]:
    return [
        f"for {engine.soc_version}",
        f"{len(engine.buckets)} buckets in {len({bucket.model for bucket in engine.buckets})} OM",
        f"precision {engine.precision}",
        *(["int8"] if engine.int8 else []),
    ]


def _tensorrt(engine: Any) -> list[str]:
    return [
        f"for {engine.gpus}",
        engine.target.built_by,
        f"{len(engine.buckets)} buckets",
        f"verified on {', '.join(engine.verified_on)}" if engine.verified_on else "not verified",
    ]

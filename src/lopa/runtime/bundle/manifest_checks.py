"""Reading of manifest.json and its checks. This module accesses no other file."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec

from lopa.runtime.bundle.manifest import (
    MANIFEST_NAME,
    MAX_TILE_BYTES,
    PREDICTION_SHIFTS,
    ROLES,
    SCHEMA_VERSION,
    CanvasNetwork,
    DecodingDefaults,
    GraphTwin,
    Manifest,
    ModelDimensions,
    SpecialTokens,
    TensorRecord,
    scale_name,
)
from lopa.runtime.bundle.record import Reasons, record_from_json
from lopa.runtime.checked_values import shown
from lopa.runtime.contract import CANVAS_CONTRACT, CONTRACT_VERSION, TILE, TOP_K
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import (
    NO_PRESET,
    GenerationConfig,
    checked_defaults,
    options_from_defaults,
    resolve,
)
from lopa.runtime.strategy import strategy_from_name

_REMEDY = "export the checkpoint again with this version of lopa-export"


def manifest_from_json(text: bytes, *, source: str) -> Manifest:
    """Read and check a manifest. `source` names it in errors.

    Schema 2 is readable too. Raises BadInputError like record_from_json, also for contradicting fields.
    """
    return record_from_json(
        _from_schema_2(text),
        Manifest,
        source=source,
        what="a manifest",
        schema=SCHEMA_VERSION,
        remedy=_REMEDY,
        checks=_CHECKS,
        contracts=(CONTRACT_VERSION, CANVAS_CONTRACT),
    )


class _FormerTwin(msgspec.Struct):
    graph: str
    source: str
    source_sha256: str
    mapped: bool = False

    def entry(self, provider: str) -> dict[str, str]:
        names = {"graph": self.graph, "source": self.source, "source_sha256": self.source_sha256}
        return {**names, "provider": provider, "form": "mapped" if self.mapped else "packed"}


class _Schema2(msgspec.Struct):
    schema: Literal[2]
    cpu_graphs: list[_FormerTwin] = []
    webgpu_graph: _FormerTwin | None = None


def _from_schema_2(text: bytes) -> bytes:
    """Return a manifest of schema 2, which had a field of twins for each provider, as one of schema 3."""
    try:
        former, fields = msgspec.json.decode(text, type=_Schema2), msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text  # of another schema, or rejected by the caller
    webgpu = [] if former.webgpu_graph is None else [former.webgpu_graph.entry("webgpu")]
    twins = [*(twin.entry("cpu") for twin in former.cpu_graphs), *webgpu]
    others = {name: value for name, value in fields.items() if name not in ("cpu_graphs", "webgpu_graph")}
    return msgspec.json.encode({**others, "schema": 3, "twins": twins})


def reasons_against_tokens(tokens: SpecialTokens, vocab_size: int) -> Reasons:
    """Yield each problem with `tokens`, paired with the expected value."""
    for name in ROLES:
        token = getattr(tokens, name)
        if token is not None and not 0 <= token < vocab_size:
            yield f"special_tokens.{name} = {token}", f"a token id from 0 to {vocab_size - 1}"
    for stop in tokens.stops:
        if stop >= vocab_size or stop == tokens.mask:
            yield f"special_tokens.stops with {stop}", f"token ids from 0 to {vocab_size - 1} other than the mask token"
    if tokens.expand is not None and tokens.expand in (tokens.mask, tokens.bos, *tokens.ends):
        yield f"special_tokens.expand = {tokens.expand}, which has another role", "a separate id"
    for name in ("eos", "bos"):
        if getattr(tokens, name) == tokens.mask:
            yield (
                f"special_tokens.mask = {tokens.mask}, which is also its {name}",
                "a mask token with a separate id",
            )


def find_role_errors(tokens: SpecialTokens, named: Mapping[str, int], added: Collection[int]) -> Reasons:
    """Yield each problem with `tokens` for a tokenizer with these `added` tokens, paired with the expected value.

    `named` holds the ids of its mask_token, eos_token and so on, under "mask", "eos" and so on. The tokenizer
    determines mask and bos in an export. config.json may give another end token if it is an added token too.
    """
    for name in ROLES:
        token, known = getattr(tokens, name), named.get(name)
        if name in ("mask", "bos") and known is not None and known != token:
            yield f"special_tokens.{name} = {token}", f"{known}, the id of the tokenizer's {name}_token"
        allowed = {known, tokens.eos} if name == "pad" else {known}
        if added and token is not None and token not in added and token not in allowed:
            yield f"special_tokens.{name} = {token}", "one of the tokenizer's added tokens"
    if named.get("eos") is not None and tokens.eos == named.get("bos") != named["eos"]:
        yield f"special_tokens.eos = {tokens.eos}", f"{named['eos']}: {tokens.eos} is the tokenizer's bos_token"


def _find_dimension_errors(manifest: Manifest) -> Reasons:
    sizes = manifest.dimensions
    if sizes.heads % sizes.kv_heads:
        yield f"dimensions.heads = {sizes.heads}", f"a multiple of dimensions.kv_heads, {sizes.kv_heads}"
    tile = 2 * sizes.layers * sizes.cache_heads * sizes.cache_head_size * TILE * 4
    if tile > MAX_TILE_BYTES:
        yield (
            f"{sizes.layers} layers of {sizes.kv_heads} key-value heads of {sizes.head_size}, whose caches take {tile} "
            f"bytes for {TILE} positions",
            f"at most {MAX_TILE_BYTES} bytes",
        )


def _find_network_errors(manifest: Manifest) -> Reasons:
    yield from reasons_against_network(manifest.dimensions)
    has_canvas, expected = manifest.dimensions.canvas is not None, contract_of(manifest.dimensions)
    if manifest.contract != expected:
        yield f"contract version {manifest.contract}", f"{expected}, {'with' if has_canvas else 'without'} a canvas"
    if has_canvas and (manifest.rotary_inputs or manifest.stages):
        yield "graphs with rotary inputs or stages in addition to a canvas", "graphs of all layers with positions"


def contract_of(sizes: ModelDimensions) -> int:
    """Return the version of the contract that graphs of a network have."""
    return CONTRACT_VERSION if sizes.canvas is None else CANVAS_CONTRACT


def reasons_against_network(sizes: ModelDimensions) -> Reasons:
    """Yield each problem with rotary sizes and experts, paired with the expected value."""
    if sizes.rotary_size > sizes.head_size:
        yield f"{sizes.rotary_size} rotary channels", f"at most the head size, {sizes.head_size}"
    if sizes.canvas is not None:
        yield from _reasons_against_canvas(sizes, sizes.canvas)
    if sizes.moe is None:
        return
    moe = sizes.moe
    if moe.experts_per_token > moe.experts:
        yield f"{moe.experts_per_token} experts per token", f"at most the number of experts, {moe.experts}"
    if moe.experts % moe.groups or (moe.groups > 1 and moe.experts // moe.groups < _SCORES_PER_GROUP):
        yield f"{moe.groups} groups of {moe.experts} experts", "groups of equal size with at least 2 experts"
    elif moe.groups_per_token > moe.groups:
        yield f"{moe.groups_per_token} groups per token", f"at most the number of groups, {moe.groups}"
    elif moe.groups_per_token * (moe.experts // moe.groups) < moe.experts_per_token:
        yield (
            f"{moe.experts_per_token} experts per token from {moe.groups_per_token} groups",
            f"at most the {moe.groups_per_token * (moe.experts // moe.groups)} experts of these groups",
        )
    if moe.dense_layers != sorted(set(moe.dense_layers)) or any(i >= sizes.layers for i in moe.dense_layers):
        yield f"the dense layers {moe.dense_layers}", f"ascending numbers from 0 to {sizes.layers - 1}, each once"
    elif len(moe.dense_layers) == sizes.layers:
        yield "experts, but only dense layers", "at least one sparse layer, or no experts"


def _reasons_against_canvas(sizes: ModelDimensions, canvas: CanvasNetwork) -> Reasons:
    if sizes.moe is None or sizes.moe.dense_layers or sizes.moe.shared_size or sizes.moe.bias or sizes.moe.groups > 1:
        yield "a canvas and other experts", "experts beside a dense MLP in every layer, without bias and groups"
    if canvas.full_layers != sorted(set(canvas.full_layers)) or any(i >= sizes.layers for i in canvas.full_layers):
        yield f"the full layers {canvas.full_layers}", f"ascending numbers from 0 to {sizes.layers - 1}, each once"
    if sizes.heads % canvas.full_kv_heads:
        yield f"{sizes.heads} heads in full layers", f"a multiple of their key-value heads, {canvas.full_kv_heads}"
    if canvas.full_rotary_size > canvas.full_head_size:
        yield f"{canvas.full_rotary_size} rotary channels in full layers", f"at most {canvas.full_head_size}"


_SCORES_PER_GROUP = 2
"""Number of scores of a group whose sum decides whether it is used."""


def _find_token_errors(manifest: Manifest) -> Reasons:
    return reasons_against_tokens(manifest.special_tokens, manifest.dimensions.vocab_size)


def check_defaults(manifest: Manifest, *, is_new: bool = False) -> None:
    """Raise BadInputError for defaults and presets that requests cannot use (`is_new`: see check_default_options)."""
    for name, preset in manifest.presets.items():
        if name == NO_PRESET or "preset" in preset.options:
            raise BadInputError(
                f"preset {name!r} with the options {', '.join(preset.options)}",
                expected=f"another name than {NO_PRESET}, and options other than preset",
                remedy="run lopa-export tune BUNDLE --save again",
            )
    manifest.preset_for(GenerationConfig())
    for options in (manifest.defaults, *(preset.options for preset in manifest.presets.values())):
        if options:
            check_default_options(
                options,
                manifest.decoding,
                manifest.dimensions,
                with_logits=manifest.with_logits,
                prediction_shift=manifest.prediction_shift,
                is_new=is_new,
            )


def check_default_options(
    defaults: Mapping[str, Any],
    decoding: DecodingDefaults,
    sizes: ModelDimensions,
    *,
    with_logits: bool,
    prediction_shift: int,
    is_new: bool = True,
) -> None:
    """Raise BadInputError for `defaults` that conflict with these properties of a bundle.

    New ones may not need logits that only requests with a temperature use, or have tokens that the model lacks. Older
    bundles with such defaults can be opened, to change them.
    """
    checked_defaults(defaults)
    # Resolve the defaults as if requested: a request may override a default, but another default must not.
    params = resolve(GenerationConfig.from_mapping(options_from_defaults(defaults)), own=decoding.options())
    canvas = sizes.canvas
    draws_from_logits = "top_k" in defaults and not 1 <= params.top_k <= TOP_K
    for wrong, received, expected in (
        (
            "max_new_tokens" in defaults and params.max_new_tokens >= sizes.max_positions,
            f"max_new_tokens {params.max_new_tokens}",
            f"fewer than the model's {sizes.max_positions} positions",
        ),
        (
            strategy_from_name(params.strategy).canvas != (canvas is not None),
            f"strategy {params.strategy!r}",
            "strategy canvas for models with canvases, and for no others",
        ),
        (
            canvas is not None and params.block_size != canvas.canvas_length,
            f"block_size {params.block_size}",
            "the canvas of the model",
        ),
        (
            (params.needs_logits or (is_new and draws_from_logits)) and not with_logits,
            next(iter(params.logit_changes), f"top_k {params.top_k}"),
            f"top_k 1 to {TOP_K} without penalties, or a bundle exported with --with-logits",
        ),
        (
            is_new and max(map(int, params.logit_bias), default=0) >= sizes.vocab_size,
            f"logit_bias {shown(dict(params.logit_bias))}",
            f"token ids below {sizes.vocab_size}",
        ),
        (
            params.slides and prediction_shift != 0,
            "alignment 'sliding'",
            "prompt or absolute, because rows of this model predict the next position",
        ),
        (
            params.edits and prediction_shift != 0,
            f"editing_threshold {params.editing_threshold}",
            "no editing, because rows of this model predict the next position",
        ),
    ):
        if wrong:
            raise BadInputError(
                f"{received} by default", expected=expected, remedy="set another default, or unset this option"
            )


def _find_default_errors(manifest: Manifest) -> Reasons:
    try:
        check_defaults(manifest)
    except BadInputError as error:
        yield f"invalid defaults: {error.received}", error.expected


def _find_shift_errors(manifest: Manifest) -> Reasons:
    known = PREDICTION_SHIFTS.get(manifest.architecture, manifest.prediction_shift)
    if manifest.prediction_shift != known:
        yield (
            f"prediction_shift = {manifest.prediction_shift} for architecture {manifest.architecture!r}",
            f"{known} for this architecture",
        )


def _find_dialect_errors(manifest: Manifest) -> Reasons:
    """Yield a problem unless a portable graph is a whole model without plugins, and the only graph if it comes
    first.
    """
    if manifest.dialect == "portable":
        for name in ("stages", "plugins", "portable_graph"):
            if getattr(manifest, name):
                yield (
                    f"{name} in addition to a graph in the portable dialect",
                    f"no {name}, or a graph in the standard dialect",
                )


def _find_rotary_errors(manifest: Manifest) -> Reasons:
    dialects = [manifest.dialect, *([] if manifest.portable_graph is None else ["portable"])]
    unknown = sorted(set(manifest.rotary_inputs) - set(dialects))
    if unknown or len(set(manifest.rotary_inputs)) < len(manifest.rotary_inputs):
        yield f"rotary_inputs = {manifest.rotary_inputs}", f"dialects of its graphs, each once: {', '.join(dialects)}"


def _find_stage_errors(manifest: Manifest) -> Reasons:
    edges = [0, *(stage.end_layer for stage in manifest.stages)]
    firsts = [stage.first_layer for stage in manifest.stages]
    if firsts and (firsts != edges[:-1] or edges != sorted(set(edges)) or edges[-1] != manifest.dimensions.layers):
        ranges = ", ".join(f"{stage.first_layer}-{stage.end_layer}" for stage in manifest.stages[:_MAX_SHOWN_STAGES])
        more = "" if len(firsts) <= _MAX_SHOWN_STAGES else f" and {len(firsts) - _MAX_SHOWN_STAGES} more"
        yield (
            f"stages of the layers {ranges}{more}",
            f"all {manifest.dimensions.layers} layers, each in exactly one stage",
        )


_STORED_TYPES = {"int8": "int8", "int4": "int4", "fp8": "float8e4m3fn"}


def _find_quantization_errors(manifest: Manifest) -> Reasons:
    """Yield each field of `quantization` that contradicts the tensors, and each tensor without the scales it needs."""
    found, quantized = manifest.quantization, [name for name in manifest.tensors if manifest.is_quantized(name)]
    types = {manifest.tensors[name].dtype for name in quantized}
    kind = None if found is None else found.kind
    if types != (set() if kind is None else {_STORED_TYPES[kind]}):
        stored = " and ".join(sorted(types)) or "floating point"
        yield f"quantization.kind = {kind} with matrices in {stored}", "the kind of these matrices"
    if found is None:
        return
    is_int4, has_head = found.kind == "int4", "head.weight" in quantized
    activation = "none" if is_int4 or manifest.dialect == "portable" else f"{found.kind}_per_row"
    for pattern in found.excluded:
        matches = {name for name in manifest.tensors if fnmatchcase(name, pattern)}
        if not matches or not matches.isdisjoint(quantized):
            wrong = next((name for name in quantized if name in matches), "no tensor")
            yield (
                f"quantization.excluded = {shown(pattern)}, which matches {wrong}",
                "patterns of tensors in floating point",
            )
    excludes_head = any(fnmatchcase("head.weight", pattern) for pattern in found.excluded)
    for name, fits, allowed in (
        ("block", (found.block is not None) == is_int4, "a size for int4, null otherwise"),
        ("activation", found.activation == activation, activation),
        ("head", found.head == has_head or (found.head and excludes_head), has_head),
        ("calibration", found.calibration is None or found.kind != "int8", "null for int8"),
    ):
        if not fits:
            yield f"quantization.{name} = {getattr(found, name)} for {found.kind} in {manifest.dialect}", str(allowed)
    for name in quantized:
        record, scales = manifest.tensors[name], manifest.tensors.get(scale_name(name))
        *stacked, inputs, outputs = record.shape if len(record.shape) in (2, 3) else (0, 0)
        if found.kind == "fp8":
            inputs, outputs = outputs, inputs
        blocks = [] if found.block is None else [inputs // found.block]
        needed = manifest.dtype if is_int4 else "float32", [*stacked, *blocks, outputs]
        if scales is None or (scales.dtype, scales.shape) != needed or inputs % (found.block or 1):
            shown_scales = "none" if scales is None else f"{scales.dtype} {scales.shape}"
            yield f"the scales {shown_scales} for {name} {record.dtype} {record.shape}", f"{needed[0]} {needed[1]}"


def _find_twin_errors(manifest: Manifest) -> Reasons:
    standard = {manifest.graph, *(stage.graph for stage in manifest.stages)}
    portable = {manifest.portable_graph}
    if manifest.dialect == "portable":
        standard, portable = set(), {manifest.graph}
    twins = Counter((twin.source, twin.provider, twin.form) for twin in manifest.twins)
    for (source, provider, form), count in twins.items():
        of_cpu = provider == "cpu"
        sources: dict[str, Collection[str | None]] = {
            "cpu": standard,
            "cuda": standard & {manifest.graph},
            "webgpu": portable if manifest.dimensions.canvas is None else standard & {manifest.graph},
        }
        if source not in sources[provider] or count > 1 or not (of_cpu or form == "packed"):
            yield (
                f"{count} twins of {source!r} for {provider} in the form {form}",
                "one: for cpu of a standard graph, packed or mapped, for cuda of the standard graph of all layers, "
                "packed, or for webgpu of the portable graph, packed, or with canvases of the standard one",
            )
        sizes = manifest.dimensions
        needed = sizes.canvas is None if provider == "webgpu" else form == "mapped" and sizes.moe is None
        if manifest.quantization is None and needed:
            yield f"a twin for {provider} in the form {form}, but no quantized matrices", "quantization"
    for twin in manifest.twins:
        if twin.fused:
            yield from _find_fused_errors(manifest, twin)


_PARTS_OF_FUSED = {"qkv": ["query", "key", "value"], "qk": ["query", "key"], "gate_up": ["gate", "up"]}
"""Parts by the last name of a module. In another order, a graph would compute something else without an error."""


def _find_fused_errors(manifest: Manifest, twin: GraphTwin) -> Reasons:
    if twin.provider != "cuda":
        yield f"fused tensors in a twin for {twin.provider}", "fused tensors for cuda only"
    names = Counter([*manifest.tensors, *(fused.name for fused in twin.fused)])
    for fused in twin.fused:
        parts = [manifest.tensors.get(name) for name in fused.parts]
        forms = [None if part is None else _form_of_part(part, fused.axis) for part in parts]
        module, label, kind = ("", "", *fused.name.rsplit(".", 2))[-3:]
        named = [f"{module}.{part}.{kind}" for part in _PARTS_OF_FUSED.get(label, ())]
        is_named = fused.parts == named or [fused.name] == [f"{name}_bytes" for name in fused.parts]
        if not is_named or None in forms or len(set(forms)) > 1 or names[fused.name] > 1:
            yield (
                f"the fused tensor {fused.name!r} of {', '.join(fused.parts)} along axis {fused.axis}",
                "a new name, and the module's tensors of it in order, of one type, that differ in their outputs only",
            )


def _form_of_part(part: TensorRecord, axis: int) -> tuple[str | int, ...] | None:
    """Return what the parts of a fused tensor have in common, or None if they cannot be put together along `axis`."""
    outputs = 0 if part.dtype == "float8e4m3fn" else len(part.shape) - 1
    if axis != outputs or len(part.shape) > 2 or (part.dtype == "int4" and part.shape[-1] % 2):
        return None
    return part.dtype, len(part.shape), *part.shape[:axis], *part.shape[axis + 1 :]


def _find_name_errors(manifest: Manifest) -> Reasons:
    """Yield a problem for each file that is listed twice, used twice or not listed, and for a listed manifest."""
    listed = [record.path for record in manifest.files]
    used = [manifest.graph, manifest.weights, *(stage.graph for stage in manifest.stages)]
    used += [twin.graph for twin in manifest.twins]
    used += [] if manifest.portable_graph is None else [manifest.portable_graph]
    listings, uses = Counter(listed), Counter(used)
    for name in (*used, *listed):
        if listings[name] > 1 or uses[name] > 1:
            yield (
                f"the file {name!r} twice",
                "each file listed once, with separate files for each graph and the weights",
            )
        if not listings[name]:
            yield f"{name!r}, which is not in its list of files", "graphs and weights that are among the files"
    if listings[MANIFEST_NAME]:
        yield f"{MANIFEST_NAME!r} in its list of files", "the other files of the bundle"


_MAX_SHOWN_STAGES = 8
"""Maximum number of stages in an error."""
_CHECKS: tuple[Callable[[Manifest], Reasons], ...] = (
    _find_dimension_errors,
    _find_network_errors,
    _find_token_errors,
    _find_shift_errors,
    _find_dialect_errors,
    _find_rotary_errors,
    _find_stage_errors,
    _find_quantization_errors,
    _find_twin_errors,
    _find_name_errors,
    _find_default_errors,
)

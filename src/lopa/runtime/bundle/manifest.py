"""manifest.json: what a bundle is, checked strictly when read. Does not touch any other file of the bundle.

Whoever made it is not trusted: every number has a range in its type, and what ranges cannot say is in _CHECKS. The
ranges are far beyond any model known; they are there so that no number in a manifest alone costs memory or time.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from lopa.runtime.bundle.record import Reasons, Record, record_from_json
from lopa.runtime.contract import TILE, TOP_K
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import (
    DEFAULT_DEVICES,
    DEFAULT_OPTIONS,
    GenerationConfig,
    checked_defaults,
    merged_options,
    options_from_defaults,
    resolve,
)
from lopa.runtime.plan import DecodingPlan

SCHEMA_VERSION = 2
MANIFEST_NAME = "manifest.json"
Dialect = Literal["standard", "portable"]
"""How a graph is written (docs/concepts/contract.md): ai.onnx 23 in the contract's shapes, or 17 in the portable
form."""

PREDICTION_SHIFTS = {
    "dream": 1,
    "llada": 0,
    "fast-dllm-v2": 1,
    "sdar": 0,
    "wedlm": 0,
    "stable-diffcoder": 0,
}
"""By architecture, of those that this version knows; what another one has, its manifest alone says."""
WEIGHT_ALIGNMENT = 4096
"""Bytes, of which every tensor's offset in the weights file is a multiple: so each can be mapped by itself."""
MAX_TILE_BYTES = 2**30
"""That one tile of one request's prefix cache may take, as float32. Dream 7B's takes 14 MiB."""
MAX_LAYERS = 4096

Layers = Annotated[int, Meta(ge=1, le=MAX_LAYERS)]
Size = Annotated[int, Meta(ge=1, le=2**20)]
Bytes = Annotated[int, Meta(ge=0, le=2**48)]
TokenId = Annotated[int, Meta(ge=0, lt=2**24)]
Share = Annotated[float, Meta(ge=0, le=1)]
Name = Annotated[str, Meta(min_length=1, max_length=1024)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class ModelDimensions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Sizes of the network; everything that a cache or a reference engine must know."""

    vocab_size: Annotated[int, Meta(ge=TOP_K, le=2**24)]
    hidden_size: Size
    intermediate_size: Annotated[int, Meta(ge=1, le=2**24)]
    layers: Layers
    heads: Annotated[int, Meta(ge=1, le=4096)]
    """A multiple of `kv_heads`."""
    kv_heads: Annotated[int, Meta(ge=1, le=4096)]
    head_size: Annotated[int, Meta(ge=2, le=4096, multiple_of=2)]
    """Even: rotary positions turn its two halves."""
    max_positions: Annotated[int, Meta(ge=1, le=2**24)]
    rope_theta: Annotated[float, Meta(gt=0, le=1e15)]
    rms_norm_eps: Annotated[float, Meta(gt=0, le=0.01)]
    qkv_bias: bool = True
    """Whether the products that make queries, keys and values have a bias."""
    qk_norm: bool = False
    """Whether every head's query and key are normalized, each by a weight [head size], before they are rotated."""


class SpecialTokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Token ids with a meaning for the decoder, all in the vocabulary. `pad` may be any: nothing sees it."""

    mask: TokenId
    """Neither `eos` nor `bos`: an undecided position is neither the end nor the beginning."""
    eos: TokenId
    pad: TokenId
    bos: TokenId | None
    stops: Annotated[list[TokenId], Meta(max_length=64)] = msgspec.field(default_factory=list)
    """Further ids that end an answer as `eos` does."""

    @property
    def ends(self) -> tuple[int, ...]:
        """All ids that end an answer."""
        return (self.eos, *self.stops)


ROLES = ("mask", "eos", "pad", "bos")
"""Of special tokens, each of one id."""


class DecodingDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Options that the checkpoint was trained for; GenerationConfig starts from these. Names and values are its own.

    Any option may have another default, in `Manifest.defaults`.
    """

    block_size: Size
    block_add_threshold: Share
    decoded_token_threshold: Share
    skip_threshold: Share
    add_bos: bool
    strategy: Literal["lopa", "d2f", "threshold", "vanilla", "sequential"] = "lopa"
    window: Literal["full", "block_causal", "causal"] = "full"
    alignment: Literal["prompt", "absolute", "sliding"] = "prompt"
    cache: Literal["blocks", "none", "prefix", "dual", "sub_block"] = "blocks"
    confidence: Literal["neg_entropy", "probability", "margin"] = "neg_entropy"
    sub_block: Size | None = None
    block_steps: Size | None = None

    def options(self) -> dict[str, Any]:
        """Those of GenerationConfig."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if name != "add_bos"}


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file of the bundle; `path` is relative, with forward slashes."""

    path: Name
    size: Bytes
    sha256: Sha256


class TensorRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where one weight lies in the weights file; matrices are stored [inputs, outputs], row by row.

    Two neighbouring int4 numbers share a byte, the first in its low half. The scales of an integer tensor are the
    tensor that `scale_name` names.
    """

    dtype: Literal["float32", "float16", "bfloat16", "int8", "int4"]
    shape: Annotated[list[Annotated[int, Meta(ge=0, le=2**32)]], Meta(max_length=8)]
    offset: Bytes
    length: Bytes


class Quantization(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the matrices with integer types were quantized: value = integer x scale, no zero point
    (docs/reference/bundle.md).

    The embedding, norms and biases never are.
    """

    kind: Literal["int8", "int4"]
    block: Size | None
    """Inputs that share a scale, for each output; None: all of them."""
    activation: Literal["none", "int8_per_row"]
    """What the graph does with the other factor of a product: nothing, or int8 with a scale for each row."""
    head: bool
    """Whether the product with the vocabulary is quantized too."""
    excluded: list[str]
    """The patterns of tensor names that were left as they are."""


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One stage of a pipeline: some of the layers' graph (lopa.runtime.contract.model_part) over its weights."""

    graph: Name
    first_layer: Annotated[int, Meta(ge=0, le=4096)]
    end_layer: Layers
    """One behind the last."""


class CpuGraph(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A twin of a standard graph, in the form that is fastest in ONNX Runtime on a CPU (lopa.export.cpu_graph).

    The same inputs, outputs and weights; operators that only ONNX Runtime knows are allowed.
    """

    graph: Name
    source: Name
    """The graph whose twin it is: the bundle's or a stage's."""
    source_sha256: Sha256
    """Of the file that it was made from: it stands for no other."""
    unpacked: bool = False
    """Whether int4 matrices are int8 ones here, which a session makes when it opens (lopa.runtime.bundle.int4_form)."""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the bundle came from: digests of the source files, by file name, and the tools that made it."""

    checkpoint: dict[str, str]
    adapter: dict[str, str]
    tools: dict[str, str]


class Manifest(Record, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The whole manifest.

    `prediction_shift` 1: the statistics of a row speak of the next position (Dream); 0: of its own (LLaDA).
    """

    architecture: str
    dialect: Dialect
    """Of `graph`."""
    dtype: Literal["float32", "float16", "bfloat16"]
    quantization: Quantization | None
    with_logits: bool
    prediction_shift: Literal[0, 1]
    dimensions: ModelDimensions
    special_tokens: SpecialTokens
    decoding: DecodingDefaults
    graph: Name
    weights: Name
    stages: Annotated[list[Stage], Meta(max_length=4096)]
    """In order, all layers together; empty in a bundle made without --stages."""
    tensors: dict[str, TensorRecord]
    files: Annotated[list[FileRecord], Meta(max_length=4096)]
    origin: Origin
    portable_graph: Name | None = None
    """A second graph in the portable dialect, over the same weights, beside a standard `graph`."""
    cpu_graphs: Annotated[list[CpuGraph], Meta(max_length=4096)] = msgspec.field(default_factory=list)
    """Twins of `graph` and of those of stages, where there is a faster form for ONNX Runtime on a CPU."""
    plugins: list[str] = msgspec.field(default_factory=list)
    """Functions of domain `lopa` in `graph` and those of stages (docs/how-to/engines.md); any backend may run their
    bodies."""
    defaults: Annotated[
        dict[str, bool | int | float | str | list[str] | dict[str, bool | int | float | str]],
        Meta(max_length=len(DEFAULT_OPTIONS)),
    ] = msgspec.field(default_factory=dict)
    """Options of GenerationConfig that the bundle's owner set, in place of those of `decoding`."""
    chat_template: Annotated[str, Meta(min_length=1, max_length=100_000)] | None = None
    """The template that the bundle's owner set, in place of the one in tokenizer_config.json."""

    @property
    def default_options(self) -> dict[str, Any]:
        """`defaults` as options of GenerationConfig."""
        return options_from_defaults(self.defaults)

    def merged_options(self, config: GenerationConfig) -> Mapping[str, Any]:
        """Return every option of a request by name, None where the strategy or the device gives the default."""
        return merged_options(config, own=self.decoding.options(), defaults=self.default_options)

    def plan(self, config: GenerationConfig | None = None, devices: Sequence[str] = DEFAULT_DEVICES) -> DecodingPlan:
        """Return the plan of a request with `config` (None: without options), on devices that share its branches.

        Raises BadInputError for options that do not go together.
        """
        options, defaults = self.decoding.options(), self.default_options
        return resolve(config or GenerationConfig(), own=options, defaults=defaults, devices=devices)

    def has_integers(self, name: str) -> bool:
        """Return whether the tensor `name` is quantized."""
        return name in self.tensors and self.tensors[name].dtype in ("int8", "int4")

    def digest(self, name: str) -> str:
        """Hex sha256 of the file `name`, which is one of `files`."""
        return next(record.sha256 for record in self.files if record.path == name)

    @property
    def weights_digest(self) -> str:
        """That of the weights, by which everything that was made for a bundle knows it."""
        return self.digest(self.weights)


def scale_name(name: str) -> str:
    """Name of the tensor that holds the scales of the integer tensor `name`."""
    return f"{name}_scale"


_REMEDY = "export the checkpoint again with this version of lopa-export"


def manifest_from_json(text: bytes, *, source: str) -> Manifest:
    """Read and check a manifest; `source` names it in errors. Raises BadInputError as record_from_json does.

    That goes for fields that contradict each other too.
    """
    return record_from_json(
        text, Manifest, source=source, what="a manifest", schema=SCHEMA_VERSION, remedy=_REMEDY, checks=_CHECKS
    )


def reasons_against_tokens(tokens: SpecialTokens, vocab_size: int) -> Reasons:
    """What is wrong with `tokens`, and what would be right."""
    for name in ROLES:
        token = getattr(tokens, name)
        if token is not None and not 0 <= token < vocab_size:
            yield f"special_tokens.{name} = {token}", f"one of the vocabulary, ids from 0 to {vocab_size - 1}"
    for stop in tokens.stops:
        if stop >= vocab_size or stop == tokens.mask:
            yield f"special_tokens.stops with {stop}", f"ids from 0 to {vocab_size - 1} other than the mask's"
    for name in ("eos", "bos"):
        if getattr(tokens, name) == tokens.mask:
            yield (
                f"special_tokens.mask = {tokens.mask}, which is its {name} too",
                "a mask token of its own: it stands for what is not decided yet",
            )


def reasons_against_roles(tokens: SpecialTokens, named: Mapping[str, int], added: Collection[int]) -> Reasons:
    """What is wrong with `tokens` for a tokenizer with these `added` tokens, and what would be right.

    `named` are the ids of its mask_token, eos_token and so on, by "mask" and "eos". On mask and bos it has the last
    word in an export; config.json may give another end of text, which is no word of the text either.
    """
    for name in ROLES:
        token, known = getattr(tokens, name), named.get(name)
        if name in ("mask", "bos") and known is not None and known != token:
            yield f"special_tokens.{name} = {token}", f"{known}, the id of the tokenizer's {name}_token"
        allowed = {known, tokens.eos} if name == "pad" else {known}
        if added and token is not None and token not in added and token not in allowed:
            yield f"special_tokens.{name} = {token}", "one of the tokenizer's added tokens"
    if named.get("eos") is not None and tokens.eos == named.get("bos") != named["eos"]:
        yield f"special_tokens.eos = {tokens.eos}", f"{named['eos']}: the tokenizer begins a text with the other"


def _reasons_against_dimensions(manifest: Manifest) -> Reasons:
    sizes = manifest.dimensions
    if sizes.heads % sizes.kv_heads:
        yield f"dimensions.heads = {sizes.heads}", f"a multiple of dimensions.kv_heads, {sizes.kv_heads}"
    tile = 2 * sizes.layers * sizes.kv_heads * sizes.head_size * TILE * 4
    if tile > MAX_TILE_BYTES:
        yield (
            f"{sizes.layers} layers of {sizes.kv_heads} key-value heads of {sizes.head_size}, whose caches take {tile} "
            f"bytes for {TILE} positions",
            f"at most {MAX_TILE_BYTES} bytes",
        )


def _reasons_against_tokens(manifest: Manifest) -> Reasons:
    return reasons_against_tokens(manifest.special_tokens, manifest.dimensions.vocab_size)


def check_defaults(manifest: Manifest) -> None:
    """Raise BadInputError for defaults with which no request could be decoded."""
    if manifest.defaults:
        check_default_options(
            manifest.defaults,
            manifest.decoding,
            positions=manifest.dimensions.max_positions,
            with_logits=manifest.with_logits,
            prediction_shift=manifest.prediction_shift,
        )


def check_default_options(
    defaults: Mapping[str, Any], decoding: DecodingDefaults, *, positions: int, with_logits: bool, prediction_shift: int
) -> None:
    """Raise BadInputError for `defaults` that a bundle with these facts cannot have; `positions` are its model's."""
    checked_defaults(defaults)
    # As if they were requested: a default is left out beside a request, never beside another default.
    plan = resolve(GenerationConfig.from_mapping(options_from_defaults(defaults)), own=decoding.options())
    for wrong, received, expected in (
        (
            "max_new_tokens" in defaults and plan.max_new_tokens >= positions,
            f"max_new_tokens {plan.max_new_tokens}",
            f"fewer than the model's {positions} positions",
        ),
        (
            plan.draws_from_logits and not with_logits,
            f"top_k {plan.top_k}",
            f"1 to {TOP_K}, or a bundle exported with --with-logits",
        ),
        (
            plan.slides and prediction_shift != 0,
            "alignment 'sliding'",
            "prompt or absolute, since rows of this model speak of the next position",
        ),
    ):
        if wrong:
            raise BadInputError(
                f"{received} by default", expected=expected, remedy="set another default, or none for this option"
            )


def _reasons_against_defaults(manifest: Manifest) -> Reasons:
    try:
        check_defaults(manifest)
    except BadInputError as error:
        yield f"defaults with {error.received}", error.expected


def _reasons_against_shift(manifest: Manifest) -> Reasons:
    known = PREDICTION_SHIFTS.get(manifest.architecture, manifest.prediction_shift)
    if manifest.prediction_shift != known:
        yield (
            f"prediction_shift = {manifest.prediction_shift} for architecture {manifest.architecture!r}",
            f"{known}, which its rows speak of",
        )


def _reasons_against_dialect(manifest: Manifest) -> Reasons:
    """A portable graph is always whole and plain, and the only one where it comes first."""
    if manifest.dialect == "portable":
        for name in ("stages", "plugins", "portable_graph", "cpu_graphs"):
            if getattr(manifest, name):
                yield f"{name} beside a graph in the portable dialect", f"no {name}, or a graph in the standard dialect"


def _reasons_against_stages(manifest: Manifest) -> Reasons:
    edges = [0, *(stage.end_layer for stage in manifest.stages)]
    firsts = [stage.first_layer for stage in manifest.stages]
    if firsts and (firsts != edges[:-1] or edges != sorted(set(edges)) or edges[-1] != manifest.dimensions.layers):
        ranges = ", ".join(f"{stage.first_layer}-{stage.end_layer}" for stage in manifest.stages[:_SHOWN])
        more = "" if len(firsts) <= _SHOWN else f" and {len(firsts) - _SHOWN} more"
        yield f"stages of the layers {ranges}{more}", f"all {manifest.dimensions.layers} layers, each in one stage"


def _reasons_against_cpu_graphs(manifest: Manifest) -> Reasons:
    graphs = {manifest.graph, *(stage.graph for stage in manifest.stages)}
    for (source, unpacked), count in Counter((twin.source, twin.unpacked) for twin in manifest.cpu_graphs).items():
        if source not in graphs or count > 1:
            yield f"cpu_graphs with {count} of {source!r}", "at most one for each graph of the standard dialect"
        if unpacked and (manifest.quantization is None or manifest.quantization.kind != "int4"):
            yield "cpu_graphs with int4 matrices unpacked, without such matrices", "quantization of kind int4"


def _reasons_against_names(manifest: Manifest) -> Reasons:
    """Every file is listed once, and is one thing only."""
    listed = [record.path for record in manifest.files]
    used = [manifest.graph, manifest.weights, *(stage.graph for stage in manifest.stages)]
    used += [twin.graph for twin in manifest.cpu_graphs]
    used += [] if manifest.portable_graph is None else [manifest.portable_graph]
    listings, uses = Counter(listed), Counter(used)
    for name in (*used, *listed):
        if listings[name] > 1 or uses[name] > 1:
            yield f"the file {name!r} twice", "a list of different files, and each graph and the weights in its own"
        if not listings[name]:
            yield f"{name!r}, which is not in its list of files", "graphs and weights among the files"
    if listings[MANIFEST_NAME]:
        yield f"{MANIFEST_NAME!r} in its list of files", "the other files of the bundle"


_SHOWN = 8
"""Stages in an error."""
_CHECKS: tuple[Callable[[Manifest], Reasons], ...] = (
    _reasons_against_dimensions,
    _reasons_against_tokens,
    _reasons_against_shift,
    _reasons_against_dialect,
    _reasons_against_stages,
    _reasons_against_cpu_graphs,
    _reasons_against_names,
    _reasons_against_defaults,
)

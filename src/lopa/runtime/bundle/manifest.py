"""manifest.json: the description of a bundle, checked strictly on reading. This module accesses no other file.

Manifests are untrusted. Every number has a range in its type, and _CHECKS holds the remaining conditions. The ranges
are far beyond any known model; they bound the memory and time that a manifest alone can cost.
"""

import fnmatch
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from lopa.runtime.bundle.record import Reasons, Record, record_from_json
from lopa.runtime.checked_values import shown
from lopa.runtime.contract import CANVAS_CONTRACT, CONTRACT_VERSION, TILE, TOP_K
from lopa.runtime.contract.model_part import ModelPart, whole_model
from lopa.runtime.contract.rotary import RotaryAngles
from lopa.runtime.device_families import families_of_devices
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import (
    DEFAULT_DEVICES,
    DEFAULT_OPTIONS,
    NO_PRESET,
    PRESET_NAME,
    GenerationConfig,
    ResolvedOptions,
    checked_defaults,
    merged_options,
    options_from_defaults,
    params_from_options,
    resolve,
)
from lopa.runtime.options import DecodingParams
from lopa.runtime.strategy import strategy_from_name

SCHEMA_VERSION = 3
MANIFEST_NAME = "manifest.json"
Dialect = Literal["standard", "portable"]
"""Dialect of a graph (docs/concepts/contract.md): ai.onnx 23 in the contract's shapes, or 17 in the portable form."""

PREDICTION_SHIFTS = {
    "dream": 1,
    "llada": 0,
    "fast-dllm-v2": 1,
    "sdar": 0,
    "wedlm": 0,
    "stable-diffcoder": 0,
    "llada2-moe": 0,
    "sdar-moe": 0,
    "llada-moe": 0,
    "diffusion-gemma": 0,
}
"""Prediction shift by architecture, for known architectures. Other architectures use the shift in their manifest."""
WEIGHT_ALIGNMENT = 4096
"""Alignment of tensor offsets in the weights file, in bytes. It allows mapping each tensor separately."""
MAX_TILE_BYTES = 2**30
"""Maximum bytes of one tile of one request's prefix cache, as float32. Dream 7B needs 14 MiB."""
MAX_LAYERS = 4096

Layers = Annotated[int, Meta(ge=1, le=MAX_LAYERS)]
Size = Annotated[int, Meta(ge=1, le=2**20)]
Bytes = Annotated[int, Meta(ge=0, le=2**48)]
TokenId = Annotated[int, Meta(ge=0, lt=2**24)]
Share = Annotated[float, Meta(ge=0, le=1)]
Name = Annotated[str, Meta(min_length=1, max_length=1024)]
PresetName = Annotated[str, Meta(pattern=rf"^{PRESET_NAME}\Z")]
DefaultValues = Annotated[
    dict[str, bool | int | float | str | list[str] | dict[str, bool | int | float | str]],
    Meta(max_length=len(DEFAULT_OPTIONS)),
]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class MixtureOfExperts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Experts and router of the sparse layers. Every row is computed by `experts_per_token` of the `experts`."""

    experts: Annotated[int, Meta(ge=1, le=4096)]
    experts_per_token: Annotated[int, Meta(ge=1, le=4096)]
    expert_size: Annotated[int, Meta(ge=1, le=2**24)]
    """Intermediate size of an expert."""
    shared_size: Annotated[int, Meta(ge=0, le=2**24)] = 0
    """Intermediate size of the shared expert, which computes every row; 0 for none."""
    dense_layers: Annotated[list[Annotated[int, Meta(ge=0, lt=MAX_LAYERS)]], Meta(max_length=MAX_LAYERS)] = (
        msgspec.field(default_factory=list)
    )
    """Layers with an ordinary MLP instead of experts, ascending."""
    score: Literal["softmax", "sigmoid"]
    """Function from the router's logits to scores."""
    normalize: bool
    """True if the scores of a row's experts are divided by their sum."""
    bias: bool = False
    """True if the router has a bias [experts], which changes the choice of experts but not their scores."""
    groups: Annotated[int, Meta(ge=1, le=4096)] = 1
    """Number of groups of neighboring experts. The sum of the two best scores of a group decides whether it is used."""
    groups_per_token: Annotated[int, Meta(ge=1, le=4096)] = 1
    """Number of groups whose experts may compute a row."""
    scale: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    """Factor of the experts' scores. It does not apply to the shared expert."""


class CanvasNetwork(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Properties of DiffusionGemma's network, whose layers have a dense MLP beside experts, and two kinds of attention.

    Heads and rotary positions of ModelDimensions are those of layers with a sliding window.
    """

    canvas_length: Size
    """Number of positions that are denoised together."""
    sliding_window: Size
    """Positions that a causally encoded row attends to, itself included, in layers that are not `full_layers`."""
    full_layers: Annotated[list[Annotated[int, Meta(ge=0, lt=MAX_LAYERS)]], Meta(max_length=MAX_LAYERS)]
    """Layers with attention to all positions, ascending. Their values are their keys before norm and rotation."""
    full_kv_heads: Annotated[int, Meta(ge=1, le=4096)]
    full_head_size: Annotated[int, Meta(ge=2, le=4096, multiple_of=2)]
    full_rotary_size: Annotated[int, Meta(ge=2, le=4096, multiple_of=2)]
    """Number of channels that rotate: pairs of the first half with the second half of a head."""
    full_rope_theta: Annotated[float, Meta(gt=0, le=1e15)]
    logit_cap: Annotated[float, Meta(gt=0, le=1e6)]
    """Bound of the logits, which are tanh(x / logit_cap) * logit_cap."""


class ModelDimensions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Sizes of the network that caches and reference engines need."""

    vocab_size: Annotated[int, Meta(ge=TOP_K, le=2**24)]
    hidden_size: Size
    intermediate_size: Annotated[int, Meta(ge=1, le=2**24)]
    layers: Layers
    heads: Annotated[int, Meta(ge=1, le=4096)]
    """Number of attention heads, a multiple of `kv_heads`."""
    kv_heads: Annotated[int, Meta(ge=1, le=4096)]
    head_size: Annotated[int, Meta(ge=2, le=4096, multiple_of=2)]
    """Size of a head. It is even, because rotary positions rotate two halves."""
    max_positions: Annotated[int, Meta(ge=1, le=2**24)]
    rope_theta: Annotated[float, Meta(gt=0, le=1e15)]
    rms_norm_eps: Annotated[float, Meta(gt=0, le=0.01)]
    qkv_bias: bool = True
    """True if the query, key and value projections have a bias."""
    qk_norm: bool = False
    """True if each head's query and key are normalized before rotation, each with a weight [head size]."""
    partial_rotary_size: Annotated[int, Meta(ge=2, le=4096, multiple_of=2)] | None = None
    """Number of leading channels of a head that rotate; None if all of them do."""
    moe: MixtureOfExperts | None = None
    """Experts of the sparse layers; None if all layers are dense."""
    canvas: CanvasNetwork | None = None
    """Properties of a network with canvases; None for all others."""

    @property
    def whole_model(self) -> ModelPart:
        """The part that has all layers, in the contract of the network."""
        return whole_model(self.layers, has_canvas=self.canvas is not None)

    def attention_heads(self, layer: int) -> tuple[int, int]:
        """Return the number of key-value heads of a layer, and their size."""
        if self.canvas is None or layer not in self.canvas.full_layers:
            return self.kv_heads, self.head_size
        return self.canvas.full_kv_heads, self.canvas.full_head_size

    @property
    def cache_heads(self) -> int:
        """Number of heads of the caches. Layers with different heads have one head with the channels of all."""
        return self.kv_heads if self.canvas is None else 1

    @property
    def cache_head_size(self) -> int:
        """Number of channels of a cache's head, those of the widest layer. Other layers fill up with zeros."""
        if self.canvas is None:
            return self.head_size
        return max(self.kv_heads * self.head_size, self.canvas.full_kv_heads * self.canvas.full_head_size)

    @property
    def rotary_size(self) -> int:
        """Number of leading channels of a head that rotate."""
        return self.partial_rotary_size or self.head_size


class SpecialTokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Token ids with a meaning for the decoder, all in the vocabulary. `pad` may be any id, because nothing attends to
    it.
    """

    mask: TokenId
    """Mask token. It differs from `eos` and `bos`, because a masked position is neither the end nor the start of a
    text.
    """
    eos: TokenId
    pad: TokenId
    bos: TokenId | None
    stops: Annotated[list[TokenId], Meta(max_length=64)] = msgspec.field(default_factory=list)
    """Further ids that end an answer, like `eos`."""
    expand: TokenId | None = None
    """Token that stands for two masked positions, in checkpoints that decide the lengths of holes (DreamOn)."""

    @property
    def ends(self) -> tuple[int, ...]:
        """All ids that end an answer."""
        return (self.eos, *self.stops)


ROLES = ("mask", "eos", "pad", "bos", "expand")
"""Special tokens that have exactly one id."""


class DecodingDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Decoding options that the checkpoint was trained for, with the names and values of GenerationConfig.

    `Manifest.defaults` may override any option.
    """

    block_size: Size
    block_add_threshold: Share
    decoded_token_threshold: Share
    skip_threshold: Share
    add_bos: bool
    strategy: Literal["lopa", "d2f", "threshold", "vanilla", "sequential", "canvas"] = "lopa"
    attention: Literal["full", "block_causal", "causal"] = "full"
    alignment: Literal["prompt", "absolute", "sliding"] = "prompt"
    cache: Literal["blocks", "none", "prefix", "dual", "sub_block"] = "blocks"
    confidence: Literal["neg_entropy", "probability", "margin"] = "neg_entropy"
    sub_block: Size | None = None
    block_steps: Size | None = None

    def options(self) -> dict[str, Any]:
        """Return the fields that are options of GenerationConfig."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if name != "add_bos"}


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file of the bundle. `path` is relative, with forward slashes."""

    path: Name
    size: Bytes
    sha256: Sha256


class TensorRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Location of one weight in the weights file. Matrices are stored [inputs, outputs], row-major.

    Two neighboring int4 numbers share a byte, the first in its low half. Matrices in FP8 are stored [outputs, inputs],
    as GPUs multiply them. `scale_name` names the tensor with the scales of a quantized tensor.
    """

    dtype: Literal["float32", "float16", "bfloat16", "int8", "int4", "float8e4m3fn"]
    shape: Annotated[list[Annotated[int, Meta(ge=0, le=2**32)]], Meta(max_length=8)]
    offset: Bytes
    length: Bytes

    @property
    def is_quantized(self) -> bool:
        """True for integers and FP8, which have scales."""
        return self.dtype in ("int8", "int4", "float8e4m3fn")


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Prompts for which the errors of int4 or FP8 matrices were made small (lopa.export.weights.calibration)."""

    method: Literal["gptq"]
    rows: Annotated[int, Meta(ge=1)]
    """Number of tokens."""
    sha256: Sha256
    """Digest of the file with the prompts."""


class Quantization(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Quantization of matrices: value = stored number x scale, without zero point (docs/reference/bundle.md).

    The embedding, norms and biases are never quantized.
    """

    kind: Literal["int8", "int4", "fp8"]
    block: Size | None
    """Inputs that share one scale per output, or None for all inputs."""
    activation: Literal["none", "int8_per_row", "fp8_per_row"]
    """Quantization of activations in standard graphs: none, or one scale per row. Portable graphs round none."""
    head: bool
    """True if the vocabulary projection is also quantized."""
    excluded: list[str]
    """Patterns of tensor names that stay unquantized."""
    calibration: Calibration | None = None


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One pipeline stage: the graph of some layers (lopa.runtime.contract.model_part)."""

    graph: Name
    first_layer: Annotated[int, Meta(ge=0, le=4096)]
    end_layer: Layers
    """End of the layers, exclusive."""


class FusedTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Input of a twin that a session puts together from tensors when it opens. Quantized tensors are bytes."""

    name: Name
    parts: Annotated[list[Name], Meta(min_length=1, max_length=3)]
    """Tensors of the bundle, in order."""
    axis: Annotated[int, Meta(ge=0, le=1)]
    """Axis along which the parts are put together: that of the outputs."""

    def dtype(self, tensors: Mapping[str, TensorRecord]) -> str:
        """Return the type. `tensors` has the records of all parts."""
        first = tensors[self.parts[0]]
        return "uint8" if first.is_quantized else first.dtype

    def shape(self, tensors: Mapping[str, TensorRecord]) -> list[int]:
        """Return the shape. `tensors` has the records of all parts."""
        parts = [tensors[name] for name in self.parts]
        shape = list(parts[0].shape)
        shape[self.axis] = sum(part.shape[self.axis] for part in parts)
        return shape if parts[0].dtype != "int4" else [*shape[:-1], shape[-1] // 2]


TwinForm = Literal["packed", "mapped"]


class GraphTwin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Graph with the function of another, in the operators that are fastest with one provider of ONNX Runtime.

    It has the same inputs and outputs, and may use operators that only this provider has. A twin for CUDA has those of
    packed rows (lopa.runtime.bundle.graph_signature).
    """

    graph: Name
    source: Name
    """The graph that it replaces: for CPUs the standard one or a stage's, for CUDA the standard one. For WebGPU it is
    the portable one, or the standard one with canvases."""
    source_sha256: Sha256
    """SHA-256 of the source file. A session uses the twin only in place of this exact file."""
    provider: Literal["cpu", "webgpu", "cuda"]
    form: TwinForm = "packed"
    """Form of quantized matrices. Packed ones are in the layout of the provider's kernels
    (lopa.runtime.bundle.webgpu_twin). Mapped ones are as in the weights file, for lopa's own operators on CPUs
    (lopa.runtime.cpu_kernels)."""
    fused: Annotated[list[FusedTensor], Meta(max_length=4 * MAX_LAYERS)] = msgspec.field(default_factory=list)
    """Inputs of a twin for CUDA that replace tensors. Their parts are not among its initializers."""


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Decoding options that were measured on a device (lopa.bench.comparison)."""

    options: DefaultValues
    """Options of GenerationConfig that replace the bundle's defaults."""
    devices: Annotated[list[Name], Meta(min_length=1, max_length=256)]
    """Devices that it was measured on."""
    measured: Annotated[str, Meta(max_length=1024)]
    """Score and speed, as a phrase."""

    def fits(self, devices: Sequence[str]) -> bool:
        """Return True if `devices` are of the same families, e.g. one CPU device."""
        return families_of_devices(devices) == families_of_devices(self.devices)


class HubSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Repository and commit of the Hugging Face Hub."""

    repository: Name
    commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{40}\Z")]


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Origin of a bundle: digests of the source files by name, and the versions of the tools."""

    checkpoint: dict[str, str]
    adapter: dict[str, str]
    tools: dict[str, str]
    checkpoint_hub: HubSource | None = None
    """Source of a downloaded checkpoint; None for a local folder."""
    adapter_hub: HubSource | None = None


class Manifest(Record, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The whole manifest.

    `prediction_shift` is 1 if a row predicts the next position (Dream), and 0 if it predicts its own (LLaDA).
    """

    architecture: str
    dialect: Dialect
    """Dialect of `graph`."""
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
    """Pipeline stages in order, covering all layers. The list is empty without --stages."""
    tensors: dict[str, TensorRecord]
    files: Annotated[list[FileRecord], Meta(max_length=4096)]
    origin: Origin
    portable_graph: Name | None = None
    """A second graph in the portable dialect over the same weights, if `graph` is standard."""
    rotary_inputs: Annotated[list[Dialect], Meta(max_length=2)] = msgspec.field(default_factory=list)
    """Dialects whose graphs take cosines and sines of rotary angles in place of positions (see
    docs/concepts/contract.md)."""
    twins: Annotated[list[GraphTwin], Meta(max_length=4096)] = msgspec.field(default_factory=list)
    """Faster forms of the other graphs, at most one per graph, provider and form."""
    plugins: list[str] = msgspec.field(default_factory=list)
    """Functions of domain `lopa` in `graph` and in the stages (docs/how-to/engines.md). Any backend may run their
    bodies."""
    defaults: DefaultValues = msgspec.field(default_factory=dict)
    """Options of GenerationConfig set by the bundle's owner. They override the options of `decoding`."""
    presets: Annotated[dict[PresetName, Preset], Meta(max_length=16)] = msgspec.field(default_factory=dict)
    """Options by name, which a request or a default selects with the option `preset`."""
    chat_template: Annotated[str, Meta(min_length=1, max_length=100_000)] | None = None
    """Chat template set by the bundle's owner. It overrides tokenizer_config.json."""

    @property
    def rotary(self) -> RotaryAngles | None:
        """The angles whose cosines and sines the graphs of `dialect` take, or None if these graphs take positions."""
        if self.dialect not in self.rotary_inputs:
            return None
        return RotaryAngles(self.dimensions.rotary_size, self.dimensions.rope_theta)

    @property
    def default_options(self) -> dict[str, Any]:
        """Return `defaults` as options of GenerationConfig."""
        return options_from_defaults(self.defaults)

    def preset_for(self, config: GenerationConfig, devices: Sequence[str] = DEFAULT_DEVICES) -> str | None:
        """Return the name of the preset that decodes a request on `devices`, or None.

        A preset by default applies only to devices like those it was measured on, and to requests without a strategy.
        Raises BadInputError for a preset that the bundle does not have.
        """
        name = self.default_options.get("preset") if config.preset is None else config.preset
        if name is None or name == NO_PRESET:
            return None
        preset = self.presets.get(name)
        if preset is None:
            raise BadInputError(
                f"unknown preset {name!r}",
                expected="one of " + ", ".join([*self.presets, NO_PRESET]) if self.presets else "no preset",
                remedy="choose one of these" if self.presets else "remove preset",
                operator="" if self.presets else "measure presets: lopa-export tune BUNDLE --save",
            )
        by_default = config.preset is None
        if by_default and (config.strategy is not None or config.reference or not preset.fits(devices)):
            return None
        return name

    def resolve(self, config: GenerationConfig, devices: Sequence[str] = DEFAULT_DEVICES) -> ResolvedOptions:
        """Return the value of every option of a request on devices that share its branches.

        The defaults are those of the bundle, replaced by those of its preset if it has one. Raises BadInputError for
        conflicting options.
        """
        name = self.preset_for(config, devices)
        preset = {} if name is None else options_from_defaults(self.presets[name].options)
        merged = merged_options(config, own=self.decoding.options(), defaults={**self.default_options, **preset})
        options = {**merged, "preset": name}
        return ResolvedOptions(config, options, params_from_options(options, devices), tuple(devices))

    def params(
        self, config: GenerationConfig | None = None, devices: Sequence[str] = DEFAULT_DEVICES
    ) -> DecodingParams:
        """Return the parameters of a request (see `resolve`); None stands for no options."""
        return self.resolve(config or GenerationConfig(), devices).params

    def is_quantized(self, name: str) -> bool:
        """Return True if the tensor `name` is quantized."""
        return name in self.tensors and self.tensors[name].is_quantized

    @property
    def is_fp8(self) -> bool:
        """True if matrices are in FP8."""
        return self.quantization is not None and self.quantization.kind == "fp8"

    @property
    def bfloat16_devices(self) -> str:
        """Devices that run this bundle if it is in bfloat16, for messages."""
        if self.dialect == "portable" or self.dimensions.canvas is not None:
            return "numpy"
        return "cuda:N or numpy" if self.is_fp8 or self.plugins else "cuda:N, openvino:CPU or numpy"

    def digest(self, name: str) -> str:
        """Return the hex sha256 of file `name`, which must be one of `files`."""
        return next(record.sha256 for record in self.files if record.path == name)

    @property
    def weights_digest(self) -> str:
        """SHA-256 of the weights, which identifies the bundle in derived files."""
        return self.digest(self.weights)


def scale_name(name: str) -> str:
    """Return the name of the tensor with the scales of integer tensor `name`."""
    return f"{name}_scale"


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
    others = manifest.tensors.keys() - quantized
    excludes = all(fnmatch.filter(others, name) and not fnmatch.filter(quantized, name) for name in found.excluded)
    for name, fits, allowed in (
        ("block", (found.block is not None) == is_int4, "a size for int4, null otherwise"),
        ("activation", found.activation == activation, activation),
        ("head", found.head == has_head or (found.head and found.excluded), has_head),
        ("calibration", found.calibration is None or found.kind != "int8", "null for int8"),
        ("excluded", excludes, "patterns of tensors, none of them quantized"),
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

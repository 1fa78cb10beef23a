"""manifest.json: the description of a bundle.

Manifests are untrusted. Every number has a range in its type, and manifest_checks.py holds the remaining conditions.
The ranges are far beyond any known model; they bound the memory and time that a manifest alone can cost.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from lopa.runtime.bundle.record import Record
from lopa.runtime.contract import TOP_K
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
    merged_options,
    options_from_defaults,
    params_from_options,
)
from lopa.runtime.options import DecodingParams

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
    excluded: Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=64)]
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

"""manifest.json: what a bundle is, checked strictly when read. Does not touch any other file of the bundle."""

from typing import Literal

import msgspec

from lopa.runtime.contract import CONTRACT_VERSION
from lopa.runtime.errors import BadInputError

SCHEMA_VERSION = 2
MANIFEST_NAME = "manifest.json"
Dialect = Literal["standard", "portable"]
"""How a graph is written (docs/contract.md): ai.onnx 23 in the contract's shapes, or 17 in the portable form."""


class ModelDimensions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sizes of the network; everything that a cache or a reference engine must know."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    max_positions: int
    rope_theta: float
    rms_norm_eps: float


class SpecialTokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Token ids with a meaning for the decoder."""

    mask: int
    eos: int
    pad: int
    bos: int | None


class DecodingDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the checkpoint was trained for; GenerationConfig starts from these."""

    block_size: int = 32
    block_add_threshold: float = 0.1
    decoded_token_threshold: float = 0.95
    skip_threshold: float = 0.9
    add_bos: bool = True


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file of the bundle; `path` is relative, with forward slashes."""

    path: str
    size: int
    sha256: str


class TensorRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where one weight lies in the weights file; matrices are stored [inputs, outputs], row by row.

    Two neighbouring int4 numbers share a byte, the first in its low half. The scales of an integer tensor are the
    tensor that `scale_name` names.
    """

    dtype: Literal["float32", "float16", "bfloat16", "int8", "int4"]
    shape: list[int]
    offset: int
    length: int


class Quantization(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the matrices with integer types were quantized: value = integer x scale, no zero point (docs/bundles.md).

    The embedding, norms and biases never are.
    """

    kind: Literal["int8", "int4"]
    block: int | None
    """Inputs that share a scale, for each output; None: all of them."""
    activation: Literal["none", "int8_per_row"]
    """What the graph does with the other factor of a product: nothing, or int8 with a scale for each row."""
    head: bool
    """Whether the product with the vocabulary is quantized too."""
    excluded: list[str]
    """The patterns of tensor names that were left as they are."""


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One stage of a pipeline: a graph of some of the layers (lopa.runtime.model_part) over the bundle's weights."""

    graph: str
    first_layer: int
    end_layer: int
    """One behind the last."""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the bundle came from: digests of the source files, by file name, and the tools that made it."""

    checkpoint: dict[str, str]
    adapter: dict[str, str]
    tools: dict[str, str]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The whole manifest.

    `prediction_shift` 1: the statistics of a row speak of the next position (Dream); 0: of its own (LLaDA).
    """

    schema: int
    contract: int
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
    graph: str
    weights: str
    stages: list[Stage]
    """In order, all layers together; empty in a bundle made without --stages."""
    tensors: dict[str, TensorRecord]
    files: list[FileRecord]
    origin: Origin
    portable_graph: str | None = None
    """A second graph in the portable dialect, over the same weights, beside a standard `graph`."""
    plugins: list[str] = []
    """Functions of domain `lopa` in `graph` and those of stages (docs/plugins.md); any backend may run their bodies."""


def scale_name(name: str) -> str:
    """Name of the tensor that holds the scales of the integer tensor `name`."""
    return f"{name}_scale"


class _Versions(msgspec.Struct):
    schema: int
    contract: int


def manifest_from_json(text: bytes, *, source: str) -> Manifest:
    """Read and check a manifest; `source` names it in errors.

    Raises BadInputError for text that is not JSON, another schema or contract version, and missing, unknown or
    mistyped fields.
    """
    remedy = "export the checkpoint again with this version of lopa-export"
    try:
        versions = msgspec.json.decode(text, type=_Versions)
    except msgspec.MsgspecError as error:
        raise BadInputError(
            f"{source} is not a manifest: {error}", expected="a JSON object with schema and contract", remedy=remedy
        ) from error
    for name, found, known in (
        ("schema", versions.schema, SCHEMA_VERSION),
        ("contract", versions.contract, CONTRACT_VERSION),
    ):
        if found != known:
            newer = "update lopa-export" if found > known else remedy
            raise BadInputError(
                f"{source} has {name} version {found}", expected=f"{name} version {known}", remedy=newer
            )
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except msgspec.MsgspecError as error:
        raise BadInputError(
            f"{source}: {error}", expected=f"the fields of schema version {SCHEMA_VERSION}", remedy=remedy
        ) from error
    edges = [0, *(stage.end_layer for stage in manifest.stages)]
    firsts = [stage.first_layer for stage in manifest.stages]
    if firsts and (firsts != edges[:-1] or edges != sorted(set(edges)) or edges[-1] != manifest.dimensions.layers):
        ranges = [f"{stage.first_layer}-{stage.end_layer}" for stage in manifest.stages]
        raise BadInputError(
            f"{source} has stages of the layers {', '.join(ranges)}",
            expected=f"all {manifest.dimensions.layers} layers, each in one stage",
            remedy=remedy,
        )
    return manifest


def json_from_manifest(manifest: Manifest) -> bytes:
    """The text of manifest.json, indented for readers."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"

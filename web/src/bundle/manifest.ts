/** manifest.json: the description of a bundle, checked strictly on reading (docs/reference/bundle.md).
 *
 * Manifests are untrusted. Every number has a range, far beyond any known model. The ranges bound the memory and time
 * that a manifest alone can cost. */

import { CONTRACT_VERSION, TILE, TOP_K } from "../contract/sizes.js";
import { reject } from "../errors.js";
import { ALIGNMENTS, ATTENTIONS, CACHES, CONFIDENCES } from "../options/decoding_params.js";
import {
  anything,
  bool,
  choice,
  float,
  int,
  list,
  map,
  nullable,
  objectFromJson,
  record,
  text,
  type JsonObject,
  type Reject,
} from "./record.js";

export const SCHEMA_VERSION = 3;
export const MANIFEST_NAME = "manifest.json";
/** Maximum bytes of one tile of a prefix cache, as float32. Dream 7B needs 14 MiB. */
const MAX_TILE_BYTES = 2 ** 30;

export interface SpecialTokens {
  readonly mask: number;
  readonly eos: number;
  readonly pad: number;
  readonly bos: number | null;
  /** Further ids that end an answer, like `eos`. */
  readonly stops?: readonly number[];
  /** Token that stands for two masked positions, in checkpoints that decide the lengths of holes (DreamOn). */
  readonly expand?: number | null;
}

export interface Dimensions {
  readonly vocab_size: number;
  readonly layers: number;
  readonly kv_heads: number;
  readonly head_size: number;
  readonly max_positions: number;
  readonly rope_theta: number;
  readonly partial_rotary_size?: number | null;
}

export interface FileRecord {
  readonly path: string;
  readonly size: number;
  readonly sha256: string;
}

/** Graph with the function of another, in the operators that are fastest with one provider of ONNX Runtime. */
export interface GraphTwin {
  readonly graph: string;
  readonly source: string;
  readonly source_sha256: string;
  readonly provider: "cpu" | "webgpu" | "cuda";
  /** Form of quantized matrices: packed, which is the default, or mapped, for operators that only Python has. */
  readonly form?: "packed" | "mapped";
}

/** Location of a tensor in the weights file. */
export interface TensorRecord {
  readonly dtype: "float32" | "float16" | "bfloat16" | "int8" | "int4";
  readonly shape: readonly number[];
  readonly offset: number;
  readonly length: number;
}

/** The fields of a manifest that decoding needs. */
export interface Manifest {
  readonly architecture: string;
  readonly dialect: "standard" | "portable";
  readonly dtype: "float32" | "float16" | "bfloat16";
  readonly quantization: JsonObject | null;
  readonly with_logits: boolean;
  /** 1 if a row predicts the next position (Dream), 0 if its own (LLaDA). */
  readonly prediction_shift: 0 | 1;
  readonly dimensions: Dimensions;
  readonly special_tokens: SpecialTokens;
  /** Decoding options that the checkpoint was trained for, and add_bos. */
  readonly decoding: JsonObject & { readonly add_bos: boolean };
  readonly graph: string;
  readonly weights: string;
  readonly tensors: Readonly<Record<string, TensorRecord>>;
  readonly files: readonly FileRecord[];
  readonly portable_graph?: string | null;
  /** Dialects whose graphs take cosines and sines of rotary angles in place of positions. */
  readonly rotary_inputs?: readonly string[];
  readonly twins?: readonly GraphTwin[];
  /** Options set by the bundle's owner. They override the options of `decoding`. */
  readonly defaults?: JsonObject;
  readonly chat_template?: string | null;
}

const size = int(1, 2 ** 20);
const bytes = int(0, 2 ** 48);
const tokenId = int(0, 2 ** 24 - 1);
const share = float(0, 1);
const name = text(1024);
const sha256 = text(64, /^[0-9a-f]{64}$/, "64 hexadecimal digits");
const heads = int(1, 4096);
const dialect = choice("standard", "portable");
const DTYPES = ["float32", "float16", "bfloat16"];

const DIMENSIONS = record(
  {
    vocab_size: int(TOP_K, 2 ** 24),
    hidden_size: size,
    intermediate_size: int(1, 2 ** 24),
    layers: heads,
    heads,
    kv_heads: heads,
    head_size: int(2, 4096),
    max_positions: int(1, 2 ** 24),
    rope_theta: float(0, 1e15, true),
    rms_norm_eps: float(0, 0.01, true),
  },
  { qkv_bias: bool, qk_norm: bool, partial_rotary_size: nullable(int(2, 4096)), moe: anything },
);

const DECODING = record(
  { block_size: size, block_add_threshold: share, decoded_token_threshold: share, skip_threshold: share, add_bos: bool },
  {
    strategy: text(64),
    attention: choice(...ATTENTIONS, "causal"),
    alignment: choice(...ALIGNMENTS, "sliding"),
    cache: choice(...CACHES),
    confidence: choice(...CONFIDENCES),
    sub_block: nullable(size),
    block_steps: nullable(size),
  },
);

const FILE = record({ path: name, size: bytes, sha256 });
const TENSOR = record({
  dtype: choice(...DTYPES, "int8", "int4"),
  shape: list(int(0, 2 ** 32), 8),
  offset: bytes,
  length: bytes,
});
/** Input of a twin that only CUDA sessions fill. */
const FUSED = record({ name, parts: list(name, 3), axis: int(0, 1) });
const TWIN = record(
  { graph: name, source: name, source_sha256: sha256, provider: choice("cpu", "webgpu", "cuda") },
  { form: choice("packed", "mapped"), fused: list(FUSED, 4 * 4096) },
);

const MANIFEST = record(
  {
    schema: choice(SCHEMA_VERSION),
    contract: choice(CONTRACT_VERSION),
    architecture: text(1024),
    dialect,
    dtype: choice(...DTYPES),
    quantization: nullable(map(anything)),
    with_logits: bool,
    prediction_shift: choice(0, 1),
    dimensions: DIMENSIONS,
    special_tokens: record(
      { mask: tokenId, eos: tokenId, pad: tokenId, bos: nullable(tokenId) },
      { stops: list(tokenId, 64), expand: nullable(tokenId) },
    ),
    decoding: DECODING,
    graph: name,
    weights: name,
    stages: list(anything, 4096),
    tensors: map(TENSOR),
    files: list(FILE, 4096),
    origin: map(anything),
  },
  {
    portable_graph: nullable(name),
    rotary_inputs: list(dialect, 2),
    twins: list(TWIN, 4096),
    plugins: list(name, 4096),
    defaults: map(anything),
    presets: map(anything),
    chat_template: nullable(text(100_000)),
  },
);

const REMEDY = "export the checkpoint again with this version of lopa-export";

/** Read and check a manifest. `source` names it in errors. Throws BadInputError for text that is not JSON, another
 * schema or contract version, missing, unknown and mistyped fields, and numbers out of range. */
export function manifestFromJson(content: Uint8Array, source: string): Manifest {
  const value = objectFromJson(content, source, `check the location, or ${REMEDY}`);
  const versions = { schema: SCHEMA_VERSION, contract: CONTRACT_VERSION };
  for (const [field, known] of Object.entries(versions)) {
    const found = value[field];
    if (found === known || !Number.isInteger(found)) continue;
    reject(
      `${source} has ${field} version ${String(found)}`,
      `${field} version ${known}`,
      (found as number) > known ? `update lopa-web, or ${REMEDY}` : REMEDY,
    );
  }
  const fail: Reject = (received, expected) => reject(`${source} has ${received}`, expected, REMEDY);
  MANIFEST(value, "$", fail);
  checkTogether(value as unknown as Manifest, fail);
  return value as unknown as Manifest;
}

/** Call `fail` for a contradiction between the fields of a manifest. */
function checkTogether(manifest: Manifest, fail: Reject): void {
  const { dimensions, special_tokens: tokens, files } = manifest;
  const tile = 2 * dimensions.layers * dimensions.kv_heads * dimensions.head_size * TILE * 4;
  if (tile > MAX_TILE_BYTES) fail(`caches of ${tile} bytes for ${TILE} positions`, `at most ${MAX_TILE_BYTES} bytes`);
  const { mask, eos, pad, bos, expand = null, stops = [] } = tokens;
  for (const [role, id] of Object.entries({ mask, eos, pad, bos, expand })) {
    if (id !== null && id >= dimensions.vocab_size) {
      fail(`special_tokens.${role} = ${id}`, `a token id below ${dimensions.vocab_size}`);
    }
  }
  if ([eos, bos, ...stops].includes(mask)) {
    fail(`special_tokens.mask = ${mask}, which has another role`, "a separate id");
  }
  const listed = files.map((file) => file.path);
  const twice = listed.find((path, index) => listed.indexOf(path) < index);
  if (twice) fail(`the file ${twice} twice`, "each file listed once");
  const { graph, weights, twins = [], portable_graph: portable } = manifest;
  const unlisted = [graph, weights, ...twins.map((twin) => twin.graph), portable ?? graph].find((path) => !listed.includes(path));
  if (unlisted) fail(`${unlisted}, which is not in its list of files`, "listed files");
}

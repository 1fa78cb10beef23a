/** The decoding options of one request, with the names and values of Python's GenerationConfig
 * (docs/reference/python.md). Each value is checked; `resolve` checks combinations. */

import { reject, shown } from "../errors.js";
import {
  ALIGNMENTS,
  ATTENTIONS,
  CACHES,
  CONFIDENCES,
  MAX_BRANCHES,
  MAX_POSITIONS,
  MAX_STOPS,
  MAX_STOP_CHARACTERS,
  MAX_TEMPERATURE,
  MAX_TOP_K,
  MIN_TEMPERATURE,
  type Alignment,
  type Cache,
  type Confidence,
  type Attention,
} from "../options/decoding_params.js";
import { bool, choice, either, float, int, type Check } from "../bundle/record.js";
import { strategyFromName } from "../strategy/strategies.js";

/** An option of undefined or null selects the default of the bundle, then of the model, then of the package. */
export interface GenerationOptions {
  strategy?: "lopa" | "d2f" | "threshold" | "vanilla" | "sequential" | "eb" | null;
  /** Branches verified per step, anchor included. Default: 1 on cpu and wasm, 4 on webgpu. */
  branches?: number | null;
  block_size?: number | null;
  /** Nats of strategy eb. */
  gamma?: number | null;
  block_add_threshold?: number | null;
  decoded_token_threshold?: number | null;
  skip_threshold?: number | null;
  unmask_first_masked?: boolean | null;
  confidence?: Confidence | null;
  attention?: Attention | null;
  alignment?: Alignment | null;
  sub_block?: number | null;
  block_steps?: number | null;
  cache?: Cache | null;
  max_new_tokens?: number | null;
  temperature?: number | null;
  top_k?: number | null;
  top_p?: number | null;
  /** Seed of random draws. Default, also of -1 and "random": the bundle's, or a random one. */
  seed?: number | bigint | "random" | null;
  /** Texts that end the answer. */
  stop?: readonly string[] | null;
  stop_at_eos?: boolean | null;
  drop_after_eos?: boolean | null;
  /** Parse special tokens in the prompt's text. */
  special_tokens?: boolean | null;
  /** Return the committed text after this many seconds. */
  time_limit?: number | null;
  /** Reproduce the published loop, quirks included. */
  reference?: boolean | null;
}

/** Origin of a request's own options, for errors. */
export const A_REQUEST = "a request";

export type Options = Readonly<Record<string, unknown>>;

const share = float(0, 1);
const positions = int(1, MAX_POSITIONS);

/** The check of each option by name; strategy, seed and stop have their own. */
const CHECKS: Readonly<Record<string, Check>> = {
  branches: int(1, MAX_BRANCHES),
  block_size: positions,
  gamma: either(Infinity, float(0, 1e308)),
  block_add_threshold: share,
  decoded_token_threshold: share,
  skip_threshold: share,
  unmask_first_masked: bool,
  confidence: choice(...CONFIDENCES),
  attention: choice(...ATTENTIONS),
  alignment: choice(...ALIGNMENTS),
  sub_block: positions,
  block_steps: positions,
  cache: choice(...CACHES),
  max_new_tokens: positions,
  temperature: either(0, float(MIN_TEMPERATURE, MAX_TEMPERATURE)),
  top_k: int(0, MAX_TOP_K),
  top_p: float(0, 1, true),
  stop_at_eos: bool,
  drop_after_eos: bool,
  special_tokens: bool,
  time_limit: float(0, 1e9, true),
  reference: bool,
};

/** Options of Python that this package lacks. */
const ONLY_IN_PYTHON = (
  "preset tokens_per_step factor kl_threshold alg steps alg_temp strategy_options entropy_threshold distance_penalty " +
  "remask_threshold remask_limit editing_threshold editing_limit json_schema regex grammar choices reasoning_budget " +
  "logprobs top_logprobs deduplicate_rows speculative eos_early_stop max_forwards anytime min_p presence_penalty " +
  "frequency_penalty repetition_penalty logit_bias stop_token_ids entropy_bound max_denoising_steps t_max t_min " +
  "stability_threshold confidence_threshold"
).split(" ");

/** Values of these options, besides null, that change nothing. */
const UNCHANGED: Readonly<Record<string, readonly unknown[]>> = {
  min_p: [0],
  presence_penalty: [0],
  frequency_penalty: [0],
  repetition_penalty: [1],
  seed: [-1, -1n, "random"],
};

export const OPTION_NAMES: readonly string[] = ["strategy", "seed", "stop", ...Object.keys(CHECKS)];

/** Return the options that have a value, each checked. `source` names their origin in errors. Throws BadInputError for
 * unknown names and invalid values. */
export function checkedOptions(options: Options, source: string): Record<string, unknown> {
  const result: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(options)) {
    const isOther = ONLY_IN_PYTHON.includes(name);
    if (!isOther && !OPTION_NAMES.includes(name)) rejectOption(name, source);
    if (value == null || (isOther && value === false) || UNCHANGED[name]?.includes(value)) continue;
    if (isOther) rejectOption(name, source);
    result[name] = checkedValue(name, value, source);
  }
  return result;
}

function rejectOption(name: string, source: string): never {
  const isOther = name === "tools" || ONLY_IN_PYTHON.includes(name);
  // maxTokens: max_new_tokens
  const words = name.split(/_|(?=[A-Z])/).map((word) => `_${word.toLowerCase()}`);
  const isMeant = (each: string): boolean => words.every((word) => `_${each}`.includes(word));
  const meant = name.length > 2 && [...OPTION_NAMES, "on_step"].find(isMeant);
  reject(
    `${source} with ${isOther ? `${name}, which lopa-web lacks` : `unknown ${shown(name)}`}`,
    `options among ${OPTION_NAMES.join(", ")}`,
    isOther ? "remove it, or decode with Python" : meant ? `did you mean ${meant}?` : "correct or remove it",
  );
}

function checkedValue(name: string, value: unknown, source: string): unknown {
  if (name === "strategy") return strategyFromName(value).name;
  if (name === "seed") return checkedSeed(value);
  if (name === "stop") return checkedStop(value);
  const remedy = source === A_REQUEST ? `correct ${name}` : "decode this bundle with Python";
  CHECKS[name]!(value, name, (received, expected) => reject(`${source} with ${received}`, expected, remedy));
  return value;
}

/** Return the checked seed: a bigint only if no number is exact. */
function checkedSeed(seed: unknown): number | bigint {
  const isWhole = typeof seed === "bigint" || Number.isSafeInteger(seed);
  const value = isWhole ? BigInt(seed as bigint | number) : -1n;
  if (value >= 0n && value < 2n ** 63n) return value < 2n ** 53n ? Number(value) : value;
  reject(`invalid seed ${shown(seed)}`, "a whole number from 0 to 2^63 - 1, as a bigint above 2^53", "use -1 to draw one");
}

function checkedStop(stop: unknown): readonly string[] {
  const isText = (text: unknown): boolean =>
    typeof text === "string" && !/^$|\p{Surrogate}/u.test(text) && Array.from(text).length <= MAX_STOP_CHARACTERS;
  const texts: unknown = Array.isArray(stop) && stop.length <= MAX_STOPS ? Array.from(stop) : null; // no holes
  if (Array.isArray(texts) && texts.every(isText)) return texts as string[];
  reject(
    `invalid stop ${shown(stop)}`,
    `a list of at most ${MAX_STOPS} Unicode strings of 1 to ${MAX_STOP_CHARACTERS} characters`,
    'e.g. stop: ["\\n\\n"]',
  );
}

/** Resolve the options of a request into a decoding params. */

import type { Manifest } from "../bundle/manifest.js";
import { TOP_K } from "../contract/sizes.js";
import { BadInputError, reject, shown } from "../errors.js";
import {
  DEFAULT_BRANCHES,
  PUBLISHED_STEP_LIMIT,
  WHOLE_CACHES,
  type Cache,
  type DecodingParams,
} from "../options/decoding_params.js";
import { strategyFromName } from "../strategy/strategies.js";
import type { Strategy } from "../strategy/strategy.js";
import { A_REQUEST, checkedOptions, type GenerationOptions, type Options } from "./config.js";
import { floor } from "../platform.js";

/** Values of options that neither a request nor a bundle sets. */
const PACKAGE_DEFAULTS: Options = {
  strategy: "lopa",
  block_size: 32,
  block_add_threshold: 0.1,
  decoded_token_threshold: 0.95,
  skip_threshold: 0.9,
  unmask_first_masked: false,
  confidence: "neg_entropy",
  attention: "full",
  alignment: "prompt",
  cache: "blocks",
  max_new_tokens: 256,
  temperature: 0,
  stop: [],
  stop_at_eos: true,
  drop_after_eos: true,
  special_tokens: false,
  reference: false,
};
/** Minimum number of positions that may be unmasked at a time for lookahead branches to save time. */
const MIN_TO_LOOK_AHEAD = 8;

/** A params of which no field is checked yet. */
type Merged = { readonly [Name in keyof DecodingParams]?: DecodingParams[Name] };

/** Return the parameters of a request from its options, the bundle's defaults, the model's own options and the package's.
 *
 * Earlier ones take precedence. Defaults that contradict a requested option are dropped. Throws BadInputError for
 * unknown options, invalid values and invalid combinations. */
export function paramsFromOptions(options: GenerationOptions, manifest: Manifest, device: string): DecodingParams {
  const requested = checkedOptions(options as Options, A_REQUEST);
  const { add_bos: _, ...decoding } = manifest.decoding;
  const own = checkedOptions(decoding, "a bundle");
  const { preset: __, ...ownerDefaults } = manifest.defaults ?? {};
  const defaults = checkedOptions(ownerDefaults, "a bundle's defaults");
  return resolve({ ...applicableDefaults(own, defaults, requested), ...requested }, own, device);
}

/** Return the defaults that apply together with the requested options. The default strategy applies unless one is
 * requested. */
function applicableDefaults(own: Options, defaults: Options, requested: Options): Options {
  const found: Record<string, unknown> = {};
  if ("strategy" in defaults && !("strategy" in requested)) found["strategy"] = defaults["strategy"];
  const others = Object.entries(defaults).filter(([name]) => !(name in requested) && name !== "strategy");
  // An option may need another one.
  for (let count = -1; count < Object.keys(found).length; ) {
    count = Object.keys(found).length;
    for (const [name, value] of others) {
      if (!(name in found) && isValid({ ...requested, ...found, [name]: value }, own)) found[name] = value;
    }
  }
  return found;
}

function isValid(given: Options, own: Options): boolean {
  try {
    resolve(given, own, "cpu");
    return true;
  } catch (error) {
    if (error instanceof BadInputError) return false;
    throw error;
  }
}

/** Return the parameters of the `given` options and the model's `own` ones. */
function resolve(given: Options, own: Options, device: string): DecodingParams {
  const usual: Record<string, unknown> = { ...PACKAGE_DEFAULTS, ...own };
  const strategy = strategyFromName({ ...usual, ...given }["strategy"]);
  if (strategy.pipelined) usual["cache"] = "blocks";
  if (!strategy.blockSteps) usual["block_steps"] = null;
  const options = { ...usual, ...given } as Merged;
  checkTogether(options, strategy);
  const { temperature, reference } = options as { temperature: number; reference: boolean };
  const blockSize = options.block_size!;
  const newTokens = options.max_new_tokens!;
  return {
    ...(options as DecodingParams),
    strategy: strategy.name,
    gamma: options.gamma ?? 0.2,
    branches: branchCount(options, strategy, device),
    block_add_threshold: strategy.pipelined ? options.block_add_threshold! : 1,
    sub_block: options.sub_block ?? blockSize,
    block_steps: options.block_steps ?? blockSize,
    positions: newTokens - (reference ? newTokens % blockSize : 0),
    // Without a seed each sampled answer draws its own, as in Python.
    seed: options.seed ?? (temperature > 0 ? floor(Math.random() * 2 ** 32) : 0),
    top_k: options.top_k ?? TOP_K,
    top_p: options.top_p ?? 1,
    filters: temperature > 0 && (options.top_k !== undefined || options.top_p !== undefined),
    top_p_of_kept: reference && options.alignment === "absolute" && Boolean(options.top_k),
    drop_after_eos: options.drop_after_eos! && options.stop_at_eos! && !reference,
    time_limit: options.time_limit ?? Infinity,
    step_limit: PUBLISHED_STEP_LIMIT,
    overwrites_unmasked: reference && options.block_steps != null,
  };
}

/** Return the number of branches per step. */
function branchCount(options: Merged, strategy: Strategy, device: string): number {
  if (!strategy.looksAhead) return 1;
  if (options.branches) return options.branches;
  if (strategy.defaultBranches) return strategy.defaultBranches;
  if (options.reference) return DEFAULT_BRANCHES;
  const open = options.sub_block ?? options.block_size!;
  if (options.block_add_threshold! >= 1 && open < MIN_TO_LOOK_AHEAD) return 1;
  return device === "webgpu" ? DEFAULT_BRANCHES : 1;
}

/** Throw BadInputError for an invalid combination of options. */
function checkTogether(options: Merged, strategy: Strategy): void {
  const { cache, block_size: size = 0 } = options;
  const isWhole = WHOLE_CACHES.includes(cache as Cache);
  const named = `strategy ${shown(strategy.name)}`;
  for (const name of ["sub_block", "block_steps"] as const) {
    const value = options[name];
    if (value != null && value > size) rejectTogether(`${name} ${value}`, `a whole number from 1 to ${size}`);
  }
  if (options.gamma !== undefined && strategy.name !== "eb") {
    rejectTogether(`gamma ${options.gamma} with ${named}`, "strategy eb with this option");
  }
  if (options.unmask_first_masked && (!strategy.unmasksFirst || options.reference)) {
    rejectTogether(
      `unmask_first_masked with ${options.reference ? "reference mode" : named}`,
      "strategy lopa, d2f, threshold or eb, and no reference mode",
    );
  }
  if (cache !== "blocks" && strategy.pipelined) {
    rejectTogether(`cache ${shown(cache)} with ${named}`, "a strategy with one block at a time, e.g. threshold");
  }
  if (options.block_steps != null && !strategy.blockSteps) {
    rejectTogether(`block_steps with ${named}`, "strategy threshold, vanilla or sequential");
  }
  if (isWhole && (options.alignment !== "prompt" || options.attention !== "full")) {
    rejectTogether(
      `cache ${shown(cache)} with alignment ${shown(options.alignment)} and attention ${shown(options.attention)}`,
      "alignment prompt and attention full",
    );
  }
  if (cache === "sub_block" && options.sub_block == null) {
    rejectTogether('cache "sub_block" without the option sub_block', "both, e.g. sub_block 8");
  }
  if (options.branches! > 1 && !strategy.looksAhead) {
    rejectTogether(`branches ${options.branches} with ${named}`, "one branch, or strategy lopa or eb");
  }
}

function rejectTogether(received: string, expected: string): never {
  reject(`cannot combine ${received}`, expected, "change one of these options");
}

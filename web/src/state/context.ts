/** The constants of a decode: params, strategy and the model's special tokens. */

import type { Manifest } from "../bundle/manifest.js";
import type { DecodingParams } from "../options/decoding_params.js";
import { strategyFromName } from "../strategy/strategies.js";
import type { Strategy } from "../strategy/strategy.js";

/** Architecture whose published loops differ from SDAR's (docs/concepts/decoding.md, "Reference mode"). */
const LLADA2 = "llada2-moe";

export interface Context {
  readonly params: DecodingParams;
  readonly strategy: Strategy;
  readonly maskToken: number;
  readonly padToken: number;
  /** Tokens that end the decode and the answer; empty with stop_at_eos off. */
  readonly ends: readonly number[];
  readonly predictionShift: number;
  readonly vocabSize: number;
  /** Token that stands for two masked positions; null if the model has none. */
  readonly expandToken?: number | null;
  /** True if reference mode reproduces LLaDA2's published loops. */
  readonly isLlada2: boolean;
}

/** Return the context in which a model decodes a request by `params`. */
export function contextFromManifest(params: DecodingParams, manifest: Manifest): Context {
  const tokens = manifest.special_tokens;
  const isLlada2 = params.reference && manifest.architecture === LLADA2;
  return {
    params: isLlada2 ? { ...params, overwrites_unmasked: false } : params,
    strategy: strategyFromName(params.strategy),
    maskToken: tokens.mask,
    padToken: tokens.pad,
    ends: params.stop_at_eos ? [tokens.eos, ...(tokens.stops ?? [])] : [],
    predictionShift: manifest.prediction_shift,
    vocabSize: manifest.dimensions.vocab_size,
    expandToken: tokens.expand ?? null,
    isLlada2,
  };
}

/** Return the tokens that are never written: outside reference mode the mask and expand tokens. */
export function unwrittenTokens({ params, maskToken, expandToken }: Context): number[] {
  if (params.reference) return [];
  return expandToken == null ? [maskToken] : [maskToken, expandToken];
}

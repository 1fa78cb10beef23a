/** The decoding params of one request: every option has a value. */

export const CONFIDENCES = ["neg_entropy", "probability", "margin"] as const;
export const ATTENTIONS = ["full", "block_causal"] as const;
export const ALIGNMENTS = ["prompt", "absolute"] as const;
export const CACHES = ["blocks", "none", "prefix", "dual", "sub_block"] as const;
export type Confidence = (typeof CONFIDENCES)[number];
export type Attention = (typeof ATTENTIONS)[number];
export type Alignment = (typeof ALIGNMENTS)[number];
export type Cache = (typeof CACHES)[number];

/** Caches for which the sequence contains the whole answer from the start. */
export const WHOLE_CACHES: readonly Cache[] = CACHES.slice(1, 4);
/** Default number of branches on WebGPU and in reference mode. */
export const DEFAULT_BRANCHES = 4;
export const MAX_BRANCHES = 64;
export const MAX_POSITIONS = 2 ** 31 - 1;
export const MIN_TEMPERATURE = 1e-3;
export const MAX_TEMPERATURE = 1e3;
export const MAX_TOP_K = 2 ** 24;
export const MAX_STOPS = 64;
export const MAX_STOP_CHARACTERS = 1024;
/** Steps after which the published D2F loop stops. */
export const PUBLISHED_STEP_LIMIT = 1001;

/** Fields are named like the options that they come from. */
export interface DecodingParams {
  readonly strategy: string;
  /** Nats of strategy eb. */
  readonly gamma: number;
  /** Maximum number of branches per step, anchor included. */
  readonly branches: number;
  readonly block_size: number;
  /** Unmasked share of the last block at which the next one opens; 1 if blocks are unmasked one by one. */
  readonly block_add_threshold: number;
  readonly decoded_token_threshold: number;
  readonly skip_threshold: number;
  readonly unmask_first_masked: boolean;
  readonly confidence: Confidence;
  readonly attention: Attention;
  readonly alignment: Alignment;
  /** Positions of a block that may be unmasked at a time. */
  readonly sub_block: number;
  /** Maximum number of steps per block. */
  readonly block_steps: number;
  readonly cache: Cache;
  readonly max_new_tokens: number;
  /** Number of positions to generate. The published loop drops a shorter last block. */
  readonly positions: number;
  readonly temperature: number;
  /** Number of candidates to draw among; 0 for all. */
  readonly top_k: number;
  readonly top_p: number;
  /** True if top_k and top_p apply. */
  readonly filters: boolean;
  /** True if top_p is a share of the candidates that top_k keeps, as in SDAR's published loop. */
  readonly top_p_of_kept: boolean;
  /** A number up to 2^53 - 1. A larger seed is a bigint, which JSON.stringify rejects. */
  readonly seed: number | bigint;
  readonly stop: readonly string[];
  readonly stop_at_eos: boolean;
  readonly drop_after_eos: boolean;
  readonly special_tokens: boolean;
  /** Seconds after which the committed text is returned. */
  readonly time_limit: number;
  readonly reference: boolean;
  readonly step_limit: number;
  /** True if a rule that unmasks a fixed number of positions overwrites unmasked ones if too few are masked. */
  readonly overwrites_unmasked: boolean;
}

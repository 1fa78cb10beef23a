/** Record of one decoding step: branches, unmasked tokens, timings. */

import type { Branch, Lookahead } from "../state/branch.js";
import type { Windows } from "../state/windows.js";

/** The tokens that a round unmasked, by block and position. */
export interface UnmaskedTokens {
  readonly positions: readonly number[];
  readonly tokens: readonly number[];
  /** Probabilities of the tokens as the strategy saw them. */
  readonly probabilities: readonly number[];
}

export interface Step {
  /** Number of the step, 1 for the first. */
  readonly number: number;
  /** Verified branches, the anchor last. */
  readonly branches: readonly Branch[];
  readonly windows: Windows;
  readonly confidences: readonly number[];
  readonly winner: number;
  readonly unmasked: UnmaskedTokens;
  /** Lookahead tokens of the next step. */
  readonly lookaheads: readonly Lookahead[];
  /** Seconds of the forward, and of the rest of the step. */
  readonly seconds: { readonly forward: number; readonly host: number };
}

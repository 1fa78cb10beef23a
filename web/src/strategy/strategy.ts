/** The record of a strategy: its stages and traits (docs/concepts/decoding.md, "Six stages").
 *
 * `threshold` returns the value that each position has to exceed, `rank` orders the positions, `cut` returns how many
 * of the certain positions are unmasked, by rank. A fully activated block unmasks at least its share of a step. */

import type { DecodingParams } from "../options/decoding_params.js";
import { indicesOfTopk } from "./topk_ties.js";
import type { BlockView } from "./views.js";
import { floor, fround, max, min } from "../platform.js";

export interface Strategy {
  readonly name: string;
  /** Limit that the probability of every position of a block has to exceed. */
  readonly threshold: (block: BlockView, params: DecodingParams) => number;
  /** Rank values [n]. The largest ranks first, and the lower position among equal values. */
  readonly rank: (block: BlockView) => readonly number[];
  /** Function of the indices of a block's certain positions by rank. It returns how many of them are unmasked. */
  readonly cut: (ranked: readonly number[], block: BlockView, params: DecodingParams) => number;
  /** True if several blocks may be unmasked at a time, false if one by one. */
  readonly pipelined: boolean;
  readonly looksAhead: boolean;
  /** Default number of branches; null for the device's default. */
  readonly defaultBranches: number | null;
  /** True if the option `block_steps` determines the minimum number of positions per step. */
  readonly blockSteps: boolean;
  readonly unmasksFirst: boolean;
  /** True if the published loop overwrites unmasked positions when too few are masked. */
  readonly overwritesUnmasked: boolean;
}

/** Return skip_threshold. */
export const constant: Strategy["threshold"] = (_, params) => fround(params.skip_threshold);

/** Return infinity: no position is certain. */
export const never: Strategy["threshold"] = () => Infinity;

/** Return minus infinity, which makes every position certain, or infinity in an incomplete block whose best
 * probability does not exceed skip_threshold. */
export const ifBestIsCertain: Strategy["threshold"] = (block, params) => {
  const best = max(0, ...block.candidates.probabilities.filter((_, index) => block.masked[index]));
  return block.fullyActivated || best > fround(params.skip_threshold) ? -Infinity : Infinity;
};

/** Rank the most confident position first. */
export const byConfidence: Strategy["rank"] = (block) => block.candidates.confidences;

/** Rank the lowest position first. */
export const leftToRight: Strategy["rank"] = (block) => block.masked.map((_, index) => -index);

/** Return the number of all certain positions. */
export const noLimit: Strategy["cut"] = (ranked) => ranked.length;

/** Accept the longest prefix whose entropies sum to at most gamma nats, excluding the largest (EB-Sampler, arXiv
 * 2505.24857). A gamma of 0 accepts one position, since a model's entropy is 0 only by rounding. */
export const withinEntropyBound: Strategy["cut"] = (ranked, block, params) => {
  if (params.gamma === 0) return min(1, ranked.length);
  let [sum, largest, count] = [0, 0, 0];
  for (const index of ranked) {
    const entropy = max(block.candidates.entropies[index]!, 0);
    sum += entropy;
    largest = max(largest, entropy);
    count += Number(sum - largest <= params.gamma);
  }
  return count;
};

/** Return the positions of a block that a step unmasks, [n].
 *
 * They are the first by rank of the positions above the threshold, up to the cut. A fully activated block with fewer of them
 * than the minimum unmasks the first by rank of all its masked positions instead. With unmask_first_masked the answer's
 * first masked position is certain and ranks first. */
export function unmaskedPositions(block: BlockView, strategy: Strategy, params: DecodingParams): boolean[] {
  const first = params.unmask_first_masked && block.leads ? block.masked.indexOf(true) : -1;
  const ranks = strategy.rank(block).map((rank, index) => (index === first ? Infinity : rank));
  const limit = strategy.threshold(block, params);
  const certain = block.masked.map(
    (masked, index) => masked && (index === first || block.candidates.probabilities[index]! > limit),
  );
  const ranked = rankedIndices(ranks, certain);
  let chosen = ranked.slice(0, max(strategy.cut(ranked, block, params), first >= 0 ? 1 : 0));
  const minimum = shareOfStep(block, params);
  if (chosen.length < minimum && block.fullyActivated && block.masked.includes(true)) {
    chosen =
      params.overwrites_unmasked && strategy.overwritesUnmasked
        ? indicesOfTopk(
            ranks.map((rank, index) => (block.masked[index] ? rank : -Infinity)),
            min(minimum, ranks.length),
          )
        : rankedIndices(ranks, block.masked).slice(0, minimum);
  }
  const result = block.masked.map(() => false);
  for (const index of chosen) result[index] = true;
  return result;
}

/** Return the step's share of a block that is unmasked in block_steps equal steps; the first steps take the
 * remainder. */
function shareOfStep(block: BlockView, params: DecodingParams): number {
  const more = params.block_size % params.block_steps;
  return max(1, floor(params.block_size / params.block_steps) + Number(block.rounds < more));
}

/** Return the indices that are true in `among`, the largest rank first. The sort is stable. */
function rankedIndices(ranks: readonly number[], among: readonly boolean[]): number[] {
  const found = ranks.map((_, index) => index).filter((index) => among[index]);
  return found.sort((one, other) => descending(ranks[one]!, ranks[other]!));
}

/** Compare two numbers, the larger one first. Infinities of one sign are equal. */
export const descending = (one: number, other: number): number => (one === other ? 0 : other > one ? 1 : -1);

/** Draw tokens from a forward's candidates or logits.
 *
 * A draw depends only on seed, step and position, so it is the same on every branch. Numbers are rounded to float32
 * where Python's are, so that both draw the same tokens. */

import { TOP_K } from "../contract/sizes.js";
import type { DecodingParams } from "../options/decoding_params.js";
import { descending } from "../strategy/strategy.js";
import { uniformNumbers } from "./philox.js";
import { floor, fround, max, min } from "../platform.js";

/** Random streams of candidates and of the whole vocabulary. */
const [CANDIDATES, VOCABULARY] = [0, 1];
/** Length up to which numpy sums with eight accumulators; longer arrays are halved. */
const SUMMED_AT_ONCE = 128;
const ACCUMULATORS = 8;

/** Return log-probabilities, best first, after top_p, then top_k, normalized again over the remaining candidates. */
export function filterCandidates(logprobs: readonly number[], params: DecodingParams): number[] {
  let probabilities = logprobs.map(exp32);
  if (params.top_p_of_kept) {
    const kept = sum32(probabilities.slice(0, params.top_k));
    probabilities = probabilities.map((probability) => fround(probability / kept));
  }
  let sum = 0;
  const relative = logprobs.map((logprob, index) => {
    // A candidate stays while the mass before it is below top_p. The first always stays.
    sum = fround(sum + probabilities[index]!);
    const isWithin = params.top_p >= 1 || fround(sum - probabilities[index]!) < fround(params.top_p);
    const keep = isWithin && (params.top_k === 0 || index < params.top_k);
    // Relative to the best, which stays: a single candidate has log-probability 0, and rounding does not rank it.
    return keep ? fround(logprob - logprobs[0]!) : -Infinity;
  });
  const total = fround(Math.log(sum32(relative.map(exp32))));
  return relative.map((logprob) => fround(logprob - total));
}

/** Return log-probabilities [V] of `logits` [V] at the temperature, after top_p, then top_k. The tokens
 * `without` get probability 0. */
export function filterVocabulary(logits: Float32Array, params: DecodingParams, without: readonly number[]): number[] {
  const temperature = fround(params.temperature || 1);
  const tempered = Array.from(logits, (logit, id) => (without.includes(id) ? -Infinity : fround(logit / temperature)));
  const best = tempered.reduce((one, other) => max(one, other));
  const total = fround(Math.log(sum32(tempered.map((logit) => exp32(fround(logit - best))))));
  const logprobs = tempered.map((logit) => fround(fround(logit - best) - total));
  if (params.top_k === 0 && params.top_p >= 1) return logprobs;
  const order = logprobs.map((_, id) => id).sort((one, other) => descending(logprobs[one]!, logprobs[other]!));
  const filtered = filterCandidates(
    order.map((id) => logprobs[id]!),
    params,
  );
  const result = new Array<number>(logprobs.length);
  order.forEach((id, rank) => (result[id] = filtered[rank]!));
  return result;
}

type Draw = (logprobs: readonly number[], params: DecodingParams, step: number, position: number) => number;

/** Return the index drawn from the log-probabilities [TOP_K] of the candidates at `position`. */
export const drawCandidate: Draw = (logprobs, params, step, position) =>
  drawn(logprobs, uniformNumbers(params.seed, [0, step, CANDIDATES], position * TOP_K, TOP_K));

/** Return the id drawn from the log-probabilities [V] of the vocabulary at `position`. */
export const drawToken: Draw = (logprobs, params, step, position) =>
  drawn(logprobs, uniformNumbers(params.seed, [position, step, VOCABULARY], 0, logprobs.length));

/** Return the index of a draw by the Gumbel-max trick. */
const drawn = (logprobs: readonly number[], uniform: Float64Array): number =>
  indexOfMax(logprobs.map((logprob, index) => fround(logprob + gumbel(uniform[index]!))));

function gumbel(uniform: number): number {
  const clipped = min(max(uniform, 1e-12), 1 - 1e-12);
  return fround(-Math.log(-Math.log(clipped)));
}

/** Return the sum of p ln p, skipping probabilities of 0. */
export const negEntropyOfKept = (logprobs: readonly number[]): number =>
  sum32(logprobs.map((logprob) => (logprob === -Infinity ? 0 : fround(exp32(logprob) * logprob))));

export const exp32 = (value: number): number => fround(Math.exp(value));

/** Return the sum of float32 numbers, rounded in numpy's order of additions. */
export function sum32(values: readonly number[]): number {
  const count = values.length;
  if (count > SUMMED_AT_ONCE) {
    const half = floor(count / 2);
    const middle = half - (half % ACCUMULATORS);
    return fround(sum32(values.slice(0, middle)) + sum32(values.slice(middle)));
  }
  const add = (one: number, other: number): number => fround(one + other);
  if (count < ACCUMULATORS) return values.reduce(add, 0);
  const sums = values.slice(0, ACCUMULATORS);
  const whole = count - (count % ACCUMULATORS);
  for (let index = ACCUMULATORS; index < whole; index++) {
    sums[index % ACCUMULATORS] = add(sums[index % ACCUMULATORS]!, values[index]!);
  }
  const pairs = [0, 2, 4, 6].map((index) => add(sums[index]!, sums[index + 1]!));
  const sum = add(add(pairs[0]!, pairs[1]!), add(pairs[2]!, pairs[3]!));
  return values.slice(whole).reduce(add, sum);
}

/** Return the index of the largest value, the first one of equal values. */
export const indexOfMax = (values: readonly number[]): number =>
  values.reduce((best, value, index) => (value > values[best]! ? index : best), 0);

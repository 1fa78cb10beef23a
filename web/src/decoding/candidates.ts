/** Choose one candidate token per position from a forward's statistics, with its probability and confidence.
 *
 * docs/reference/algorithm.md, section 3, has the published rules. */

import { rejectStatistics, type RowStatistics } from "../contract/row_statistics.js";
import { TOP_K, range } from "../contract/sizes.js";
import { reject } from "../errors.js";
import type { DecodingParams } from "../options/decoding_params.js";
import { unwrittenTokens, type Context } from "../state/context.js";
import type { Candidates } from "../strategy/views.js";
import {
  drawCandidate,
  drawToken,
  exp32,
  filterCandidates,
  filterVocabulary,
  indexOfMax,
  negEntropyOfKept,
} from "./draws.js";
import { fround, max } from "../platform.js";

interface Candidate {
  readonly token: number;
  readonly probability: number;
  /** Difference of the two largest probabilities. */
  readonly margin: number;
  readonly negEntropy: number;
}

/** Return greedy or drawn candidates for `rows` [n] at absolute `positions` [n].
 *
 * At a temperature, tokens are drawn among the TOP_K best (after top_k and top_p), or from the rows' logits if top_k
 * allows more. `step`, the number of the strategy's step, seeds the draws. */
export function candidatesFromRows(
  rows: RowStatistics,
  positions: readonly number[],
  context: Context,
  step: number,
): Candidates {
  const choose = drawsFromLogits(context.params) ? candidateFromLogits : candidateFromTopK;
  const found = positions.map((position, row) => choose(rows, row, position, context, step));
  return {
    tokens: found.map((each) => each.token),
    probabilities: found.map((each) => each.probability),
    confidences: found.map((each) => confidenceOf(each, context.params)),
    entropies: found.map((each) => -each.negEntropy),
  };
}

/** Return true if tokens are drawn from more candidates than the TOP_K of a forward. */
export const drawsFromLogits = (params: DecodingParams): boolean =>
  params.filters && !(params.top_k >= 1 && params.top_k <= TOP_K);

/** Throw BadInputError for parameters that need logits, for a bundle without logits. */
export function rejectLogits(params: DecodingParams): never {
  reject(
    `top_k ${params.top_k} with a bundle that returns only the ${TOP_K} best candidates`,
    `top_k from 1 to ${TOP_K}, or a bundle that returns logits`,
    "lower top_k, or export the checkpoint with --with-logits",
  );
}

function confidenceOf(candidate: Candidate, params: DecodingParams): number {
  if (params.confidence === "probability") return candidate.probability;
  return params.confidence === "margin" ? candidate.margin : candidate.negEntropy;
}

function candidateFromTopK(
  rows: RowStatistics,
  row: number,
  position: number,
  context: Context,
  step: number,
): Candidate {
  const { params } = context;
  const unwritten = unwrittenTokens(context);
  const columns = range(row * TOP_K, (row + 1) * TOP_K).filter((column) => !unwritten.includes(rows.ids[column]!));
  if (!columns.length) {
    rejectStatistics(
      `the forward returned no token that can be written at position ${position}`,
      "a candidate other than the mask token",
    );
  }
  // The other candidates have probability 0, behind these.
  let logprobs = range(0, TOP_K).map((rank) => rows.logprobs[columns[rank] ?? -1] ?? -Infinity);
  let negEntropy = -rows.entropies[row]!;
  if (params.filters) {
    logprobs = filterCandidates(logprobs, params);
    negEntropy = negEntropyOfKept(logprobs);
  }
  const choice = params.temperature > 0 ? drawCandidate(logprobs, params, step, position) : 0;
  return {
    token: rows.ids[columns[choice]!]!,
    probability: exp32(logprobs[choice]!),
    margin: fround(exp32(logprobs[0]!) - exp32(logprobs[1]!)),
    negEntropy,
  };
}

function candidateFromLogits(
  rows: RowStatistics,
  row: number,
  position: number,
  context: Context,
  step: number,
): Candidate {
  const { params } = context;
  if (!rows.logits) rejectLogits(params);
  const width = rows.logits.length / rows.count;
  const logits = rows.logits.subarray(row * width, (row + 1) * width);
  const logprobs = filterVocabulary(logits, params, unwrittenTokens(context));
  const token = params.temperature > 0 ? drawToken(logprobs, params, step, position) : indexOfMax(logprobs);
  const best = indexOfMax(logprobs);
  const second = logprobs.reduce((found, value, id) => (id === best ? found : max(found, value)), -Infinity);
  return {
    token,
    probability: exp32(logprobs[token]!),
    margin: fround(exp32(logprobs[best]!) - exp32(second)),
    negEntropy: negEntropyOfKept(logprobs),
  };
}

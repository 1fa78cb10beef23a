/** A round of one request: score the branches, find the winner, unmask, and make the next branches
 * (docs/reference/algorithm.md, section 6 E to K). */

import type { RowStatistics } from "../contract/row_statistics.js";
import { range } from "../contract/sizes.js";
import { activeBlocks, withFirstOfNextBlock, withTokens, type Branch, type Lookahead } from "../state/branch.js";
import type { Context } from "../state/context.js";
import { branchesOfRound, handsOver, nextLookahead, normalizeBranch } from "../state/pipeline.js";
import { openAmong, openSpan, type Windows } from "../state/windows.js";
import { descending, unmaskedPositions } from "../strategy/strategy.js";
import { candidatesAt, type Candidates } from "../strategy/views.js";
import { candidatesFromRows } from "./candidates.js";
import { indexOfMax, sum32 } from "./draws.js";
import type { UnmaskedTokens } from "./step.js";
import { fround } from "../platform.js";

/** Confidence of a branch without masked positions. It exceeds every other confidence. */
const FINISHED_CONFIDENCE = 1;

/** The scores of a round's branches, the anchor last. */
export interface Scores {
  readonly windows: Windows;
  /** Candidates of each branch at its sampled positions. */
  readonly candidates: readonly Candidates[];
  readonly confidences: readonly number[];
  readonly winner: number;
  /** Number of the strategy's step, which seeds draws. */
  readonly step: number;
}

/** The result of a round for the branch that won. */
export interface RoundOutcome {
  /** Normalized branch after unmasking. */
  readonly branch: Branch;
  readonly unmasked: UnmaskedTokens;
  /** Positions that may get the next round's lookahead tokens, ascending. */
  readonly left: readonly number[];
  /** Candidates at `left`. */
  readonly proposed: Candidates;
}

/** Return the scores of the branches of `windows` in step number `step`, from the statistics `rows` [B * Q]. */
export function scoreBranches(windows: Windows, rows: RowStatistics, step: number, context: Context): Scores {
  const candidates = windows.sampled.map((positions, number) => {
    const first = number * windows.queries + windows.keptColumns;
    return candidatesFromRows(rows.at(range(first, first + positions.length)), positions, context, step);
  });
  const confidences = candidates.map(branchConfidence);
  return { windows, candidates, confidences, winner: indexOfMax(confidences), step };
}

/** Return the mean confidence over all masked positions of a branch before any is unmasked (section 6 E). */
const branchConfidence = ({ confidences }: Candidates): number =>
  confidences.length ? fround(sum32(confidences) / confidences.length) : FINISHED_CONFIDENCE;

/** Return the result for the winner `branch`: unmasked and normalized (section 6 H). */
export function unmask(scores: Scores, branch: Branch, rows: RowStatistics, context: Context): RoundOutcome {
  const { windows, winner } = scores;
  const [positions, candidates] = [windows.sampled[winner]!, scores.candidates[winner]!];
  if (windows.keptColumns && handsOver(branch)) {
    return withFirstToken(branch, rows.at([winner * windows.queries]), scores.step, context);
  }
  const chosen = choosePositions(branch, positions, candidates, context);
  const indices = chosen.flatMap((isChosen, index) => (isChosen ? [index] : []));
  const unmasked = unmaskedTokens(positions, candidates, indices);
  const after = normalizeBranch(withTokens(branch, unmasked.positions, unmasked.tokens, context), context);
  const open = openAmong(after, positions, context.params);
  const left = open.flatMap((isOpen, index) => (isOpen && !chosen[index] ? [index] : []));
  return {
    branch: after,
    unmasked,
    left: left.map((index) => positions[index]!),
    proposed: candidatesAt(candidates, left),
  };
}

/** Return the branches of the next round and their lookahead tokens (section 6 J and K): at most `count` lookaheads by
 * rank, then `anchor`.
 *
 * The published loop makes the anchor twice if no position is left for a lookahead (quirk 2). */
export function spawnBranches(
  anchor: Branch,
  outcome: RoundOutcome,
  count: number,
  context: Context,
): [readonly Branch[], readonly Lookahead[]] {
  const lookaheads = bestLookaheads(outcome, count);
  const branches = lookaheads.map((lookahead) => nextLookahead(outcome.branch, lookahead, context));
  if (!branches.length && context.params.reference && context.params.branches > 1) branches.push(anchor);
  return [branchesOfRound([...branches, anchor], context), lookaheads];
}

/** Return which of `positions` the strategy unmasks, block by block. */
function choosePositions(
  branch: Branch,
  positions: readonly number[],
  candidates: Candidates,
  context: Context,
): boolean[] {
  const { params, strategy } = context;
  const chosen = positions.map(() => false);
  const firstMasked = branch.unmasked.indexOf(false);
  for (const block of activeBlocks(branch)) {
    const [start, end] = openSpan(branch, block, params);
    const own = positions.flatMap((position, index) => (start <= position && position < end ? [index] : []));
    const view = {
      candidates: candidatesAt(candidates, own),
      masked: own.map((index) => !branch.unmasked[positions[index]!]),
      fullyActivated: block.fullyActivated,
      rounds: block.rounds,
      leads: firstMasked < 0 || firstMasked >= block.start,
    };
    unmaskedPositions(view, strategy, params).forEach((isChosen, index) => (chosen[own[index]!] = isChosen));
  }
  return chosen;
}

/** Return the result with the first token of the next block, which the last row of a committed block proposes. It
 * needs no threshold (Fast-dLLM v2's rule). */
function withFirstToken(branch: Branch, row: RowStatistics, step: number, context: Context): RoundOutcome {
  const positions = [branch.blocks.at(-1)!.end];
  const candidates = candidatesFromRows(row, positions, context, step);
  const longer = withFirstOfNextBlock(branch, candidates.tokens[0]!, context);
  return {
    branch: normalizeBranch(longer, context),
    unmasked: unmaskedTokens(positions, candidates, [0]),
    left: [],
    proposed: candidatesAt(candidates, []),
  };
}

function unmaskedTokens(
  positions: readonly number[],
  candidates: Candidates,
  indices: readonly number[],
): UnmaskedTokens {
  const { tokens, probabilities } = candidatesAt(candidates, indices);
  return { positions: indices.map((index) => positions[index]!), tokens, probabilities };
}

/** Return the `count` most confident of the remaining positions, best first, ties by position. */
function bestLookaheads({ left, proposed }: RoundOutcome, count: number): Lookahead[] {
  const { confidences, probabilities, tokens } = proposed;
  const order = left.map((_, index) => index).sort((one, other) => descending(confidences[one]!, confidences[other]!));
  return order.slice(0, count).map((index, rank) => ({
    rank,
    position: left[index]!,
    token: tokens[index]!,
    confidence: confidences[index]!,
    probability: probabilities[index]!,
  }));
}

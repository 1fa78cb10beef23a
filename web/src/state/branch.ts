/** A branch: one hypothesis of the sequence, with its blocks and tokens (docs/reference/algorithm.md, sections 1 and
 * 4). */

import type { Context } from "./context.js";
import type { Layout } from "./layout.js";
import { min } from "../platform.js";

export type StopReason = "eos" | "length" | "stop_string" | "time_limit" | "step_limit" | "cancelled";

/** State of a block: active (being unmasked), to be cached, or cached. */
export type BlockState = "active" | "to_cache" | "in_cache";

/** Positions [start, end) of a sequence, of which `masks` are masked. Block 0 is the prompt, or the part of it that
 * fills whole blocks. */
export interface Block {
  readonly start: number;
  readonly end: number;
  readonly masks: number;
  readonly state: BlockState;
  /** True once the block before is nearly unmasked, so that this block unmasks at least one position per step. */
  readonly fullyActivated: boolean;
  /** Number of rounds in which the block was active. */
  readonly rounds: number;
}

/** A token that a lookahead branch assumes before verification. Rank 0 is the most confident. */
export interface Lookahead {
  readonly rank: number;
  readonly position: number;
  readonly token: number;
  readonly confidence: number;
  readonly probability: number;
}

/** Prompt and generated blocks of one hypothesis. Masked positions hold the mask token. */
export interface Branch {
  readonly tokens: readonly number[];
  /** True for unmasked positions, and for the whole prompt even if it contains the mask token. */
  readonly unmasked: readonly boolean[];
  readonly blocks: readonly Block[];
  /** True once an end of text is written; no block is added after it. */
  readonly ended: boolean;
  /** Lookahead token; null for the anchor. */
  readonly lookahead: Lookahead | null;
  readonly layout: Layout;
}

/** Return the blocks that are being unmasked. */
export const activeBlocks = (branch: Branch): readonly Block[] =>
  branch.blocks.filter((block) => block.state === "active");

/** Return the blocks that the next forward commits to the cache. They are adjacent. */
export const dueBlocks = (branch: Branch): readonly Block[] =>
  branch.blocks.filter((block) => block.state === "to_cache");

/** Return the anchor before the first round: the prompt and, with a `whole` layout, masked positions behind it. */
export function firstBranch(prompt: readonly number[], layout: Layout, context: Context): Branch {
  const cached = layout.unseen;
  const usual = { masks: 0, fullyActivated: true, rounds: 0 };
  const inCache: Block = { ...usual, start: 0, end: cached, state: "in_cache" };
  const toCache: Block = { ...usual, start: cached, end: layout.first, state: "to_cache" };
  const branch: Branch = {
    tokens: prompt,
    unmasked: prompt.map(() => true),
    blocks: cached === layout.first && cached > 0 ? [inCache] : cached ? [inCache, toCache] : [toCache],
    ended: false,
    lookahead: null,
    layout,
  };
  return layout.whole ? withMasks(branch, layout.end - layout.prompt, context) : branch;
}

/** Return `branch` with `tokens` at `positions`. A position that receives the mask token stays masked (quirk 3). */
export function withTokens(
  branch: Branch,
  positions: readonly number[],
  tokens: readonly number[],
  context: Context,
): Branch {
  const written = [...branch.tokens];
  const unmasked = [...branch.unmasked];
  positions.forEach((position, index) => {
    written[position] = tokens[index]!;
    unmasked[position] = tokens[index] !== context.maskToken;
  });
  return { ...branch, tokens: written, unmasked, ended: hasEnd(written, unmasked, branch.layout, context.ends) };
}

/** Return `branch` with the first token of the next block behind its last block (Fast-dLLM v2). */
export const withFirstOfNextBlock = (branch: Branch, token: number, context: Context): Branch =>
  withTokens(withMasks(branch, 1, context), [branch.blocks.at(-1)!.end], [token], context);

/** Return `branch` cut off behind its first unmasked end of text, where the answer ends at the latest. */
export function withoutRowsAfterEnd(branch: Branch, ends: readonly number[]): Branch {
  const found = branch.tokens.findIndex(
    (token, position) => position >= branch.layout.prompt && branch.unmasked[position] && ends.includes(token),
  );
  if (found < 0) return branch;
  const end = found + 1;
  return {
    ...branch,
    tokens: branch.tokens.slice(0, end),
    unmasked: branch.unmasked.slice(0, end),
    blocks: branch.blocks
      .filter((block) => block.start < end)
      .map((block) => ({ ...block, end: min(block.end, end) })),
  };
}

/** Return the number of generated positions before the first masked one. */
export function unmaskedLength(branch: Branch): number {
  const first = branch.unmasked.indexOf(false, branch.layout.prompt);
  return (first < 0 ? branch.tokens.length : first) - branch.layout.prompt;
}

/** Return the first `length` generated ids. If they contain any of `ends`, stop behind the first one. */
export function answerIds(branch: Branch, length: number, ends: readonly number[]): number[] {
  const ids = branch.tokens.slice(branch.layout.prompt, branch.layout.prompt + length);
  const found = ids.findIndex((id) => ends.includes(id));
  return found < 0 ? ids : ids.slice(0, found + 1);
}

/** Return why `branch` is finished, or null if it is not. */
export function stopReason(branch: Branch, ends: readonly number[]): StopReason | null {
  const length = unmaskedLength(branch);
  const first = branch.layout.prompt;
  if (branch.tokens.slice(first, first + length).some((id) => ends.includes(id))) return "eos";
  const whole = first + length === branch.tokens.length && branch.tokens.length >= branch.layout.end;
  return whole ? "length" : null;
}

/** Return why the published loop stops after `steps` steps with these branches, the anchor last; null if it does
 * not. */
export function publishedStopReason(branches: readonly Branch[], steps: number, context: Context): StopReason | null {
  if (branches.every((branch) => publishedIsDone(branch, context))) {
    const anchor = branches.at(-1)!;
    const ids = answerIds(anchor, unmaskedLength(anchor), context.ends);
    return ids.some((id) => context.ends.includes(id)) ? "eos" : "length";
  }
  return steps >= context.params.step_limit ? "step_limit" : null;
}

/** Return true if the published loop needs no further round for `branch` (section 4, point 3; quirk 4). */
function publishedIsDone(branch: Branch, context: Context): boolean {
  const isOpen = branch.blocks.at(-1)!.end < branch.layout.end && !branch.ended;
  if (activeBlocks(branch).length || isOpen) return false;
  const masksInPrompt = branch.tokens.slice(0, branch.layout.prompt).includes(context.maskToken);
  return branch.layout.whole || !dueBlocks(branch).length || !masksInPrompt;
}

const hasEnd = (
  tokens: readonly number[],
  unmasked: readonly boolean[],
  layout: Layout,
  ends: readonly number[],
): boolean => tokens.some((token, position) => position >= layout.prompt && unmasked[position] && ends.includes(token));

/** Return `branch` with `more` masked positions behind its tokens. */
export const withMasks = (branch: Branch, more: number, context: Context): Branch => ({
  ...branch,
  tokens: [...branch.tokens, ...new Array<number>(more).fill(context.maskToken)],
  unmasked: [...branch.unmasked, ...new Array<boolean>(more).fill(false)],
});

/** Return the number of masked positions of a block. */
export function countMasks(unmasked: readonly boolean[], start: number, end: number): number {
  let count = 0;
  for (let position = start; position < end; position++) count += Number(!unmasked[position]);
  return count;
}

/** D2F's pipeline: open blocks, mark them for the cache, and make the next branches (docs/reference/algorithm.md,
 * section 4).
 *
 * Between rounds every branch is normalized: nothing follows its end of text, and its next block is open. */

import type { DecodingParams } from "../options/decoding_params.js";
import {
  activeBlocks,
  countMasks,
  dueBlocks,
  withMasks,
  withoutRowsAfterEnd,
  type Block,
  type Branch,
  type Lookahead,
} from "./branch.js";
import type { Context } from "./context.js";
import { endOfBlock } from "./layout.js";
import { max } from "../platform.js";

/** Return `branch` after tokens were written: cut off behind its end of text. */
export const normalizeBranch = (branch: Branch, context: Context): Branch =>
  context.ends.length && context.params.drop_after_eos ? withoutRowsAfterEnd(branch, context.ends) : branch;

/** Return the normalized `branches` as a round verifies them, each with its next block open.
 *
 * Outside reference mode a branch with nothing masked continues alone, since it would win the round and unmask
 * nothing. */
export function branchesOfRound(branches: readonly Branch[], context: Context): readonly Branch[] {
  const opened = branches.map((branch) => withNextBlock(branch, context));
  if (context.params.reference) return opened;
  const alone = opened.find(
    (branch) => !branch.unmasked.includes(false) && branch.blocks.at(-1)!.end > branch.layout.first,
  );
  return alone ? [withFinishedBlocksDue(alone, context)] : opened;
}

/** Return the anchor of the next round: the winner with its blocks' next states (section 6 K). */
export const nextAnchor = (winner: Branch): Branch => ({
  ...winner,
  blocks: nextBlocks(winner, winner.unmasked),
  lookahead: null,
});

/** Return a lookahead branch of the next round: the winner with one more token (section 6 J). */
export function nextLookahead(winner: Branch, lookahead: Lookahead, context: Context): Branch {
  const tokens = [...winner.tokens];
  const unmasked = [...winner.unmasked];
  tokens[lookahead.position] = lookahead.token;
  unmasked[lookahead.position] = lookahead.token !== context.maskToken;
  return {
    ...winner,
    tokens,
    unmasked,
    blocks: nextBlocks(winner, unmasked),
    ended: winner.ended || context.ends.includes(lookahead.token),
    lookahead,
  };
}

/** Return `branch` with completion flags set and at most one more block (section 4, points 1 and 2). */
function withNextBlock(branch: Branch, context: Context): Branch {
  const size = nextBlockSize(branch, progress(branch.blocks.at(-1)!), context.params);
  const opened = size ? withOpenPositions(branch, size, context) : branch;
  return { ...opened, blocks: withCompleteFlags(opened.blocks, context.params.decoded_token_threshold) };
}

/** Return the size of the block to open when the unmasked share of the last block is `share`; 0 for none.
 *
 * A layout that hands over needs the next block's first token before it opens. With cache sub_block the rows of
 * finished blocks have to be committed first. */
function nextBlockSize(branch: Branch, share: number, params: DecodingParams): number {
  const { layout } = branch;
  const start = branch.blocks.at(-1)!.end;
  const lacksFirst = layout.handsOver && start > layout.unseen && !branch.unmasked.slice(start).includes(true);
  const lacksCommit = params.cache === "sub_block" && dueBlocks(branch).some((block) => block.end > block.start);
  if (lacksFirst || lacksCommit || branch.ended || share < params.block_add_threshold) return 0;
  return endOfBlock(layout, start) - start;
}

/** Return a branch with nothing masked, which continues alone, with all active blocks due. */
function withFinishedBlocksDue(branch: Branch, context: Context): Branch {
  const blocks = branch.blocks.map((block): Block =>
    block.state === "active" ? { ...block, state: "to_cache" } : block,
  );
  return withNextBlock({ ...branch, blocks }, context);
}

/** Return true if committing all rows has to unmask the next block's first token. */
export function handsOver(branch: Branch): boolean {
  const { layout, tokens } = branch;
  const isAtEnd = branch.blocks.at(-1)!.end === tokens.length && tokens.length < layout.end;
  return layout.handsOver && isAtEnd && !activeBlocks(branch).length;
}

function withOpenPositions(branch: Branch, size: number, context: Context): Branch {
  const start = branch.blocks.at(-1)!.end;
  const end = start + size;
  const longer = withMasks(branch, max(0, end - branch.tokens.length), context);
  const masks = countMasks(longer.unmasked, start, end);
  const block: Block = { start, end, masks, state: "active", fullyActivated: false, rounds: 0 };
  return { ...longer, blocks: [...longer.blocks, block] };
}

/** Return `blocks` with each block fully activated whose predecessor has reached the threshold. */
const withCompleteFlags = (blocks: readonly Block[], threshold: number): readonly Block[] =>
  blocks.map((block, index) =>
    block.fullyActivated || index === 0 || progress(blocks[index - 1]!) < threshold ? block : { ...block, fullyActivated: true },
  );

/** Return the unmasked share of a block, 1 for an empty one. */
function progress(block: Block): number {
  const total = block.end - block.start;
  return total ? (total - block.masks) / total : 1;
}

/** Return the blocks of a branch derived from `winner` after a round (section 6 K): due blocks are cached and finished
 * blocks become due.
 *
 * `unmasked` marks the unmasked positions of the new branch. A block that only its lookahead token completed becomes
 * due a round later. A block behind an active one stays active. */
function nextBlocks(winner: Branch, unmasked: readonly boolean[]): readonly Block[] {
  let behindActive = false;
  return winner.blocks.map((block): Block => {
    if (block.state !== "active") return { ...block, state: "in_cache" };
    const mayFinish = countMasks(winner.unmasked, block.start, block.end) === 0;
    const masks = countMasks(unmasked, block.start, block.end);
    const due = masks === 0 && mayFinish && !behindActive;
    behindActive ||= !due;
    return { ...block, masks, state: due ? "to_cache" : "active", rounds: block.rounds + 1 };
  });
}

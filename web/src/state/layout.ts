/** Positions of the blocks in a sequence.
 *
 * Dream, LLaDA and D2F count blocks from the end of the prompt, which is a separate block. SDAR, Fast-dLLM v2 and
 * Stable-DiffCoder count from position 0. The prompt then fills whole blocks, and its remainder begins the first
 * generated block. */

import { WHOLE_CACHES, type DecodingParams } from "../options/decoding_params.js";
import { ceil, floor, max, min } from "../platform.js";

/** Blocks of `size` positions from `first` to `end`, the last one possibly shorter, behind the prompt's blocks. */
export interface Layout {
  /** Number of prompt positions. */
  readonly prompt: number;
  /** Start of the first block to generate: the end of the prompt, or a position before it. */
  readonly first: number;
  readonly size: number;
  /** End of the positions to generate, exclusive. */
  readonly end: number;
  /** True if blocks are counted from position 0, through the prompt. */
  readonly absolute: boolean;
  /** True if the last row of a finished block predicts the next block's first token when it is committed. */
  readonly handsOver: boolean;
  /** True if all positions are in the sequence from the start. */
  readonly whole: boolean;
  /** Leading positions without a row: Fast-dLLM v2's code skips a prompt of exactly one block. */
  readonly unseen: number;
  /** 1 if a row predicts the next position, 0 if its own. */
  readonly predictionShift: number;
}

/** Return the layout of an answer to a prompt of `prompt` positions. In reference mode the answer ends where the
 * published loops end it. */
export function layoutOfPrompt(prompt: number, params: DecodingParams, predictionShift: number): Layout {
  const size = params.block_size;
  const whole = WHOLE_CACHES.includes(params.cache);
  const usual = { prompt, size, whole, predictionShift };
  if (params.alignment !== "absolute") {
    return { ...usual, first: prompt, end: prompt + params.positions, absolute: false, handsOver: false, unseen: 0 };
  }
  const first = floor(prompt / size) * size;
  const handsOver = predictionShift === 1;
  let end = prompt + params.max_new_tokens;
  // Fast-dLLM v2 counts generated blocks, including the prompt's last one, and keeps the token that the last commit
  // predicts. SDAR continues to the end of a block.
  if (params.reference) end = handsOver ? first + params.positions + 1 : ceil(end / size) * size;
  const unseen = params.reference && handsOver && prompt === size ? prompt : 0;
  return { ...usual, first, end, absolute: true, handsOver, unseen };
}

/** Return the exclusive end of the block that begins at `start`, or `start` if no block may begin there. */
export const endOfBlock = (layout: Layout, start: number): number =>
  max(start, min(start + layout.size, layout.end));

/** Return the number of the block of a position, from 0. */
export function blockNumber(layout: Layout, position: number): number {
  if (layout.absolute) return floor(position / layout.size);
  return position < layout.first ? 0 : 1 + floor((position - layout.first) / layout.size);
}

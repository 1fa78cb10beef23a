/** The windows of one request's branches: computed rows, cached rows and sampled positions of a forward.
 *
 * `DecodingParams.cache` determines which rows are cached. Rows of finished blocks are exact if rows attend to nothing
 * behind their block (block_causal), and otherwise approximate. The other caches come from Fast-dLLM. They cache rows
 * temporarily although later tokens would change them, and recompute them at the next block. See
 * docs/reference/algorithm.md, section 2. */

import { range } from "../contract/sizes.js";
import { failInternally } from "../errors.js";
import type { DecodingParams } from "../options/decoding_params.js";
import { activeBlocks, dueBlocks, type Block, type Branch } from "./branch.js";
import type { Context } from "./context.js";
import { blockNumber, type Layout } from "./layout.js";
import { floor, max, min } from "../platform.js";

/** The windows of one request's branches, all on the same rows of its prefix cache: the input of a forward. */
export interface Windows {
  /** Number of branches, B. */
  readonly branches: number;
  /** Number of rows of the longest window, W. */
  readonly width: number;
  /** Number of sampled columns, Q. */
  readonly queries: number;
  /** Number of cached rows that every window attends to. */
  readonly prefix: number;
  /** Number of leading rows that the winner commits, 0 for none. */
  readonly commit: number;
  /** Token ids [B, W]. */
  readonly inputIds: Int32Array;
  /** Positions [B, W] as the model counts them; any value for padding. */
  readonly positions: Int32Array;
  /** Which row attends to which, [B, W, W]. */
  readonly mask: Uint8Array;
  /** Number of rows of each branch without padding. */
  readonly lengths: readonly number[];
  /** Sampled positions of each branch, ascending. */
  readonly sampled: readonly (readonly number[])[];
  /** Sampled positions [B, Q]: `keptColumns` columns, then those of `sampled`, then padding. */
  readonly logitsPositions: Int32Array;
  /** Window rows [B, Q] that predict them. */
  readonly logitsIndex: Int32Array;
  /** 1 for positions [B, Q] that no row of the window predicts but the kept row of an earlier round does. */
  readonly fromKeptRow: Uint8Array;
  /** 1 if column 0 belongs to the last committed row, which predicts the position behind it; otherwise 0. */
  readonly keptColumns: number;
  /** Positions [prefix] of the cached rows, as the model counts them, in the cache's order. */
  readonly cached: readonly number[];
}

/** Return the windows of a round's `branches`. The anchor, the last one, determines which rows are cached.
 *
 * With `anew`, temporarily cached rows are computed again, as in a block's first round. */
export function windowsFromBranches(branches: readonly Branch[], context: Context, anew: boolean): Windows {
  const { params, predictionShift: shift } = context;
  const states = anew ? branches.map(asInFirstRound) : branches;
  const anchorState = states.at(-1)!;
  const branchRows = states.map((branch) => rowsFromBranch(branch, anchorState, params));
  const anchor = branchRows.at(-1)!;
  const { unseen } = anchorState.layout;
  const [prefix, commit] = [anchor.cached.length, anchor.commit];
  const lengths = branchRows.map((rows) => rows.order.length);
  const [count, width] = [branches.length, max(...lengths)];

  const inputIds = new Int32Array(count * width).fill(context.padToken);
  const positions = Int32Array.from({ length: count * width }, (_, index) => prefix + (index % width));
  const mask = new Uint8Array(count * width * width);
  branchRows.forEach(({ order }, number) => {
    const branch = branches[number]!;
    order.forEach((position, row) => {
      inputIds[number * width + row] = branch.tokens[position]!;
      positions[number * width + row] = position - unseen;
    });
    fillMask(mask.subarray(number * width * width, (number + 1) * width * width), width, order, branch.layout, params);
  });

  const sampled = branches.map((branch, number) =>
    predictedPositions(sampledPositions(branch, params), branchRows[number]!, shift),
  );
  const keptColumns = commit > 0 && anchor.isFinal && shift ? 1 : 0;
  // Padding samples the window's first row, since a forward needs at least one sampled row.
  const queries = max(1, keptColumns + max(...sampled.map((each) => each.length)));
  const logitsPositions = new Int32Array(count * queries).fill(anchor.order[0]! + shift);
  const logitsIndex = new Int32Array(count * queries);
  const fromKeptRow = new Uint8Array(count * queries);
  branchRows.forEach(({ order }, number) => {
    const columns = logitsPositions.subarray(number * queries, (number + 1) * queries);
    if (keptColumns) columns[0] = anchor.order[0]! + commit;
    columns.set(sampled[number]!, keptColumns);
    const rowOf = new Map(order.map((position, row) => [position, row]));
    columns.forEach((position, column) => {
      // No row predicts the first position that has a row. Published quirks that sample it use its own row.
      const row = rowOf.get(max(position - shift, unseen));
      logitsIndex[number * queries + column] = row ?? 0;
      fromKeptRow[number * queries + column] = Number(row === undefined);
    });
  });
  return {
    branches: count,
    width,
    queries,
    prefix,
    commit,
    inputIds,
    positions,
    mask,
    lengths,
    sampled,
    logitsPositions,
    logitsIndex,
    fromKeptRow,
    keptColumns,
    cached: anchor.cached.map((position) => position - unseen),
  };
}

/** Throw an Error if no row predicts some sampled position of `windows`.
 *
 * The kept row predicts position `keptFor` (null without a kept row). Without this check, a wrong row would cause wrong
 * text without an error. */
export function checkRows(windows: Windows, predictionShift: number, unseen: number, keptFor: number | null): void {
  windows.sampled.forEach((sampled, number) => {
    for (let column = 0; column < windows.keptColumns + sampled.length; column++) {
      const place = number * windows.queries + column;
      const position = windows.logitsPositions[place]!;
      const row = windows.positions[number * windows.width + windows.logitsIndex[place]!]!;
      const own = position === unseen ? unseen : row + unseen + predictionShift;
      if ((windows.fromKeptRow[place] ? keptFor : own) !== position) {
        failInternally(`no row predicts position ${position}`);
      }
    }
  });
}

// Sampled positions, and which of them may be unmasked

/** Return the start and end of the positions of an active block that may be unmasked now: the whole block, or with
 * sub-blocks the first one with a masked position. */
export function openSpan(branch: Branch, block: Block, params: DecodingParams): [number, number] {
  if (params.sub_block >= block.end - block.start) return [block.start, block.end];
  const masked = branch.unmasked.indexOf(false, block.start);
  const inside = (masked < 0 || masked >= block.end ? block.end - 1 : masked) - block.start;
  const start = block.start + floor(inside / params.sub_block) * params.sub_block;
  return [start, min(start + params.sub_block, block.end)];
}

/** Return which of `positions` are masked and may be unmasked now. Positions behind the branch are false. */
export function openAmong(branch: Branch, positions: readonly number[], params: DecodingParams): boolean[] {
  const spans = activeBlocks(branch).map((block) => openSpan(branch, block, params));
  return positions.map(
    (position) =>
      branch.unmasked[position] === false && spans.some(([start, end]) => start <= position && position < end),
  );
}

/** Return the positions that a round samples, ascending: the masked ones of all opened blocks. Published rules that
 * unmask a fixed number per step also sample unmasked ones. */
function sampledPositions(branch: Branch, params: DecodingParams): number[] {
  if (params.overwrites_unmasked) return activeBlocks(branch).flatMap((block) => range(block.start, block.end));
  return range(0, branch.blocks.at(-1)!.end).filter((position) => !branch.unmasked[position]);
}

// Computed rows and cached rows

/** The rows of one branch in a round. */
interface BranchRows {
  /** Positions of the cached rows that they attend to, in the cache's order. */
  readonly cached: readonly number[];
  /** Positions of the rows, with the rows to commit first. */
  readonly order: readonly number[];
  /** Number of leading rows to commit. */
  readonly commit: number;
  /** True if the committed rows are final: rows of finished blocks. */
  readonly isFinal: boolean;
  /** True if no row predicts some masked positions of open blocks, which wait for a later round. */
  readonly isPartial: boolean;
}

const FINAL = { isFinal: true, isPartial: false };

/** Return the rows of `branch` in a round of `anchor`, whose blocks determine which rows are due. */
function rowsFromBranch(branch: Branch, anchor: Branch, params: DecodingParams): BranchRows {
  if (params.cache === "none") {
    return { ...FINAL, cached: [], order: range(0, branch.tokens.length), commit: 0 };
  }
  if (params.cache === "prefix" || params.cache === "dual") return rowsWithWholeCache(branch, anchor, params);
  if (params.cache === "sub_block" && activeBlocks(anchor).length) {
    return rowsWithSubBlockCache(branch, anchor, params);
  }
  const due = dueBlocks(anchor);
  const start = (due[0] ?? activeBlocks(anchor)[0])!.start;
  return {
    ...FINAL,
    cached: range(branch.layout.unseen, start),
    order: range(start, branch.tokens.length),
    commit: due.length ? due.at(-1)!.end - start : 0,
  };
}

/** Return the rows with Fast-dLLM's prefix or dual cache. A block's first round computes every row and keeps the rows
 * before the block, or before and behind it. */
function rowsWithWholeCache(branch: Branch, anchor: Branch, params: DecodingParams): BranchRows {
  const block = activeBlocks(anchor)[0]!;
  const length = branch.tokens.length;
  const first = block.start - branch.layout.predictionShift;
  const end = params.cache === "dual" ? block.end : length;
  return temporaryRows([], [...range(0, first), ...range(end, length)], range(first, end), block.rounds > 0);
}

/** Return the rows with Fast-dLLM v2's block cache. Within a block, rows outside the open sub-block are kept once the
 * sub-block's first position is unmasked. */
function rowsWithSubBlockCache(branch: Branch, anchor: Branch, params: DecodingParams): BranchRows {
  const block = activeBlocks(anchor)[0]!;
  const [start, end] = openSpan(anchor, block, params);
  const outside = [...range(block.start, start), ...range(end, block.end)];
  const isKept = block.rounds > 0 && anchor.unmasked[start]!;
  const rows = temporaryRows(range(branch.layout.unseen, block.start), outside, range(start, end), isKept);
  return { ...rows, isPartial: isKept };
}

/** Return rows of which those `outside` are kept temporarily: cached if `areKept`, otherwise computed and committed. */
function temporaryRows(before: number[], outside: number[], inside: number[], areKept: boolean): BranchRows {
  if (areKept) return { ...FINAL, cached: [...before, ...outside], order: inside, commit: 0 };
  return { cached: before, order: [...outside, ...inside], commit: outside.length, isFinal: false, isPartial: false };
}

/** Return the positions of `sampled` that the round's rows predict. */
function predictedPositions(sampled: number[], rows: BranchRows, predictionShift: number): number[] {
  if (!rows.isPartial) return sampled;
  const order = new Set(rows.order);
  return sampled.filter((position) => order.has(position - predictionShift));
}

/** Return `branch` as if its active blocks had just been opened. */
function asInFirstRound(branch: Branch): Branch {
  const blocks = branch.blocks.map((block) => (block.state === "active" ? { ...block, rounds: 0 } : block));
  return { ...branch, blocks };
}

/** Write which row attends to which into `mask` [W, W], for rows at the positions `order`. Padding rows attend to
 * themselves. */
function fillMask(
  mask: Uint8Array,
  width: number,
  order: readonly number[],
  layout: Layout,
  params: DecodingParams,
): void {
  const numbers = order.map((position) => (params.attention === "full" ? 0 : blockNumber(layout, position)));
  for (let row = 0; row < width; row++) {
    if (row >= order.length) mask[row * width + row] = 1;
    else numbers.forEach((number, other) => (mask[row * width + other] = Number(numbers[row]! >= number)));
  }
}

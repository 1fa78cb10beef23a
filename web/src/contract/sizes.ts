/** Numbers of the engine contract, version 1 (docs/concepts/contract.md). */

import { ceil, max } from "../platform.js";

export const CONTRACT_VERSION = 1;
/** Positions by which prefix caches grow. */
export const TILE = 64;
/** Number of candidates that a forward returns for each sampled position. */
export const TOP_K = 8;

/** Return the number of cache rows to allocate for `rows` committed ones: a multiple of TILE, at least one tile. */
export const tiles = (rows: number): number => max(1, ceil(rows / TILE)) * TILE;

/** Return the whole numbers from `start` to `end`, exclusive. */
export const range = (start: number, end: number): number[] =>
  Array.from({ length: max(0, end - start) }, (_, index) => start + index);

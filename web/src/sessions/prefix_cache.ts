/** Committed key and value rows of one request, in host memory. */

import type { Manifest } from "../bundle/manifest.js";
import { TILE, tiles } from "../contract/sizes.js";

/** Numbers of a bundle's type: float32, or float16 as 16-bit words. */
export type Rows = Float32Array | Uint16Array;

/** Sizes of a bundle's prefix caches. */
export interface CacheShape {
  /** Number of arrays: two per layer, key and value. */
  readonly arrays: number;
  readonly heads: number;
  readonly headSize: number;
  readonly type: "float32" | "float16";
}

export function cacheShapeOfManifest({ dimensions, dtype }: Manifest): CacheShape {
  return {
    arrays: 2 * dimensions.layers,
    heads: dimensions.kv_heads,
    headSize: dimensions.head_size,
    type: dtype === "float16" ? "float16" : "float32",
  };
}

/** Location of a branch's rows in each new array, in rows: the first row of head 0, and the distance of two heads. */
export interface RowPlace {
  readonly first: number;
  readonly headStride: number;
}

/** Prefix of one request. It grows by tiles, so that forwards see few prefix lengths. */
export class PrefixCache {
  /** Number of committed rows. */
  length = 0;
  /** Number of allocated rows, P. */
  capacity = TILE;
  /** All arrays [arrays, heads, P, head size] in the order of the layers, key before value. Rows without a commit are
   * zero. */
  block: Rows;

  constructor(readonly shape: CacheShape) {
    this.block = this.#zeros(TILE);
  }

  /** Return the view [heads, P, head size] of one array. */
  array(index: number): Rows {
    const size = this.shape.heads * this.capacity * this.shape.headSize;
    return this.block.subarray(index * size, (index + 1) * size);
  }

  /** Append `count` rows of each new array. */
  append(rows: readonly Rows[], { first, headStride }: RowPlace, count: number): void {
    const { heads, headSize } = this.shape;
    const start = this.length;
    if (start + count > this.capacity) this.#resize(tiles(start + count));
    rows.forEach((array, index) => {
      for (let head = 0; head < heads; head++) {
        const from = (first + head * headStride) * headSize;
        const to = ((index * heads + head) * this.capacity + start) * headSize;
        this.block.set(array.subarray(from, from + count * headSize), to);
      }
    });
    this.length = start + count;
  }

  /** Drop the rows behind the first `count`. */
  shorten(count: number): void {
    this.length = count;
    this.#resize(tiles(count));
  }

  #resize(capacity: number): void {
    const { arrays, heads, headSize } = this.shape;
    const old = { block: this.block, capacity: this.capacity };
    this.capacity = capacity;
    this.block = this.#zeros(capacity);
    for (let row = 0; row < arrays * heads; row++) {
      const from = row * old.capacity * headSize;
      this.block.set(old.block.subarray(from, from + this.length * headSize), row * capacity * headSize);
    }
  }

  #zeros(capacity: number): Rows {
    const { arrays, heads, headSize, type } = this.shape;
    const size = arrays * heads * capacity * headSize;
    return type === "float16" ? new Uint16Array(size) : new Float32Array(size);
  }
}

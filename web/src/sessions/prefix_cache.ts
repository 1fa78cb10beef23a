/** Committed key and value rows of one request, in the memory of the host or of a device. */

import type * as Ort from "onnxruntime-common";

import type { Manifest } from "../bundle/manifest.js";
import { TILE, range, tiles } from "../contract/sizes.js";

/** Sizes of a bundle's prefix caches. */
export interface CacheShape {
  /** Number of arrays: two per layer, key and value. */
  readonly arrays: number;
  readonly heads: number;
  readonly headSize: number;
  readonly type: "float32" | "float16";
}

export const cacheShapeOfManifest = ({ dimensions, dtype }: Manifest): CacheShape => ({
  arrays: 2 * dimensions.layers,
  heads: dimensions.kv_heads,
  headSize: dimensions.head_size,
  type: dtype === "float16" ? "float16" : "float32",
});

/** Location of a branch's rows in each new array, in rows: the first row of head 0, and the distance of two heads. */
export interface RowPlace {
  readonly first: number;
  readonly headStride: number;
}

/** Function that copies `count` rows from row `fromRow` of one block to row `toRow` of another. */
export type CopyRows<Block> = (from: Block, fromRow: number, to: Block, toRow: number, count: number) => void;

/** Memory of rows. A row has the numbers of one head. */
export interface RowMemory<Block> {
  /** Return a block of `rows` rows of zeros. */
  zeros(rows: number): Block;
  /** Call `run`, which copies rows. */
  copy(run: (copyRows: CopyRows<Block>) => void): void;
  free(block: Block): void;
  /** Return the rows of an output of a graph. */
  rowsOf(output: Ort.Tensor): Block;
  /** Return rows `first` to `first + count` of a block as an input of a graph. */
  tensorOf(block: Block, first: number, count: number, dims: readonly number[]): Ort.Tensor;
}

/** Prefix of one request. It grows by tiles, so that forwards see few prefix lengths. */
export class PrefixCache<Block> {
  /** Number of committed rows. */
  length = 0;
  /** Number of allocated rows, P. */
  capacity = TILE;
  /** All arrays [arrays, heads, P, head size] in the order of the layers, key before value. Rows without a commit are
   * zero. */
  #block: Block;
  /** Number of heads of all arrays. */
  readonly #heads: number;

  constructor(
    readonly shape: CacheShape,
    readonly memory: RowMemory<Block>,
  ) {
    this.#heads = shape.arrays * shape.heads;
    this.#block = memory.zeros(this.#heads * TILE);
  }

  /** Return the arrays as `count` inputs of a graph, each [arrays / count, heads, P, head size]. */
  tensors(count: number): Ort.Tensor[] {
    const { arrays, heads, headSize } = this.shape;
    const rows = (this.#heads / count) * this.capacity;
    const dims = [arrays / count, heads, this.capacity, headSize];
    return range(0, count).map((index) => this.memory.tensorOf(this.#block, index * rows, rows, dims));
  }

  /** Append `count` rows of each new array. */
  append(outputs: readonly Ort.Tensor[], { first, headStride }: RowPlace, count: number): void {
    const start = this.length;
    if (start + count > this.capacity) this.#resize(tiles(start + count));
    this.memory.copy((copyRows) => {
      for (let row = 0; row < this.#heads; row++) {
        const head = row % this.shape.heads;
        const rows = this.memory.rowsOf(outputs[(row - head) / this.shape.heads]!);
        copyRows(rows, first + head * headStride, this.#block, row * this.capacity + start, count);
      }
    });
    this.length = start + count;
  }

  /** Drop the rows behind the first `count`. */
  shorten(count: number): void {
    this.length = count;
    this.#resize(tiles(count));
  }

  release(): void {
    this.memory.free(this.#block);
  }

  #resize(capacity: number): void {
    const old = this.#block;
    this.#block = this.memory.zeros(this.#heads * capacity);
    this.memory.copy((copyRows) => {
      for (let row = 0; this.length && row < this.#heads; row++) {
        copyRows(old, row * this.capacity, this.#block, row * capacity, this.length);
      }
    });
    this.memory.free(old);
    this.capacity = capacity;
  }
}

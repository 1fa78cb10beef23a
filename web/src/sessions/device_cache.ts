/** Committed key and value rows of one request, in the memory of a WebGPU device. */

import { TILE, tiles } from "../contract/sizes.js";
import type { CacheShape, RowPlace } from "./prefix_cache.js";

/** The part of WebGPU's GPUDevice that caches need. */
export interface GpuDevice {
  createBuffer(options: { size: number; usage: number }): GpuBuffer;
  createCommandEncoder(): GpuEncoder;
  readonly queue: { submit(commands: unknown[]): void };
}

export interface GpuBuffer {
  destroy(): void;
}

interface GpuEncoder {
  copyBufferToBuffer(from: GpuBuffer, fromByte: number, to: GpuBuffer, toByte: number, size: number): void;
  finish(): unknown;
}

/** GPUBufferUsage: COPY_SRC, COPY_DST and STORAGE. */
const USAGE = 0x4 | 0x8 | 0x80;

/** Prefix of one request, as the one input of a portable graph. New buffers are zero. */
export class DeviceCache {
  length = 0;
  capacity = TILE;
  /** All arrays [arrays, heads, P, head size], as in PrefixCache. */
  buffer: GpuBuffer;

  constructor(
    readonly shape: CacheShape,
    private readonly device: GpuDevice,
  ) {
    this.buffer = this.#zeros(TILE);
  }

  /** Append `count` rows of each new array. */
  append(rows: readonly GpuBuffer[], { first, headStride }: RowPlace, count: number): void {
    const { heads } = this.shape;
    const start = this.length;
    if (start + count > this.capacity) this.#resize(tiles(start + count));
    const encoder = this.device.createCommandEncoder();
    rows.forEach((array, index) => {
      for (let head = 0; head < heads; head++) {
        const to = (index * heads + head) * this.capacity + start;
        this.#copy(encoder, array, first + head * headStride, this.buffer, to, count);
      }
    });
    this.device.queue.submit([encoder.finish()]);
    this.length = start + count;
  }

  /** Drop the rows behind the first `count`. */
  shorten(count: number): void {
    this.length = count;
    this.#resize(tiles(count));
  }

  release(): void {
    this.buffer.destroy();
  }

  #resize(capacity: number): void {
    const old = { buffer: this.buffer, capacity: this.capacity };
    this.capacity = capacity;
    this.buffer = this.#zeros(capacity);
    if (this.length > 0) {
      const encoder = this.device.createCommandEncoder();
      for (let row = 0; row < this.shape.arrays * this.shape.heads; row++) {
        this.#copy(encoder, old.buffer, row * old.capacity, this.buffer, row * capacity, this.length);
      }
      this.device.queue.submit([encoder.finish()]);
    }
    old.buffer.destroy();
  }

  #copy(encoder: GpuEncoder, from: GpuBuffer, fromRow: number, to: GpuBuffer, toRow: number, count: number): void {
    const bytes = this.#rowBytes;
    encoder.copyBufferToBuffer(from, fromRow * bytes, to, toRow * bytes, count * bytes);
  }

  #zeros(capacity: number): GpuBuffer {
    const { arrays, heads } = this.shape;
    return this.device.createBuffer({ size: arrays * heads * capacity * this.#rowBytes, usage: USAGE });
  }

  get #rowBytes(): number {
    return this.shape.headSize * (this.shape.type === "float16" ? 2 : 4);
  }
}

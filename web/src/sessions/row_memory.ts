/** Memory for the prefixes of requests: arrays of the host, or buffers of a WebGPU device. */

import type { CacheShape, RowMemory } from "./prefix_cache.js";
import type { OnnxRuntime } from "./graph_inputs.js";

/** Numbers of a bundle's type: float32, or float16 as 16-bit words. */
type Rows = Float32Array | Uint16Array;

/** The part of WebGPU's GPUDevice that caches need. */
export interface GpuDevice {
  createBuffer(options: { size: number; usage: number }): GpuBuffer;
  createCommandEncoder(): GpuEncoder;
  readonly queue: { submit(commands: unknown[]): void };
}

interface GpuBuffer {
  destroy(): void;
}

interface GpuEncoder {
  copyBufferToBuffer(from: GpuBuffer, fromByte: number, to: GpuBuffer, toByte: number, size: number): void;
  finish(): unknown;
}

/** GPUBufferUsage: COPY_SRC, COPY_DST and STORAGE. */
const USAGE = 0x4 | 0x8 | 0x80;

export function hostMemory(ort: OnnxRuntime, { type, headSize }: CacheShape): RowMemory<Rows> {
  const Numbers = type === "float16" ? Uint16Array : Float32Array;
  return {
    zeros: (rows) => new Numbers(rows * headSize),
    copy: (run) =>
      run((from, fromRow, to, toRow, count) => {
        to.set(from.subarray(fromRow * headSize, (fromRow + count) * headSize), toRow * headSize);
      }),
    free: () => undefined,
    rowsOf(output) {
      const { buffer, byteOffset, length } = output.data as Float32Array<ArrayBuffer>;
      return new Numbers(buffer, byteOffset, length);
    },
    tensorOf(block, first, count, dims) {
      const rows = block.subarray(first * headSize, (first + count) * headSize);
      // With env.wasm.proxy, a worker takes the memory of its inputs away.
      return new ort.Tensor(type, (ort.env.wasm?.proxy ? rows.slice() : rows) as Float32Array, dims);
    },
  };
}

/** Return the memory of a device, for the one input of a portable graph. New buffers are zero. */
export function deviceMemory(ort: OnnxRuntime, { type, headSize }: CacheShape, device: GpuDevice): RowMemory<GpuBuffer> {
  const bytes = headSize * (type === "float16" ? 2 : 4);
  return {
    zeros: (rows) => device.createBuffer({ size: rows * bytes, usage: USAGE }),
    copy(run) {
      const encoder = device.createCommandEncoder();
      run((from, fromRow, to, toRow, count) => {
        encoder.copyBufferToBuffer(from, fromRow * bytes, to, toRow * bytes, count * bytes);
      });
      device.queue.submit([encoder.finish()]);
    },
    free: (buffer) => buffer.destroy(),
    rowsOf: (output) => output.gpuBuffer as unknown as GpuBuffer,
    tensorOf: (buffer, _first, _count, dims) => ort.Tensor.fromGpuBuffer(buffer as never, { dataType: type, dims }),
  };
}

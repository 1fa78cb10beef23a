/** Forwards of a graph in either dialect, with prefix caches on the host or on a WebGPU device. */

import type * as Ort from "onnxruntime-common";

import type { Manifest } from "../bundle/manifest.js";
import { RowStatistics } from "../contract/row_statistics.js";
import type { RotaryAngles } from "../contract/rotary.js";
import type { Forwards } from "../decoding/decoding.js";
import { BadInputError, shown } from "../errors.js";
import type { Windows } from "../state/windows.js";
import { DeviceCache, type GpuBuffer, type GpuDevice } from "./device_cache.js";
import { graphInputs, inputNames, type Dialect, type Inputs, type OnnxRuntime } from "./graph_inputs.js";
import { PrefixCache, cacheShapeOfManifest, type CacheShape, type RowPlace, type Rows } from "./prefix_cache.js";
import type { Graph } from "./session.js";

const STATISTICS = ["topk_ids", "topk_logprobs", "entropy"];

/** Return the names of a graph's outputs of new keys and values, in the order of the cache. */
export function rowNames(manifest: Manifest): string[] {
  return namesOfArrays(manifest).map((name) => `window_key_values.${name}`);
}

function namesOfArrays(manifest: Manifest): string[] {
  const { arrays } = cacheShapeOfManifest(manifest);
  return Array.from({ length: arrays }, (_, array) => `${array >> 1}.${array % 2 ? "value" : "key"}`);
}

export class OnnxGraph implements Graph {
  readonly #shape: CacheShape;
  readonly #rotary: RotaryAngles | null;
  readonly #rowNames: readonly string[];
  /** Names of the prefix inputs: one of a portable graph, one per array of a standard one. */
  readonly #pastNames: readonly string[];

  /** Store a graph in `dialect`. With a GPU `device`, caches are in its memory; the graph is then portable. Throws
   * BadInputError if inputs and outputs do not match the manifest. */
  constructor(
    private readonly ort: OnnxRuntime,
    private readonly graph: Ort.InferenceSession,
    manifest: Manifest,
    private readonly dialect: Dialect,
    private readonly device: GpuDevice | null,
    location: string,
  ) {
    const { dimensions, rotary_inputs: rotary, with_logits: withLogits } = manifest;
    const size = dimensions.partial_rotary_size ?? dimensions.head_size;
    this.#shape = cacheShapeOfManifest(manifest);
    this.#rotary = rotary?.includes(dialect) ? { size, theta: dimensions.rope_theta } : null;
    this.#rowNames = rowNames(manifest);
    this.#pastNames =
      dialect === "portable"
        ? ["past_key_values"]
        : namesOfArrays(manifest).map((name) => `past_key_values.${name}`);
    const outputs = [...STATISTICS, ...(withLogits ? ["logits"] : []), ...this.#rowNames];
    checkNames("inputs", graph.inputNames, [...inputNames(this.#rotary), ...this.#pastNames], location);
    checkNames("outputs", graph.outputNames, outputs, location);
  }

  request(device: string): Forwards {
    const cache = this.device === null ? new PrefixCache(this.#shape) : new DeviceCache(this.#shape, this.device);
    let rows: readonly Ort.Tensor[] = [];
    let place: (branch: number) => RowPlace;
    const disposeRows = (): void => {
      for (const each of rows) each.dispose();
      rows = [];
    };
    return {
      device,
      forward: async (windows, temperature) => {
        disposeRows();
        const outputs = await this.graph.run({ ...this.#inputs(windows, temperature, cache), ...this.#past(cache) });
        rows = this.#rowNames.map((name) => outputs[name]!);
        place = (branch) => this.#placeOfBranch(windows, branch);
        return statisticsOf(outputs);
      },
      commit: async (branch, count) => {
        if (cache instanceof DeviceCache) {
          const buffers = rows.map((each) => each.gpuBuffer as unknown as GpuBuffer);
          cache.append(buffers, place(branch), count);
        } else {
          const arrays = rows.map((each) => wordsOf(each.data as Rows));
          cache.append(arrays, place(branch), count);
        }
      },
      shorten: async (count) => cache.shorten(count),
      release: async () => {
        disposeRows();
        if (cache instanceof DeviceCache) cache.release();
      },
    };
  }

  async close(): Promise<void> {
    await this.graph.release();
  }

  /** Return the inputs of the prefix. */
  #past(cache: PrefixCache | DeviceCache): Inputs {
    const { type, arrays, heads, headSize } = this.#shape;
    const dims = [this.dialect === "portable" ? arrays : 1, heads, cache.capacity, headSize];
    const tensors = this.#pastNames.map((_, index) => {
      if (cache instanceof DeviceCache) {
        return this.ort.Tensor.fromGpuBuffer(cache.buffer as never, { dataType: type, dims });
      }
      const rows = this.#pastNames.length === 1 ? cache.block : cache.array(index);
      // With env.wasm.proxy, a worker takes the memory of its inputs away.
      const values = this.ort.env.wasm?.proxy ? rows.slice() : rows;
      return new this.ort.Tensor(type, values as Float32Array, dims);
    });
    return Object.fromEntries(this.#pastNames.map((name, index) => [name, tensors[index]!]));
  }

  #inputs(windows: Windows, temperature: number, prefix: { length: number; capacity: number }): Inputs {
    return graphInputs(this.ort, this.dialect, windows, temperature, prefix, this.#rotary);
  }

  /** Return where the rows of a branch are: arrays [B, heads, W, D], or [heads, B * W, D] of a portable graph. */
  #placeOfBranch({ branches, width }: Windows, branch: number): RowPlace {
    if (this.dialect === "portable") return { first: branch * width, headStride: branches * width };
    return { first: branch * this.#shape.heads * width, headStride: width };
  }
}

function statisticsOf(outputs: Ort.InferenceSession.OnnxValueMapType): RowStatistics {
  const data = (name: string): unknown => outputs[name]?.data;
  return new RowStatistics(
    Int32Array.from(data("topk_ids") as BigInt64Array, Number),
    Float32Array.from(data("topk_logprobs") as Float32Array),
    Float32Array.from(data("entropy") as Float32Array),
    outputs["logits"] === undefined ? null : Float32Array.from(data("logits") as Float32Array),
  );
}

/** Return float16 numbers as 16-bit words, and float32 numbers as they are. */
function wordsOf(rows: Rows): Rows {
  return rows.BYTES_PER_ELEMENT === 2 ? new Uint16Array(rows.buffer, rows.byteOffset, rows.length) : rows;
}

function checkNames(what: string, found: readonly string[], expected: readonly string[], location: string): void {
  const others = [...new Set([...found, ...expected])].filter(
    (name) => !found.includes(name) || !expected.includes(name),
  );
  if (others.length === 0) return;
  throw new BadInputError(`the ${what} of ${location} do not match its manifest: ${shown(others.slice(0, 5))}`, {
    expected: `the ${what} of contract version 1`,
    remedy: "export the checkpoint again",
  });
}

/** Forwards of a graph in either dialect, with prefix caches on the host or on a WebGPU device. */

import type * as Ort from "onnxruntime-common";

import { REMEDY } from "../bundle/bundle.js";
import type { Manifest } from "../bundle/manifest.js";
import { RowStatistics } from "../contract/row_statistics.js";
import { range } from "../contract/sizes.js";
import { reject, shown } from "../errors.js";
import { graphInputs, inputNames, type Dialect, type OnnxRuntime } from "./graph_inputs.js";
import { PrefixCache, cacheShapeOfManifest, type RowMemory, type RowPlace } from "./prefix_cache.js";
import { deviceMemory, hostMemory, type GpuDevice } from "./row_memory.js";
import type { Graph } from "./session.js";

const STATISTICS = ["topk_ids", "topk_logprobs", "entropy"];

/** Return the names of a graph's outputs of new keys and values, in the order of the cache. */
export const rowNames = ({ dimensions }: Manifest): string[] =>
  range(0, dimensions.layers).flatMap((layer) => ["key", "value"].map((kind) => `window_key_values.${layer}.${kind}`));

/** Return a graph in `dialect`. With a GPU `device`, caches are in its memory; the graph is then portable. Throws
 * BadInputError if inputs and outputs do not match the manifest. */
export function onnxGraph(
  ort: OnnxRuntime,
  graph: Ort.InferenceSession,
  manifest: Manifest,
  dialect: Dialect,
  device: GpuDevice | null,
  location: string,
): Graph {
  const { dimensions, rotary_inputs: rotaryInputs, with_logits: withLogits } = manifest;
  const isPortable = dialect === "portable";
  const shape = cacheShapeOfManifest(manifest);
  const size = dimensions.partial_rotary_size ?? dimensions.head_size;
  const rotary = rotaryInputs?.includes(dialect) ? { size, theta: dimensions.rope_theta } : null;
  const names = rowNames(manifest);
  // One prefix input of a portable graph, one per array of a standard one
  const pastNames = isPortable ? ["past_key_values"] : names.map((name) => name.replace("window", "past"));
  checkNames("inputs", graph.inputNames, [...inputNames(rotary), ...pastNames], location);
  checkNames("outputs", graph.outputNames, [...STATISTICS, ...(withLogits ? ["logits"] : []), ...names], location);
  const memory = device ? deviceMemory(ort, shape, device) : hostMemory(ort, shape);
  return {
    request(deviceName) {
      const cache = new PrefixCache(shape, memory as RowMemory<unknown>);
      let rows: readonly Ort.Tensor[] = [];
      let place: (branch: number) => RowPlace;
      const disposeRows = (): void => {
        for (const each of rows) each.dispose();
        rows = [];
      };
      return {
        device: deviceName,
        async forward(windows, temperature) {
          disposeRows();
          const inputs = graphInputs(ort, dialect, windows, temperature, cache, rotary);
          cache.tensors(pastNames.length).forEach((tensor, index) => (inputs[pastNames[index]!] = tensor));
          const outputs = await graph.run(inputs);
          rows = names.map((name) => outputs[name]!);
          const { branches, width } = windows;
          // Arrays [B, heads, W, D], or [heads, B * W, D] of a portable graph
          place = (branch) =>
            isPortable
              ? { first: branch * width, headStride: branches * width }
              : { first: branch * shape.heads * width, headStride: width };
          return statisticsOf(outputs);
        },
        commit: async (branch, count) => cache.append(rows, place(branch), count),
        shorten: async (count) => cache.shorten(count),
        async release() {
          disposeRows();
          cache.release();
        },
      };
    },
    close: () => graph.release(),
  };
}

function statisticsOf(outputs: Ort.InferenceSession.OnnxValueMapType): RowStatistics {
  const data = (name: string): unknown => outputs[name]?.data;
  return new RowStatistics(
    Int32Array.from(data("topk_ids") as BigInt64Array, Number),
    Float32Array.from(data("topk_logprobs") as Float32Array),
    Float32Array.from(data("entropy") as Float32Array),
    outputs["logits"] ? Float32Array.from(data("logits") as Float32Array) : null,
  );
}

function checkNames(what: string, found: readonly string[], expected: readonly string[], location: string): void {
  const others = [...new Set([...found, ...expected])].filter(
    (name) => !found.includes(name) || !expected.includes(name),
  );
  if (!others.length) return;
  reject(
    `the ${what} of ${location} do not match its manifest: ${shown(others.slice(0, 5))}`,
    `the ${what} of contract version 1`,
    REMEDY,
  );
}

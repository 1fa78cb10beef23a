/** Inputs of a graph in either dialect, except the prefix (docs/concepts/contract.md). */

import type * as Ort from "onnxruntime-common";

import { cosinesAndSines, type RotaryAngles } from "../contract/rotary.js";
import type { Windows } from "../state/windows.js";
import { floor } from "../platform.js";

export type OnnxRuntime = typeof Ort;
export type Dialect = "standard" | "portable";
export type Inputs = Record<string, Ort.Tensor>;

/** Value added to the attention scores of masked keys in portable graphs. */
const MASKED = -1e4;

/** Sizes of the prefix cache of a forward: committed and allocated rows. */
export interface PrefixSize {
  readonly length: number;
  readonly capacity: number;
}

/** Return the inputs of a forward. With `rotary`, the graph takes its cosines and sines in place of positions. */
export function graphInputs(
  ort: OnnxRuntime,
  dialect: Dialect,
  windows: Windows,
  temperature: number,
  prefix: PrefixSize,
  rotary: RotaryAngles | null,
): Inputs {
  const { branches, width, queries } = windows;
  const isPortable = dialect === "portable";
  const rows = isPortable ? [1, branches * width] : [1, branches, width];
  const ints = (values: Int32Array, dims: number[]): Ort.Tensor =>
    new ort.Tensor("int64", BigInt64Array.from(values, BigInt), dims);
  const floats = (values: Float32Array, dims: number[]): Ort.Tensor => new ort.Tensor("float32", values, dims);
  const inputs: Inputs = { input_ids: ints(windows.inputIds, rows) };
  if (rotary) {
    const [cosines, sines] = cosinesAndSines(windows.positions, rotary);
    inputs["rotary_cos"] = floats(cosines, [...rows, rotary.size / 2]);
    inputs["rotary_sin"] = floats(sines, [...rows, rotary.size / 2]);
  } else inputs["position_ids"] = ints(windows.positions, rows);
  const committed = new Uint8Array(prefix.capacity).fill(1, 0, prefix.length);
  if (!isPortable) {
    inputs["window_mask"] = new ort.Tensor("bool", windows.mask.slice(), [...rows, width]);
    inputs["prefix_mask"] = new ort.Tensor("bool", committed, [1, prefix.capacity]);
    inputs["logits_index"] = ints(windows.logitsIndex, [1, branches, queries]);
    inputs["temperature"] = floats(Float32Array.of(temperature), [1]);
    return inputs;
  }
  const sampled = branches * queries;
  const total = branches * width;
  inputs["window_mask"] = floats(windowBias(windows), [1, 1, total, total]);
  inputs["prefix_mask"] = floats(Float32Array.from(committed, bias), [1, 1, 1, prefix.capacity]);
  const index = windows.logitsIndex.map((row, place) => row + floor(place / queries) * width);
  inputs["logits_index"] = ints(index, [sampled]);
  inputs["temperature"] = floats(new Float32Array(sampled).fill(temperature), [sampled, 1]);
  return inputs;
}

/** Return the names of the inputs of a graph except the prefix. */
export function inputNames(rotary: RotaryAngles | null): string[] {
  const positions = rotary ? ["rotary_cos", "rotary_sin"] : ["position_ids"];
  return ["input_ids", ...positions, "window_mask", "prefix_mask", "logits_index", "temperature"];
}

const bias = (isAllowed: number): number => (isAllowed ? 0 : MASKED);

/** Return the masks [B, W, W] as a bias [B * W, B * W] that separates the branches. */
function windowBias({ branches, width, mask }: Windows): Float32Array {
  const total = branches * width;
  const result = new Float32Array(total * total).fill(MASKED);
  for (let row = 0; row < total; row++) {
    const own = mask.subarray(row * width, (row + 1) * width);
    result.set(Float32Array.from(own, bias), row * total + floor(row / width) * width);
  }
  return result;
}

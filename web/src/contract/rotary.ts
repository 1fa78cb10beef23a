/** Cosines and sines of rotary angles, for graphs that take them in place of positions (docs/concepts/contract.md). */

import { fround } from "../platform.js";

export interface RotaryAngles {
  /** Number of rotated channels of a head. */
  readonly size: number;
  readonly theta: number;
}

/** Return the cosines and sines of `positions` [n] as arrays [n, size / 2]. Angles are float32 products. */
export function cosinesAndSines(positions: ArrayLike<number>, rotary: RotaryAngles): [Float32Array, Float32Array] {
  const half = rotary.size / 2;
  const frequencies = Float32Array.from({ length: half }, (_, pair) =>
    fround(1 / fround(rotary.theta ** fround((2 * pair) / rotary.size))),
  );
  const cosines = new Float32Array(positions.length * half);
  const sines = new Float32Array(positions.length * half);
  for (let row = 0; row < positions.length; row++) {
    for (let pair = 0; pair < half; pair++) {
      const angle = fround(positions[row]! * frequencies[pair]!);
      cosines[row * half + pair] = Math.cos(angle);
      sines[row * half + pair] = Math.sin(angle);
    }
  }
  return [cosines, sines];
}

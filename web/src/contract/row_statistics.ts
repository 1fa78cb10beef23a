/** Statistics of the sampled rows of one forward. */

import { NonFiniteAnswerError, reject } from "../errors.js";
import { TOP_K } from "./sizes.js";

/** Statistics of n rows: ids and log-probabilities [n, TOP_K], entropies [n], and logits [n, V] if the bundle has
 * them. */
export class RowStatistics {
  constructor(
    readonly ids: Int32Array,
    readonly logprobs: Float32Array,
    readonly entropies: Float32Array,
    readonly logits: Float32Array | null,
  ) {}

  get count(): number {
    return this.entropies.length;
  }

  /** Return the rows with these indices. */
  at(indices: readonly number[]): RowStatistics {
    const result = new RowStatistics(
      ...(this.#arrays.map((array) => {
        const Numbers = array?.constructor as Float32ArrayConstructor;
        return array && new Numbers((array.length / this.count) * indices.length);
      }) as [Int32Array, Float32Array, Float32Array, Float32Array | null]),
    );
    indices.forEach((index, place) => result.put(place, this, index));
    return result;
  }

  /** Overwrite row `place` with row `index` of `other`. */
  put(place: number, other: RowStatistics, index: number): void {
    other.#arrays.forEach((array, number) => {
      const width = (array?.length ?? 0) / other.count;
      this.#arrays[number]?.set(array?.subarray(index * width, (index + 1) * width) ?? [], place * width);
    });
  }

  get #arrays(): (Int32Array | Float32Array | null)[] {
    return [this.ids, this.logprobs, this.entropies, this.logits];
  }
}

/** Throw NonFiniteAnswerError for statistics that decoding rules would turn into wrong text.
 *
 * Candidates after the first may have a log-probability of minus infinity, from underflow. */
export function checkStatistics(rows: RowStatistics, vocabSize: number, device: string, step: number): void {
  const finite =
    rows.entropies.every(Number.isFinite) &&
    rows.logprobs.every((value, index) => Number.isFinite(value) || (value === -Infinity && index % TOP_K > 0));
  const known = rows.ids.every((id) => id >= 0 && id < vocabSize);
  if (finite && known) return;
  rejectStatistics(
    `${device} returned ${finite ? "token ids outside the vocabulary" : "NaN or infinity"} in step ${step}`,
    finite ? `ids from 0 to ${vocabSize - 1}` : "finite statistics for every requested row",
  );
}

/** Throw NonFiniteAnswerError. */
export function rejectStatistics(received: string, expected: string): never {
  reject(
    received,
    expected,
    "check the bundle with lopa-export verify; if its files are intact, export the checkpoint in float32",
    undefined,
    NonFiniteAnswerError,
  );
}

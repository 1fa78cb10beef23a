/** Statistics of the sampled rows of one forward. */

import { NonFiniteAnswerError } from "../errors.js";
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
    const width = this.logits === null ? 0 : this.logits.length / this.count;
    const result = emptyRows(indices.length, this.logits === null ? null : width);
    indices.forEach((index, place) => result.put(place, this, index));
    return result;
  }

  /** Overwrite row `place` with row `index` of `other`. */
  put(place: number, other: RowStatistics, index: number): void {
    this.ids.set(other.ids.subarray(index * TOP_K, (index + 1) * TOP_K), place * TOP_K);
    this.logprobs.set(other.logprobs.subarray(index * TOP_K, (index + 1) * TOP_K), place * TOP_K);
    this.entropies[place] = other.entropies[index]!;
    if (this.logits !== null && other.logits !== null) {
      const width = this.logits.length / this.count;
      this.logits.set(other.logits.subarray(index * width, (index + 1) * width), place * width);
    }
  }
}

function emptyRows(count: number, width: number | null): RowStatistics {
  return new RowStatistics(
    new Int32Array(count * TOP_K),
    new Float32Array(count * TOP_K),
    new Float32Array(count),
    width === null ? null : new Float32Array(count * width),
  );
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
  throw new NonFiniteAnswerError(
    `${device} returned ${finite ? "token ids outside the vocabulary" : "NaN or infinity"} in step ${step}`,
    {
      expected: finite ? `ids from 0 to ${vocabSize - 1}` : "finite statistics for every requested row",
      remedy: "check the bundle with lopa-export verify; if its files are intact, export the checkpoint in float32",
    },
  );
}

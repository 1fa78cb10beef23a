/** The arguments of a strategy's stages: candidates, and the view of a block of one branch. */

/** One candidate token for each of n sampled positions. Probabilities and confidences are float32 values. */
export interface Candidates {
  readonly tokens: readonly number[];
  readonly probabilities: readonly number[];
  readonly confidences: readonly number[];
  /** Entropies in nats after top_k and top_p. */
  readonly entropies: readonly number[];
}

/** Return the candidates with these indices. */
export function candidatesAt(candidates: Candidates, indices: readonly number[]): Candidates {
  const pick = (values: readonly number[]): number[] => indices.map((index) => values[index]!);
  return {
    tokens: pick(candidates.tokens),
    probabilities: pick(candidates.probabilities),
    confidences: pick(candidates.confidences),
    entropies: pick(candidates.entropies),
  };
}

/** The n sampled positions of an active block that may be unmasked now, ascending. */
export interface BlockView {
  readonly candidates: Candidates;
  /** True for masked positions. */
  readonly masked: readonly boolean[];
  /** True if the block before is nearly unmasked, so that this block unmasks at least one position per step. */
  readonly fullyActivated: boolean;
  /** Earlier rounds in which the block was active. */
  readonly rounds: number;
  /** True if the answer's first masked position is in this block. */
  readonly leads: boolean;
}

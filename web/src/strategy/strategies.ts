/** The table of strategies. */

import { reject, shown } from "../errors.js";
import {
  byConfidence,
  constant,
  ifBestIsCertain,
  leftToRight,
  never,
  noLimit,
  withinEntropyBound,
  type Strategy,
} from "./strategy.js";

const USUAL: Omit<Strategy, "name"> = {
  threshold: constant,
  rank: byConfidence,
  cut: noLimit,
  pipelined: false,
  looksAhead: false,
  defaultBranches: 1,
  blockSteps: false,
  unmasksFirst: true,
  overwritesUnmasked: true,
};

export const STRATEGIES: readonly Strategy[] = [
  { ...USUAL, name: "lopa", pipelined: true, looksAhead: true, defaultBranches: null },
  { ...USUAL, name: "d2f", pipelined: true },
  { ...USUAL, name: "threshold", blockSteps: true },
  { ...USUAL, name: "vanilla", threshold: never, blockSteps: true, unmasksFirst: false },
  {
    ...USUAL,
    name: "sequential",
    threshold: never,
    rank: leftToRight,
    blockSteps: true,
    unmasksFirst: false,
    overwritesUnmasked: false,
  },
  { ...USUAL, name: "eb", threshold: ifBestIsCertain, cut: withinEntropyBound, pipelined: true, looksAhead: true },
];

/** Strategies that only Python has. */
const ONLY_IN_PYTHON = ["wino", "dream", "top_n", "factor", "klass", "credit", "local_leap", "canvas"];

/** Return the strategy called `name`. Throws BadInputError for an unknown name. */
export function strategyFromName(name: unknown): Strategy {
  const found = STRATEGIES.find((strategy) => strategy.name === name);
  if (found) return found;
  const known = typeof name === "string" && ONLY_IN_PYTHON.includes(name);
  reject(
    known ? `strategy ${shown(name)}, which lopa-web lacks` : `unknown strategy ${shown(name)}`,
    `one of ${STRATEGIES.map((strategy) => strategy.name).join(", ")}`,
    `use one of these strategies${known ? ", or decode with Python" : ""}`,
  );
}

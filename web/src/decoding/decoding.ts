/** The decoding loop of one request: LoPA (docs/reference/algorithm.md, section 6), with D2F, threshold and vanilla as
 * special cases. It works on token ids, without tokenizer, text or files. */

import { checkStatistics, type RowStatistics } from "../contract/row_statistics.js";
import { range } from "../contract/sizes.js";
import { failInternally } from "../errors.js";
import {
  answerIds,
  firstBranch,
  publishedStopReason,
  stopReason,
  unmaskedLength,
  type Branch,
  type StopReason,
} from "../state/branch.js";
import type { Context } from "../state/context.js";
import { layoutOfPrompt } from "../state/layout.js";
import { branchesOfRound, handsOver, nextAnchor } from "../state/pipeline.js";
import { checkRows, windowsFromBranches, type Windows } from "../state/windows.js";
import { scoreBranches, spawnBranches, unmask } from "./round.js";
import type { Step } from "./step.js";
import { max, min } from "../platform.js";

/** The part of a session that a decode needs: forwards of one request, and its prefix cache. */
export interface Forwards {
  readonly device: string;
  /** Return the statistics of all sampled rows [B * Q], without committing. */
  forward(windows: Windows, temperature: number): Promise<RowStatistics>;
  /** Append the first `count` rows of `branch` in the last forward to the prefix. */
  commit(branch: number, count: number): Promise<void>;
  /** Drop the committed rows behind the first `count`. */
  shorten(count: number): Promise<void>;
  /** Free the prefix cache. */
  release(): Promise<void>;
}

/** The state of one request between steps, and the step function. `stopReason` is null until decoding has ended. */
export class Decoding {
  readonly promptLength: number;
  stopReason: StopReason | null = null;
  /** Number of rounds. */
  steps = 0;
  /** Maximum number of generated positions so far; the paper counts these. */
  windowTokens = 0;
  /** Logical step counter that seeds sampling. Rounds that sample no position do not count. */
  #strategySteps = 0;
  /** Statistics of the last committed row of finished blocks, and the position that it predicts. */
  #keptRow: RowStatistics | null = null;
  #keptFor: number | null = null;
  /** Positions of the rows in the prefix cache, in their order. */
  #cached: number[] = [];
  #branches: readonly Branch[];

  constructor(
    readonly session: Forwards,
    prompt: readonly number[],
    readonly context: Context,
  ) {
    this.promptLength = prompt.length;
    const layout = layoutOfPrompt(prompt.length, context.params, context.predictionShift);
    this.#branches = branchesOfRound([firstBranch(prompt, layout, context)], context);
    this.#updateEnd();
  }

  /** Accepted sequence so far. */
  get anchor(): Branch {
    return this.#branches.at(-1)!;
  }

  /** Run one round: verify all branches in one forward, unmask positions of the winner, and branch again. */
  async step(): Promise<Step> {
    const began = performance.now();
    const { context, session } = this;
    const branches = this.#branches;
    const windows = await this.#openRound();

    const forwardBegan = performance.now();
    const rows = await session.forward(windows, context.params.temperature || 1);
    const forwardEnded = performance.now();
    this.steps += 1;
    checkStatistics(rows, context.vocabSize, session.device, this.steps);
    this.#fillWithKeptRow(rows, windows);

    const scores = scoreBranches(windows, rows, this.#strategySteps + 1, context);
    const { winner } = scores;
    if (windows.sampled.some((positions) => positions.length) || handsOver(this.anchor)) this.#strategySteps += 1;
    await this.#commit(windows, rows, winner);

    const outcome = unmask(scores, branches[winner]!, rows, context);
    const anchor = nextAnchor(outcome.branch);
    const [next, lookaheads] = spawnBranches(anchor, outcome, context.params.branches - 1, context);
    this.#branches = next;
    this.#updateEnd();
    const forward = (forwardEnded - forwardBegan) / 1000;
    return {
      number: this.steps,
      branches,
      windows,
      confidences: scores.confidences,
      winner,
      unmasked: outcome.unmasked,
      lookaheads,
      seconds: { forward, host: (performance.now() - began) / 1000 - forward },
    };
  }

  /** End the request from outside, e.g. at a time limit. */
  stop(reason: StopReason): void {
    this.stopReason = reason;
  }

  /** Return the final generated ids, including an end of text that ends the answer. */
  committed(): number[] {
    const { isLlada2, params, ends } = this.context;
    const length = unmaskedLength(this.anchor);
    return answerIds(this.anchor, isLlada2 ? min(length, params.max_new_tokens) : length, ends);
  }

  /** Return every generated position, masked ones as the mask token. */
  generated(): number[] {
    return this.anchor.tokens.slice(this.promptLength);
  }

  /** Return the windows of the next round, after the cached rows that it does not use were dropped. */
  async #openRound(): Promise<Windows> {
    const { context } = this;
    let windows = windowsFromBranches(this.#branches, context, false);
    if (!this.#isCached(windows)) windows = windowsFromBranches(this.#branches, context, true);
    if (!this.#isCached(windows)) failInternally("the cache lacks rows that a round needs");
    checkRows(windows, context.predictionShift, this.anchor.layout.unseen, this.#keptFor);
    if (windows.prefix < this.#cached.length) {
      await this.session.shorten(windows.prefix);
      this.#cached = [...windows.cached];
    }
    return windows;
  }

  #isCached(windows: Windows): boolean {
    return windows.cached.every((position, index) => position === this.#cached[index]);
  }

  /** Replace the rows that no window row predicts with the row of the last commit. */
  #fillWithKeptRow(rows: RowStatistics, windows: Windows): void {
    const kept = this.#keptRow;
    windows.fromKeptRow.forEach((isKept, place) => {
      if (isKept && kept) rows.put(place, kept, 0);
    });
  }

  /** Commit the winner's finished rows. */
  async #commit(windows: Windows, rows: RowStatistics, winner: number): Promise<void> {
    if (windows.commit > 0) {
      await this.session.commit(winner, windows.commit);
      const first = winner * windows.width;
      this.#cached.push(...range(first, first + windows.commit).map((row) => windows.positions[row]!));
    }
    if (windows.keptColumns) {
      this.#keptRow = rows.at([winner * windows.queries]);
      this.#keptFor = windows.logitsPositions[winner * windows.queries]!;
    }
  }

  #updateEnd(): void {
    this.windowTokens = max(this.windowTokens, this.anchor.tokens.length - this.promptLength);
    this.stopReason = this.context.params.reference
      ? publishedStopReason(this.#branches, this.steps, this.context)
      : stopReason(this.anchor, this.context.ends);
  }
}

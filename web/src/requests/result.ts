/** Events and result of a request, with the names of Python's. */

import type { StopReason } from "../state/branch.js";
import type { DecodingParams } from "../options/decoding_params.js";

/** The answer to one prompt, with statistics of its decode.
 *
 * `tokens` counts ids up to and including the first end of text, `generated_positions` all generated positions as in the
 * paper, and `steps` forward rounds. `token_ids` are the ids that `tokens` counts; in reference mode all generated
 * positions. `text` ends before an end of text or a stop string. `seconds` is wall time. */
export interface GenerationResult {
  readonly prompt_ids: readonly number[];
  readonly token_ids: readonly number[];
  readonly text: string;
  readonly steps: number;
  readonly tokens: number;
  readonly generated_positions: number;
  readonly tokens_per_forward: number;
  readonly stop_reason: StopReason;
  readonly stop_string: string | null;
  readonly seconds: number;
  readonly params: DecodingParams;
  /** A number up to 2^53 - 1. A larger seed is a bigint, which JSON.stringify rejects. */
  readonly seed: number | bigint;
  readonly branches: number;
}

/** New final text, which follows the text of earlier events. */
export interface TextEvent {
  readonly type: "text";
  readonly text: string;
  /** Offsets in `text`, in UTF-16 units, at which an added token of the tokenizer begins, such as <tool_call>. */
  readonly markup: readonly number[];
}

/** The whole answer after a step, with the character ░ for each masked position. It may still change. */
export interface DraftEvent {
  readonly type: "draft";
  readonly step: number;
  readonly text: string;
  /** Number of unmasked positions. It falls when positions behind an end of text are dropped. */
  readonly unmasked: number;
  /** Ids of all generated positions, null for masked ones. */
  readonly token_ids: readonly (number | null)[];
  /** Position of the first of them in the sequence, as in the step's records. */
  readonly start: number;
}

/** The last event, with the result. */
export interface DoneEvent {
  readonly type: "done";
  readonly result: GenerationResult;
}

export type Event = TextEvent | DraftEvent | DoneEvent;

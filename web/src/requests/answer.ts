/** The answer to one request during its decode: text, clock, events and result. */

import type { Decoding } from "../decoding/decoding.js";
import type { Step } from "../decoding/step.js";
import type { StopReason } from "../state/branch.js";
import { TextStream } from "../text/text_stream.js";
import type { Tokenizer } from "../text/tokenizer.js";
import type { Event, GenerationResult } from "./result.js";

const MASKED = "░";

/** Converter of a decode's rounds into events. Call `eventsFromStep` after every round, and `lastEvents` once the
 * decode has stopped or is abandoned. */
export class Answer {
  readonly #began = performance.now();
  readonly #stream: TextStream;
  #text = "";
  #pushed = 0;

  constructor(
    private readonly decoding: Decoding,
    private readonly promptIds: readonly number[],
    private readonly tokenizer: Tokenizer,
    private readonly drafts: boolean,
  ) {
    this.#stream = new TextStream(tokenizer, decoding.context.params.stop);
  }

  /** Return the events of a round: text that became final, and a draft if requested. This may end the request. */
  eventsFromStep(step: Step): Event[] {
    const { decoding } = this;
    const events = this.#newText();
    if (this.drafts) {
      const start = decoding.promptLength;
      const unmasked = decoding.anchor.unmasked.slice(start);
      const token_ids = decoding.generated().map((id, index) => (unmasked[index] ? id : null));
      const count = unmasked.filter(Boolean).length;
      events.push({ type: "draft", step: step.number, text: this.#draft(unmasked), unmasked: count, token_ids, start });
    }
    if (this.#stream.stopped !== null) decoding.stop("stop_string");
    else if (decoding.stopReason === null && this.#seconds() >= decoding.context.params.time_limit) {
      decoding.stop("time_limit");
    }
    return events;
  }

  /** Return the rest of the text and the result, with stop reason `reason`. It may be called only once. */
  lastEvents(reason: StopReason): Event[] {
    const events = [...this.#newText(), ...this.#textEvents(this.#stream.finish())];
    return [...events, { type: "done", result: this.#result(this.#stream.stopped === null ? reason : "stop_string") }];
  }

  /** Return the text that became final since the last call. */
  #newText(): Event[] {
    const committed = this.decoding.committed();
    const events = this.#textEvents(this.#stream.push(committed.slice(this.#pushed)));
    this.#pushed = committed.length;
    return events;
  }

  #textEvents(text: string): Event[] {
    if (text === "") return [];
    const begin = this.#text.length;
    this.#text += text;
    const offsets = this.#stream.markup;
    const isInside = (offset: number): boolean => offset < this.#text.length;
    this.#stream.markup = offsets.filter((offset) => !isInside(offset));
    return [{ type: "text", text, markup: offsets.filter(isInside).map((offset) => offset - begin) }];
  }

  /** Return the answer so far, with the character ░ for each masked position. */
  #draft(unmasked: readonly boolean[]): string {
    const ids = this.decoding.generated();
    let text = "";
    for (let start = 0, end = 0; start < ids.length; start = end) {
      while (end < ids.length && unmasked[end] === unmasked[start]) end += 1;
      text += unmasked[start] ? this.tokenizer.decode(ids.slice(start, end)) : MASKED.repeat(end - start);
    }
    return text;
  }

  #seconds(): number {
    return (performance.now() - this.#began) / 1000;
  }

  #result(stopReason: StopReason): GenerationResult {
    const { decoding } = this;
    const { params } = decoding.context;
    // ids up to the end of the stop string, if one ended the answer
    const committed = decoding.committed();
    const answer = this.#stream.stopped === null ? committed : committed.slice(0, this.#stream.tokenCount);
    return {
      prompt_ids: this.promptIds,
      token_ids: params.reference ? decoding.generated() : answer,
      text: this.#text,
      steps: decoding.steps,
      tokens: answer.length,
      generated_positions: decoding.windowTokens,
      tokens_per_forward: decoding.steps ? answer.length / decoding.steps : 0,
      stop_reason: stopReason,
      stop_string: this.#stream.stopped,
      seconds: this.#seconds(),
      params,
      seed: params.seed,
      branches: params.branches,
    };
  }
}

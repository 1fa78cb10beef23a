/** The answer to one request during its decode: text, clock, events and result. */

import type { Decoding } from "../decoding/decoding.js";
import type { Step } from "../decoding/step.js";
import type { StopReason } from "../state/branch.js";
import { textStream } from "../text/text_stream.js";
import type { Tokenizer } from "../text/tokenizer.js";
import type { Event, GenerationResult } from "./result.js";

const MASKED = "░";

/** Converter of a decode's rounds into events. */
export interface Answer {
  /** Return the events of a round: text that became final, and a draft if requested. This may end the request. */
  eventsFromStep(step: Step): Event[];
  /** Return the rest of the text and the result, with stop reason `reason`. It may be called only once, when the decode
   * has stopped or is abandoned. */
  lastEvents(reason: StopReason): Event[];
}

export function answerOf(
  decoding: Decoding,
  promptIds: readonly number[],
  tokenizer: Tokenizer,
  drafts: boolean,
): Answer {
  const began = performance.now();
  const { params } = decoding.context;
  const stream = textStream(tokenizer, params.stop);
  let answer = "";
  let pushed = 0;

  const seconds = (): number => (performance.now() - began) / 1000;

  const textEvents = (text: string): Event[] => {
    if (text === "") return [];
    const begin = answer.length;
    answer += text;
    const offsets = stream.markup;
    const isInside = (offset: number): boolean => offset < answer.length;
    stream.markup = offsets.filter((offset) => !isInside(offset));
    return [{ type: "text", text, markup: offsets.filter(isInside).map((offset) => offset - begin) }];
  };

  /** Return the text that became final since the last call. */
  const newText = (): Event[] => {
    const committed = decoding.committed();
    const events = textEvents(stream.push(committed.slice(pushed)));
    pushed = committed.length;
    return events;
  };

  /** Return the answer so far, with the character ░ for each masked position. */
  const draft = (ids: readonly number[], unmasked: readonly boolean[]): string => {
    let text = "";
    for (let start = 0, end = 0; start < ids.length; start = end) {
      while (end < ids.length && unmasked[end] === unmasked[start]) end += 1;
      text += unmasked[start] ? tokenizer.decode(ids.slice(start, end)) : MASKED.repeat(end - start);
    }
    return text;
  };

  return {
    eventsFromStep(step) {
      const events = newText();
      if (drafts) {
        const start = decoding.promptLength;
        const unmasked = decoding.anchor.unmasked.slice(start);
        const ids = decoding.generated();
        events.push({
          type: "draft",
          step: step.number,
          text: draft(ids, unmasked),
          unmasked: unmasked.filter(Boolean).length,
          token_ids: ids.map((id, index) => (unmasked[index] ? id : null)),
          start,
        });
      }
      if (stream.stopped) decoding.stop("stop_string");
      else if (!decoding.stopReason && seconds() >= params.time_limit) decoding.stop("time_limit");
      return events;
    },
    lastEvents(reason) {
      const events = [...newText(), ...textEvents(stream.finish())];
      // Ids up to the end of the stop string, if one ended the answer
      const ids = decoding.committed().slice(0, stream.stopped ? stream.tokenCount : Infinity);
      const result: GenerationResult = {
        prompt_ids: promptIds,
        token_ids: params.reference ? decoding.generated() : ids,
        text: answer,
        steps: decoding.steps,
        tokens: ids.length,
        generated_positions: decoding.windowTokens,
        tokens_per_forward: decoding.steps ? ids.length / decoding.steps : 0,
        stop_reason: stream.stopped ? "stop_string" : reason,
        stop_string: stream.stopped,
        seconds: seconds(),
        params,
        seed: params.seed,
        branches: params.branches,
      };
      return [...events, { type: "done", result }];
    },
  };
}

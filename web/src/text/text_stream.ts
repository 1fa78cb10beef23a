/** Text of a growing sequence of token ids, in pieces. */

import type { Tokenizer } from "./tokenizer.js";
import { max, min } from "../platform.js";

const REPLACEMENTS_AT_END = /\uFFFD+$/;

/** Incremental decoder that returns only text that later ids cannot change, and ends at the first stop string.
 *
 * The first stop string is the one completed first, and the longest of several completed at the same character. The
 * stop string and the text after it are not returned. */
export interface TextStream {
  /** Stop string that ended the text. */
  stopped: string | null;
  /** Number of ids so far, up to the one that completed the stop string. */
  tokenCount: number;
  /** Offsets in the whole text at which the texts of added tokens begin, such as <tool_call>, ascending. */
  markup: number[];
  /** Return the text that `ids` make final; "" after a stop string. */
  push(ids: readonly number[]): string;
  /** Return the rest of the text when no id follows. */
  finish(): string;
}

// Later ids may change a text, so positions in it are those of Python: whole characters.
const lengthOf = (text: string): number => [...text].length;
const behind = (text: string, length: number): string => [...text].slice(length).join("");

export function textStream(tokenizer: Tokenizer, stops: readonly string[]): TextStream {
  /** Number of final characters, including those that may begin a stop string. */
  let finalCharacters = 0;
  /** Ids to decode: context, whose text was returned, and new ids. Some tokenizers treat the first token specially. */
  let window: number[] = [];
  let context = 0;
  /** Number of characters after the context that were already returned. */
  let returned = 0;
  /** Final text that may be the beginning of a stop string. */
  let pending = "";

  /** Return the text of the window after the context. */
  const newText = (): string => behind(tokenizer.decode(window), lengthOf(tokenizer.decode(window.slice(0, context))));

  /** Return newly final text. U+FFFD at the end is not final, since it may be an incomplete character. */
  const finalText = (): string => {
    const text = newText();
    const final = text.replace(REPLACEMENTS_AT_END, "");
    const fresh = behind(final, returned);
    returned = lengthOf(final);
    if (final !== "" && final === text) {
      window = window.slice(context);
      context = window.length;
      returned = 0;
    }
    return fresh;
  };

  /** Return the final part of the pending text and `fresh`; set `stopped` if a stop string is complete. */
  const withoutStop = (fresh: string): string => {
    const text = pending + fresh;
    const found = stops
      .map((stop) => ({ stop, start: text.indexOf(stop) }))
      .filter(({ start }) => start >= 0)
      .sort((one, other) => one.start + one.stop.length - other.start - other.stop.length || one.start - other.start)[0];
    if (found) stream.stopped = found.stop;
    const kept = found?.start ?? text.length - partialStopLength(text, stops);
    pending = found ? "" : text.slice(kept);
    return text.slice(0, kept);
  };

  const stream: TextStream = {
    stopped: null,
    tokenCount: 0,
    markup: [],
    push(ids) {
      let text = "";
      for (const id of ids) {
        if (stream.stopped) break;
        stream.tokenCount += 1;
        if (tokenizer.specialIds.has(id)) continue;
        window.push(id);
        const final = finalText();
        finalCharacters += final.length;
        const markup = tokenizer.shownMarkup.get(id);
        if (markup !== undefined && final.endsWith(markup)) stream.markup.push(finalCharacters - markup.length);
        text += withoutStop(final);
      }
      return text;
    },
    finish() {
      if (stream.stopped) return "";
      return withoutStop(behind(newText(), returned)) + pending;
    },
  };
  return stream;
}

/** Return the length of the longest end of `text` that begins a stop string. */
function partialStopLength(text: string, stops: readonly string[]): number {
  const longest = max(0, ...stops.map((stop) => stop.length - 1));
  for (let length = min(longest, text.length); length > 0; length--) {
    const end = text.slice(text.length - length);
    if (stops.some((stop) => stop.startsWith(end))) return length;
  }
  return 0;
}

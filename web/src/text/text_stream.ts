/** Text of a growing sequence of token ids, in pieces. */

import type { Tokenizer } from "./tokenizer.js";

const REPLACEMENTS_AT_END = /\uFFFD+$/;

/** Incremental decoder that returns only text that later ids cannot change, and ends at the first stop string.
 *
 * The first stop string is the one completed first, and the longest of several completed at the same character. The
 * stop string and the text after it are not returned. */
export class TextStream {
  /** Stop string that ended the text. */
  stopped: string | null = null;
  /** Number of ids so far, up to the one that completed the stop string. */
  tokenCount = 0;
  /** Offsets in the whole text at which the texts of added tokens begin, such as <tool_call>, ascending. */
  markup: number[] = [];
  /** Number of final characters, including those that may begin a stop string. */
  #finalCharacters = 0;
  /** Ids to decode: context, whose text was returned, and new ids. Some tokenizers treat the first token specially. */
  #ids: number[] = [];
  #context = 0;
  /** Number of characters after the context that were already returned. */
  #returned = 0;
  /** Final text that may be the beginning of a stop string. */
  #pending = "";

  constructor(
    private readonly tokenizer: Tokenizer,
    private readonly stop: readonly string[],
  ) {}

  /** Return the text that `ids` make final; "" after a stop string. */
  push(ids: readonly number[]): string {
    let text = "";
    for (const id of ids) {
      if (this.stopped !== null) break;
      this.tokenCount += 1;
      if (this.tokenizer.specialIds.has(id)) continue;
      this.#ids.push(id);
      const final = this.#finalText();
      this.#finalCharacters += final.length;
      const markup = this.tokenizer.shownMarkup.get(id);
      if (markup !== undefined && final.endsWith(markup)) this.markup.push(this.#finalCharacters - markup.length);
      text += this.#withoutStop(final);
    }
    return text;
  }

  /** Return the rest of the text when no id follows. */
  finish(): string {
    if (this.stopped !== null) return "";
    const rest = this.#withoutStop(this.#newText().slice(this.#returned));
    return this.stopped === null ? rest + this.#pending : rest;
  }

  /** Return the text of the window after the context. */
  #newText(): string {
    const context = this.tokenizer.decode(this.#ids.slice(0, this.#context));
    return this.tokenizer.decode(this.#ids).slice(context.length);
  }

  /** Return newly final text. U+FFFD at the end is not final, since it may be an incomplete character. */
  #finalText(): string {
    const text = this.#newText();
    const final = text.replace(REPLACEMENTS_AT_END, "");
    const fresh = final.slice(this.#returned);
    if (final !== "" && final === text) {
      this.#ids = this.#ids.slice(this.#context);
      this.#context = this.#ids.length;
      this.#returned = 0;
    } else {
      this.#returned = final.length;
    }
    return fresh;
  }

  /** Return the final part of the pending text and `fresh`; set `stopped` if a stop string is complete. */
  #withoutStop(fresh: string): string {
    const text = this.#pending + fresh;
    const found = this.stop
      .map((stop) => ({ stop, start: text.indexOf(stop) }))
      .filter(({ start }) => start >= 0)
      .sort((one, other) => one.start + one.stop.length - other.start - other.stop.length || one.start - other.start)[0];
    if (found !== undefined) {
      this.stopped = found.stop;
      this.#pending = "";
      return text.slice(0, found.start);
    }
    const kept = text.length - this.#partialStopLength(text);
    this.#pending = text.slice(kept);
    return text.slice(0, kept);
  }

  /** Return the length of the longest end of `text` that begins a stop string. */
  #partialStopLength(text: string): number {
    const longest = Math.max(0, ...this.stop.map((stop) => stop.length - 1));
    for (let length = Math.min(longest, text.length); length > 0; length--) {
      const end = text.slice(text.length - length);
      if (this.stop.some((stop) => stop.startsWith(end))) return length;
    }
    return 0;
  }
}

/** Prompts, given as text or token ids, checked and converted to ids. */

import type { Manifest } from "../bundle/manifest.js";
import { PromptTooLongError, reject, shown } from "../errors.js";
import type { DecodingParams } from "../options/decoding_params.js";
import type { Tokenizer } from "./tokenizer.js";

export type Prompt = string | readonly number[];

/** Return the token ids of a prompt. A text gets the bundle's beginning-of-text token; ids are used unchanged.
 *
 * Throws BadInputError for an empty prompt, ids outside the vocabulary, and a prompt that leaves no room for the
 * answer. */
export function idsFromPrompt(
  prompt: unknown,
  params: DecodingParams,
  tokenizer: Tokenizer,
  manifest: Manifest,
): readonly number[] {
  let ids: readonly unknown[];
  if (typeof prompt === "string") {
    ids = prompt === "" ? [] : tokenizer.encode(prompt, manifest.decoding.add_bos, params.special_tokens);
  } else {
    ids = Array.isArray(prompt) ? Array.from(prompt as unknown[]) : [prompt];
  }
  if (!ids.length) {
    reject("an empty prompt", "at least one character or token id", "provide a text to continue");
  }
  const { max_positions: positions, vocab_size: vocabulary } = manifest.dimensions;
  if (ids.length + params.positions > positions) {
    reject(
      `a prompt of ${ids.length} tokens and max_new_tokens ${params.max_new_tokens}, which do not fit together`,
      `at most ${positions} positions for prompt and answer together`,
      "shorten the prompt or lower max_new_tokens",
      undefined,
      PromptTooLongError,
    );
  }
  const isId = (id: unknown): id is number => Number.isInteger(id) && (id as number) >= 0 && (id as number) < vocabulary;
  if (ids.every(isId)) return ids;
  reject(
    `invalid prompt ${shown(prompt)}`,
    `text, or a list of integers from 0 to ${vocabulary - 1}`,
    "encode the text with the bundle's tokenizer",
  );
}

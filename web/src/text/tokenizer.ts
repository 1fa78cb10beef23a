/** Text to token ids and back, with the tokenizer of a bundle equal to those of Python. */

import type { Bundle } from "../bundle/bundle.js";
import { objectFromJson } from "../bundle/record.js";
import { PromptTooLongError, reject, shown, withErrorsAsBadInput } from "../errors.js";
import { markupIn, templateOfSettings, textFromMessages, type Message } from "./chat_template.js";
import { encoderOf, type AddedToken } from "./encoder.js";

export const TOKENIZER_NAME = "tokenizer.json";
export const TOKENIZER_CONFIG_NAME = "tokenizer_config.json";
/** Characters of a text that fit into one position, at most: a longer text is rejected before it is encoded. */
const MAX_CHARACTERS_PER_POSITION = 256;
/** True where Unicode is older than 16, as which Python's tokenizers classifies characters. */
const IS_OLD = !/\p{L}/u.test("\u{10d4a}");
const EXPECTED = "the files that lopa-export onnx wrote, and a tokenizer that lopa-web supports";
const REMEDY = "export the checkpoint again, or decode in Python";

/** The tokenizer of one bundle. */
export interface Tokenizer {
  /** Ids of the special tokens, which `decode` skips. */
  readonly specialIds: ReadonlySet<number>;
  /** Texts by id of the added tokens that answers show, such as <tool_call>. */
  readonly shownMarkup: ReadonlyMap<number, string>;
  /** Return the ids of `prompt`. Texts of special tokens stay text, or become tokens with `specialTokens`. With
   * `addBos` the ids begin with the bundle's beginning-of-text token, if it has one.
   *
   * Throws BadInputError for text that is not Unicode (lone surrogates), PromptTooLongError for one that cannot fit. */
  encode(prompt: string, addBos: boolean, specialTokens: boolean): number[];
  /** Return the ids of a chat by the bundle's template, up to the start of the answer.
   *
   * Throws BadInputError for a bundle without a template, messages that it rejects, and texts of special tokens in
   * messages, unless `specialTokens` is set. */
  chat(messages: readonly Message[], specialTokens: boolean): Promise<number[]>;
  /** Return the text of `ids`, skipping special tokens. Broken UTF-8 becomes U+FFFD. */
  decode(ids: readonly number[]): string;
}

/** Open the tokenizer of `bundle`. Throws BadInputError when a file is missing or broken, or lacks the manifest's
 * special tokens. */
export async function openTokenizer({ files, manifest, read }: Bundle): Promise<Tokenizer> {
  const { location } = files;
  const [bytes, settingsBytes] = await Promise.all([read(TOKENIZER_NAME), read(TOKENIZER_CONFIG_NAME)]);
  const definition = objectFromJson(bytes, `${location}/${TOKENIZER_NAME}`, REMEDY);
  const settings = objectFromJson(settingsBytes, `${location}/${TOKENIZER_CONFIG_NAME}`, REMEDY);
  const { mask, eos, pad, bos, stops = [] } = manifest.special_tokens;
  const roles = [mask, eos, pad, bos, ...stops].filter((id) => id !== null);
  return withErrorsAsBadInput(`the tokenizer of ${location}`, EXPECTED, REMEDY, () => {
    const { added, tokens, unknown, encode: idsOf, textOf } = encoderOf(definition);
    // Python's numbers of ids are whole.
    if (/[^\s{}[\],:\da-z]|\d[a-z]/i.test(new TextDecoder().decode(bytes).replace(/"(?:[^"\\]+|\\.)*"/g, ""))) {
      throw new Error("a number with a fraction or a sign is not supported");
    }
    const missing = roles.filter((id) => !tokens.has(id));
    if (missing.length) {
      reject(`${location}/${TOKENIZER_NAME} has no token for the ids ${missing.join(", ")}`, EXPECTED, REMEDY);
    }
    const template = manifest.chat_template ?? templateOfSettings(settings);
    const isMarkup = template === null ? () => false : markupIn(template);
    const isControl = ({ id, content, special }: AddedToken): boolean | null =>
      special || roles.includes(id) || isMarkup(content);
    const unclear = new Set(added.filter((token) => isControl(token) === null).map((token) => token.id));
    // Ids that text never becomes, unless special_tokens is set: special tokens, those that the manifest names, and
    // markup of the chat template. A tokenizer may use an ordinary character for padding, which stays text.
    const control = new Set([
      ...roles.filter((id) => [...tokens.get(id)!].length > 1),
      ...added.filter(isControl).map((token) => token.id),
    ]);
    const hidden = new Set(added.filter((token) => token.special).map((token) => token.content));
    const maxCharacters = manifest.dimensions.max_positions * MAX_CHARACTERS_PER_POSITION;

    /** Return the ids of `text` without any control token. */
    const literalIds = (text: string): number[] => {
      const ids = idsOf(text, control);
      // The model's vocabulary may contain a special token's text as a word, so split it. Unknown text stays.
      for (const [index, id] of ids.entries()) {
        if (!control.has(id) || id === unknown) continue;
        const token = tokens.get(id)!;
        const content = textOf(["a", token]).slice(1);
        if ([...content].length < 2) continue;
        // The place of this token is that of as many texts like it as the tokens up to here have.
        const before = ids.slice(0, index + 1).map((each) => tokens.get(each)).join("");
        let place = -1;
        for (let at = -1; (at = before.indexOf(token, at + 1)) >= 0; ) {
          place = text.indexOf(content, place + 1);
          if (place < 0) reject(`a text with the special token ${shown(token)}`, "text without it", "remove it");
        }
        const next = place + (text.codePointAt(place)! > 0xffff ? 2 : 1);
        return [text.slice(0, next), text.slice(next)].flatMap(literalIds);
      }
      return ids;
    };
    const encode: Tokenizer["encode"] = (prompt, addBos, specialTokens) => {
      if (/\p{Surrogate}/u.test(prompt)) {
        reject(
          `prompt is not valid Unicode: ${shown(prompt)}`,
          "text that can be encoded as UTF-8",
          "convert the input to UTF-8",
        );
      }
      if (IS_OLD && /\p{Cn}/u.test(prompt)) {
        reject(`prompt has characters that are newer than this browser: ${shown(prompt)}`, "older characters", "update it");
      }
      if (prompt.length > maxCharacters) {
        reject(
          `the text has ${prompt.length} characters`,
          `at most ${maxCharacters} characters`,
          "shorten the prompt",
          undefined,
          PromptTooLongError,
        );
      }
      let ids = idsOf(prompt);
      const mark = specialTokens ? undefined : ids.find((id) => unclear.has(id));
      if (mark !== undefined) {
        reject(
          `a text with ${shown(tokens.get(mark))}, which may be markup of a chat template that lopa-web cannot read`,
          "text without it",
          "remove it",
        );
      }
      if (!specialTokens && ids.some((id) => control.has(id))) ids = literalIds(prompt);
      return !addBos || bos === null || ids[0] === bos ? ids : [bos, ...ids];
    };
    return {
      specialIds: new Set(added.filter((token) => token.special).map((token) => token.id)),
      shownMarkup: new Map(
        added.filter((token) => !token.special && !roles.includes(token.id)).map((token) => [token.id, token.content]),
      ),
      encode,
      async chat(messages, specialTokens) {
        if (template === null) {
          reject(
            `${location} has no chat template`,
            `a chat_template in ${TOKENIZER_CONFIG_NAME}`,
            "use a plain prompt, or add a template: lopa-export edit BUNDLE --chat-template FILE",
          );
        }
        // Only the template itself may write control tokens.
        const tokens = specialTokens ? [] : added.filter(({ id }) => control.has(id)).map(({ content }) => content);
        const text = await textFromMessages(template, messages, settings, location, tokens);
        return encode(text, false, true);
      },
      decode: (ids) =>
        textOf(ids.map((id) => tokens.get(id)!).filter((token) => token !== undefined && !hidden.has(token))),
    };
  });
}

/** Text to token ids and back, with the tokenizer of a bundle and the package @huggingface/tokenizers. */

import { Tokenizer as Backend } from "@huggingface/tokenizers";

import type { Bundle } from "../bundle/bundle.js";
import { isObject, objectFromJson, type JsonObject } from "../bundle/record.js";
import { PromptTooLongError, reject, shown, withErrorsAsBadInput } from "../errors.js";
import { isMarkup, templateOfSettings, textFromMessages, type Message } from "./chat_template.js";
import { supportedParts } from "./tokenizer_parts.js";

export const TOKENIZER_NAME = "tokenizer.json";
export const TOKENIZER_CONFIG_NAME = "tokenizer_config.json";
/** Characters of a text that fit into one position, at most: a longer text is rejected before it is encoded. */
const MAX_CHARACTERS_PER_POSITION = 256;
const EXPECTED = "the files that lopa-export onnx wrote, and a tokenizer that lopa-web supports";
const REMEDY = "export the checkpoint again, or decode in Python";

interface AddedToken {
  readonly id: number;
  readonly content: string;
  readonly special: boolean;
}

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
  const [definition, settings] = await Promise.all(
    [TOKENIZER_NAME, TOKENIZER_CONFIG_NAME].map(async (name) =>
      objectFromJson(await read(name), `${location}/${name}`, REMEDY),
    ),
  );
  const { mask, eos, pad, bos, stops = [] } = manifest.special_tokens;
  const named = new Set([mask, eos, pad, bos, ...stops].filter((id) => id !== null));
  return withErrorsAsBadInput(`the tokenizer of ${location}`, EXPECTED, REMEDY, () => {
    const parts = supportedParts(definition!);
    const added = addedTokens(definition!);
    const backend = new Backend(parts, {});
    const missing = [...named].filter((id) => backend.id_to_token(id) === undefined);
    if (missing.length) {
      reject(`${location}/${TOKENIZER_NAME} has no token for the ids ${missing.join(", ")}`, EXPECTED, REMEDY);
    }
    const template = manifest.chat_template ?? templateOfSettings(settings!);
    const isControl = ({ id, content, special }: AddedToken): boolean =>
      special || named.has(id) || (template !== null && isMarkup(content, template));
    // Ids that text never becomes, unless special_tokens is set: special tokens, those that the manifest names, and
    // markup of the chat template
    const control = new Set([...named, ...added.filter(isControl).map((token) => token.id)]);
    // The same tokenizer without control tokens
    const literal = new Backend({ ...parts, added_tokens: added.filter((token) => !control.has(token.id)) }, {});
    const maxCharacters = manifest.dimensions.max_positions * MAX_CHARACTERS_PER_POSITION;

    /** Return the ids of `text` without any control token. */
    const literalIds = (text: string): number[] => {
      const ids = encoded(literal, text);
      const found = ids.find((id) => control.has(id));
      // The model's vocabulary may contain a special token's text as a word, so split it. Unknown text stays.
      const content = added.find((token) => token.id === found)?.content ?? "";
      const place = content.length < 2 ? -1 : text.indexOf(content);
      return place < 0 ? ids : [text.slice(0, place + 1), text.slice(place + 1)].flatMap(literalIds);
    };
    const encode: Tokenizer["encode"] = (prompt, addBos, specialTokens) => {
      if (/\p{Surrogate}/u.test(prompt)) {
        reject(
          `prompt is not valid Unicode: ${shown(prompt)}`,
          "text that can be encoded as UTF-8",
          "convert the input to UTF-8",
        );
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
      let ids = encoded(backend, prompt);
      if (!specialTokens && ids.some((id) => control.has(id))) ids = literalIds(prompt);
      return !addBos || bos === null || ids[0] === bos ? ids : [bos, ...ids];
    };
    return {
      specialIds: new Set(added.filter((token) => token.special).map((token) => token.id)),
      shownMarkup: new Map(
        added.filter((token) => !token.special && !named.has(token.id)).map((token) => [token.id, token.content]),
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
        const text = await textFromMessages(template, messages, settings!, location);
        // Only the template itself may write control tokens.
        const texts = [messages.map((each) => each.content).join("")];
        JSON.stringify(messages, (name, value: unknown) => (texts.push(name, value as string), value));
        const given = folded(texts.join("\0"));
        const found = added.find(({ id, content }) => control.has(id) && given.includes(folded(content)));
        if (found && !specialTokens) {
          reject(
            `a message with the special token ${shown(found.content)}`,
            "messages without special tokens",
            "remove it, or set special_tokens",
          );
        }
        return encode(text, false, true);
      },
      decode: (ids) =>
        ids.length
          ? backend.decode([...ids], { skip_special_tokens: true, clean_up_tokenization_spaces: false })
          : "",
    };
  });
}

/** Return `text` as templates and normalizers may change it. */
const folded = (text: string): string => text.normalize("NFC").toLowerCase();

const encoded = (backend: Backend, text: string): number[] => backend.encode(text, { add_special_tokens: false }).ids;

function addedTokens(definition: JsonObject): AddedToken[] {
  const found = Array.isArray(definition["added_tokens"]) ? (definition["added_tokens"] as unknown[]) : [];
  return found.filter(isObject).map((token) => ({
    ...token,
    id: Number(token["id"]),
    content: String(token["content"]),
    special: token["special"] === true,
  }));
}

/** Ids of texts and texts of ids by tokenizer.json, equal to those of the library tokenizers of Python. */

import { anything, bool, choice, int, list, nullable, record, text, type JsonObject } from "../bundle/record.js";
import { reject, shown } from "../errors.js";
import { max } from "../platform.js";
import { bytePairs } from "./byte_pairs.js";
import { stepsOf } from "./tokenizer_parts.js";

export interface AddedToken {
  readonly id: number;
  readonly content: string;
  readonly special: boolean;
  readonly normalized: boolean;
  readonly lstrip: boolean;
  readonly rstrip: boolean;
}

export interface Encoder {
  readonly added: readonly AddedToken[];
  /** Tokens by id. */
  readonly tokens: ReadonlyMap<number, string>;
  /** Id of characters that the vocabulary lacks. */
  readonly unknown: number | undefined;
  /** Return the ids of `given`. The texts of the added tokens in `plain` stay text. */
  encode(given: string, plain?: ReadonlySet<number>): number[];
  /** Return the text of tokens. */
  textOf(tokens: readonly string[]): string;
}

/** Maximum added tokens. The largest known number is 6,400. */
const MAX_ADDED = 2 ** 14;
const MAX_TOKEN = 4096;
const part = nullable(anything);
const ADDED = record({
  ...{ id: int(0, 2 ** 24), content: text(MAX_TOKEN), single_word: choice(false), lstrip: bool, rstrip: bool },
  ...{ normalized: bool, special: bool },
});
const FILE = record(
  { model: anything, added_tokens: list(ADDED, MAX_ADDED) },
  {
    ...{ version: choice("1.0"), truncation: anything, padding: anything },
    ...{ normalizer: part, pre_tokenizer: part, post_processor: part, decoder: part },
  },
);
const SPACE = /\p{White_Space}/u;

/** Return the encoder of tokenizer.json. Throws an Error that names what differs in Python. */
export function encoderOf(definition: JsonObject): Encoder {
  const fail = (received: string): never => {
    throw new Error(`${received} is not supported`);
  };
  FILE(definition, "tokenizer", fail);
  if (/(?:^|[^\\])(?:\\\\)*\\ud[89a-f]/.test(JSON.stringify(definition))) fail("a lone surrogate");
  const { ids, unknown, encode: idsOf } = bytePairs(definition["model"] as JsonObject, fail);
  const [normalize, split, decode] = (["normalizer", "pre_tokenizer", "decoder", "post_processor"] as const).map((field) =>
    stepsOf(field, definition[field] ?? null, fail),
  );
  const added = definition["added_tokens"] as AddedToken[];
  const tokens = new Map([...ids].map(([token, id]) => [id, token]));
  let last = -1;
  const found = added.map((token) => ({
    ...token,
    content: token.normalized ? normalize!([token.content])[0]! : token.content,
  }));
  for (const [index, { id, content }] of added.entries()) {
    // The library numbers tokens again.
    const expected = ids.get(content) ?? (last < ids.size ? ids.size : last + 1);
    const text = found[index]!.content;
    if (id !== expected || !text) fail(`the added token ${content} with id ${id}`);
    last = max(last, id);
    tokens.set(id, text);
  }
  if (new Set(added.map(({ content }) => content)).size < added.length) fail("an added token that is repeated");
  const whole = cutter(found.filter((token) => !token.normalized));
  const normal = cutter(found.filter((token) => token.normalized));
  return {
    added,
    tokens,
    unknown,
    encode(given, plain = new Set()) {
      const ofText = (piece: string): number[] => split!([piece]).flatMap(idsOf);
      return whole(given, plain, (piece) => normal(normalize!([piece])[0]!, plain, ofText));
    },
    textOf: (each) => (definition["decoder"] ? decode!(each).join("") : each.join(" ")),
  };
}

type IdsOf = (piece: string) => number[];

/** Return a function that finds added tokens in a text, the longest first, and takes the ids between them from `idsOf`. */
function cutter(added: readonly AddedToken[]): (given: string, plain: ReadonlySet<number>, idsOf: IdsOf) => number[] {
  const byStart = new Map<string, AddedToken[]>();
  const order = [...added].sort(
    (one, other) => other.content.length - one.content.length || Number(other.special) - Number(one.special),
  );
  for (const token of order) {
    const start = token.content[0]!;
    if (!byStart.get(start)?.push(token)) byStart.set(start, [token]);
  }
  return (given, plain, idsOf) => {
    const found: number[] = [];
    let end = 0;
    for (let at = 0; at < given.length; ) {
      const token = byStart.get(given[at]!)?.find(({ content }) => given.startsWith(content, at));
      const start = at;
      at += token?.content.length ?? 1;
      if (!token || plain.has(token.id)) continue;
      let [begin, next] = [start, at];
      if (token.lstrip) for (begin = max(begin, end); begin > end && SPACE.test(given[begin - 1]!); ) begin--;
      if (token.rstrip) while (next < given.length && SPACE.test(given[next]!)) next++;
      // White space may be a token that the one before has taken, and there the library fails.
      if (begin > next) {
        reject(`a text with ${shown(token.content)} in the white space of another token`, "other white space", "change it");
      }
      if (end < begin) found.push(...idsOf(given.slice(end, begin)));
      if (begin < next) found.push(token.id);
      end = next;
    }
    return end < given.length ? found.concat(idsOf(given.slice(end))) : found;
  };
}

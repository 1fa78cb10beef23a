/** Normalizer, pre-tokenizer and decoder of tokenizer.json, as the library tokenizers of Python runs them.
 *
 * Only parts and fields that equal Python's are accepted. Any other is rejected by name, and so are parts that may take
 * unlimited time or memory. */

import { anything, bool, choice, int, isObject, list, map, record, text, type Check, type Reject } from "../bundle/record.js";
import { shown } from "../errors.js";
import { max } from "../platform.js";

/** A text in pieces to a text in other pieces. */
export type Step = (texts: readonly string[]) => readonly string[];

interface Part {
  readonly type: string;
  readonly pattern: { readonly String?: string; readonly Regex?: string };
  readonly content: string;
  readonly [name: string]: unknown;
}
type Kinds = Readonly<Record<string, readonly [Readonly<Record<string, Check>>, (part: Part) => Step]>>;

const MAX_PARTS = 64;
const MAX_TEXT = 1024;
/** Maximum characters that the parts of one field make of one. */
const MAX_GROWTH = 16;
const MAX_STRIP = 2 ** 16;
const MAX_ALTERNATIVES = 32;
const GPT_2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
/** Return the class of the ranges whose ends are `steps` apart. */
const classOf = (steps: string): string => {
  let code = 0;
  const ends = steps.split(" ").map((step) => String.fromCodePoint((code += parseInt(step, 36))));
  return `([${ends.map((end, place) => (place % 2 ? "-" + end : end)).join("")}])`;
};
/** Characters that Unicode 17 added. Oniguruma has Unicode 16, and there U+0295 is a lower case letter. */
const NEW = new RegExp(
  classOf(
    "id 0 16i 0 r1 0 3k 0 2r7 s 15i 0 251 0 ojc 1 3 0 2 0 t 0 gk2 f ce 1 1j 6 29e p 12k 1i 2g5 7 g9 1l fxz 1f 7z 4 4qq 7 zu 6h cg8 2 ce 1i 4pc 1r 34p 0 4f 3 9i 8 ak 3 1f 4 1m 5 t 5 7f 0 10zk 5 4mb b gsj 3bd",
  ),
  "gu",
);
/** Characters that later versions than Unicode 9, which the library's NFC has, compose or reorder. */
const NOT_COMPOSED = new RegExp(
  classOf(
    "1kt 0 4a 1o 8b 0 fy 0 73 1 am 0 1nf 0 q2 18 ln 4 raq 0 ihp r 1fk gx 6j 0 jv 0 20 25 3y 0 rf gw ix df1 2ew i2 m8u 19i",
  ),
  "u",
);
/** An escape or a class, in which only Kimi's is an intersection. */
const ITEM =
  /\\(?:[pP]\{(?:[LMNPSZC][a-z]?|Han)\}|[wWsSdDrnt]|[^\w\s])|\[(\^?(?:\\(?:[pP]\{(?:[LMNPSZC][a-z]?|Han)\}|[sSdDrnt]|u[\da-f]{4}|[^\w\s])|&(?!&)|[^[\]\\&])+)(&&\[\^\\p\{Han\}\])?\]|\$|([+*])\+/gu;
/** An alternative with x for items, \0 for counts and $ for assertions. Nothing that may fail follows two loops. */
const ALTERNATIVE = /^(x\?)?x+([*+]\+?|[*+](x(\?|[*+]\+?|[*+]x\?)?|\$)|\0\$?|\?)?$/;
const ENDINGS = "(?:[sS\u017ftTmMdD]|[rRvV][eE]|[lL]{2})";
const QUOTED = `(?:'${ENDINGS})`;
/** Parts of published expressions that JavaScript lacks, and what finds the same. */
const REWRITTEN = [
  ["[^\\r\\n\\p{L}\\p{N}]?+\\p{L}", "[^\\r\\n\\p{L}\\p{N}]?\\p{L}"],
  ["[^\\s\\p{L}\\p{N}]++[\\r\\n]*", "[^\\s\\p{L}\\p{N}]+[\\r\\n]*"],
  ["\\s++$", "\\s+(?!\\S)(?!\\s)"],
  ["\\p{N}{1,3}+", "\\p{N}+"],
  ["(?i:'s|'t|'re|'ve|'m|'ll|'d)", QUOTED],
  ["(?i:[sdmt]|ll|ve|re)", ENDINGS],
  ["[^(\\s|[.,!?…。，、।۔،])]", "[^()|\\s.,!?…。，、।۔،]"],
  ["\\d{1,3}(?=(?:\\d{3})*\\b)", "\\d{1,3}(?=(?:\\d{3})*(?:\\W|$))"],
] as const;
const WORD = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\xb2\xb3\xb9\xbc-\xbe";
const ESCAPES: Readonly<Record<string, string>> = {
  ...{ s: "\\p{White_Space}", S: "\\P{White_Space}", d: "\\p{Nd}", D: "\\P{Nd}" },
  ...{ w: `[${WORD}]`, W: `[^${WORD}]` },
};
const UTF_8 = new TextEncoder();
/** Characters of the 256 bytes, as GPT-2 writes them. */
const BYTES: string[] = [];
for (let byte = 0, other = 256; byte < 256; byte++) {
  BYTES.push(String.fromCharCode(/[!-~\xa1-\xac\xae-\xff]/.test(String.fromCharCode(byte)) ? byte : other++));
}
const BYTE_OF = new Map(BYTES.map((character, byte) => [character, byte]));

export const utf8 = (value: string): number[] => [...UTF_8.encode(value)];

const decoded = (bytes: readonly number[], fatal = false): string =>
  new TextDecoder("utf-8", { fatal, ignoreBOM: true }).decode(Uint8Array.from(bytes));

/** Check for a value whose JSON matches `pattern`. */
const json =
  (pattern: RegExp): Check =>
  (value, path, fail) => {
    if (!pattern.test(JSON.stringify(value))) fail(`${path} = ${shown(value)}`, "");
  };
const STRING = text(MAX_TEXT, /^/u);
const PATTERN: Check = (value, path, fail) =>
  record({ [isObject(value) && "Regex" in value ? "Regex" : "String"]: text(MAX_TEXT * 16) })(value, path, fail);
const REPLACE = { pattern: PATTERN, content: STRING };
const BYTE_LEVEL = { add_prefix_space: bool, trim_offsets: bool };
const chain =
  (steps: readonly Step[]): Step =>
  (texts) =>
    steps.reduce((found, step) => step(found), texts);
const each =
  (change: (piece: string) => string): Step =>
  (texts) =>
    texts.map(change);
const nothing: Step = (texts) => texts;

const normalizers: Kinds = {
  NFC: [{}, () => each((piece) => piece.split(NOT_COMPOSED).map((part) => part.normalize("NFC")).join(""))],
  Prepend: [{ prepend: STRING }, ({ prepend }) => each((piece) => piece && String(prepend) + piece)],
  Replace: [REPLACE, replacing],
};
const preTokenizers: Kinds = {
  ByteLevel: [
    BYTE_LEVEL,
    ({ add_prefix_space: adds, use_regex: splits }) =>
      chain([
        each((piece) => (adds && !piece.startsWith(" ") ? " " + piece : piece)),
        splits === false ? nothing : splitting(splitter({ Regex: GPT_2 })),
        each((piece) => utf8(piece).map((byte) => BYTES[byte]).join("")),
      ]),
  ],
  Digits: [
    { individual_digits: bool },
    ({ individual_digits: single }) => splitting(matches(single ? /\p{N}/gu : /\p{N}+/gu)),
  ],
  Split: [
    { pattern: PATTERN, behavior: choice("Isolated", "Removed", "MergedWithPrevious"), invert: bool },
    ({ pattern, behavior, invert }) => splitting(splitter(pattern), behavior, invert),
  ],
};
const decoders: Kinds = {
  ByteFallback: [{}, () => withoutByteTokens],
  ByteLevel: [BYTE_LEVEL, () => (tokens) => [decoded(tokens.flatMap(bytesOf))]],
  Fuse: [{}, () => (tokens) => [tokens.join("")]],
  Replace: [REPLACE, replacing],
  Strip: [
    { content: text(2, /^.$/su), start: int(0, MAX_STRIP), stop: choice(0) },
    ({ content, start }) =>
      each((token) => {
        for (let left = Number(start); left && token.startsWith(content); left--) token = token.slice(content.length);
        return token;
      }),
  ],
};
/** Return the check for a template with the texts `names`, each once, between special tokens. */
const template = (...names: readonly string[]): Check => {
  const special = String.raw`(\{"SpecialToken":\{"id":"[^"\\]*","type_id":\d+\}\},?)*`;
  const texts = names.map((name) => String.raw`\{"Sequence":\{"id":"${name}","type_id":\d+\}\},?${special}`);
  return json(new RegExp(String.raw`^\[${special}${texts.join("")}\]$`));
};
/** Parts that only add tokens on request. lopa never asks for them. */
const postProcessors: Kinds = {
  ByteLevel: [BYTE_LEVEL, () => nothing],
  TemplateProcessing: [
    {
      ...{ single: template("A"), pair: template("A", "B") },
      special_tokens: map(record({ id: STRING, ids: list(int(0, 2 ** 32), MAX_TEXT), tokens: list(STRING, MAX_TEXT) })),
    },
    () => nothing,
  ],
};
const FIELDS = {
  normalizer: [normalizers, "normalizers"],
  pre_tokenizer: [preTokenizers, "pretokenizers"],
  decoder: [decoders, "decoders"],
  post_processor: [postProcessors, "processors"],
} as const;

/** Return the steps of a field's parts. Calls `fail` for parts that are not supported. */
export function stepsOf(field: keyof typeof FIELDS, value: unknown, fail: Reject): Step {
  const [kinds, inner] = FIELDS[field];
  let growth = 1;
  const step = (found: unknown, path: string): Step => {
    const type = isObject(found) ? found["type"] : found;
    choice("Sequence", ...Object.keys(kinds))(type, path, fail);
    const part = found as Part;
    const [checks, made] = kinds[part.type] ?? [
      { [inner]: list(anything, MAX_PARTS) },
      (sequence) => chain((sequence[inner] as unknown[]).map((each, place) => step(each, `${path}.${inner}[${place}]`))),
    ];
    record({ type: anything, ...checks }, "trim_offsets" in checks ? { use_regex: bool } : {})(part, path, fail);
    growth *= max(1, String(part.content ?? part["prepend"] ?? "").length / (part.pattern?.String?.length ?? 0.5));
    if (growth > MAX_GROWTH) fail(`${path} that makes a text ${growth} times as long`, "");
    return made(part);
  };
  return value === null ? nothing : step(value, field);
}

/** A piece of a text, and whether a pattern matches it. */
type Piece = readonly [string, boolean];

/** Return a function that returns the pieces of a text that `pattern` matches, and those between them. */
const matches =
  (pattern: RegExp, known = (piece: string): string => piece) =>
  (piece: string): Piece[] => {
    const found: Piece[] = [];
    let end = 0;
    for (const { index, 0: match } of known(piece).matchAll(pattern)) {
      found.push([piece.slice(end, index), false], [piece.slice(index, (end = index + match.length)), true]);
    }
    return [...found, [piece.slice(end), false] as const].filter(([part]) => part);
  };

/** Return `matches` of a pattern of tokenizer.json. */
function splitter({ String: literal, Regex }: Part["pattern"]): (piece: string) => Piece[] {
  if (Regex === undefined) return matches(new RegExp(literal!.replace(/[^]/gu, escaped), "gu"));
  const pattern = new RegExp(translated(Regex), "gu");
  if (pattern.test("")) throw new Error(`the expression ${shown(Regex)}, which may match nothing, is not supported`);
  if (!/\\[pPwWdD]/.test(Regex)) return matches(pattern);
  if (/-(\\u|[^\0-\x7f])/.test(Regex)) throw new Error(`the expression ${shown(Regex)}, which mixes ranges and properties, is not supported`);
  return matches(pattern, (piece) =>
    piece.replace(NEW, (found) => (found[1] ? "\u{1fffe}" : found === "\u0295" ? "\u0250" : "\ufdd0")),
  );
}

const splitting =
  (split: (piece: string) => Piece[], behavior: unknown = "Isolated", invert: unknown = false): Step =>
  (texts) =>
    texts.flatMap((each) => {
      const found: string[] = [];
      let isAfterMatch = false;
      for (const [piece, isFound] of split(each)) {
        const isMatch = isFound !== invert;
        if (!isMatch || behavior === "Isolated") found.push(piece);
        else if (behavior !== "Removed") found.push((isAfterMatch ? "" : (found.pop() ?? "")) + piece);
        isAfterMatch = isMatch;
      }
      return found;
    });

function replacing({ pattern, content }: Part): Step {
  const split = splitter(pattern);
  return each((piece) => split(piece).map(([part, isFound]) => (isFound ? content : part)).join(""));
}

function bytesOf(token: string): number[] {
  const bytes = [...token].map((character) => BYTE_OF.get(character)!);
  return bytes.includes(undefined!) ? utf8(token) : bytes;
}

/** Return the tokens with the texts of bytes such as <0x0A>. Bytes that are not UTF-8 become U+FFFD each. */
function withoutByteTokens(tokens: readonly string[]): string[] {
  const found: string[] = [];
  let bytes: number[] = [];
  const flush = (): void => {
    try {
      if (bytes.length) found.push(decoded(bytes, true));
    } catch {
      found.push(...bytes.map(() => "\ufffd"));
    }
    bytes = [];
  };
  for (const token of tokens) {
    const byte = /^<0x(\+?[\da-f]+)>$/i.exec(token)?.[1];
    if (byte?.length === 2) {
      bytes.push(parseInt(byte, 16));
    } else {
      flush();
      found.push(token);
    }
  }
  flush();
  return found;
}

const escaped = (character: string): string => `\\u{${character.codePointAt(0)!.toString(16)}}`;

/** Return an expression that finds what Oniguruma finds. Throws an Error if it may take long: loops in loops make a
 * text backtrack. */
function translated(expression: string): string {
  const found = REWRITTEN.reduce((text, [given, ours]) => text.replaceAll(given, ours), expression);
  const alternatives = found
    .replaceAll(QUOTED, "x")
    .replaceAll(ENDINGS, "x")
    .replace(ITEM, (item) => (item.length < 3 && !item.startsWith("\\") ? item : "x"))
    .replace(/\{\d,?\d?\}/g, "\0")
    .replace(/(\(\?(!x|=\(\?:x\0\)\*\(\?:x\|\$\))\))+/g, "$")
    .replace(/[^?*+\0()[\]{}\\^$|.]/gu, "x")
    .split("|", MAX_ALTERNATIVES + 1);
  if (alternatives.length > MAX_ALTERNATIVES || !alternatives.every((each) => ALTERNATIVE.test(each))) {
    throw new Error(`the expression ${shown(expression)} may take unlimited time, or is not supported`);
  }
  return found.replace(ITEM, (item: string, inner?: string, han?: string, loop?: string) => {
    if (loop) return loop;
    if (item === "$") return "(?![^\\n])";
    const js = (inner ? `[${inner}]` : item)
      .replaceAll("Han}", "Script=Han}")
      .replace(/\\([^pPrntu])/gu, (_, each: string) => ESCAPES[each] ?? escaped(each));
    return han ? `(?:(?!\\p{Script=Han})${js})` : js;
  });
}

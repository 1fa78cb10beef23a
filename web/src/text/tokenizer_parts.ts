/** Parts of tokenizer.json, rewritten so that the package @huggingface/tokenizers 0.2.0 finds the ids of Python.
 *
 * Parts that the package only approximates are rejected, such as Precompiled, and so are parts that may take unlimited
 * time or memory. */

import type { JsonObject } from "../bundle/record.js";
import { shown } from "../errors.js";
import { max } from "../platform.js";

interface Part {
  readonly type?: string;
  readonly pattern?: { readonly String?: string };
  readonly [name: string]: unknown;
}

/** Parts by field, type, behavior, invert and text. The last Split is Gemma's, which finds no space to split at. */
const SUPPORTED =
  /^(normalizer (NFC|Replace|Prepend)|pre_tokenizer (ByteLevel|Digits|Split (Isolated false|Removed true|MergedWithPrevious false(?= {2}$)))|decoder (ByteLevel|Replace|ByteFallback|Fuse|Strip)|\w+ Sequence) /;
const GPT_2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
/** Maximum characters that the parts of one field make of one. */
const MAX_GROWTH = 16;
const MAX_EXPRESSION = 16_384;
const MAX_ALTERNATIVES = 32;
/** An escape or a class. */
const ITEM = /\\(?:[pP]\{\^?\w+\}|[wWsSdDhHrntfvb]|\W)|\[(?:\\[^]|\[[^\]]*\]|[^\]\\])*\]/gu;
/** An alternative with x for items, \0 for counts and $ for assertions. Nothing that may fail follows two loops. */
const ALTERNATIVE = /^(x\?\+?)?x*([*+]\+?(x([*+]\+?(x\?)?)?|\$)?|\0[+$]?|\?)?$/;

/** Return tokenizer.json with supported parts only. Throws an Error that names any other part. */
export function supportedParts(definition: JsonObject): JsonObject {
  const model: JsonObject = { type: "BPE", ...(definition["model"] as JsonObject) };
  const added_tokens = (definition["added_tokens"] ?? []) as readonly JsonObject[];
  const unsupported =
    ["dropout", "continuing_subword_prefix", "end_of_word_suffix"].find((name) => model[name]) ??
    (added_tokens.some((token) => token["single_word"]) ? "single_word" : model["type"]);
  if (unsupported !== "BPE") throw new Error(`${String(unsupported)} is not supported`);
  if (!model["merges"]) throw new Error("a model without merges");
  const parts = ["normalizer", "pre_tokenizer", "decoder"].map((field) => [field, partsOf(definition, field)]);
  return { model, added_tokens, post_processor: null, ...(Object.fromEntries(parts) as JsonObject) };
}

/** Return the parts of a field. Those inside a sequence come before it. */
function partsOf(definition: JsonObject, field: string): unknown {
  let growth = 1;
  return JSON.parse(JSON.stringify(definition[field] ?? null), (key, part: Part | null) => {
    if (key === "Regex") return translated(String(part));
    if (!part?.type) return part;
    const { type, pattern, behavior, invert } = part;
    const name = [field, type, behavior, invert, pattern?.String].join(" ");
    growth *= max(1, String(part["content"] ?? part["prepend"] ?? "").length / (pattern?.String?.length ?? 0.5));
    if (!SUPPORTED.test(name) || !(growth <= MAX_GROWTH)) throw new Error(`${name.trim()} is not supported`);
    if (type === "Replace") return { ...part, content: String(part["content"]).replaceAll("$", "$$$$") };
    if (type === "Digits") return split(part["individual_digits"] ? "\\p{N}" : "\\p{N}+");
    if (type !== "ByteLevel" || field === "decoder") return part;
    // The expression of the package has JavaScript's \s.
    const space = part["add_prefix_space"] ? { type: "Metaspace", replacement: " " } : null;
    const pretokenizers = [space, part["use_regex"] === false ? null : split(GPT_2), { type, use_regex: false }];
    return { type: "Sequence", pretokenizers };
  }) as unknown;
}

const split = (expression: string): JsonObject => ({
  type: "Split",
  pattern: { Regex: expression },
  behavior: "Isolated",
  invert: false,
});

/** Return an expression that the package matches like Oniguruma. Throws an Error if it may take long: loops in loops
 * make a text backtrack. */
function translated(expression: string): string {
  const alternatives = expression
    .replace(ITEM, "x")
    .replace(/\{\d,?\d?\}/g, "\0")
    .replace(/\(\?i:[\w'|]+\)(?![*+\0])/g, "x")
    .replace(/\(\?(!x|=\(\?:x\0\)\*(x|\(\?:x\|\$\)))\)/g, "$")
    .replace(/[^?*+\0()[\]{}\\^$|]/gu, "x")
    .split("|", MAX_ALTERNATIVES + 1);
  const isSimple = alternatives.length <= MAX_ALTERNATIVES && alternatives.every((each) => ALTERNATIVE.test(each));
  if (!isSimple || expression.length > MAX_EXPRESSION) {
    throw new Error(`the expression ${shown(expression)} may take unlimited time`);
  }
  // The package takes a possessive loop for another, where only this one differs, and does not fold \u017f to s. Its
  // Unicode has \u0295 among letters without case, Oniguruma's among lower case ones.
  return expression
    .replace("\\s++$", "\\s+(?!\\s)$")
    .replace(/\(\?i:[^)]*/g, (group) => group.replace("'s", "'[s]").replace("[s", "[s\u017f"))
    .replaceAll("\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}", "$&&&[^\u0295]");
}

/** Values of chat templates with the operations of Python and jinja2. What is not here is rejected by name.
 *
 * None is null, and an undefined value is undefined. A number is an int, so floats have a class. */

import { ceil, max, min } from "../platform.js";

/** A value of a template. */
export type Value = any; // eslint-disable-line @typescript-eslint/no-explicit-any
export type Named = Readonly<Record<string, Value>>;
/** A macro or a function. */
export type Callable = (args: Value[], named: Named) => Value;
/** Names of parameters, where "?" ends an optional one, and the function of a value and its arguments. */
type Operation = readonly [parameters: string, run: (of: Value, ...args: Value[]) => Value];
type Operations = ReadonlyMap<string, Operation>;

/** A character of white space in Python. */
export const SPACE = "[\\p{White_Space}\\x1c-\\x1f]";
const IS_SPACE = new RegExp(SPACE, "u");
const LINE = /\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/g;
/** The start of a word in the filter title. */
const TITLE = new RegExp(`(?<=^|[-({[<]|${SPACE})[a-z]`, "gu");
const SPACES = new RegExp(`${SPACE}+`, "gu");
/** Fields that are no attribute of a text, a list or a number. */
const FIELD =
  /^(role|content|type|text|name|function|arguments|parameters|properties|description|tool_calls|tool_call_id|reasoning_content|thinking|image|image_url|video|audio|url|id|enum|required)$/;
const IS_METHOD = /^(clear|copy|fromkeys|get|items|keys|pop|popitem|setdefault|update|values|_.*)$/;
/** Characters that repr() writes as they are. */
const PRINTABLE =
  /^[ -~\xa1-\xac\xae-\u0377\u0400-\u052f\u2010-\u2027\u2030-\u205e\u2190-\u23ff\u2600-\u27bf\u3001-\u303f\u3041-\u3096\u3099-\u30ff\u4e00-\u9fa5\uac00-\ud7a3\ufe0f\uff01-\uffbe\u{1f300}-\u{1f64f}\u{1f910}-\u{1f970}]*$/u;
const MAX_DEPTH = 40;
/** Maximum characters of a text in an error. */
const MAX_SHOWN = 80;
const MAX_JSON_INDENT = 16;
const MAX_INDENT = 64;
const MAX_RANGE = 100_000;
/** Maximum characters of the format of a time. */
const MAX_FORMAT = 100;
/** Units for a call, a filter or a test; the unit is a character that is read or written. */
const CALL = 500;
/** Methods whose result or time may grow with the product of their arguments. */
const IS_PRODUCT = /^(join|[lr]?strip|replace|rsplit)$/;
const IS_SHALLOW = /^(count|d|default|first|items|last|length|list|map|reject|rejectattr|reverse|select|selectattr)$/;

/** Units that are left for a rendering. */
export const budget = { units: Infinity };

/** Reduce the budget. Throws an Error when it is exceeded. */
export function charge(units: number): void {
  budget.units -= units;
  if (!(budget.units >= 0)) raise("the template takes too many operations or creates too much text");
}

/** Charge for reading all of a value, and return the units. Repeated references count each time. */
export function weigh(of: Value): number {
  let units = 16 + (isText(of) ? of.text.length : 0);
  charge(units);
  if (of instanceof Items) of = of.of;
  if (of instanceof Map) of = [...of.values()].flat();
  if (isList(of)) for (const each of of) units += weigh(each);
  return units;
}

/** A text. `own` has a zero in place of each character that came from a message. */
export class Text {
  constructor(
    readonly text: string,
    readonly own: string = text,
  ) {}
}

/** Return the number that a template writes as `literal`. */
export const numberFrom = (literal: string): Value =>
  /^\d+$/.test(literal) ? int(Number(literal)) : new Float(Number(literal));

class Float {
  constructor(readonly of: number) {
    if (!Number.isFinite(of)) reject("an infinite number");
  }
}

export class Tuple extends Array<Value> {}

/** Items that have no other operation. A generator gives them once. */
class Items {
  constructor(
    readonly of: Value[],
    public uses = Infinity,
  ) {}
}

export class Namespace {
  readonly of = new Map<string, Value>();
}

/** The variable `loop`. */
export class Loop {
  readonly fields: Readonly<Record<string, Value>>;
  constructor(items: readonly Value[], index0: number) {
    const [length, index] = [items.length, index0 + 1];
    const revindex0 = length - index;
    this.fields = {
      ...{
        index0,
        index,
        revindex0,
        revindex: revindex0 + 1,
        first: !index0,
        last: !revindex0,
        length,
        depth: 1,
        depth0: 0,
      },
      ...{ previtem: items[index0 - 1], nextitem: items[index] },
    };
  }
}

export function raise(message: string): never {
  throw new Error(message);
}

export function reject(feature: string): never {
  return raise(`${feature} is not supported`);
}

const kind = (of: Value): string =>
  isText(of)
    ? "a text"
    : isList(of)
      ? "a list"
      : of instanceof Map
        ? "a mapping"
        : of === null
          ? "None"
          : `this ${typeof of}`;

const quoted = ({ text }: Text): string => JSON.stringify(text.slice(0, MAX_SHOWN));

export const isText = (of: Value): of is Text => of instanceof Text;
const isList = (of: Value): of is Value[] => Array.isArray(of);
const isInt = (of: Value): of is number => typeof of === "number";

const isGenerator = (of: Value): boolean => of instanceof Items && of.uses < Infinity;

/** Return a value of JSON for a template, and `isOwn` if its texts do not come from a message. */
export function valueOf(given: unknown, isOwn: boolean, depth = 0): Value {
  if (depth > MAX_DEPTH) raise("values are nested too deeply");
  if (typeof given === "string") {
    if (/\p{Surrogate}/u.test(given)) raise("a text is not valid Unicode");
    return new Text(given, isOwn ? given : "\0".repeat(given.length));
  }
  if (isList(given)) return given.map((each) => valueOf(each, isOwn, depth + 1));
  if (isInt(given)) return Number.isInteger(given) ? int(given) : new Float(given);
  if (given === null || typeof given === "boolean") return given;
  if (given?.constructor !== Object) reject(kind(given));
  const pairs = Object.entries(given as object).filter(([, each]) => each !== undefined);
  // JavaScript moves such keys to the front.
  if (pairs.length > 1 && pairs.some(([key]) => /^\d+$/.test(key))) reject("a number as a key");
  return mapFrom(pairs.map(([key, each]) => [valueOf(key, isOwn), valueOf(each, isOwn, depth + 1)]));
}

/** Return a mapping. It has each key as a text too. */
export const mapFrom = (pairs: (readonly [Text, Value])[]): Map<string, [Text, Value]> =>
  new Map(pairs.map(([key, each]) => [isText(key) ? key.text : reject(`the key ${kind(key)}`), [key, each]]));

function int(value: number): number {
  return Number.isSafeInteger(value) ? value + 0 : reject("an integer above 2 ** 53");
}

export const joined = (parts: readonly (Text | string)[]): Text => {
  for (const each of parts) charge(isText(each) ? each.text.length : each.length);
  const all = parts.map((each) => (isText(each) ? each : new Text(each)));
  return new Text(all.map((each) => each.text).join(""), all.map((each) => each.own).join(""));
};

const between = (all: readonly Text[], separator: Text | string): Text =>
  joined(all.flatMap((each, index) => (index ? [separator, each] : [each])));

const cut = ({ text, own }: Text, from: number, to?: number): Text =>
  new Text(text.slice(from, to), own.slice(from, to));

/** Return the characters of a text. */
function characters(of: Text): Text[] {
  charge(of.text.length);
  let at = 0;
  return Array.from(of.text, (each) => cut(of, at, (at += each.length)));
}

/** Return the items of a value that Python can iterate. */
export function itemsOf(of: Value): Value[] {
  if (of instanceof Items) return of.uses-- > 0 ? of.of : reject("a second use of a generator");
  if (of instanceof Map) return Array.from(of.values(), ([key]) => key as Text);
  return isText(of) ? characters(of) : isList(of) ? of : of === undefined ? [] : raise(`${kind(of)} has no items`);
}

export function isTrue(of: Value): boolean {
  if (of instanceof Items) return isGenerator(of) || of.of.length > 0;
  return isText(of)
    ? of.text !== ""
    : of instanceof Float
      ? of.of !== 0
      : isList(of)
        ? of.length > 0
        : Boolean(of?.size ?? of);
}

/** Return what Python's str() writes. */
export function printed(of: Value): Text {
  charge(isText(of) ? of.text.length : weigh(of));
  return isText(of) ? of : of === undefined ? new Text("") : represented(of);
}

function represented(of: Value): Text {
  if (of === null) return new Text("None");
  if (typeof of === "boolean") return new Text(of ? "True" : "False");
  if (isInt(of) || of instanceof Float) return new Text(digits(of));
  if (isText(of)) {
    const quote = of.text.includes("'") && !of.text.includes('"') ? '"' : "'";
    const short: Record<string, string> = {
      "\n": "\\n",
      "\r": "\\r",
      "\t": "\\t",
      "\\": "\\\\",
      [quote]: `\\${quote}`,
    };
    const escape = (each: string): string =>
      short[each] ?? (PRINTABLE.test(each) ? each : reject(`${JSON.stringify(each)} of a text in a list`));
    return joined([quote, escaped(of, escape), quote]);
  }
  const list = (open: string, all: Text[], close: string): Text => joined([open, between(all, ", "), close]);
  if (of instanceof Tuple) return list("(", Array.from(of, represented), of.length === 1 ? ",)" : ")");
  if (isList(of)) return list("[", of.map(represented), "]");
  if (!(of instanceof Map)) reject(`a text of ${kind(of)}`);
  return list(
    "{",
    Array.from(of.values(), ([key, each]) => joined([represented(key), ": ", represented(each)])),
    "}",
  );
}

/** Return what Python writes for a number. */
function digits(of: Value): string {
  if (isInt(of)) return String(of);
  const [mantissa, exponent] = of.of.toExponential().split("e");
  if (exponent < -4 || exponent > 15) return `${mantissa}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
  const text = Object.is(of.of, -0) ? "-0" : String(of.of);
  return text.includes(".") ? text : `${text}.0`;
}

const escaped = (of: Text, escape: (each: string) => string): Text =>
  joined(
    characters(of).map((each) => {
      const text = escape(each.text);
      return new Text(text, each.own === each.text ? text : "\0".repeat(text.length));
    }),
  );

/** Return `of` as json.dumps writes it with a line break and spaces, `line`, before each item. */
function jsonOf(of: Value, line: string, step: string, separators: readonly Text[], isSorted: boolean): Text {
  if (of === null || typeof of === "boolean") return new Text(String(of));
  if (isText(of)) return joined(['"', escaped(of, (each) => JSON.stringify(each).slice(1, -1)), '"']);
  const json = (each: Value): Text => jsonOf(each, line + step, step, separators, isSorted);
  const inner = line + step;
  const list = (open: string, all: readonly Text[], close: string): Text =>
    joined(all.length ? [open, inner, between(all, joined([separators[0]!, inner])), line, close] : [open, close]);
  if (isList(of)) return list("[", Array.from(of, json), "]");
  if (!(of instanceof Map))
    return isInt(of) || of instanceof Float ? new Text(digits(of)) : raise(`${kind(of)} is not JSON`);
  const pairs = [...of.values()] as [Text, Value][];
  if (isSorted) pairs.sort(([one], [other]) => (isLess(one, other) ? -1 : 1));
  return list(
    "{",
    pairs.map(([key, each]) => joined([json(key), separators[1]!, json(each)])),
    "}",
  );
}

/** Return the number of an int, a float or a bool; otherwise undefined. */
const number = (of: Value): number | undefined =>
  of instanceof Float ? of.of : isInt(of) || typeof of === "boolean" ? Number(of) : undefined;

export function isEqual(one: Value, other: Value): boolean {
  for (const each of [one, other]) {
    if ([Items, Namespace, Loop, Function].some((type) => each instanceof type)) reject(`== of ${kind(each)}`);
  }
  if (isText(one)) return isText(other) && one.text === other.text;
  if (isList(one)) {
    const isSame = isList(other) && one instanceof Tuple === other instanceof Tuple && one.length === other.length;
    return isSame && one.every((each, index) => isEqual(each, other[index]));
  }
  if (one instanceof Map) {
    if (!(other instanceof Map) || one.size !== other.size) return false;
    return [...one].every(([key, [, each]]) => other.has(key) && isEqual(each, other.get(key)[1]));
  }
  return (number(one) ?? one) === (number(other) ?? other);
}

export function isLess(one: Value, other: Value): boolean {
  if (isText(one) && isText(other)) {
    // UTF-16 has another order.
    const [left, right] = [one, other].map((each) => Array.from(each.text, (character) => character.codePointAt(0)!));
    const at = left!.findIndex((each, index) => each !== right![index]);
    return at < 0 ? left!.length < right!.length : left![at]! < right![at]!;
  }
  return (number(one) ?? raise(`< of ${kind(one)}`)) < (number(other) ?? raise(`< of ${kind(other)}`));
}

export function isIn(one: Value, all: Value): boolean {
  if (isText(all)) return all.text.includes(text(one));
  if (all instanceof Map)
    return isList(one) || one instanceof Map ? raise("a list as a key") : isText(one) && all.has(one.text);
  if (isGenerator(all) || (all instanceof Items && !isText(one) && !isInt(one))) reject("`in` of such items");
  return itemsOf(all).some((each) => isEqual(each, one));
}

/** Return the text of a value that must be one. */
const text = (of: Value): string => checked(of).text;

const checked = (of: Value): Text => (isText(of) ? of : raise(`${kind(of)} in place of a text`));

const whole = (of: Value): number => (isInt(of) ? of : raise(`${kind(of)} in place of an int`));

/** Return the result of an arithmetic operator. */
export function computed(operator: string, one: Value, other: Value): Value {
  for (const [each, times] of operator === "~" ? [] : [[one, other], [other, one]]) {
    const count = operator === "*" && isInt(times) ? max(1, times) : 1;
    if (isText(each) || isList(each)) charge(count * (isText(each) ? each.text.length : 8 * each.length));
  }
  if (operator === "%" && isText(one)) return formatted(one, other);
  if (operator === "~") return joined([printed(one), printed(other)]);
  if (operator === "+" && isText(one)) return joined([one, isText(other) ? other : raise(`a text + ${kind(other)}`)]);
  if (operator === "+" && isList(one) && isList(other) && one instanceof Tuple === other instanceof Tuple) {
    return one.concat(other);
  }
  if (operator === "*" && (isText(one) || isText(other))) {
    const [of, times] = isText(one) ? [one, max(0, whole(other))] : [other as Text, max(0, whole(one))];
    return new Text(of.text.repeat(times), of.own.repeat(times));
  }
  const isWhole = isInt(one) && isInt(other);
  const [left, right] = [one, other].map((each) =>
    typeof each === "boolean"
      ? reject("arithmetic with a bool")
      : (number(each) ?? raise(`${operator} of ${kind(each)}`)),
  ) as [number, number];
  if (operator === "+" || operator === "-")
    return (isWhole ? int : float)(operator === "+" ? left + right : left - right);
  if (operator === "*") return (isWhole ? int : float)(left * right);
  if (!right) raise("a division by zero");
  if (operator === "/") return float(left / right);
  if (!isWhole) reject(`${operator} of a float`);
  let rest = left % right;
  if (rest && rest < 0 !== right < 0) rest += right;
  return int(operator === "%" ? rest : int(left - rest) / right);
}

const float = (of: number): Float => new Float(of);

export const negated = (of: Value): Value => (of instanceof Float ? float(-of.of) : int(-whole(of)));

/** Return of[key]. */
export function itemOf(of: Value, key: Value): Value {
  if (of === undefined || typeof key === "boolean") raise(`an item of ${kind(of)}`);
  if (isText(key)) {
    if (!(of instanceof Map)) return attributeOf(of, key.text);
    return of.has(key.text) ? of.get(key.text)[1] : IS_METHOD.test(key.text) ? reject(`["${key.text}"]`) : undefined;
  }
  if (of instanceof Items) reject("an item of a generator");
  return isInt(key) && (isList(of) || isText(of)) ? itemsOf(of).at(key) : undefined;
}

/** Return of.name. The names of Python's methods are rejected before. */
export function attributeOf(of: Value, name: string): Value {
  if (of instanceof Map) return of.get(name)?.[1];
  if (of instanceof Namespace)
    return condition.isRunning ? reject("a namespace in the condition of a loop") : of.of.get(name);
  if (of instanceof Loop) return of.fields[checkedOfLoop(name)];
  return of === undefined || typeof of === "function" || (of !== null && !FIELD.test(name))
    ? reject(`.${name} of ${kind(of)}`)
    : undefined;
}

/** True while the condition of a loop is evaluated, which jinja2 does between the rounds. */
export const condition = { isRunning: false };

export const checkedOfLoop = (name: string): string =>
  /^(((rev)?index|depth)0?|first|last|length|(prev|next)item)$/.test(name) ? name : reject(`loop.${name}`);

export const checkAttribute = (name: string): void => void (IS_METHOD.test(name) && reject(`.${name} without a call`));

export function sliceOf(of: Value, bounds: readonly Value[]): Value {
  if (!isText(of) && !isList(of)) raise(`a slice of ${kind(of)}`);
  const items = itemsOf(of);
  charge(8 * items.length);
  const [from, to, step] = bounds.map((each) => (each === null ? null : whole(each)));
  const by = step ?? 1;
  const [low, high] = by < 0 ? [-1, items.length - 1] : [0, items.length];
  const place = (at: number | null | undefined, missing: number): number =>
    at == null ? missing : at < 0 ? max(at + items.length, low!) : min(at, high!);
  const [first, end] = by < 0 ? [place(from, high!), place(to, low!)] : [place(from, low!), place(to, high!)];
  const found = (of instanceof Tuple ? new Tuple() : []) as Value[];
  for (let at = first; by < 0 ? at > end : at < end; at += by || raise("a step of 0")) found.push(items[at]);
  return isText(of) ? joined(found) : found;
}

/** Return `of` without the characters `cut` at its ends: `sides` is 1 for the left end, 2 for the right one, or 3. */
export function stripped(of: Text, sides: number, chars: Value = null): Text {
  const cutset = chars === null ? null : [...text(chars)];
  const all = [...of.text];
  const isCut = (each?: string): boolean =>
    each !== undefined && (cutset ? cutset.includes(each) : IS_SPACE.test(each));
  let from = 0;
  let to = of.text.length;
  if (sides & 1)
    for (const each of all)
      if (isCut(each)) from += each.length;
      else break;
  if (sides & 2) while (to > from && isCut(all.at(-1))) to -= all.pop()!.length;
  return cut(of, from, to);
}

/** Return the pieces between `separator`, of which `count` are found; all if it is below zero. */
function pieces(of: Text, separator: string, count = -1): Text[] {
  if (!separator) reject("an empty separator");
  const found: Text[] = [];
  let from = 0;
  for (let left = whole(count); left !== 0; left -= 1) {
    const at = of.text.indexOf(separator, from);
    if (at < 0) break;
    found.push(cut(of, from, at));
    from = at + separator.length;
  }
  return [...found, cut(of, from)];
}

/** Return the parts of `text` between the places of `pattern`. */
function partsOf(of: Text, pattern: RegExp): Text[] {
  let at = 0;
  const found = Array.from(of.text.matchAll(pattern), ({ 0: end, index }) =>
    cut(of, at, (at = index + end.length) - end.length),
  );
  return [...found, cut(of, at)];
}

const reversed = ({ text, own }: Text): Text => {
  const [left, right] = [text, own].map((each) => each.split("").reverse().join(""));
  return new Text(left!, right);
};

/** Return what Python's operator % writes. */
function formatted(of: Text, given: Value): Text {
  const values: Value[] = given instanceof Tuple ? [...given] : [given];
  const parts: (Text | string)[] = [];
  let [at, used] = [0, 0];
  for (const { 0: all, index } of of.text.matchAll(/%[^]?/gu)) {
    parts.push(cut(of, at, index));
    at = index + all.length;
    if (all !== "%%" && used === values.length) raise("too few values for %");
    if (all !== "%%" && all !== "%s" && (all !== "%d" || !isInt(values[used]))) reject(`the format ${all}`);
    parts.push(all === "%%" ? "%" : printed(values[used++]));
  }
  return used < values.length ? raise("too many values for %") : joined([...parts, cut(of, at)]);
}

const replaced = (of: Text, old: Text, other: Text, count: Value = null): Text =>
  between(pieces(of, old.text, count ?? -1), other);

/** Return `of` in another letter case, which `change` gives to ASCII. */
function cased(of: Text, change: (text: string) => string): Text {
  const others = of.text.replace(/[\0-\x7f]+/g, "");
  if (/[\p{Cn}\p{Cased}]/u.test(others)) {
    reject(`another letter case of ${quoted(new Text(others))}`);
  }
  const text = change(of.text);
  return new Text(text, text.replace(/[^]/g, (each, at: number) => (of.own[at] === of.text[at] ? each : "\0")));
}
const upper = (of: Text): Text => cased(of, (each) => each.toUpperCase());
const lower = (of: Text): Text => cased(of, (each) => each.toLowerCase());
const capitalized = (of: Text): Text =>
  cased(of, (each) => each.slice(0, 1).toUpperCase() + each.slice(1).toLowerCase());
/** Return `of` with a capital at each start of a word. The filter and the method differ in them. */
const title = (of: Text, start: RegExp): Text =>
  cased(of, (each) => each.toLowerCase().replace(start, (letter) => letter.toUpperCase()));

function lengthOf(of: Value): number {
  if (isGenerator(of)) raise("a generator has no length");
  return itemsOf(of).length;
}

/** Return the function that reads the attribute of the filters map, join and selectattr. */
function reader(attribute: Value, missing: Value = null): (of: Value) => Value {
  const path = isInt(attribute)
    ? [attribute]
    : text(attribute)
        .split(".")
        .map((part) => (/^\d+$/.test(part) ? Number(part) : new Text(part)));
  return (of) =>
    path.reduce((found: Value, part) => {
      const item = itemOf(found, part);
      return item === undefined && missing !== null ? missing : item;
    }, of);
}

const generator = (of: Value[]): Items => new Items(of, 1);

const chosen = (isAttribute: boolean, isWanted: boolean): Operation => [
  "*",
  (of, [...args]: Value[], named) => {
    if (Object.keys(named).length) reject("a named argument of a test");
    const read = isAttribute ? reader(args.shift()) : (each: Value): Value => each;
    const name = args.length ? text(args.shift()) : null;
    const test = (each: Value): boolean => isTrue(name === null ? each : applied(TESTS, name, each, args));
    return generator(itemsOf(of).filter((each) => test(read(each)) === isWanted));
  },
];

const table = (operations: Readonly<Record<string, Operation>>): Operations => new Map(Object.entries(operations));

const fallback: Operation = [
  "default_value? boolean?",
  (of, ...[other, all]) => (of === undefined || (isTrue(all) && !isTrue(of)) ? other : of),
];
const length: Operation = ["", lengthOf];
const string: Operation = ["", printed];

export const FILTERS: Operations = table({
  d: fallback,
  default: fallback,
  length,
  count: length,
  string,
  safe: string,
  trim: ["chars?", (of, chars) => stripped(printed(of), 3, chars)],
  upper: ["", (of) => upper(printed(of))],
  lower: ["", (of) => lower(printed(of))],
  capitalize: ["", (of) => capitalized(printed(of))],
  title: ["", (of) => title(printed(of), TITLE)],
  replace: ["old new count?", (of, old, other, count) => replaced(printed(of), printed(old), printed(other), count)],
  join: [
    "d? attribute?",
    (of, separator = new Text(""), attribute = null) =>
      between(
        itemsOf(of).map(attribute === null ? printed : (each) => printed(reader(attribute)(each))),
        printed(separator),
      ),
  ],
  list: ["", (of) => [...itemsOf(of)]],
  first: ["", (of) => itemsOf(of)[0]],
  last: ["", (of) => (isGenerator(of) ? raise("last of a generator") : itemsOf(of).at(-1))],
  reverse: [
    "",
    (of) =>
      isText(of)
        ? joined(characters(of).reverse())
        : of === undefined || isGenerator(of)
          ? raise(`reverse of ${kind(of)}`)
          : generator([...itemsOf(of)].reverse()),
  ],
  items: ["", (of) => (of === undefined || of instanceof Map ? generator(pairsOf(of)) : raise(`items of ${kind(of)}`))],
  dictsort: [
    "",
    (of) => {
      if (!(of instanceof Map)) raise(`dictsort of ${kind(of)}`);
      const order = (one: Text, other: Text): number => (isLess(one, other) ? -1 : Number(isLess(other, one)));
      return pairsOf(of).sort(([one], [other]) => order(lower(one as Text), lower(other as Text)));
    },
  ],
  unique: [
    "",
    (of) => {
      const found = new Map<string, Value>();
      for (const each of itemsOf(of)) {
        const key = lower(isText(each) ? each : reject(`unique of ${kind(each)}`)).text;
        if (!found.has(key)) found.set(key, each);
      }
      return generator([...found.values()]);
    },
  ],
  int: [
    "",
    (of) => {
      if (of instanceof Float) return int(Math.trunc(of.of));
      return isInt(of)
        ? of
        : isText(of) && /^[-+]?\d+$/.test(of.text)
          ? int(Number(of.text))
          : reject(`int of ${isText(of) ? quoted(of) : kind(of)}`);
    },
  ],
  indent: [
    "width? first? blank?",
    (of, width = 4, first = false, blank = false) => {
      const space = isText(width) ? width : new Text(" ".repeat(min(MAX_INDENT + 1, max(0, whole(width)))));
      if (space.text.length > MAX_INDENT) reject("such a wide indent");
      const lines = partsOf(cut(of, 0, text(of).replace(/\r$/, "").length), LINE);
      return between(
        lines.map((line, index) =>
          (index ? isTrue(blank) || line.text : isTrue(first)) ? joined([space, line]) : line,
        ),
        "\n",
      );
    },
  ],
  tojson: [
    "ensure_ascii? indent? separators? sort_keys?",
    (of, isAscii = false, indent = null, separators = null, isSorted = false) => {
      if (isTrue(isAscii)) reject("tojson with ensure_ascii");
      if (indent !== null && !(whole(indent) >= 0 && indent <= MAX_JSON_INDENT)) reject(`tojson with indent ${indent}`);
      const between = separators ?? [indent === null ? ", " : ",", ": "].map((each) => new Text(each));
      if (!isList(between) || between.length !== 2 || !between.every(isText)) reject("tojson with these separators");
      return jsonOf(of, indent === null ? "" : "\n", " ".repeat(indent ?? 0), between, isTrue(isSorted));
    },
  ],
  map: [
    "*",
    (of, [name, ...args]: Value[], { attribute, default: missing, ...named }: Named) => {
      if (name !== undefined && attribute === undefined) {
        return generator(itemsOf(of).map((each) => applied(FILTERS, text(name), each, args, named)));
      }
      if (name !== undefined || Object.keys(named).length) reject("map with these arguments");
      return generator(itemsOf(of).map(reader(attribute, missing)));
    },
  ],
  select: chosen(false, true),
  reject: chosen(false, false),
  selectattr: chosen(true, true),
  rejectattr: chosen(true, false),
});

const equal: Operation = ["other", isEqual];

export const TESTS: Operations = table({
  defined: ["", (of) => of !== undefined],
  undefined: ["", (of) => of === undefined],
  none: ["", (of) => of === null],
  true: ["", (of) => of === true],
  false: ["", (of) => of === false],
  boolean: ["", (of) => typeof of === "boolean"],
  string: ["", isText],
  mapping: ["", (of) => of instanceof Map],
  number: ["", (of) => number(of) !== undefined],
  integer: ["", isInt],
  float: ["", (of) => of instanceof Float],
  iterable: ["", (of) => [Items, Map, Loop, Text, Array].some((each) => of instanceof each) || of === undefined],
  sequence: [
    "",
    (of) =>
      of instanceof Items
        ? reject("sequence of a generator")
        : [Map, Text, Array].some((each) => of instanceof each) || of === undefined,
  ],
  odd: ["", (of) => whole(of) % 2 !== 0],
  even: ["", (of) => whole(of) % 2 === 0],
  divisibleby: ["num", (of, by) => computed("%", of, by) === 0],
  in: ["seq", isIn],
  eq: equal,
  equalto: equal,
  ne: ["other", (of, other) => !isEqual(of, other)],
  lt: ["other", isLess],
  gt: ["other", (of, other) => isLess(other, of)],
  le: ["other", (of, other) => isLess(of, other) || isEqual(of, other)],
  ge: ["other", (of, other) => isLess(other, of) || isEqual(of, other)],
});

const pairsOf = (of: Map<string, [Text, Value]> | undefined): Tuple[] =>
  [...(of?.values() ?? [])].map((pair) => Tuple.from(pair) as Tuple);

export const METHODS: Operations = table({
  cycle: ["*", (of, args) => (args.length ? args[of.fields.index0 % args.length] : raise("loop.cycle of nothing"))],
  get: [
    "key default?",
    (of, key, ...other) => (of.has(text(key)) ? of.get(key.text)[1] : other.length ? other[0] : null),
  ],
  items: ["", (of) => new Items(pairsOf(of))],
  keys: ["", (of) => new Items(itemsOf(of))],
  values: ["", (of) => new Items(pairsOf(of).map(([, each]) => each as Value))],
  strip: ["chars?", (of, chars) => stripped(of, 3, chars)],
  lstrip: ["chars?", (of, chars) => stripped(of, 1, chars)],
  rstrip: ["chars?", (of, chars) => stripped(of, 2, chars)],
  upper: ["", upper],
  lower: ["", lower],
  capitalize: ["", capitalized],
  title: ["", (of) => title(of, /(?<![A-Za-z])[a-z]/g)],
  replace: ["old new count?", (of, old, other, count) => replaced(of, checked(old), checked(other), count)],
  split: [
    "sep? maxsplit?",
    (of, separator = null, count) =>
      separator === null
        ? count === undefined
          ? partsOf(of, SPACES).filter(isTrue)
          : reject("split with maxsplit alone")
        : pieces(of, text(separator), count),
  ],
  rsplit: [
    "sep maxsplit?",
    (of, separator, count) =>
      pieces(reversed(of), reversed(checked(separator)).text, count).map(reversed).reverse(),
  ],
  partition: [
    "sep",
    (of, separator) => {
      const [before, after] = pieces(of, text(separator), 1);
      const end = before!.text.length;
      return Tuple.of(before, cut(of, end, after && end + separator.text.length), after ?? new Text(""));
    },
  ],
  removeprefix: ["prefix", (of, start) => (of.text.startsWith(text(start)) ? cut(of, start.text.length) : of)],
  removesuffix: [
    "suffix",
    (of, end) => (of.text.endsWith(text(end)) ? cut(of, 0, of.text.length - end.text.length) : of),
  ],
  splitlines: ["", (of) => partsOf(of, LINE).filter(({ text }, at, all) => text || at < all.length - 1)],
  startswith: [
    "prefix",
    (of, all) => (all instanceof Tuple ? all : [all]).some((each) => of.text.startsWith(text(each))),
  ],
  endswith: ["suffix", (of, all) => (all instanceof Tuple ? all : [all]).some((each) => of.text.endsWith(text(each)))],
  join: ["iterable", (of, all) => between(itemsOf(all).map(checked), of)],
  find: [
    "sub",
    (of, sub) => (of.text.includes(text(sub)) ? [...of.text.slice(0, of.text.indexOf(sub.text))].length : -1),
  ],
});

/** Return the result of a method of a text or a mapping, or of loop.cycle. */
export function called(of: Value, name: string, args: Value[]): Value {
  const isRight = /^(get|items|keys|values)$/.test(name)
    ? of instanceof Map
    : name === "cycle"
      ? of instanceof Loop
      : isText(of);
  return isRight ? applied(METHODS, name, of, args) : raise(`.${name}() of ${kind(of)}`);
}

/** Return the result of a filter, test or method. */
export function applied(operations: Operations, name: string, of: Value, args: Value[], named: Named = {}): Value {
  const [parameters, run] = operation(operations, name, args.length, Object.keys(named));
  const isDefault = operations === FILTERS && /^d(efault)?$/.test(name);
  const others = [...args, ...Object.values(named)];
  const factor = others.length && !isDefault ? weigh(others) : 1;
  let units;
  if (operations === METHODS) units = isText(of) ? of.text.length : 50 * (of.size ?? 1);
  else units = operations === FILTERS && IS_SHALLOW.test(name) ? 8 * (of?.length ?? of?.size ?? 1) : weigh(of);
  charge(CALL + units * (operations === FILTERS || (isText(of) && IS_PRODUCT.test(name)) ? factor : 1));
  if (parameters === "*") return run(of, args, named);
  const given = [...args];
  if (isDefault)
    given[0] = args.length || "default_value" in named ? args[0] : new Text("");
  parameters.split(" ").forEach((parameter, index) => {
    const key = parameter.replace("?", "");
    if (key in named) given[index] = named[key];
  });
  if (args.includes(undefined) && !/^(d|default|get|eq|equalto|ne|in)$/.test(name))
    reject(`an undefined argument of ${name}`);
  return run(of, ...given);
}

/** Return a filter, test or method, if it takes such arguments. */
export function operation(operations: Operations, name: string, count: number, keys: readonly string[]): Operation {
  const what = operations === FILTERS ? "filter" : operations === TESTS ? "test" : "method";
  const found = operations.get(name) ?? reject(`the ${what} ${name}`);
  const [parameters] = found;
  if (parameters === "*") return found;
  const all = parameters ? parameters.split(" ") : [];
  const isGiven = (parameter: string, index: number): boolean =>
    index < count || keys.includes(parameter) || parameter.endsWith("?");
  const isNamed = (key: string): boolean => operations === FILTERS && all.indexOf(`${key}?`) >= count;
  return count <= all.length && all.every(isGiven) && keys.every(isNamed)
    ? found
    : reject(`the ${what} ${name} with these arguments`);
}

export const FUNCTIONS: Readonly<Record<string, Callable>> = {
  range: (args) => {
    const [first, second, by = 1] = args.map(whole);
    const [from, to] = second === undefined ? [0, first!] : [first!, second];
    const count = max(0, ceil((to - from) / (by || raise("a step of 0"))));
    if (args.length < 1 || args.length > 3 || count > MAX_RANGE) reject("such a range");
    charge(count);
    return new Items(Array.from({ length: count }, (_, index) => from + index * by));
  },
  namespace: (args, named) => {
    const found = new Namespace();
    for (const [name, each] of Object.entries(named)) found.of.set(name, each);
    return args.length ? reject("a namespace of a value") : found;
  },
  dict: (args, named) =>
    args.length
      ? reject("dict of a value")
      : mapFrom(Object.entries(named).map(([key, each]) => [new Text(key), each])),
  raise_exception: ([message]) => raise(printed(message).text.slice(0, 1000)),
  strftime_now: ([format]) => new Text(formattedNow(text(format))),
};

/** Return the local time, formatted as Python's strftime does. */
function formattedNow(format: string): string {
  if (format.length > MAX_FORMAT || /\d/.test(format)) reject("such a format of a time");
  const now = new Date();
  const [a, b, d, Y, time] = now.toString().split(" ");
  const [H, M, S] = time!.split(":");
  const m = String(now.getMonth() + 1).padStart(2, "0");
  const long = (part: string): string => now.toLocaleString("en", { [part]: "long" });
  const day = String(now.getDate());
  const parts: Record<string, unknown> = {
    ...{ a, b, d, Y, H, M, S, m, A: long("weekday"), B: long("month"), y: Y!.slice(2) },
    ...{ "-d": day, e: day.padStart(2) },
  };
  return format.replace(/%(-?[^]?)/g, (all, name: string) => String(parts[name] ?? reject(all)));
}

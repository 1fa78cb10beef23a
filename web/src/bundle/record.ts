/** Strict checks of untrusted JSON: types, ranges and unknown fields. */

import { reject, shown } from "../errors.js";

/** Maximum size of a JSON file, in bytes. */
export const MAX_JSON_BYTES = 64 * 2 ** 20;

/** Function that throws the error for a wrong value. */
export type Reject = (received: string, expected: string) => never;

/** A check of one value. It calls `fail` if the value is wrong. `path` names the value in errors. */
export type Check = (value: unknown, path: string, fail: Reject) => void;

export type JsonObject = Readonly<Record<string, unknown>>;
type Checks = Readonly<Record<string, Check>>;

export const isObject = (value: unknown): value is JsonObject =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** Check for a value for which `isValid` is true. */
export const valid =
  (isValid: (value: unknown) => boolean, expected: string): Check =>
  (value, path, fail) => {
    if (!isValid(value)) fail(`${path} = ${shown(value)}`, expected);
  };

const isWithin = (value: unknown, min: number, max: number): boolean => (value as number) >= min && (value as number) <= max;

/** Check for a whole number from `min` to `max`. */
export const int = (min: number, max: number): Check =>
  valid((value) => Number.isInteger(value) && isWithin(value, min, max), `a whole number from ${min} to ${max}`);

/** Check for a finite number from `min` to `max`, or above `min`. */
export const float = (min: number, max: number, above = false): Check =>
  valid(
    (value) => typeof value === "number" && isWithin(value, min, max) && !(above && value === min),
    `a number ${above ? "above" : "from"} ${min} to ${max}`,
  );

export const bool = valid((value) => typeof value === "boolean", "true or false");

/** Check for a string that matches `pattern`, of at most `max` characters. */
export const text = (max: number, pattern = /^[^]+$/u, expected = `text of 1 to ${max} characters`): Check =>
  valid((value) => typeof value === "string" && value.length <= max && pattern.test(value), expected);

/** Check for one of several values. */
export const choice = (...values: readonly unknown[]): Check =>
  valid((value) => values.includes(value), `one of ${values.map(shown).join(", ")}`);

/** Check for `other`, or a value that `check` accepts. */
export const either =
  (other: unknown, check: Check): Check =>
  (value, path, fail) => {
    if (value !== other) check(value, path, fail);
  };

export const nullable =
  (check: Check): Check =>
  (value, path, fail) => {
    if (value != null) check(value, path, fail);
  };

/** Check for a list of at most `max` values that `check` accepts. */
export const list = (check: Check, max: number): Check => {
  const isList = valid((value) => Array.isArray(value) && value.length <= max, `a list of at most ${max} values`);
  return (value, path, fail) => {
    isList(value, path, fail);
    (value as unknown[]).forEach((each, index) => check(each, `${path}[${index}]`, fail));
  };
};

/** Accept anything. */
export const anything: Check = () => undefined;

export const anObject = valid(isObject, "an object");

/** Check for an object with values that `check` accepts. */
export const map =
  (check: Check): Check =>
  (value, path, fail) => {
    anObject(value, path, fail);
    for (const [name, each] of Object.entries(value as JsonObject)) check(each, `${path}.${name}`, fail);
  };

/** Check for an object with these fields and no others. */
export const record = (required: Checks, optional: Checks = {}): Check => {
  const fields = new Map(Object.entries({ ...required, ...optional }));
  return (value, path, fail) => {
    anObject(value, path, fail);
    for (const name in required) {
      if (!Object.hasOwn(value as JsonObject, name)) fail(`no ${path}.${name}`, `an object with ${name}`);
    }
    for (const [name, each] of Object.entries(value as JsonObject)) {
      const check = fields.get(name);
      if (check) check(each, `${path}.${name}`, fail);
      else fail(`the unknown field ${path}.${name}`, `fields among ${[...fields.keys()].join(", ")}`);
    }
  };
};

/** Return the JSON object in `bytes`. Throws BadInputError for anything else. */
export function objectFromJson(bytes: Uint8Array, source: string, remedy: string): JsonObject {
  const expected = "a JSON object";
  let [value, text]: unknown[] = [];
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    value = JSON.parse(text as string);
  } catch (error) {
    reject(`${source} is not JSON, but ${shown(text)}`, expected, remedy, error);
  }
  if (!isObject(value)) reject(`${source} is not a JSON object`, expected, remedy);
  return value;
}

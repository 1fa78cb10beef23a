/** Strict checks of untrusted JSON: types, ranges and unknown fields. */

import { BadInputError, shown } from "../errors.js";

/** Maximum size of a JSON file, in bytes. */
export const MAX_JSON_BYTES = 64 * 2 ** 20;

/** A check of one value. It returns what is expected instead, or null. `path` names the value in errors. */
export type Check = (value: unknown, path: string) => Problem | null;

export interface Problem {
  readonly received: string;
  readonly expected: string;
}

export type JsonObject = Readonly<Record<string, unknown>>;

function problem(path: string, value: unknown, expected: string): Problem {
  return { received: `${path} = ${shown(value)}`, expected };
}

export function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Check for a whole number from `min` to `max`. */
export function int(min: number, max: number): Check {
  return (value, path) =>
    Number.isInteger(value) && (value as number) >= min && (value as number) <= max
      ? null
      : problem(path, value, `a whole number from ${min} to ${max}`);
}

/** Check for a finite number from `min` to `max`, or above `min`. */
export function float(min: number, max: number, above = false): Check {
  return (value, path) =>
    typeof value === "number" && value >= min && value <= max && !(above && value === min)
      ? null
      : problem(path, value, `a number ${above ? "above" : "from"} ${min} to ${max}`);
}

export const bool: Check = (value, path) =>
  typeof value === "boolean" ? null : problem(path, value, "true or false");

/** Check for a string that matches `pattern`, of at most `max` characters. */
export function text(max: number, pattern = /^[^]+$/u, expected = `text of 1 to ${max} characters`): Check {
  return (value, path) =>
    typeof value === "string" && value.length <= max && pattern.test(value) ? null : problem(path, value, expected);
}

/** Check for one of several values. */
export function choice(...values: readonly unknown[]): Check {
  return (value, path) =>
    values.includes(value) ? null : problem(path, value, `one of ${values.map(shown).join(", ")}`);
}

/** Check for null, or a value that `check` accepts. */
export function nullable(check: Check): Check {
  return (value, path) => (value === null ? null : check(value, path));
}

/** Check for a list of at most `max` values that `check` accepts. */
export function list(check: Check, max: number): Check {
  return (value, path) =>
    Array.isArray(value) && value.length <= max
      ? first(value.map((each, index) => () => check(each, `${path}[${index}]`)))
      : problem(path, value, `a list of at most ${max} values`);
}

/** Check for an object with values that `check` accepts. */
export function map(check: Check): Check {
  return (value, path) =>
    isObject(value)
      ? first(Object.entries(value).map(([name, each]) => () => check(each, `${path}.${name}`)))
      : problem(path, value, "an object");
}

/** Check for an object with these fields and no others. */
export function record(required: Readonly<Record<string, Check>>, optional: Readonly<Record<string, Check>> = {}): Check {
  const fields = new Map([...Object.entries(required), ...Object.entries(optional)]);
  return (value, path) => {
    if (!isObject(value)) return problem(path, value, "an object");
    const missing = Object.keys(required).find((name) => !Object.hasOwn(value, name));
    if (missing !== undefined) return { received: `no ${path}.${missing}`, expected: `an object with ${missing}` };
    return first(
      Object.entries(value).map(([name, each]) => () => {
        const check = fields.get(name);
        if (check === undefined) return { received: `the unknown field ${path}.${name}`, expected: "known fields" };
        return check(each, `${path}.${name}`);
      }),
    );
  };
}

/** Accept anything. */
export const anything: Check = () => null;

function first(checks: readonly (() => Problem | null)[]): Problem | null {
  for (const check of checks) {
    const found = check();
    if (found !== null) return found;
  }
  return null;
}

/** Return the JSON object in `bytes`. Throws BadInputError for anything else. */
export function objectFromJson(bytes: Uint8Array, source: string, remedy: string): JsonObject {
  const expected = "a JSON object";
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (error) {
    throw new BadInputError(`${source} is not JSON`, { expected, remedy }, error);
  }
  if (!isObject(value)) throw new BadInputError(`${source} is not a JSON object`, { expected, remedy });
  return value;
}
